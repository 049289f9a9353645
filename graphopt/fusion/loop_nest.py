"""One nest of loops in which several nodes are computed, element by element.

Nodes are added from the end: a nest starts with a result, whose elements are what it loops over. What a node
reads is *demanded* at some index along each axis, which follows from where its result is demanded. So slices,
transpositions and reshapes are no work, but other indices into what is read.

Reductions go over the *row*: loops which the reduced value does not depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from graphopt import ir
from graphopt.analysis.symbolic import Dim, divide_exactly, product
from graphopt.context import Facts


@dataclass(frozen=True)
class Index:
    """A place along one axis: ``offset + step * n``, with ``n`` the number whose digits the loops are.

    Attributes:
        loops: the loops, by number, the most significant first; none where the place is always the same.
        offset, step: of a slice.
    """

    loops: tuple[int, ...] = ()
    offset: int = 0
    step: int = 1

    @property
    def pure(self) -> bool:
        """Whether ``n`` is the place itself."""
        return self.offset == 0 and self.step == 1

    def sliced(self, start: int, step: int) -> Index:
        """The place in what was sliced, where this is the place in the slice."""
        return Index(self.loops, start + step * self.offset, step * self.step)


#: The place along each axis of a tensor.
Map = tuple[Index, ...]

#: That along an axis of size 1.
ONLY = Index()


class CantFuse(Exception):
    """A node can't be computed in a nest, with the reason as its text."""


#: Ways in which one value may be read; each is computed by itself.
_MOST_MAPS = 8


@dataclass
class Nest:
    """A nest of loops.

    Attributes:
        facts: tells the shapes of values.
        sizes: of each loop, by its number.
        splits: loops that were taken apart, with the outer and the inner one that they became.
        outer: the loops that reductions do not go over, outermost first.
        row: those that reductions go over; ``None`` while there is no reduction.
        cut: the loop along which pieces are computed in different ways.
        cuts: where one piece ends and the next begins.
        demands: values and where they are read.
        stores: values that are written to memory, and their index.
    """

    facts: Facts
    sizes: list[Dim] = field(default_factory=list)
    splits: dict[int, tuple[int, int]] = field(default_factory=dict)
    outer: list[int] = field(default_factory=list)
    row: list[int] | None = None
    cut: int | None = None
    cuts: list[int] = field(default_factory=list)
    demands: dict[ir.Value, list[Map]] = field(default_factory=dict)
    stores: dict[ir.Value, Map] = field(default_factory=dict)

    def copy(self) -> Self:
        """Another one, which may be changed."""
        return type(self)(
            self.facts,
            list(self.sizes),
            dict(self.splits),
            list(self.outer),
            None if self.row is None else list(self.row),
            self.cut,
            list(self.cuts),
            {value: list(maps) for value, maps in self.demands.items()},
            dict(self.stores),
        )

    # Values ----------------------------------------------------------------------------------------

    def dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """The shape of ``value``; raises CantFuse if its rank is unknown."""
        shape = self.facts.shape(value)
        if shape is None:
            raise CantFuse(f"the rank of {value.name!r} is unknown")
        return shape

    def begin(self, value: ir.Value) -> None:
        """Loop over the elements of ``value``, the first result."""
        at = []
        for dim in self.dims(value):
            if dim == 1:
                at.append(ONLY)
            else:
                self.outer.append(self.loop(dim))
                at.append(Index((self.outer[-1],)))
        self.demand(value, tuple(at))

    def demand(self, value: ir.Value, at: Map) -> None:
        """Let ``value`` be read at an index."""
        maps = self.demands.setdefault(value, [])
        if at not in maps:
            maps.append(at)
        if len(maps) > _MOST_MAPS:
            raise CantFuse(f"{value.name!r} is read in too many ways")

    def maps(self, value: ir.Value) -> list[Map]:
        """Where ``value`` is read."""
        return list(dict.fromkeys(self.resolved(at) for at in self.demands.get(value, ())))

    def covers(self, index: Index, dim: Dim) -> bool:
        """Whether the loops go over all places along an axis of size ``dim``, in their order."""
        return index.pure and self.facts.dim_equal(product(self.sizes[loop] for loop in index.loops), dim)

    def store(self, value: ir.Value) -> None:
        """Let ``value``, which is demanded, be written to memory, once for each of its elements."""
        for at in self.maps(value):
            loops = [loop for index in at for loop in index.loops]
            inside = dict.fromkeys(loops)
            whole = all(map(self.covers, at, self.dims(value))) and len(inside) == len(loops)
            row = self.row or []
            rows = [loop for loop in row if loop in inside]
            if whole and all(loop in inside for loop in self.outer) and (not rows or len(rows) == len(row)):
                self.stores[value] = at
                return
        raise CantFuse(
            f"{value.name!r} is wanted outside, and its elements are not those that are looped over"
        )

    # Loops -----------------------------------------------------------------------------------------

    def loop(self, size: Dim) -> int:
        """A new loop."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    @property
    def loops(self) -> list[int]:
        """All loops, outermost first."""
        return [*self.outer, *(self.row or ())]

    def digits(self, loops: Iterable[int]) -> tuple[int, ...]:
        """``loops``, with those that were taken apart as their parts."""
        found: list[int] = []
        pending = list(loops)[::-1]
        while pending:
            loop = pending.pop()
            if loop in self.splits:
                pending += self.splits[loop][::-1]
            else:
                found.append(loop)
        return tuple(found)

    def resolved(self, at: Map) -> Map:
        """``at`` in terms of the loops that there are by now."""
        return tuple(Index(self.digits(index.loops), index.offset, index.step) for index in at)

    def split(self, loop: int, inner: Dim) -> tuple[int, int]:
        """Take a loop apart into two, the inner one of size ``inner``; raises CantFuse if that can't be."""
        outer = divide_exactly(self.sizes[loop], inner)
        if outer is None:
            raise CantFuse(f"{self.sizes[loop]} is not known to be a multiple of {inner}")
        if self.cut == loop:
            raise CantFuse("what is concatenated is reshaped")
        parts = self.loop(outer), self.loop(inner)
        self.splits[loop] = parts
        for order in (self.outer, self.row or []):
            if loop in order:
                place = order.index(loop)
                order[place : place + 1] = parts
        return parts

    def regrouped(self, loops: Sequence[int], dims: Sequence[Dim]) -> list[tuple[int, ...]]:
        """``loops``, in their order, as the digits of an index into axes of the sizes ``dims``.

        Loops are taken apart where that is needed.

        Raises:
            CantFuse: that can't be done for all sizes.
        """
        found: list[tuple[int, ...]] = []
        pending = list(self.digits(loops))[::-1]
        for dim in dims:
            digits: list[int] = []
            left = dim
            while not self.facts.dim_equal(left, 1):
                if not pending:
                    raise CantFuse(f"{dim} is reshaped in a way that loops can't follow")
                loop = pending.pop()
                size = self.sizes[loop]
                if self.facts.dim_equal(size, left):
                    left = 1
                elif (rest := divide_exactly(left, size)) is not None:
                    left = rest
                elif (inner := divide_exactly(size, left)) is not None:
                    loop, rest_loop = self.split(loop, inner)
                    pending.append(rest_loop)
                    left = 1
                else:
                    raise CantFuse(f"{dim} is reshaped in a way that loops can't follow")
                digits.append(loop)
            found.append(tuple(digits))
        if pending:
            raise CantFuse("a reshape leaves loops over")
        return found

    def reduce_over(self, dims: Sequence[Dim], kept: Map) -> list[tuple[int, ...]]:
        """The loops over the axes of sizes ``dims`` that a reduction goes over, for each its digits.

        Args:
            kept: where the reduced value is demanded.

        Raises:
            CantFuse: the nest reduces over others, or the value would be reduced more than once.
        """
        dims = [dim for dim in dims if dim != 1]
        inside = dict.fromkeys(loop for index in self.resolved(kept) for loop in index.loops)
        if self.row is None:
            row = [loop for loop in self.outer if loop not in inside]
            if not row:
                row = [self.loop(dim) for dim in dims]
            else:
                self.regrouped(row, dims)
                row = list(self.digits(row))
            self.outer = [loop for loop in self.outer if loop in inside]
            self.row = row
        if any(loop not in inside for loop in self.outer) or any(loop in inside for loop in self.row):
            raise CantFuse("it reduces over other axes than its neighbours")
        if len(self.row) == 0 and product(dims) != 1:
            raise CantFuse("it reduces over other axes than its neighbours")
        return self.regrouped(self.row, dims)

    def cut_at(self, loop: int, points: Iterable[int]) -> None:
        """Let pieces along ``loop`` be computed in different ways; raises CantFuse where others are cut."""
        if self.cut not in (None, loop):
            raise CantFuse("others are concatenated along another axis")
        if self.row is not None and loop in self.row:
            raise CantFuse("what is concatenated is reduced")
        self.cut = loop
        self.cuts = sorted(dict.fromkeys([*self.cuts, *points]))

    # Together --------------------------------------------------------------------------------------

    def absorb(self, other: Nest, shared: ir.Value) -> None:
        """Compute what ``other`` does in this nest, too; both read ``shared``.

        Raises:
            CantFuse: they loop over different elements.
        """
        mine, theirs = self.maps(shared), other.maps(shared)
        if not mine or not theirs or not all(index.pure for at in (mine[0], theirs[0]) for index in at):
            raise CantFuse("they read the same in different ways")
        renamed: dict[int, int] = {}
        for a, b in zip(mine[0], theirs[0], strict=True):
            if len(a.loops) != len(b.loops):
                raise CantFuse("they read the same in different ways")
            for own, its in zip(a.loops, b.loops, strict=True):
                if not self.facts.dim_equal(self.sizes[own], other.sizes[its]):
                    raise CantFuse("they loop over different sizes")
                renamed[its] = own
        if any(loop not in renamed for loop in other.loops) or any(
            loop not in renamed.values() for loop in self.loops
        ):
            raise CantFuse("they loop over different elements")
        row = None if other.row is None else [renamed[loop] for loop in other.row]
        if self.row is not None and row is not None and row != self.row:
            raise CantFuse("they reduce over different axes")
        if self.row is None and row is not None:
            if self.cut in row:
                raise CantFuse("what is concatenated is reduced")
            self.row = row
            self.outer = [loop for loop in self.outer if loop not in row]
        if other.cut is not None:
            self.cut_at(renamed[other.cut], other.cuts)

        def moved(at: Map) -> Map:
            return tuple(
                Index(tuple(renamed[loop] for loop in index.loops), index.offset, index.step)
                for index in other.resolved(at)
            )

        for value, maps in other.demands.items():
            for at in maps:
                self.demand(value, moved(at))
        for value, at in other.stores.items():
            self.stores.setdefault(value, moved(at))
