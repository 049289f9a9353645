"""Normalizations: how exporters write them, and which of ONNX's operators they become.

onnxruntime runs some of these at older opsets, too, but then the standard does not have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt import ir
from graphopt.context import Refusal
from graphopt.rewrite import Match
from graphopt.rewrite.builder import Builder, Operand
from graphopt.rules import _forms as forms


@dataclass(frozen=True)
class Kind:
    """A normalization over the last axes: ONNX's operator, and since which opset there is one."""

    name: str
    since: int


LAYER, RMS = Kind("LayerNormalization", 17), Kind("RMSNormalization", 23)
#: All operators that are a normalization with a scale; the last is onnxruntime's own.
OPERATORS = (LAYER.name, RMS.name, "SimplifiedLayerNormalization")


def write(
    op: Builder,
    m: Match,
    kind: Kind,
    operands: Sequence[Operand],
    dtype: ir.DataType,
    axis: int,
    epsilon: float,
) -> ir.Value | Refusal:
    """A normalization of operands of ``dtype`` that computes in float at least, as ONNX says by default."""
    x = operands[0]
    assert isinstance(x, ir.Value)
    if (refusal := forms.unavailable(m, kind.name, x, domain="", since=kind.since)) is not None:
        return refusal
    attributes = {"axis": axis, "epsilon": epsilon}
    if dtype == ir.DataType.DOUBLE:
        attributes["stash_type"] = int(dtype)
    result = op.fused(op.node(kind.name, operands, attributes))
    assert isinstance(result, ir.Value)
    return result


def reduced(m: Match, node: ir.Node, rank: int) -> int | None:
    """The first of the axes that a ReduceMean takes away, if they are the last ones and stay as 1."""
    axes = forms.axes_of(m, node)
    if not axes or m.attribute(node, "keepdims") != 1 or sorted(axes) != list(range(min(axes), rank)):
        return None
    return min(axes)


#: A scale of 1 for each of more elements than this would be a large constant.
_MANY = 4096


def is_spatial(m: Match, x: ir.Value, first: int) -> bool:
    """Whether the axes of ``x`` from ``first`` on are places of a channel, axis 1, not features of a token.

    Features are scaled one by one, places of a channel together.
    """
    shape = m.shape(x)
    if shape is None or first != 2 or not isinstance(shape[1], int):
        return False
    size = ir.all_ints(shape[2:])
    if len(shape) == 3 and size is not None and math.prod(size) <= _MANY:
        return False
    for node in ir.readers(m.root.outputs[0]):
        factors = [value for value in node.inputs if value is not None and value is not m.root.outputs[0]]
        scales = node.op_type == "Mul" and not node.domain and len(factors) == 1
        scale = m.shape(factors[0]) if scales else None
        if scale and shape[-1] != 1 and m.cx.facts.dim_equal(scale[-1], shape[-1]):
            return False
    return True


# What exporters write -------------------------------------------------------------------------


def _squares(op: Any, x: Any) -> Iterator[Any]:
    """x squared."""
    yield op.Pow(x, 2)
    yield op.Mul(x, x)


def _quotients(op: Any, x: Any, variance: Any) -> Iterator[Any]:
    """x over the root of ``variance``."""
    yield from _over_root(op, x, variance)
    yield op.Mul(x, op.Div(1, op.Sqrt(variance)))
    yield op.Mul(x, op.Sqrt(op.Reciprocal(variance)))
    yield op.Div(x, op.Pow(variance, 0.5))
    yield op.Mul(x, op.Pow(variance, -0.5))


def _over_root(op: Any, x: Any, variance: Any) -> Iterator[Any]:
    yield op.Div(x, op.Sqrt(variance))
    yield op.Mul(x, op.Reciprocal(op.Sqrt(variance)))


def _variance(op: Any, square: Any, axes: Any, eps: Any) -> Any:
    return op.Add(op.ReduceMean(square, axes.rest()), eps.constant())


def layer_norms(op: Any, x: Any, a: Any, b: Any, eps: Any) -> Iterator[Any]:
    """(x - mean) / sqrt(mean of squares + eps)."""
    deviation = op.Sub(x, op.ReduceMean(x, a.rest()))
    for square in _squares(op, deviation):
        yield from _quotients(op, deviation, _variance(op, square, b, eps))
        yield from _over_root(op, deviation, op.ReduceMean(square, b.rest()))


def rms_norms(op: Any, x: Any, b: Any, eps: Any) -> Iterator[Any]:
    """x / sqrt(mean of squares + eps)."""
    for square in _squares(op, x):
        yield from _quotients(op, x, _variance(op, square, b, eps))
        yield from _over_root(op, x, op.ReduceMean(square, b.rest()))


def scaled_rms_norms(op: Any, x: Any, b: Any, eps: Any, scale: Any) -> Iterator[Any]:
    """x / sqrt(mean of squares + eps) * scale, but for the form that onnxruntime fuses by itself."""
    for square in _squares(op, x):
        variance = _variance(op, square, b, eps)
        for core in _quotients(op, x, variance):
            if square.op_types != ("Pow",) or core.op_types != ("Div",):
                yield op.Mul(core, scale.constant())


def distributed_layer_norms(
    op: Any, x: Any, a: Any, b: Any, eps: Any, scale: Any, bias: Any
) -> Iterator[Any]:
    """What TensorFlow writes, ``x * r + (bias - mean * r)`` with ``r`` the inverse root times scale."""
    mean = op.ReduceMean(x, a.rest())
    for square in _squares(op, op.Sub(x, mean)):
        inverse = op.Mul(op.Reciprocal(op.Sqrt(_variance(op, square, b, eps))), scale)
        yield op.Add(op.Mul(x, inverse), op.Sub(bias, op.Mul(mean, inverse)))
