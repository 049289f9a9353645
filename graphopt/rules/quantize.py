"""QuantizeLinear and DequantizeLinear: round trips that give back the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Exact, Match, Outcome, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules._forms import operand

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
    "Transpose",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Gather",
    "Expand",
    "Tile",
    "DepthToSpace",
    "SpaceToDepth",
)


@rule(
    lambda op, x, a, b, rest: op.QuantizeLinear(
        op.one_of(*_MOVES)(op.DequantizeLinear(x, a.rest(), tag="dequantize"), rest.rest(), tag="move"),
        b.rest(),
    ),
    numerics=Exact,
    tags=("onnxruntime:DropQDQ",),
)
def move_quantized(op: Builder, m: Match, x: ir.Value, a: Any, b: Any, rest: Any) -> Outcome:
    """What only moves elements moves the quantized ones as well."""
    move, dequantize = m.node("move"), m.node("dequantize")
    if m.dtype(x) not in (ir.DataType.INT8, ir.DataType.UINT8):
        return m.no("not 8-bit integers", x)
    scale = m.constant(dequantize.inputs[1])
    if scale is None or scale.size != 1 or scale.ndim > 1:
        return m.no("each channel has a scale of its own", dequantize.inputs[1])
    if not m.only_use(move.outputs[0]):
        return m.no("others read the moved elements", move.outputs[0])
    fault = _gives_back(m, dequantize, m.root)
    return op.like(move, [x, *rest]) if fault is None else m.no(fault, x)
