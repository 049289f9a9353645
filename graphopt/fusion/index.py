"""Which element of a tensor an iteration of a loop nest is about."""

from __future__ import annotations

from dataclasses import dataclass


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
