"""Which loops of a nest are run how: over work items, over vectors, over what is reduced."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from graphopt.fusion.backends.c.headers import Lanes
from graphopt.fusion.loops.collapse import CollapsedNest, collapse, moved_last, with_periods
from graphopt.fusion.loops.ir import ONE, Element, Kernel, Segment
from graphopt.fusion.loops.ops import OPS
from graphopt.fusion.loops.stages import StagePlan, plan_stages

#: Up to here a last loop is too short for vectors, and a row of reduced elements.
_SHORT, _SHORT_ROW = 4, 16
#: Vectors in a block, where blocks are to be short.
TILE = 4


@dataclass(frozen=True)
class Schedule:
    """How a nest runs.

    The ``outer`` loops, and the blocks into which the vector loop is split when it isn't reduced, make work
    items, which threads share. Within an item, each pass runs the ``inner`` loops.

    Attributes:
        nest: the loops.
        outer: loops over work items.
        inner: loops of a pass, outermost first.
        vector: the loop whose points are computed side by side. It is the last of ``inner``, or, where what
            is reduced lies before it, around them.
        stage_plan: the passes.
        unroll: how many vectors are computed in one iteration.
        tiled: whether all points of the outer loops are computed for one block before the next, and blocks
            are short: neighbours in memory then are neighbours in time although they are in other rows.
        weight: what a point of all loops costs, about as many bytes of memory traffic.
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
        """Whether the vector loop is around the reduced ones."""
        return self.vector not in self.inner

    @property
    def blocks(self) -> bool:
        """Whether the vector loop is split into work items."""
        return not self.nest.loops[self.vector].reduced


def schedule(kernel: Kernel, segment: Segment) -> Schedule:
    """How ``segment`` runs."""
    found = _ordered(with_periods(collapse(kernel, segment)))
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
    """Whether elements that lie side by side in memory are not those of a vector, but of an outer loop."""
    return any(
        place.strides[-1].factor
        and place.strides[-1] != ONE
        and any(place.strides[loop] == ONE for loop in outer)
        for place in nest.accesses
    )


def _ordered(nest: CollapsedNest) -> CollapsedNest:
    """Moves a loop to the end where the last one is too short for vectors."""
    free = [index for index, loop in enumerate(nest.loops) if not loop.reduced]
    if nest.reduced:
        points = prod(nest.loops[index].constant or _SHORT_ROW + 1 for index in nest.reduced)
        short = nest.reduced[-1] == len(nest.loops) - 1 and points <= _SHORT_ROW
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
    """How many elements ``kernel`` computes side by side."""
    types = {step.element.computed for segment in kernel.segments for step in segment.body}
    if Element.I64 in types:
        return Lanes.LONGS
    return Lanes.WORDS if types & {Element.F32, Element.I32} else Lanes.BYTES


def _weight(kernel: Kernel, nest: CollapsedNest) -> int:
    """Bytes moved at each point of all loops, and the work, as bytes that could be moved meanwhile."""
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
