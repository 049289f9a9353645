"""Chains of Relu, Clip, Min and Max with constant bounds become one node."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks.broadcasting import keeps_shape
from graphopt.rules.building_blocks.computed_constants import affordable, limits
from graphopt.rules.building_blocks.element_type_sets import FLOATS, INTEGERS
from graphopt.rules.building_blocks.operands import operand, other_operand
from graphopt.util.lazy_dataclass import dataclass

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


@dataclass(frozen=True)
class _Clamp:
    """A node that computes max(x, low) and then min(…, high).

    Attributes:
        is_clip: whether the node is a Clip. Without a bound, Clip limits to finite numbers, unlike Relu, Min
            and Max.
    """

    x: ir.Value
    low: float | int
    high: float | int
    is_clip: bool

    def range(self) -> tuple[float | int, float | int]:
        """The minimum and the maximum result; ``high`` for both if ``low`` exceeds it."""
        return min(self.low, self.high), self.high


def _finite_range(dtype: ir.DataType) -> tuple[float | int, float | int]:
    if dtype in INTEGERS:
        integers = np.iinfo(dtype.numpy())
        return int(integers.min), int(integers.max)
    floats = limits(dtype.numpy())
    return floats.lowest, floats.highest


def _clamp(m: Match, node: ir.Node) -> _Clamp | None:
    """``node`` as constant bounds; ``None`` if it is another operator or its bounds vary."""
    x = node.inputs[0]
    if x is None or (dtype := m.dtype(node.outputs[0])) not in FLOATS | INTEGERS:
        return None
    lowest, highest = _finite_range(dtype)
    match node.op_type:
        case "Relu":
            return _Clamp(x, 0, math.inf, False)
        case "Clip":
            return _clip(m, node, x, lowest, highest)
    if len(node.inputs) != 2 or m.version < 8:
        return None
    for x, bound in (node.inputs, reversed(node.inputs)):
        number = ir.scalar_of(bound)
        if x is None or bound is None or number is None or math.isnan(number) or not keeps_shape(m, x, bound):
            continue
        if node.op_type == "Max":
            return _Clamp(x, number, math.inf, False)
        return _Clamp(x, -math.inf, number, False)
    return None


def _clip(m: Match, node: ir.Node, x: ir.Value, lowest: float, highest: float) -> _Clamp | None:
    bounds: list[Any] = []
    if m.version < 11:
        if m.dtype(node.outputs[0]) != _FLOAT:
            return None
        bounds = [m.attribute(node, "min"), m.attribute(node, "max")]
    else:
        for index, missing in ((1, lowest), (2, highest)):
            value = operand(node, index)
            bounds.append(missing if value is None else ir.scalar_of(value))
    if any(bound is None or math.isnan(bound) for bound in bounds):
        return None
    return _Clamp(x, bounds[0], bounds[1], True)


def _joined(op: Builder, m: Match) -> Outcome:
    """One node that replaces the two matched nodes."""
    outer, inner = _clamp(m, m.root), _clamp(m, m.node("inner"))
    dtype = m.dtype(m.root.outputs[0])
    if outer is None or inner is None or dtype is None or outer.x is not m.node("inner").outputs[0]:
        return m.no("the bounds are not numbers")
    (a, b), (c, d) = inner.range(), outer.range()
    if any(u == v == 0 and math.copysign(1, u) != math.copysign(1, v) for u, v in ((a, c), (b, d))):
        return m.no("one bound is 0.0, the other -0.0")
    low, high = min(max(a, c), d), min(max(b, c), d)
    if low == high == 0 and dtype in FLOATS:
        return m.no("the result is always 0, but -0.0 would pass")
    number = dtype.numpy()
    if inner.is_clip or outer.is_clip or (low != -math.inf and high != math.inf):
        return _make_clip(op, m, inner.x, low, high, dtype, inner.is_clip or outer.is_clip)
    if high == math.inf:
        return (
            op.Relu(inner.x)
            if low == 0 and "Relu" in (m.root.op_type, m.node("inner").op_type)
            else (op.Max(inner.x, np.array(low, number)))
        )
    return op.Min(inner.x, np.array(high, number))


def _make_clip(
    op: Builder, m: Match, x: ir.Value, low: float, high: float, dtype: ir.DataType, was_clip: bool
) -> Outcome:
    if m.version < 11:
        if dtype != _FLOAT:
            return m.no("Clip takes only floats at this opset", x)
        return op.Clip(x, min=float(low), max=float(high))
    if not was_clip and dtype != _FLOAT and (m.version < 12 or dtype not in _CLIPPED):
        return m.no("Clip has no kernel for this type", x)
    lowest, highest = _finite_range(dtype)
    number = dtype.numpy()
    bounds: list[Any] = [
        None if low == lowest else np.array(low, number),
        None if high == highest else np.array(high, number),
    ]
    while bounds and bounds[-1] is None:
        bounds.pop()
    return op.Clip(x, *bounds)


#: Types that onnxruntime clips without casting.
_CLIPPED = frozenset(
    {_FLOAT, _DOUBLE, ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.UINT32}
    | {ir.DataType.INT64, ir.DataType.UINT64}
)


@rule(
    lambda op, a, b: op.one_of("Relu", "Clip")(op.one_of("Relu", "Clip")(a.rest(), tag="inner"), b.rest()),
    numerics=Exact,
    exclusive=True,
    tags=(
        "onnxruntime:ReluClipFusion",
        "onnxscript:successive-clip",
        "onnxscript:successive-relu-clip",
        "onnxscript:successive-clip-relu",
    ),
)
def join_clips(op: Builder, m: Match) -> Outcome:
    """Clip(Clip(x, a, b), c, d) → Clip(x, max(a, c), min(b, d)); Relu is a Clip from 0."""
    return _joined(op, m)


_BOUNDS = ("Relu", "Clip", "Min", "Max")


@rule(
    lambda op, a, b: op.one_of("Min", "Max")(op.one_of(*_BOUNDS)(a.rest(), tag="inner"), b),
    lambda op, a, b: op.one_of("Relu", "Clip")(op.one_of("Min", "Max")(a.rest(), tag="inner"), b.rest()),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxscript:min-max", "onnxscript:min-min", "onnxscript:max-max", "onnxscript:max-min"),
)
def join_bounds(op: Builder, m: Match) -> Outcome:
    """Min(Max(x, a), b) → Clip(x, a, b); Min, Max, Clip and Relu by numbers merge (zeros may change sign)."""
    return _joined(op, m)


@rule(lambda op, x: op.Max(x, 0), numerics=Reassociates)
def max_to_relu(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Max(x, 0) → Relu(x), which runtimes fuse with its producer (zeros may change sign)."""
    zero = other_operand(m.root, x)
    if m.dtype(x) not in (_FLOAT, _DOUBLE):
        return m.no("not float or double", x)
    if not keeps_shape(m, x, zero):
        return m.no("the constant may widen the shape", x)
    return op.Relu(x)


@rule(
    lambda op, xs: op.one_of("Min", "Max")(xs.rest()),
    numerics=Reassociates,
    tags=("onnxscript:min-min", "onnxscript:max-max"),
)
def flatten_extrema(op: Builder, m: Match, xs: tuple[ir.Value | None, ...]) -> Outcome:
    """Max(Max(x, a), b) → Max(x, max(a, b)); likewise Min.

    The match starts at the last node of a chain, so one rewrite replaces the whole chain.
    """
    if m.version < 8:
        return m.no("operators broadcast differently at this opset")
    result = m.root.outputs[0]
    reader = ir.only_reader(result)
    if reader is not None and _same_extremum(m.root, reader) and m.only_use(result):
        return m.no("its reader takes over its operands", result)
    operands: list[ir.Value] = []
    nested = False
    pending = list(reversed(xs))
    while pending:
        value = pending.pop()
        assert value is not None
        inner = value.producer()
        if inner is not None and _same_extremum(inner, m.root) and m.only_use(value):
            pending.extend(reversed(inner.inputs))
            nested = True
        else:
            operands.append(value)
    constants = [value for value in operands if m.constant(value) is not None]
    if len(constants) < 2 and not nested:
        return m.no("no two constants, and no nested node of the same operator without other readers")
    kept: list[Any] = [value for value in operands if m.constant(value) is None]
    if len(constants) >= 2:
        joined = _joined_constants(m, constants)
        if joined is None:
            return m.no("the combined constant is larger than the operands")
        kept.append(joined)
    else:
        kept = operands
    return op.node(m.root.op_type, kept)


def _same_extremum(inner: ir.Node, root: ir.Node) -> bool:
    return (inner.domain, inner.op_type) == (root.domain, root.op_type) and inner.graph is root.graph


def _joined_constants(m: Match, constants: list[ir.Value]) -> np.ndarray | None:
    arrays = [array for value in constants if (array := m.constant(value)) is not None]
    function = np.maximum if m.root.op_type == "Max" else np.minimum
    result = arrays[0]
    for array in arrays[1:]:
        result = np.asarray(function(result, array))
    return result if affordable(m, result.nbytes, *constants) else None
