"""Schedules: the loops that threads share, the vectorized loop, and the reduced loops."""

from __future__ import annotations

from math import prod

from graphopt.fusion.backends.c.preamble import Lanes
from graphopt.fusion.loops.collapse import CollapsedNest, collapse, moved_last, with_periods
from graphopt.fusion.loops.instructions import OPS
from graphopt.fusion.loops.ir import ONE, Element, Kernel, Segment
from graphopt.fusion.loops.reduction_stages import StagePlan, plan_stages
from graphopt.util.lazy_dataclass import dataclass

#: An innermost loop of at most this size is too short for vectors; so is one that reduces at most this many
#: elements.
_SHORT, _SHORT_REDUCTION = 4, 16
#: Vectors per block of tiled loops.
TILE = 4


@dataclass(frozen=True)
class Schedule:
    """The schedule of a segment.

    Work items, which threads share, are the points of the ``outer`` loops, combined with blocks of the vector
    loop unless that loop is reduced. For each item, each stage runs the ``inner`` loops.

    Attributes:
        outer: loops over work items.
        inner: loops of a stage, outermost first.
        vector: the vectorized loop: the last of ``inner``, or the loop around them if it follows the
            reduced axes.
        unroll: number of vectors per iteration.
        tiled: whether blocks are short, and iterated outside of the ``outer`` loops, so that adjacent
            elements of different rows are accessed shortly after each other.
        weight: cost of a point, in bytes of memory traffic.
    """

    nest: CollapsedNest
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    vector: int
    stage_plan: StagePlan
    unroll: int
    tiled: bool
    weight: int

    @property
    def columns(self) -> bool:
        """Whether the vector loop is outside of the reduction loops."""
        return self.vector not in self.inner

    @property
    def blocks(self) -> bool:
        """Whether the vector loop is split into work items."""
        return not self.nest.loops[self.vector].reduced


def schedule(kernel: Kernel, segment: Segment) -> Schedule:
    """The schedule of ``segment``."""
    found = _with_long_inner_loop(with_periods(collapse(kernel, segment)))
    last = len(found.loops) - 1
    inner = found.reduced or (last,)
    vector = last
    outer = tuple(index for index in range(last + 1) if index not in inner and index != vector)
    late = frozenset(output for _, output in kernel.in_place)
    stage_plan = plan_stages(found, frozenset(inner), late, vector)
    reductions = sum(len(step.reductions) for step in stage_plan.stages)
    unroll = 1 if not reductions else 4 if reductions == 1 else 2
    tiled = not found.reduced and _crosses(found, outer)
    return Schedule(found, outer, inner, vector, stage_plan, unroll, tiled, _weight(kernel, found))


def _crosses(nest: CollapsedNest, outer: tuple[int, ...]) -> bool:
    """Whether an outer loop, not the vector loop, iterates over adjacent elements of an access."""
    return any(
        place.strides[-1].factor
        and place.strides[-1] != ONE
        and any(place.strides[loop] == ONE for loop in outer)
        for place in nest.accesses
    )


def _with_long_inner_loop(nest: CollapsedNest) -> CollapsedNest:
    """Move a loop to the end if the last one is too short for vectors."""
    free = [index for index, loop in enumerate(nest.loops) if not loop.reduced]
    if nest.reduced:
        points = prod(nest.loops[index].constant or _SHORT_REDUCTION + 1 for index in nest.reduced)
        short = nest.reduced[-1] == len(nest.loops) - 1 and points <= _SHORT_REDUCTION
        candidates = free
    else:
        short = (nest.loops[-1].constant or _SHORT + 1) <= _SHORT
        candidates = free[:-1]
    if not short or not candidates:
        return nest
    best = candidates[-1]
    size = nest.loops[best].constant
    return moved_last(nest, best) if size is None or size > _SHORT else nest


def lanes(kernel: Kernel) -> Lanes:
    """The number of lanes of ``kernel``, by its widest type."""
    types = {step.element.computed for segment in kernel.segments for step in segment.body}
    if Element.I64 in types:
        return Lanes.LONGS
    return Lanes.WORDS if types & {Element.F32, Element.I32} else Lanes.BYTES


def _weight(kernel: Kernel, nest: CollapsedNest) -> int:
    """Bytes transferred per point, plus the cost of instructions in equivalent bytes."""
    last = len(nest.loops) - 1
    moved = sum(
        kernel.inputs[place.port].element.bytes
        for place in nest.loads.values()
        if place.strides[last].factor and not place.period
    )
    moved += sum(
        kernel.outputs[store.access.port].element.bytes
        for store in nest.stores
        if store.access.strides[last].factor
    )
    return moved + sum(OPS[step.op].cost for step in nest.body)
