"""How operators are read and written at each opset: what rules need to say the same thing everywhere.

Axes, pads, ranges and shapes moved from attributes to inputs over the opset versions; these
helpers read either form and write the one that the model's opset has.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.analysis import dims
from graphopt.analysis.dims import Dim
from graphopt.context import Refusal
from graphopt.rewrite.builder import Builder
from graphopt.rewrite.match import Match

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

#: Since which opset an operator takes its axes as an input.
_AXES_INPUT = {"Squeeze": 13, "Unsqueeze": 13, "ReduceSum": 13}
_REDUCE_AXES_INPUT = 18

REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


# Operands ------------------------------------------------------------------------------------


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index``; ``None`` where it is missing."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer_of(
    value: ir.Value | None, *op_types: str, domains: Container[str] = ("",), graph: ir.Graph | None = None
) -> ir.Node | None:
    """The node that makes ``value``, if it is one of ``op_types`` (any if none are named).

    Args:
        domains: of the operators; by default, those of the standard.
        graph: that the node must stand in.
    """
    node = None if value is None else value.producer()
    if node is None or node.domain not in domains or node.overload:
        return None
    if (op_types and node.op_type not in op_types) or (graph is not None and node.graph is not graph):
        return None
    return node


def too_old(m: Match, op_type: str, x: ir.Value, since: int) -> Refusal | None:
    """Why the standard's ``op_type``, which came with opset ``since``, can't be written here, if it can't."""
    if m.version >= since:
        return None
    hint = f"raise it: --target-opset {since}; --tune tries whether it pays"
    return m.no(f"there is no {op_type} before opset {since}", x, hint=hint)


def unavailable(
    m: Match, op_type: str, x: ir.Value, *, domain: str = ir.MICROSOFT, since: int = 1
) -> Refusal | None:
    """Why there can be no kernel of ``op_type`` for numbers such as ``x`` here, if there can't.

    Args:
        domain: of onnxruntime's own operators, or of the standard's.
        since: the standard's opset that brought it.
    """
    if domain and m.cx.options.portable:
        return m.no(f"{op_type} is no operator of the ONNX standard", x, hint="leave out --portable")
    dtype, version = m.dtype(x), 1 if domain else max(m.version, since)
    if not m.cx.target.has_kernel(op_type, domain, version, dtype):
        told = "unknown type" if dtype is None else dtype.name.lower()
        return m.no(f"the target has no kernel for {op_type} of {told}", x)
    return None if domain else too_old(m, op_type, x, since)


def other_operand(node: ir.Node, x: ir.Value) -> ir.Value:
    """The operand of ``node``, which has two, beside ``x``; ``x`` itself where it is both."""
    a, b = node.inputs
    other = b if a is x else a
    assert other is not None
    return other


def ints_of(m: Match, node: ir.Node, index: int, name: str, default: Any = None) -> Any:
    """Integers in input ``index`` or attribute ``name``; ``default`` without either, ``None`` if unknown."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return None if attribute.is_ref() else tuple(attribute.value)
    value = operand(node, index)
    return default if value is None else m.ints(value)


def int_of(m: Match, node: ir.Node, name: str, default: int) -> int:
    """Integer attribute ``name``."""
    value = m.attribute(node, name)
    return default if value is None else int(value)


def normalized(axis: int, rank: int) -> int | None:
    """``axis`` counted from the front, or ``None`` if there is no such axis."""
    return axis % rank if -rank <= axis < rank else None


def all_normalized(axes: Iterable[int], rank: int) -> tuple[int, ...] | None:
    """``axes`` counted from the front, in the order given; ``None`` if one does not exist or comes twice."""
    found = [normalized(axis, rank) for axis in axes]
    known = [axis for axis in found if axis is not None]
    return tuple(known) if len(set(known)) == len(found) else None


def axis_of(m: Match, node: ir.Node, rank: int | None, default: int = 0) -> int | None:
    """Attribute ``axis`` counted from the front."""
    axis = int_of(m, node, "axis", default)
    return None if axis is None or rank is None else normalized(axis, rank)


def perm_of(m: Match, node: ir.Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose, by default the reversal."""
    perm = node.attributes.get("perm")
    if perm is not None:
        if perm.is_ref() or sorted(perm.value) != list(range(len(perm.value))):
            return None
        return tuple(perm.value)
    rank = None if node.inputs[0] is None else m.rank(node.inputs[0])
    return None if rank is None else tuple(reversed(range(rank)))


def same_shape(m: Match, a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    """Whether two shapes are provably equal."""
    return a is not None and b is not None and len(a) == len(b) and all(map(m.cx.facts.dim_equal, a, b))


#: Why a fused operator, whose result has the shape of its operand, can't stand for a pattern.
WIDENED = "the result has another shape, or its shape is unknown: a constant may have more dims"


def keeps_shape_of(m: Match, x: ir.Value) -> bool:
    """Whether the root gives the shape of ``x``, whatever it broadcasts it with."""
    return same_shape(m, m.shape(m.root.outputs[0]), m.shape(x))


def has_one_element(m: Match, value: ir.Value | None) -> bool:
    """Whether ``value`` is known to have one element."""
    shape = None if value is None else m.shape(value)
    return shape is not None and all(dim == 1 for dim in shape)


# Axes of Squeeze, Unsqueeze and reductions ---------------------------------------------------


def axes_of(m: Match, node: ir.Node) -> tuple[int, ...] | None:
    """The axes that Squeeze removes, Unsqueeze makes or a reduction works on, sorted, counted from the front.

    For Unsqueeze they count in its output's shape, else in its input's.
    """
    data = node.inputs[0]
    rank = None if data is None else m.rank(data)
    axes = ints_of(m, node, 1, "axes", ())
    if axes is None or rank is None or data is None:
        return None
    if node.op_type == "Unsqueeze":
        rank += len(axes)
    elif not axes and node.op_type == "Squeeze":
        return _size_one_axes(m, data) if operand(node, 1) is None and "axes" not in node.attributes else None
    elif not axes:
        if int_of(m, node, "noop_with_empty_axes", 0) != 0:
            return None if int_of(m, node, "noop_with_empty_axes", 0) is None else ()
        axes = range(rank)
    found = all_normalized(axes, rank)
    return None if found is None else tuple(sorted(found))


def _size_one_axes(m: Match, data: ir.Value) -> tuple[int, ...] | None:
    shape = m.shape(data)
    if shape is None or any(dim != 1 and _may_be_one(dim) for dim in shape):
        return None
    return tuple(axis for axis, dim in enumerate(shape) if dim == 1)


def _may_be_one(dim: Dim) -> bool:
    low, high = dims.bounds(dim)
    return low <= 1 <= high


def squeeze(op: Builder, m: Match, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Squeeze ``axes``; ``x`` itself if there are none."""
    return _with_axes(op, m, "Squeeze", x, axes, {}) if axes else x


def unsqueeze(op: Builder, m: Match, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Unsqueeze ``axes``, which count in the result; ``x`` itself if there are none."""
    return _with_axes(op, m, "Unsqueeze", x, axes, {}) if axes else x


def reduce(op: Builder, m: Match, kind: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
    """Reduction ``kind`` over ``axes``, of which there must be at least one."""
    assert axes
    return _with_axes(op, m, kind, x, axes, {"keepdims": int(keepdims)})


def _with_axes(
    op: Builder, m: Match, kind: str, x: ir.Value, axes: Sequence[int], attributes: dict[str, Any]
) -> ir.Value:
    as_input = m.version >= _AXES_INPUT.get(kind, _REDUCE_AXES_INPUT)
    if as_input:
        result = op.node(kind, (x, np.array(axes, np.int64)), attributes)
    else:
        result = op.node(kind, (x,), {"axes": list(axes), **attributes})
    assert isinstance(result, ir.Value)
    return result


# Reshape -------------------------------------------------------------------------------------


def reshape(op: Builder, m: Match, x: ir.Value, target: Sequence[int]) -> ir.Value:
    """Reshape to ``target``, in which 0 copies a dim of ``x`` and -1 takes what is left."""
    result = op.Reshape(x, np.array(target, np.int64))
    assert isinstance(result, ir.Value)
    return result


def reshape_target(
    m: Match, source: Sequence[Dim] | None, result: Sequence[Dim] | None, nonzero: Sequence[Dim] = ()
) -> tuple[int, ...] | None:
    """What a Reshape of shape ``source`` must be told to give ``result``; ``None`` if it can't be constant.

    Sizes are told as numbers, dims that stay in their place as 0, and at most one other as -1,
    provided that the rest is never 0: beside a size of 0, -1 has no meaning (ONNX, Reshape).

    Args:
        nonzero: dims that are known not to be 0 wherever the model runs at all.
    """
    if result is None:
        return None
    target: list[int] = []
    for axis, dim in enumerate(result):
        stays = source is not None and axis < len(source) and m.cx.facts.dim_equal(source[axis], dim)
        if isinstance(dim, int) and dim != 0:
            target.append(dim)
        elif stays:
            target.append(0)
        elif isinstance(dim, int):
            return None  # a 0 that is not a copy needs allowzero
        else:
            target.append(-1)
    if target.count(-1) > 1:
        return None
    if -1 in target:
        others = [dim for dim, told in zip(result, target, strict=True) if told != -1]
        if not all(dims.known_nonzero(dim) or dim in nonzero for dim in others):
            return None
    return tuple(target)


def nonzero_dims(m: Match, node: ir.Node) -> tuple[Dim, ...]:
    """Dims that can't be 0 where ``node`` runs: those beside a -1 in the shape that a Reshape is given."""
    if node.op_type != "Reshape" or len(node.inputs) < 2 or node.inputs[1] is None:
        return ()
    told, shape = m.cx.known_ints(node.inputs[1]), m.shape(node.outputs[0])
    if told is None or shape is None or -1 not in told:
        return ()
    return tuple(dim for dim, number in zip(shape, told, strict=True) if number != -1)


# Slice ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """What a Slice takes along one axis; ``start`` and ``end`` as written, perhaps negative or huge."""

    axis: int
    start: int
    end: int
    step: int = 1

    def of(self, size: int) -> range:
        """The indices taken from an axis of ``size``, clamped as ONNX says for the sign of the step."""
        start = self.start + size if self.start < 0 else self.start
        end = self.end + size if self.end < 0 else self.end
        if self.step > 0:
            start, end = min(max(start, 0), size), min(max(end, 0), size)
        else:
            start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
        return range(start, end, self.step)


def slice_ranges(m: Match, node: ir.Node) -> tuple[Range, ...] | None:
    """What a Slice with known bounds takes, by axis counted from the front."""
    data = node.inputs[0]
    rank = None if data is None else m.rank(data)
    starts, ends = ints_of(m, node, 1, "starts"), ints_of(m, node, 2, "ends")
    if rank is None or not starts or not ends or len(starts) != len(ends):
        return None
    axes = ints_of(m, node, 3, "axes", tuple(range(len(starts))))
    steps = ints_of(m, node, 4, "steps", (1,) * len(starts))
    if axes is None or steps is None or len(axes) != len(starts) or len(steps) != len(starts) or 0 in steps:
        return None
    found = all_normalized(axes, rank)
    return None if found is None else tuple(map(Range, found, starts, ends, steps))


def slice_(op: Builder, m: Match, x: ir.Value, ranges: Sequence[Range]) -> ir.Value | None:
    """Take ``ranges`` of ``x``; ``None`` where the opset has no steps."""
    axes, starts, ends, steps = zip(*((r.axis, r.start, r.end, r.step) for r in ranges), strict=True)
    stepped = any(step != 1 for step in steps)
    if m.version < 10:
        return None if stepped else op.Slice(x, starts=list(starts), ends=list(ends), axes=list(axes))
    return op.Slice(
        x, *(np.array(numbers, np.int64) for numbers in (starts, ends, axes, steps)[: 3 + stepped])
    )


def range_from(axis: int, taken: range) -> Range:
    """The Slice bounds that take exactly the indices ``taken``."""
    if taken.step < 0 and taken.stop < 0:
        return Range(axis, taken.start, -INT64_MAX, taken.step)
    return Range(axis, taken.start, taken.stop, taken.step)


# Pad -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Padding:
    """What a Pad adds: ``before`` and ``after`` each axis (less than 0 crops)."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str
    value: ir.Value | float | None

    @property
    def amounts(self) -> tuple[int, ...]:
        return self.before + self.after


def padding_of(m: Match, node: ir.Node) -> Padding | None:
    """What a Pad with known amounts adds to each axis of its input."""
    data = node.inputs[0]
    rank = None if data is None else m.rank(data)
    pads = ints_of(m, node, 1, "pads")
    mode = m.attribute(node, "mode")
    if rank is None or pads is None:
        return None
    axes = tuple(range(rank))
    if operand(node, 3) is not None:
        given = m.ints(operand(node, 3))
        found = None if given is None else all_normalized(given, rank)
        if found is None:
            return None
        axes = found
    if len(pads) != 2 * len(axes):
        return None
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[index + len(axes)]
    value: Any = operand(node, 2)
    if m.version < 11:
        value = m.attribute(node, "value")
    return Padding(tuple(before), tuple(after), str(mode or "constant"), value)


def pad(op: Builder, m: Match, node: ir.Node, x: ir.Value | None, amounts: Sequence[int]) -> ir.Value:
    """The Pad ``node`` on ``x``, with these amounts before and after each axis."""
    if m.version < 11:
        result = op.like(node, [x], pads=list(amounts))
    else:
        value = operand(node, 2)
        result = op.like(node, [x, np.array(amounts, np.int64), *([] if value is None else [value])])
    assert isinstance(result, ir.Value)
    return result


def pad_number(padding: Padding) -> float | int | bool | None:
    """The number that a constant Pad writes; ``None`` if unknown."""
    if padding.value is None:
        return 0
    return ir.scalar_of(padding.value) if isinstance(padding.value, ir.Value) else padding.value
