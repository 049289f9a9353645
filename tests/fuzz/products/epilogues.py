"""Random elementwise nodes after a product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from tests.fuzz.products.product_graph import Dim, ProductGraph

_UNARY = ("Relu", "Sigmoid", "Tanh", "Abs", "Erf", "Neg")
_KINDS = (
    "unary", "unary", "unary", "silu", "scalar", "vector", "channel", "residual", "broadcast", "half", "self",
    "transpose", "clip", "where", "leaky",
)  # fmt: skip


def add_epilogue(
    g: ProductGraph, product: str, dims: Sequence[Dim], channel: int | None = None, most: int = 4
) -> str:
    """The last of up to ``most`` elementwise nodes, which becomes an output, and now and then a value before it.

    Args:
        dims: the shape of ``product``.
        channel: its axis of channels, with a known size.
    """
    value, dims, is_moved = product, list(dims), False
    for _ in range(int(g.random.integers(most + 1))):
        kind = str(g.random.choice(_KINDS))
        if kind == "transpose" and len(dims) > 1:
            order = [int(axis) for axis in g.random.permutation(len(dims))]
            value = g.node("Transpose", [value], perm=order)
            dims, is_moved = [dims[axis] for axis in order], True
        elif kind == "self" and not is_moved:
            value = g.node("Add", [value, product])
        elif kind == "channel" and channel is not None and not is_moved:
            shape = [dims[channel], *[1] * (len(dims) - 1 - channel)]
            value = g.node(g.pick("Add", "Mul"), [value, g.constant(g.normal(*shape))])  # type: ignore[arg-type]
        else:
            value = _elementwise(g, kind, value, dims)
        if g.chance(0.1):
            g.output(value)
    if g.chance(0.15):
        g.output(product)
    g.output(value)
    return value


def _elementwise(g: ProductGraph, kind: str, value: str, dims: Sequence[Dim]) -> str:
    """A node of ``kind``, or ``value`` if its shape does not allow it."""
    known = [dim for dim in dims if dim is not None]
    if kind == "unary":
        return g.node(g.pick(*_UNARY), [value])
    if kind == "silu":
        return g.node("Mul", [value, g.node("Sigmoid", [value])])
    if kind == "scalar":
        return g.node(g.pick("Add", "Mul"), [value, g.constant(g.normal())])
    if kind == "vector" and dims and isinstance(dims[-1], int):
        return g.node(g.pick("Add", "Mul", "Sub", "Max"), [value, g.constant(g.normal(dims[-1]))])
    if kind == "residual" and len(known) == len(dims):
        op = g.pick("Add", "Sub", "Mul")
        operands = [value, _operand(g, op, known)]
        return g.node(op, operands if g.chance(0.5) else operands[::-1])
    if kind == "broadcast" and dims and len(known) == len(dims):
        shape = [1 if g.chance(0.5) else dim for dim in known]
        op = g.pick("Add", "Mul")
        return g.node(op, [value, _operand(g, op, shape[int(g.random.integers(len(shape))) :])])
    if kind == "half":
        half = g.tie(g.node("Cast", [value], to=TensorProto.FLOAT16))
        return g.node("Cast", [half], to=TensorProto.FLOAT)
    if kind == "clip":
        return g.node("Clip", [value, g.constant(np.float32(-1)), g.constant(np.float32(1.5))])
    if kind == "where":
        less = g.tie(g.node("Less", [value, g.constant(np.float32(0.1))]))
        return g.node("Where", [less, g.node("Neg", [value]), value])
    if kind == "leaky":
        return g.node("LeakyRelu", [value], alpha=0.1)
    return value


def _operand(g: ProductGraph, op: str, dims: Sequence[int | str]) -> str:
    """An input. Factors are finite: infinity times a denormal number, or zero if that is rounded, differ."""
    return g.input(dims, may_be_special=op != "Mul")
