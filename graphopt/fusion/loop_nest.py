"""A loop nest under construction: iteration space, indices of values, and operations that restructure both.

A nest starts from one result: its loops iterate over the elements of that value. Nodes are added in reverse
order. The index of a node's result determines the indices of its operands, so slices, transpositions and
reshapes cost nothing: they only change the index of their operand.

Reductions iterate over the *reduction loops*, on which the reduced value does not depend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Self

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import Dim, divide_exactly, product
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.unknown_sizes import UNKNOWN
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Index:
    """Index along one axis: ``offset + step * n``, where the loops are the mixed-radix digits of ``n``.

    Attributes:
        loops: loop numbers, most significant first; empty for a constant index.
        offset, step: of a slice.
    """

    loops: tuple[int, ...] = ()
    offset: int = 0
    step: int = 1

    @property
    def is_pure(self) -> bool:
        """Whether the index is ``n`` itself."""
        return self.offset == 0 and self.step == 1

    def sliced(self, start: int, step: int) -> Index:
        """The index into the operand of a Slice, if this is the index into its result."""
        return Index(self.loops, start + step * self.offset, step * self.step)


#: One index per axis of a tensor.
AffineMap = tuple[Index, ...]

#: The index along an axis of size 1.
ONLY = Index()


#: Maximum number of distinct index maps per value; each is computed separately.
_MOST_MAPS = 8


@dataclass
class LoopNest:
    """A loop nest under construction.

    Attributes:
        sizes: size of each loop, by loop number.
        factors: loops that were factorized, each with the outer and inner loop that replace it.
        outer: loops outside of reductions, outermost first.
        reduction_loops: loops of reductions; ``None`` as long as there is no reduction.
        split_loop: the loop whose range is split into segments with different computations.
        split_points: boundaries between segments.
        required_indices: values, each with the indices at which it is read.
        stores: values written to memory, each with its index.
    """

    facts: ShapeFacts
    sizes: list[Dim] = field(default_factory=list)
    factors: dict[int, tuple[int, int]] = field(default_factory=dict)
    outer: list[int] = field(default_factory=list)
    reduction_loops: list[int] | None = None
    split_loop: int | None = None
    split_points: list[int] = field(default_factory=list)
    required_indices: dict[ir.Value, list[AffineMap]] = field(default_factory=dict)
    stores: dict[ir.Value, AffineMap] = field(default_factory=dict)

    def copy(self) -> Self:
        return type(self)(
            self.facts,
            list(self.sizes),
            dict(self.factors),
            list(self.outer),
            None if self.reduction_loops is None else list(self.reduction_loops),
            self.split_loop,
            list(self.split_points),
            {value: list(maps) for value, maps in self.required_indices.items()},
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
        """Create one loop per axis of ``value``, the first result."""
        indices = []
        for dim in self.dims(value):
            if dim == 1:
                indices.append(ONLY)
            else:
                self.outer.append(self.loop(dim))
                indices.append(Index((self.outer[-1],)))
        self.require(value, tuple(indices))

    def require(self, value: ir.Value, indices: AffineMap) -> None:
        """Record that ``value`` is read at ``indices``; raises CantFuse if there are too many indices."""
        maps = self.required_indices.setdefault(value, [])
        if indices not in maps:
            maps.append(indices)
        if len(maps) > _MOST_MAPS:
            raise CantFuse(f"{value.name!r} is read in too many ways")

    def indices(self, value: ir.Value) -> list[AffineMap]:
        """The indices at which ``value`` is read, in terms of the current loops."""
        return list(dict.fromkeys(self.resolved(at) for at in self.required_indices.get(value, ())))

    def covers(self, index: Index, dim: Dim) -> bool:
        """Whether ``index`` visits all positions of an axis of size ``dim``, in order."""
        return index.is_pure and self.facts.dim_equal(product(self.sizes[loop] for loop in index.loops), dim)

    def store(self, value: ir.Value) -> None:
        """Write ``value``, which is read in the nest, to memory, each element once.

        Raises:
            CantFuse: the loops don't visit exactly the elements of ``value``.
        """
        for indices in self.indices(value):
            loops = [loop for index in indices for loop in index.loops]
            inside = dict.fromkeys(loops)
            whole = all(map(self.covers, indices, self.dims(value))) and len(inside) == len(loops)
            reduced = self.reduction_loops or []
            used = [loop for loop in reduced if loop in inside]
            if (
                whole
                and all(loop in inside for loop in self.outer)
                and (not used or len(used) == len(reduced))
            ):
                self.stores[value] = indices
                return
        raise CantFuse(f"{value.name!r} is used outside, but the loops do not visit exactly its elements")

    # Loops -----------------------------------------------------------------------------------------

    def loop(self, size: Dim) -> int:
        """Create a loop, and return its number."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    @property
    def loops(self) -> list[int]:
        """All loops, outermost first."""
        return [*self.outer, *(self.reduction_loops or ())]

    def delinearize(self, loops: Iterable[int]) -> tuple[int, ...]:
        """``loops``, with factorized loops replaced by their factors."""
        found: list[int] = []
        pending = list(loops)[::-1]
        while pending:
            loop = pending.pop()
            if loop in self.factors:
                pending += self.factors[loop][::-1]
            else:
                found.append(loop)
        return tuple(found)

    def resolved(self, indices: AffineMap) -> AffineMap:
        """``indices`` in terms of the current loops."""
        return tuple(Index(self.delinearize(index.loops), index.offset, index.step) for index in indices)

    def factorize(self, loop: int, inner: Dim) -> tuple[int, int]:
        """Replace a loop by two, the inner one of size ``inner``; raises CantFuse if that is impossible."""
        outer = divide_exactly(self.sizes[loop], inner)
        if outer is None:
            raise CantFuse(f"whether {self.sizes[loop]} is a multiple of {inner} {UNKNOWN}")
        if self.split_loop == loop:
            raise CantFuse("the concatenated axis is reshaped")
        parts = self.loop(outer), self.loop(inner)
        self.factors[loop] = parts
        for order in (self.outer, self.reduction_loops or []):
            if loop in order:
                place = order.index(loop)
                order[place : place + 1] = parts
        return parts

    def group_loops(self, loops: Sequence[int], dims: Sequence[Dim]) -> list[tuple[int, ...]]:
        """Group ``loops``, in order, as mixed-radix digits of indices into axes of sizes ``dims``.

        Loops are factorized where needed.

        Raises:
            CantFuse: no such grouping is valid for all sizes.
        """
        found: list[tuple[int, ...]] = []
        pending = list(self.delinearize(loops))[::-1]
        for dim in dims:
            digits: list[int] = []
            left = dim
            while not self.facts.dim_equal(left, 1):
                if not pending:
                    raise CantFuse(f"loops can't be regrouped for the reshaped axis of size {dim}")
                loop = pending.pop()
                size = self.sizes[loop]
                if self.facts.dim_equal(size, left):
                    left = 1
                elif (rest := divide_exactly(left, size)) is not None:
                    left = rest
                elif (inner := divide_exactly(size, left)) is not None:
                    loop, rest_loop = self.factorize(loop, inner)
                    pending.append(rest_loop)
                    left = 1
                else:
                    raise CantFuse(f"loops can't be regrouped for the reshaped axis of size {dim}")
                digits.append(loop)
            found.append(tuple(digits))
        if pending:
            raise CantFuse("a reshape leaves loops over")
        return found

    def reduce_over(self, dims: Sequence[Dim], kept: AffineMap) -> list[tuple[int, ...]]:
        """The loops of a reduction over axes of sizes ``dims``, grouped by axis.

        Args:
            kept: the index at which the reduced value is read.

        Raises:
            CantFuse: the nest has other reduction loops, or the value would be reduced repeatedly.
        """
        dims = [dim for dim in dims if dim != 1]
        inside = dict.fromkeys(loop for index in self.resolved(kept) for loop in index.loops)
        if self.reduction_loops is None:
            reduced = [loop for loop in self.outer if loop not in inside]
            if not reduced:
                reduced = [self.loop(dim) for dim in dims]
            else:
                self.group_loops(reduced, dims)
                reduced = list(self.delinearize(reduced))
            self.outer = [loop for loop in self.outer if loop in inside]
            self.reduction_loops = reduced
        if (
            any(loop not in inside for loop in self.outer)
            or any(loop in inside for loop in self.reduction_loops)
            or (not self.reduction_loops and product(dims) != 1)
        ):
            raise CantFuse("a reduction is over other axes than its neighbours")
        return self.group_loops(self.reduction_loops, dims)

    def split_at(self, loop: int, points: Iterable[int]) -> None:
        """Split the range of ``loop`` into segments; raises CantFuse if another loop is split."""
        if self.split_loop not in (None, loop):
            raise CantFuse("the nest has a concatenation along another axis")
        if self.reduction_loops is not None and loop in self.reduction_loops:
            raise CantFuse("the concatenated axis is reduced")
        self.split_loop = loop
        self.split_points = sorted(dict.fromkeys([*self.split_points, *points]))

    # Fusion of nests -------------------------------------------------------------------------------

    def fuse_horizontally(self, other: LoopNest, shared: ir.Value) -> None:
        """Add the computations of ``other``, which also reads ``shared``, to this nest.

        Raises:
            CantFuse: the iteration spaces differ.
        """
        mine, theirs = self.indices(shared), other.indices(shared)
        if not mine or not theirs or not all(index.is_pure for at in (mine[0], theirs[0]) for index in at):
            raise CantFuse("they read the shared value at different indices")
        renamed: dict[int, int] = {}
        for a, b in zip(mine[0], theirs[0], strict=True):
            if len(a.loops) != len(b.loops):
                raise CantFuse("they read the shared value at different indices")
            for own, its in zip(a.loops, b.loops, strict=True):
                if not self.facts.dim_equal(self.sizes[own], other.sizes[its]):
                    raise CantFuse("they loop over different sizes")
                renamed[its] = own
        if any(loop not in renamed for loop in other.loops) or any(
            loop not in renamed.values() for loop in self.loops
        ):
            raise CantFuse("they loop over different elements")
        reduced = None if other.reduction_loops is None else [renamed[loop] for loop in other.reduction_loops]
        if self.reduction_loops is not None and reduced is not None and reduced != self.reduction_loops:
            raise CantFuse("they reduce over different axes")
        if self.reduction_loops is None and reduced is not None:
            if self.split_loop in reduced:
                raise CantFuse("the concatenated axis is reduced")
            self.reduction_loops = reduced
            self.outer = [loop for loop in self.outer if loop not in reduced]
        if other.split_loop is not None:
            self.split_at(renamed[other.split_loop], other.split_points)

        def renamed_loops(indices: AffineMap) -> AffineMap:
            return tuple(
                Index(tuple(renamed[loop] for loop in index.loops), index.offset, index.step)
                for index in other.resolved(indices)
            )

        for value, maps in other.required_indices.items():
            for indices in maps:
                self.require(value, renamed_loops(indices))
        for value, indices in other.stores.items():
            self.stores.setdefault(value, renamed_loops(indices))
