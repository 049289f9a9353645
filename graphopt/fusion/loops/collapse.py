"""Loop collapsing: the loops of a segment, without loops of size 1, and with adjacent loops merged.

Two loops are merged if all accesses are contiguous over both. ``x[n, c, h, w] * scale[c]`` has four axes, but
element (h, w) of an image is at ``W * h + w`` in both operands, so one loop over H * W replaces two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from graphopt.fusion.loops.ir import (
    ONE,
    ZERO,
    Access,
    Instruction,
    Kernel,
    Segment,
    Size,
    Store,
    live_instructions,
)
from graphopt.util.lazy_dataclass import dataclass

#: Maximum size of an innermost loop over which operands may repeat, in elements.
LONGEST_PERIOD = 64


@dataclass(frozen=True)
class Loop:
    """A loop from 0 to ``stop - start``."""

    stop: Size
    start: Size = ZERO
    reduced: bool = False

    @property
    def constant(self) -> int | None:
        """The number of iterations; ``None`` if it depends on symbols."""
        stop, start = self.stop.constant, self.start.constant
        return None if stop is None or start is None else stop - start


@dataclass(frozen=True)
class StridedAccess:
    """The element of a port at ``sum(offsets) + sum(strides[k] * i[k])``.

    With a ``period``, the counter of the last loop is reduced modulo the period.
    """

    port: int
    strides: tuple[Size, ...]
    offsets: tuple[Size, ...] = ()
    period: int | None = None


@dataclass(frozen=True)
class StridedStore:
    """Writes the result of ``instruction``."""

    access: StridedAccess
    instruction: int


@dataclass(frozen=True)
class CollapsedNest:
    """A segment of a kernel after loop collapsing.

    Attributes:
        loops: outermost first.
        body: the instructions; ``loads`` replaces their accesses.
        live: indices of the instructions on which the stores depend.
        loads: the accesses of live loads, by index of the instruction.
        axes: for each instruction, the loops on which it depends.
    """

    loops: tuple[Loop, ...]
    body: tuple[Instruction, ...]
    live: tuple[int, ...]
    loads: dict[int, StridedAccess]
    stores: tuple[StridedStore, ...]
    axes: tuple[frozenset[int], ...]

    @property
    def reduced(self) -> tuple[int, ...]:
        """Indices of the reduction loops."""
        return tuple(index for index, loop in enumerate(self.loops) if loop.reduced)

    @property
    def accesses(self) -> list[StridedAccess]:
        """The accesses of all loads and stores."""
        return [*self.loads.values(), *(store.access for store in self.stores)]


def collapse(kernel: Kernel, segment: Segment) -> CollapsedNest:
    """Collapse the loops of ``segment``."""
    bounds = zip(kernel.axes, kernel.bounds(segment), strict=True)
    loops = [Loop(stop, start, axis.reduced) for axis, (start, stop) in bounds]
    start = ZERO if kernel.split_axis is None else loops[kernel.split_axis].start
    live = live_instructions(segment.body, [store.instruction for store in segment.stores])
    loads = {
        index: _strided(step.access, kernel.split_axis, start)
        for index, step in enumerate(segment.body)
        if step.access is not None and index in live
    }
    written = [_strided(store.access, kernel.split_axis, start) for store in segment.stores]
    accesses, loops = _merge_loops([*loads.values(), *written], loops)
    loads = dict(zip(loads, accesses, strict=False))
    stores = _stores(accesses[len(loads) :], segment.stores)
    axes = _axes(loops, segment.body, loads)
    return CollapsedNest(tuple(loops), segment.body, tuple(live), loads, stores, axes)


def _stores(
    accesses: Sequence[StridedAccess], stores: Iterable[Store | StridedStore]
) -> tuple[StridedStore, ...]:
    """``stores`` with other accesses."""
    return tuple(
        StridedStore(access, store.instruction) for access, store in zip(accesses, stores, strict=True)
    )


def _strided(access: Access, split_axis: int | None, start: Size) -> StridedAccess:
    strides = access.strides
    offsets = [access.offset]
    if split_axis is not None:
        offsets.append(strides[split_axis] * start)
    return StridedAccess(access.port, strides, tuple(offset for offset in offsets if offset.factor))


def _merge_loops(accesses: list[StridedAccess], loops: list[Loop]) -> tuple[list[StridedAccess], list[Loop]]:
    """``accesses`` and ``loops``, without loops of size 1, and with adjacent loops merged."""
    kept: list[tuple[Loop, list[Size]]] = []  # loops, each with the strides of all accesses
    only = _only_reduced(loops)
    for index, inner in enumerate(loops):
        strides = [access.strides[index] for access in accesses]
        if inner.constant == 1 and index != only:
            continue
        if kept and inner.start == ZERO and kept[-1][0].reduced == inner.reduced:
            outer, outer_strides = kept[-1]
            if all(b * inner.stop == a for a, b in zip(outer_strides, strides, strict=True)):
                both = Loop(outer.stop * inner.stop, outer.start * inner.stop, inner.reduced)
                kept[-1] = (both, strides)
                continue
        kept.append((inner, strides))
    if not kept:
        kept.append((Loop(ONE), [ZERO] * len(accesses)))
    merged = [
        replace(access, strides=tuple(strides[index] for _, strides in kept))
        for index, access in enumerate(accesses)
    ]
    return merged, [loop for loop, _ in kept]


def with_periods(nest: CollapsedNest) -> CollapsedNest:
    """Merge a short last loop with the loops before it even if some operands depend on the last one only.

    ``pixels[y, x, 3] * scale[3]`` becomes one loop with the index of ``scale`` modulo 3.
    """
    loops, loads = list(nest.loops), dict(nest.loads)
    written = [store.access for store in nest.stores]
    period = loops[-1].constant
    if nest.reduced or period is None or not 1 < period <= LONGEST_PERIOD:
        return nest
    while len(loops) > 1 and loops[-1].start == ZERO:
        accesses = [*loads.values(), *written]
        joined = [_merge_last_loop(access, loops[-1].stop, period) for access in accesses]
        if any(access is None for access in joined) or any(p and p.period for p in joined[len(loads) :]):
            break
        inner = loops.pop()
        outer = loops.pop()
        loops.append(Loop(outer.stop * inner.stop, outer.start * inner.stop))
        whole = [access for access in joined if access is not None]
        loads = dict(zip(loads, whole, strict=False))
        written = whole[len(loads) :]
    stores, axes = _stores(written, nest.stores), _axes(loops, nest.body, loads)
    return replace(nest, loops=tuple(loops), loads=loads, stores=stores, axes=axes)


def _merge_last_loop(access: StridedAccess, inner: Size, period: int) -> StridedAccess | None:
    """The access with the last loop, of size ``inner``, merged into its predecessor; None if impossible."""
    outer, last = access.strides[-2:]
    strides = (*access.strides[:-2], last)
    if access.period is None and last * inner == outer:
        return replace(access, strides=strides)
    if outer == ZERO and (access.period is not None or inner.constant == period):
        return replace(access, strides=strides, period=period)
    return None


def moved_last(nest: CollapsedNest, first: int) -> CollapsedNest:
    """``nest`` with loop ``first`` innermost."""
    order = [*(loop for loop in range(len(nest.loops)) if loop != first), first]
    loops = tuple(nest.loops[loop] for loop in order)

    def moved(access: StridedAccess) -> StridedAccess:
        return replace(access, strides=tuple(access.strides[loop] for loop in order))

    loads = {index: moved(access) for index, access in nest.loads.items()}
    stores = _stores([moved(store.access) for store in nest.stores], nest.stores)
    return replace(nest, loops=loops, loads=loads, stores=stores, axes=_axes(loops, nest.body, loads))


def _only_reduced(loops: list[Loop]) -> int | None:
    """The reduction loop of size 1 to keep, because all reduction loops have size 1."""
    reduced = [index for index, loop in enumerate(loops) if loop.reduced]
    return reduced[-1] if reduced and all(loops[index].constant == 1 for index in reduced) else None


def _axes(
    loops: Sequence[Loop], body: tuple[Instruction, ...], loads: dict[int, StridedAccess]
) -> tuple[frozenset[int], ...]:
    reduced = frozenset(index for index, loop in enumerate(loops) if loop.reduced)
    found: list[frozenset[int]] = []
    for index, step in enumerate(body):
        axes = frozenset(axis for arg in step.args for axis in found[arg])
        if index in loads:
            axes |= {axis for axis, stride in enumerate(loads[index].strides) if stride.factor}
        found.append(axes - reduced if step.is_reduction else axes)
    return tuple(found)
