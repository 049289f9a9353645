"""The loops of one piece of a kernel: none of size 1, and neighbours merged that one loop can stand for.

``x[n, c, h, w] * scale[c]`` has four axes, but h and w always go together: element (h, w) of an image lies at
``W * h + w`` in both operands. One loop over H * W is left of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphopt.fusion.loops.ir import ONE, ZERO, Access, Instruction, Kernel, Piece, Size

#: Up to here a last loop counts as short.
LONGEST_PERIOD = 64


@dataclass(frozen=True)
class Loop:
    """A loop from 0 to ``stop - start``."""

    stop: Size
    start: Size = ZERO
    reduced: bool = False

    @property
    def constant(self) -> int | None:
        """How often it runs, where that depends on no symbol."""
        stop, start = self.stop.constant, self.start.constant
        return None if stop is None or start is None else stop - start


@dataclass(frozen=True)
class Place:
    """An element of a port: the sum of ``offsets`` and of ``strides[k]`` times the counter of loop k.

    With a ``period`` the counter of the last loop counts modulo that.
    """

    port: int
    strides: tuple[Size, ...]
    offsets: tuple[Size, ...] = ()
    period: int | None = None


@dataclass(frozen=True)
class Store:
    """What is written where."""

    place: Place
    instruction: int


@dataclass(frozen=True)
class Nest:
    """One piece of a kernel.

    Attributes:
        loops: outermost first.
        body: its instructions; their accesses are not to be used.
        needed: the instructions that the stores need, in order.
        loads: where each ``load`` of those reads, by the index of the instruction.
        stores: what is written.
        axes: of each instruction, the loops that it depends on.
    """

    loops: tuple[Loop, ...]
    body: tuple[Instruction, ...]
    needed: tuple[int, ...]
    loads: dict[int, Place]
    stores: tuple[Store, ...]
    axes: tuple[frozenset[int], ...]

    @property
    def reduced(self) -> tuple[int, ...]:
        """The loops that reductions go over."""
        return tuple(index for index, loop in enumerate(self.loops) if loop.reduced)

    @property
    def places(self) -> list[Place]:
        """All that is read and written."""
        return [*self.loads.values(), *(store.place for store in self.stores)]


def nest(kernel: Kernel, piece: Piece) -> Nest:
    """The loops of ``piece``."""
    loops = []
    for index, axis in enumerate(kernel.axes):
        start, stop = ZERO, axis.size
        if index == kernel.cut:
            start, stop = piece.start, axis.size if piece.stop is None else piece.stop
        loops.append(Loop(stop, start, axis.reduced))
    start = ZERO if kernel.cut is None else loops[kernel.cut].start
    wanted = needed(piece)
    loads = {
        index: _place(step.access, kernel.cut, start)
        for index, step in enumerate(piece.body)
        if step.access is not None and index in wanted
    }
    stores = [Store(_place(store.access, kernel.cut, start), store.instruction) for store in piece.stores]
    return _merged(loops, piece.body, tuple(wanted), loads, stores)


def needed(piece: Piece) -> list[int]:
    """The instructions that the stores need, in order."""
    found = {store.instruction for store in piece.stores}
    for index in reversed(range(len(piece.body))):
        if index in found:
            found.update(piece.body[index].args)
    return sorted(found)


def _place(access: Access, cut: int | None, start: Size) -> Place:
    strides = access.strides
    offsets = [access.offset]
    if cut is not None:
        offsets.append(strides[cut] * start)
    return Place(access.port, strides, tuple(offset for offset in offsets if offset.factor))


def _merged(
    loops: list[Loop],
    body: tuple[Instruction, ...],
    needed: tuple[int, ...],
    loads: dict[int, Place],
    stores: list[Store],
) -> Nest:
    places = [*loads.values(), *(store.place for store in stores)]
    kept: list[tuple[Loop, list[Size]]] = []  # each loop, and the stride that each place has in it
    only = _only_reduced(loops)
    for index, inner in enumerate(loops):
        strides = [place.strides[index] for place in places]
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
        kept.append((Loop(ONE), [ZERO] * len(places)))
    merged = [
        replace(place, strides=tuple(strides[index] for _, strides in kept))
        for index, place in enumerate(places)
    ]
    moved = dict(zip(loads, merged[: len(loads)], strict=True))
    written = tuple(
        Store(place, store.instruction) for place, store in zip(merged[len(loads) :], stores, strict=True)
    )
    final = tuple(loop for loop, _ in kept)
    return Nest(final, body, needed, moved, written, _axes(final, body, moved))


def with_periods(nest: Nest) -> Nest:
    """Merges a short last loop with those before it although some operands only go with the short one.

    ``pixels[y, x, 3] * scale[3]`` becomes one loop in which the index of ``scale`` counts modulo 3.
    """
    loops, loads = list(nest.loops), dict(nest.loads)
    written = [store.place for store in nest.stores]
    period = loops[-1].constant
    if nest.reduced or period is None or not 1 < period <= LONGEST_PERIOD:
        return nest
    while len(loops) > 1 and loops[-1].start == ZERO:
        places = [*loads.values(), *written]
        joined = [_joined(place, loops[-1].stop, period) for place in places]
        if any(place is None for place in joined) or any(p and p.period for p in joined[len(loads) :]):
            break
        inner = loops.pop()
        outer = loops.pop()
        loops.append(Loop(outer.stop * inner.stop, outer.start * inner.stop))
        whole = [place for place in joined if place is not None]
        loads = dict(zip(loads, whole, strict=False))
        written = whole[len(loads) :]
    stores = tuple(Store(place, store.instruction) for place, store in zip(written, nest.stores, strict=True))
    return replace(
        nest, loops=tuple(loops), loads=loads, stores=stores, axes=_axes(tuple(loops), nest.body, loads)
    )


def _joined(place: Place, inner: Size, period: int) -> Place | None:
    """The place when the last loop, of size ``inner``, is merged with that before it; None if it can't be."""
    outer, last = place.strides[-2:]
    strides = (*place.strides[:-2], last)
    if place.period is None and last * inner == outer:
        return replace(place, strides=strides)
    if outer == ZERO and (place.period is not None or inner.constant == period):
        return replace(place, strides=strides, period=period)
    return None


def swapped(nest: Nest, first: int) -> Nest:
    """The same with loop ``first`` as the last one."""
    order = [*(loop for loop in range(len(nest.loops)) if loop != first), first]
    loops = tuple(nest.loops[loop] for loop in order)

    def moved(place: Place) -> Place:
        return replace(place, strides=tuple(place.strides[loop] for loop in order))

    loads = {index: moved(place) for index, place in nest.loads.items()}
    stores = tuple(Store(moved(store.place), store.instruction) for store in nest.stores)
    return replace(nest, loops=loops, loads=loads, stores=stores, axes=_axes(loops, nest.body, loads))


def _only_reduced(loops: list[Loop]) -> int | None:
    """The loop of size 1 that stays because reductions go over nothing else."""
    reduced = [index for index, loop in enumerate(loops) if loop.reduced]
    return reduced[-1] if reduced and all(loops[index].constant == 1 for index in reduced) else None


def _axes(
    loops: tuple[Loop, ...], body: tuple[Instruction, ...], loads: dict[int, Place]
) -> tuple[frozenset[int], ...]:
    reduced = frozenset(index for index, loop in enumerate(loops) if loop.reduced)
    found: list[frozenset[int]] = []
    for index, step in enumerate(body):
        axes = frozenset(axis for arg in step.args for axis in found[arg])
        if index in loads:
            axes |= {axis for axis, stride in enumerate(loads[index].strides) if stride.factor}
        found.append(axes - reduced if step.op.startswith("reduce_") else axes)
    return tuple(found)
