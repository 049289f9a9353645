"""Ranges of Slice and amounts of Pad, as attributes or inputs depending on the opset version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks.axes import all_normalized
from graphopt.rules.building_blocks.operands import ints_of, operand
from graphopt.util.lazy_dataclass import dataclass

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """The range of a Slice along one axis; ``start`` and ``end`` may be negative or out of bounds."""

    axis: int
    start: int
    end: int
    step: int = 1

    def of(self, size: int) -> range:
        """The selected indices of an axis of ``size``, clamped as ONNX specifies for the sign of the step."""
        start = self.start + size if self.start < 0 else self.start
        end = self.end + size if self.end < 0 else self.end
        if self.step > 0:
            start, end = min(max(start, 0), size), min(max(end, 0), size)
        else:
            start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
        return range(start, end, self.step)


def slice_ranges(m: Match, node: ir.Node) -> tuple[Range, ...] | None:
    """The ranges of a Slice with known bounds, with axes counted from the front.

    ``None`` if a range runs backwards to INT32_MAX or above: it is empty by the specification (ONNX: Slice),
    but onnxruntime continues to the front.
    """
    rank = m.rank(node.inputs[0])
    starts, ends = ints_of(m, node, 1, "starts"), ints_of(m, node, 2, "ends")
    if rank is None or not starts or not ends or len(starts) != len(ends):
        return None
    axes = ints_of(m, node, 3, "axes", tuple(range(len(starts))))
    steps = ints_of(m, node, 4, "steps", (1,) * len(starts))
    if axes is None or steps is None or len(axes) != len(starts) or len(steps) != len(starts) or 0 in steps:
        return None
    if any(step < 0 and end >= INT32_MAX for end, step in zip(ends, steps, strict=True)):
        return None
    found = all_normalized(axes, rank)
    return None if found is None else tuple(map(Range, found, starts, ends, steps))


def slice_(op: Builder, m: Match, x: ir.Value, ranges: Sequence[Range]) -> ir.Value:
    """Build a Slice of ``x``; refuse if the opset does not support its steps."""
    axes, starts, ends, steps = zip(*((r.axis, r.start, r.end, r.step) for r in ranges), strict=True)
    stepped = any(step != 1 for step in steps)
    if m.version < 10:
        if stepped:
            m.refuse("steps need opset 10")
        return op.Slice(x, starts=list(starts), ends=list(ends), axes=list(axes))
    return op.Slice(
        x, *(np.array(numbers, np.int64) for numbers in (starts, ends, axes, steps)[: 3 + stepped])
    )


def range_from(axis: int, indices: range) -> Range:
    """The range that selects exactly the indices ``indices``."""
    if indices.step < 0 and indices.stop < 0:
        return Range(axis, indices.start, -INT64_MAX, indices.step)
    return Range(axis, indices.start, indices.stop, indices.step)


@dataclass(frozen=True)
class Padding:
    """The amounts of a Pad ``before`` and ``after`` each axis; negative ones crop."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str
    value: ir.Value | float | None

    @property
    def amounts(self) -> tuple[int, ...]:
        return self.before + self.after


def padding_of(m: Match, node: ir.Node) -> Padding | None:
    """The amounts of a Pad, if they are known."""
    rank, pads, mode = m.rank(node.inputs[0]), ints_of(m, node, 1, "pads"), m.attribute(node, "mode")
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
    """Build the Pad ``node`` on ``x`` with other amounts before and after each axis."""
    if m.version < 11:
        return op.like(node, [x], pads=list(amounts))
    value = operand(node, 2)
    return op.like(node, [x, np.array(amounts, np.int64), *([] if value is None else [value])])


def pad_number(padding: Padding) -> float | int | bool | None:
    """The padding value of a constant Pad; ``None`` if unknown."""
    if padding.value is None:
        return 0
    return ir.scalar_of(padding.value) if isinstance(padding.value, ir.Value) else padding.value
