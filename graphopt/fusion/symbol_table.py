"""Sizes as kernels know them: numbers, or what the dims of inputs are when a kernel runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.analysis.symbolic import Atom, Dim, SymDim, lone_atom
from graphopt.fusion.loop_nest import CantFuse
from graphopt.fusion.loops.ir import Size, Symbol


class Sizes:
    """Turns dims into sizes.

    Args:
        shapes: those of the inputs. A symbol that is a dim of its own is read off there; other expressions
            that are dims of inputs count as symbols, too.
    """

    def __init__(self, shapes: Sequence[Sequence[Dim]]) -> None:
        self.symbols: list[Symbol] = []
        self._known: dict[SymDim, Size] = {}
        self._atoms: dict[Atom, int] = {}
        places = [(dim, Symbol(i, j)) for i, shape in enumerate(shapes) for j, dim in enumerate(shape)]
        for dim, symbol in places:
            atom = None if isinstance(dim, int) else lone_atom(dim)
            if atom is not None and atom not in self._atoms:
                self._atoms[atom] = len(self.symbols)
                self.symbols.append(symbol)
        for dim, symbol in places:
            if isinstance(dim, int) or dim in self._known:
                continue
            found = self._monomial(dim)
            if found is None:
                found = Size(1, (len(self.symbols),))
                self.symbols.append(symbol)
            self._known[dim] = found

    def of(self, dim: Dim) -> Size:
        """``dim`` as a size.

        Raises:
            CantFuse: it does not follow from the shapes of inputs.
        """
        if isinstance(dim, int):
            return Size(dim)
        found = self._known.get(dim) or self._monomial(dim)
        if found is None:
            raise CantFuse(f"the size {dim} does not follow from the shapes of the inputs")
        return found

    def product(self, dims: Iterable[Dim]) -> Size:
        """The product of ``dims``."""
        found = Size(1)
        for dim in dims:
            found = found * self.of(dim)
        return found

    def _monomial(self, dim: SymDim) -> Size | None:
        if len(dim.terms) != 1:
            return None
        ((monomial, factor),) = dim.terms
        found = Size(factor)
        for atom in monomial:
            if atom not in self._atoms:  # also what may leave a rest when it is divided
                return None
            part = Size(1, (self._atoms[atom],))
            found = found * part
        return found
