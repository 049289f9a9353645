"""Schedules: the mapping of points and rows to threads, and vector accesses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from math import prod

from graphopt.fusion.backends.cuda.launch import WIDE_FROM, Bound, Condition, Count, Extent
from graphopt.fusion.loops.collapse import (
    CollapsedNest,
    StridedAccess,
    collapse,
    moved_last,
    with_periods,
)
from graphopt.fusion.loops.ir import ONE, Kernel, Segment
from graphopt.fusion.loops.reduction_stages import StagePlan, plan_stages
from graphopt.util.lazy_dataclass import dataclass

WARP = 32
#: Threads per block, and threads for a long row.
BLOCK, LONG_BLOCK = 256, 512
#: Threads per block of several rows.
_ROWS_BLOCK = 128
#: Bytes of the widest access of a thread.
_WIDEST = 16
#: Longest rows for a warp, and for a block of ``BLOCK`` threads, in elements.
_WARP_ROW, _BLOCK_ROW = 1024, 8192
#: Size of tiles, and length of the shortest loops for which tiles are faster.
TILE = 32
_SHORTEST_TILED = 8
#: Maximum shared memory for spilled values of a block, in bytes. Twice as much reduces the occupancy.
_SPILL_BYTES = 24 * 1024
#: Adjacent columns of a block, and maximum length of reduced loops that one thread computes alone.
_COLUMNS, _SHORT_COLUMN = 32, 16
#: Steps of a thread in a part of a split row.
_PART_STEPS = 8
#: Rows are split if they have at most this many blocks, and at least this many parts.
_FEW_BLOCKS, _FEWEST_PARTS = 64, 4
#: The vector loop of plans of stages without spilled values: no value depends on it.
_NO_LOOP = -1


class Kind(Enum):
    """The distribution of the points of the loops over threads."""

    #: Each thread computes adjacent points of the last loop.
    POINTS = "points"
    #: A block computes a square tile of two loops, with transposed operands in shared memory.
    TILES = "tiles"
    #: Threads share the reduced loops of a point of the outer loops; the last loop is reduced.
    ROWS = "rows"
    #: The same, for adjacent points of the last loop.
    COLUMNS = "columns"


@dataclass(frozen=True)
class GridSchedule:
    """A schedule of a segment, for all sizes or for some.

    Attributes:
        outer: loops over points, outermost first.
        inner: loops of a stage, outermost first: the reduced loops, or the last one; of tiles, the loop over
            adjacent elements of transposed operands, and the last one.
        vector: the loop whose adjacent elements a thread accesses together.
        units: elements of ``vector`` that a thread computes together.
        lanes: threads that share a point of the outer loops.
        points: points of the outer loops per block.
        part: length of a part of a split row, in elements.
        conditions: the schedule is used if one of these holds; if empty, for all sizes.
        bits: the width of indices; None if the sizes decide.
    """

    nest: CollapsedNest
    kind: Kind
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    vector: int
    units: int
    stage_plan: StagePlan
    lanes: int = 1
    points: int = 1
    part: int | None = None
    conditions: tuple[Condition, ...] = ()
    bits: int | None = None

    @property
    def block(self) -> int:
        """Threads per block."""
        return BLOCK if self.kind in (Kind.POINTS, Kind.TILES) else self.lanes * self.points


def schedule(kernel: Kernel, segment: Segment) -> tuple[GridSchedule, ...]:
    """The schedules of ``segment``; for all sizes, exactly one condition of all schedules holds."""
    nest = collapse(kernel, segment)
    if nest.reduced:
        return tuple(_reduction(kernel, nest))
    nest = with_periods(_contiguous_stores(nest))
    last = len(nest.loops) - 1
    across = _transposed_loop(nest)
    inner = (last,) if across is None else (across, last)
    outer = tuple(loop for loop in range(last) if loop != across)
    plan = plan_stages(nest, frozenset(inner), frozenset(), _NO_LOOP)
    if across is not None:
        return (GridSchedule(nest, Kind.TILES, outer, inner, last, 1, plan),)
    units = _units(kernel, nest, last, [store.access for store in nest.stores])
    return (GridSchedule(nest, Kind.POINTS, outer, inner, last, units, plan),)


def extent(nest: CollapsedNest, loop: int, step: int = 1) -> Extent:
    """The number of iterations of ``loop``, or of steps of it."""
    return Extent(nest.loops[loop].stop, nest.loops[loop].start, step)


def extents(nest: CollapsedNest, loops: Iterable[int]) -> Count:
    """The extents of ``loops``."""
    return tuple(extent(nest, loop) for loop in loops)


def is_wide(place: StridedAccess, vector: int, units: int) -> bool:
    """Whether the constants permit that ``units`` elements of an access are aligned and adjacent."""
    apart = [stride for loop, stride in enumerate(place.strides) if loop != vector]
    fixed = [size.constant for size in (*apart, *place.offsets) if size.constant is not None]
    return place.strides[vector] == ONE and place.period is None and not any(size % units for size in fixed)


# Points ----------------------------------------------------------------------------------------------------


def _contiguous_stores(nest: CollapsedNest) -> CollapsedNest:
    """``nest`` with the loop over adjacent elements of the first output last."""
    strides = nest.stores[0].access.strides
    first = next((loop for loop, stride in enumerate(strides) if stride == ONE), len(strides) - 1)
    return nest if strides[-1] == ONE or first == len(strides) - 1 else moved_last(nest, first)


def _transposed_loop(nest: CollapsedNest) -> int | None:
    """The loop over adjacent elements of a load that is strided in the last loop, if tiles are faster."""
    if nest.stores[0].access.strides[-1] != ONE or not _is_long(nest, len(nest.loops) - 1):
        return None
    for place in nest.loads.values():
        across = transposed(place)
        if across is not None and _is_long(nest, across):
            return across
    return None


def transposed(place: StridedAccess) -> int | None:
    """The loop over adjacent elements of an access that is strided in the last loop, if there is one."""
    if place.period or place.strides[-1] == ONE or not place.strides[-1].factor:
        return None
    return next((loop for loop, stride in enumerate(place.strides[:-1]) if stride == ONE), None)


def _is_long(nest: CollapsedNest, loop: int) -> bool:
    size = nest.loops[loop].constant
    return size is None or size >= _SHORTEST_TILED


def _units(kernel: Kernel, nest: CollapsedNest, vector: int, leading: list[StridedAccess]) -> int:
    """Elements that a thread computes together: the vector length of the first contiguous access."""
    adjacent = [place for place in leading if place.strides[vector] == ONE and not place.period]
    if not adjacent:
        return 1
    ports = [kernel.inputs[place.port] for place in nest.loads.values() if place.strides[vector] == ONE]
    ports += [kernel.outputs[s.access.port] for s in nest.stores if s.access.strides[vector] == ONE]
    units = _WIDEST // max(port.element.bytes for port in ports)
    size = nest.loops[vector].constant
    while units > 1 and (not is_wide(adjacent[0], vector, units) or (size is not None and size < units)):
        units //= 2
    return units


# Reductions ------------------------------------------------------------------------------------------------


def _reduction(kernel: Kernel, nest: CollapsedNest) -> Iterable[GridSchedule]:
    """The schedules of a nest with reduced loops: one for each range of sizes, and one for 64-bit indices.

    Kernels with reductions are large. Few models need 64-bit indices, so these have a single schedule.
    """
    lengths = [nest.loops[loop].constant for loop in nest.reduced]
    length = prod(size for size in lengths if size is not None) if None not in lengths else None
    is_columns = nest.reduced[-1] != len(nest.loops) - 1
    typical = _BLOCK_ROW if length is None else length
    whole = _columns(kernel, nest, length) if is_columns else _rows(kernel, nest, typical)
    counts, is_wide_always = open_counts(kernel, nest, (whole.outer, nest.reduced))
    if is_wide_always:
        yield replace(whole, bits=64)
        return
    narrow = tuple(Bound(count, most=WIDE_FROM - 1) for count in counts)
    for plan, ranges in _ranges(kernel, nest, length, whole):
        conditions = tuple(Condition((*narrow, *bounds)) for bounds in ranges)
        yield replace(plan, bits=32, conditions=conditions if narrow or any(ranges) else ())
    if narrow:
        yield replace(whole, bits=64, conditions=(Condition(narrow, negated=True),))


def _ranges(
    kernel: Kernel, nest: CollapsedNest, length: int | None, whole: GridSchedule
) -> Iterable[tuple[GridSchedule, list[tuple[Bound, ...]]]]:
    """The schedules with their sizes: disjoint ranges, each the bounds that hold in it.

    Args:
        length: the elements of a row; None if unknown.
        whole: the schedule of rows that are neither short nor split.
    """
    split = _split(kernel, nest, length, whole)
    inner = extents(nest, nest.reduced)
    few = None if split is None else block_extents(split)
    known = few is None or all(each.stop.constant is not None for each in few)
    shortest = 0 if split is None else (split.part or 0) * _FEWEST_PARTS
    if split is not None and few is not None:
        bounds = () if known else (Bound(few, most=_FEW_BLOCKS),)
        yield split, [bounds if length is not None else (*bounds, Bound(inner, least=shortest))]
        if known and length is not None:
            return
    many: list[tuple[Bound, ...]] = []
    if few is not None and not known:
        many.append((Bound(few, least=_FEW_BLOCKS + 1),))
    if length is not None:
        yield whole, many or [()]
        return
    least = 0
    if whole.kind is Kind.ROWS:
        least = _WARP_ROW + 1
        yield _rows(kernel, nest, _WARP_ROW), [(Bound(inner, most=_WARP_ROW),)]
    if split is None:
        yield whole, [(Bound(inner, least=least),)]
    else:
        between = (Bound(inner, least=least, most=shortest - 1),)
        yield whole, [between, *((Bound(inner, least=shortest), *bounds) for bounds in many)]


def _rows(kernel: Kernel, nest: CollapsedNest, length: int) -> GridSchedule:
    """Rows of up to about ``length`` elements."""
    known = None not in [nest.loops[loop].constant for loop in nest.reduced]
    vector = nest.reduced[-1]
    units = _row_units(kernel, nest, vector)
    if length <= _WARP_ROW:
        lanes = min(_power_of_2(-(-length // units)), WARP)
        points = _ROWS_BLOCK // lanes
    else:
        lanes, points = (BLOCK if length <= _BLOCK_ROW else LONG_BLOCK), 1
    plan = _stage_plan(kernel, nest, points * length if known else None)
    outer = tuple(loop for loop in range(len(nest.loops)) if loop not in nest.reduced)
    return GridSchedule(nest, Kind.ROWS, outer, nest.reduced, vector, units, plan, lanes, points)


def _row_units(kernel: Kernel, nest: CollapsedNest, vector: int) -> int:
    if len(nest.reduced) > 1:
        return 1
    return _units(kernel, nest, vector, list(nest.loads.values()))


def _columns(kernel: Kernel, nest: CollapsedNest, length: int | None) -> GridSchedule:
    """Reductions of loops around a last one that is not reduced; a ``length`` of None is unknown."""
    lanes, points = BLOCK // _COLUMNS, _COLUMNS
    if length is not None and length <= _SHORT_COLUMN:
        lanes, points = 1, _ROWS_BLOCK
    plan = _stage_plan(kernel, nest, None if length is None else points * length)
    outer = tuple(loop for loop in range(len(nest.loops)) if loop not in nest.reduced)
    return GridSchedule(nest, Kind.COLUMNS, outer, nest.reduced, nest.reduced[-1], 1, plan, lanes, points)


def _split(
    kernel: Kernel, nest: CollapsedNest, length: int | None, whole: GridSchedule
) -> GridSchedule | None:
    """The schedule that splits few long rows into parts; None if rows can't be few and long.

    Rows of unknown length are split only if there is a single stage, because each stage adds two functions.
    """
    stages = [stage for stage in whole.stage_plan.stages if stage.reductions]
    if len(nest.reduced) > 1 or not stages or (length is None and len(whole.stage_plan.stages) > 1):
        return None
    lanes, points = BLOCK, 1
    if whole.kind is Kind.COLUMNS:
        points = min(_power_of_2(nest.loops[-1].constant or _COLUMNS), _COLUMNS)
        lanes = BLOCK // points
    part = lanes * whole.units * _PART_STEPS
    split = replace(whole, lanes=lanes, points=points, part=part, stage_plan=_stage_plan(kernel, nest, None))
    sizes = [(each.stop.constant, each.step) for each in block_extents(split)]
    blocks = prod(-(-size // step) for size, step in sizes if size is not None)
    if (length is not None and length < part * _FEWEST_PARTS) or blocks > _FEW_BLOCKS:
        return None
    return split


def block_extents(plan: GridSchedule) -> Count:
    """The extents of the blocks of split rows, without the parts."""
    if plan.kind is Kind.COLUMNS:
        return (*extents(plan.nest, plan.outer[:-1]), extent(plan.nest, plan.outer[-1], plan.points))
    return extents(plan.nest, plan.outer)


def open_counts(
    kernel: Kernel, nest: CollapsedNest, loops: Iterable[Iterable[int]]
) -> tuple[tuple[Count, ...], bool]:
    """The counts of unknown size that indices must represent, and whether a known count needs 64 bits.

    Args:
        loops: groups of loops with one counter.
    """
    ports = (*kernel.inputs, *kernel.outputs)
    found = [tuple(Extent(dim) for dim in port.dims) for port in ports]
    found += [extents(nest, group) for group in loops]
    known = [prod(each.stop.constant or 0 for each in count) for count in found if _is_known(count)]
    unknown = tuple(count for count in dict.fromkeys(found) if not _is_known(count))
    return unknown, max(known, default=0) >= WIDE_FROM


def _is_known(count: Count) -> bool:
    return all(each.stop.constant is not None for each in count)


def _stage_plan(kernel: Kernel, nest: CollapsedNest, elements: int | None) -> StagePlan:
    """The stages, with values spilled to shared memory if ``elements`` of each fit; None is unknown."""
    late = frozenset(output for _, output in kernel.in_place)
    inner = frozenset(nest.reduced)
    if elements is not None:
        plan = plan_stages(nest, inner, late, nest.reduced[-1])
        kept = [nest.body[index].element for index in plan.spilled]
        if sum(element.bytes for element in kept) * elements <= _SPILL_BYTES:
            return plan
    return plan_stages(nest, inner, late, _NO_LOOP)


def _power_of_2(size: int) -> int:
    """The smallest power of 2 that is at least ``size``."""
    return 1 << max(size - 1, 0).bit_length()
