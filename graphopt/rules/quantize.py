"""QuantizeLinear and DequantizeLinear: round trips that give back the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Exact, Match, Outcome, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules._forms import operand, perm_of

#: Integers that float32 multiplies and divides by a scale with an error below one half.
_QUANTIZED = frozenset(
    {
        ir.DataType.INT4,
        ir.DataType.UINT4,
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.INT16,
        ir.DataType.UINT16,
    }
)


def _gives_back(m: Match, dequantize: ir.Node, quantize: ir.Node) -> str | None:
    """Why ``quantize`` may not undo ``dequantize``; ``None`` if it does, for every integer."""
    x, y = dequantize.inputs[0], quantize.outputs[0]
    if x is None or m.dtype(x) not in _QUANTIZED or m.dtype(y) != m.dtype(x):
        return "not the same type of integers"
    for name in ("axis", "block_size", "precision"):
        a, b = m.attribute(dequantize, name), m.attribute(quantize, name)
        if isinstance(a, ir.Attr) or isinstance(b, ir.Attr):
            return "an attribute is unknown"
        if name != "precision" and a != b:
            return f"another {name.replace('_', ' ')}"
        if name == "precision" and b:
            return "quantized in another precision"
    scales = [m.constant(node.inputs[1]) for node in (dequantize, quantize)]
    a, b = scales
    if a is None or b is None or a.dtype != np.float32 or not _same(a, b):
        return "not the same constant scale in float32"
    # |x - zero point| is below 2 ** 17, and x * scale must neither overflow nor be a denormal number
    if not np.all((a > 2.0**-100) & (a < 2.0**100)):
        return "a scale is not a positive, ordinary number"
    points = [_zero_point(m, node) for node in (dequantize, quantize)]
    if (
        points[0] is None
        or points[1] is None
        or not _same(np.broadcast_to(points[0], a.shape), np.broadcast_to(points[1], a.shape))
    ):
        return "another zero point"
    return None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b)


def _zero_point(m: Match, node: ir.Node) -> np.ndarray | None:
    value = operand(node, 2)
    if value is not None:
        return m.constant(value)
    data = node.inputs[0] if node.op_type == "DequantizeLinear" else node.outputs[0]
    dtype = None if data is None else m.dtype(data)
    return None if dtype is None else np.zeros((), dtype.numpy())


@rule(
    lambda op, x, a, b: op.QuantizeLinear(op.DequantizeLinear(x, a.rest(), tag="dequantize"), b.rest()),
    numerics=Exact,
    tags=("onnxruntime:DoubleQDQPairsRemover",),
)
def drop_round_trip(op: Builder, m: Match, x: ir.Value, a: Any, b: Any) -> Outcome:
    """Dequantizing integers and quantizing them again, by the same constants, changes nothing."""
    fault = _gives_back(m, m.node("dequantize"), m.root)
    return x if fault is None else m.no(fault, x)


#: Move elements without looking at them; runtimes have them for 8-bit integers.
_MOVES = (
    *("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    *("Slice", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth"),
)
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@rule(
    lambda op, x, b: op.QuantizeLinear(op.one_of(*_MOVES)(x.rest()), b.rest()),
    numerics=Exact,
    tags=("onnxruntime:DropQDQ",),
)
def move_quantized(op: Builder, m: Match, x: Any, b: Any) -> Outcome:
    """What only moves elements between DequantizeLinear and QuantizeLinear moves quantized ones as well."""
    moves: list[ir.Node] = []
    value = m.root.inputs[0]
    while value is not None and (node := value.producer()) is not None and _is_move(m, node):
        if not m.only_use(value):
            return m.no("others read the moved elements", value)
        moves.append(node)
        value = node.inputs[0]
    dequantize = None if value is None else value.producer()
    if dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.graph is not m.graph:
        return m.no("what is moved has not been dequantized here", value)
    data, scale = dequantize.inputs[0], m.constant(dequantize.inputs[1])
    if data is None or m.dtype(data) not in _BYTES:
        return m.no("not 8-bit integers", data)
    if scale is None or scale.size != 1 or scale.ndim > 1:
        return m.no("each channel has a scale of its own", dequantize.inputs[1])
    fault = _gives_back(m, dequantize, m.root)
    if fault is not None:
        return m.no(fault, data)
    for node in reversed(moves):
        data = op.like(node, [data, *node.inputs[1:]])
    return data


def _is_move(m: Match, node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in _MOVES or node.graph is not m.graph:
        return False
    return node.op_type != "DepthToSpace" or m.version >= 11  # before, runtimes have it for floats only


@rule(
    lambda op, x, s, z, rest: op.one_of("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze")(
        op.DequantizeLinear(x.constant(), s, z.optional(), tag="dequantize"), rest.rest()
    ),
    numerics=Exact,
    exclusive=True,
)
def move_before_dequantizing(
    op: Builder, m: Match, x: ir.Value, s: ir.Value, z: ir.Value | None, rest: Any
) -> Outcome:
    """A view or Transpose of a dequantized constant is the view, which is constant too, dequantized."""
    dequantize, view = m.node("dequantize"), m.root
    if m.dtype(x) not in _BYTES or isinstance(axis := m.attribute(dequantize, "axis"), ir.Attr):
        return m.no("not 8-bit integers, or the axis is unknown", x)
    rank, changed = m.rank(x), {}
    if m.rank(s) != 0:
        perm = perm_of(m, view) if view.op_type == "Transpose" else None
        if (
            perm is None
            or m.rank(s) != 1
            or rank is None
            or axis is None
            or m.attribute(dequantize, "block_size")
        ):
            return m.no("the scales lie along an axis that the view changes", s)
        changed = {"axis": perm.index(axis % rank)}
    return op.like(dequantize, [op.like(view, [x, *rest]), s, z], **changed)


@rule(
    lambda op, x, s, z: op.QuantizeLinear(op.Relu(x), s.constant(), z.optional()),
    numerics=Exact,
    exclusive=True,
    tags=("onnxruntime:ReluQuantFusion",),
)
def drop_relu_before_quantizing(
    op: Builder, m: Match, x: ir.Value, s: ir.Value, z: ir.Value | None
) -> Outcome:
    """Where zero is the least quantized number, negative numbers are quantized to it anyway."""
    scale, dtype = m.constant(s), m.dtype(m.root.outputs[0])
    point = _zero_point(m, m.root)
    if scale is None or not np.all(np.isfinite(scale) & (scale > 0)):
        return m.no("a scale is not a positive number", s)
    if dtype not in (*_BYTES, ir.DataType.INT16, ir.DataType.UINT16) or point is None:
        return m.no("not the type of integers, or the zero point is not constant", z)
    if np.any(point != np.iinfo(dtype.numpy()).min):
        return m.no("negative numbers have quantized ones of their own", z)
    return op.like(m.root, [x, *m.root.inputs[1:]])
