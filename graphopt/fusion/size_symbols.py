"""Symbolic sizes in terms of the dimensions of kernel inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.analysis.symbolic import Atom, Dim, SymDim, lone_atom
from graphopt.fusion.loops.ir import CantFuse, Size, Symbol, product


class SymbolTable:
    """Maps dims to sizes.

    Args:
        shapes: the shapes of the inputs. A dim that consists of one symbol defines this symbol. Each other
            expression among the dims is a separate symbol.
    """

    def __init__(self, shapes: Sequence[Sequence[Dim]]) -> None:
        self.symbols: list[Symbol] = []
        self._known: dict[SymDim, Size] = {}
        self._atoms: dict[Atom, int] = {}
        sources = [(dim, Symbol(i, j)) for i, shape in enumerate(shapes) for j, dim in enumerate(shape)]
        for dim, symbol in sources:
            atom = None if isinstance(dim, int) else lone_atom(dim)
            if atom is not None and atom not in self._atoms:
                self._atoms[atom] = len(self.symbols)
                self.symbols.append(symbol)
        for dim, symbol in sources:
            if isinstance(dim, int) or dim in self._known:
                continue
            found = self._monomial(dim)
            if found is None:
                found = Size(1, (len(self.symbols),))
                self.symbols.append(symbol)
            self._known[dim] = found

    def size(self, dim: Dim) -> Size:
        """``dim`` as a size.

        Raises:
            CantFuse: the shapes of the inputs don't determine the size.
        """
        if isinstance(dim, int):
            return Size(dim)
        found = self._known.get(dim) or self._monomial(dim)
        if found is None:
            raise CantFuse(f"the shapes of the inputs do not determine the size {dim}")
        return found

    def product(self, dims: Iterable[Dim]) -> Size:
        """The product of ``dims``."""
        return product(map(self.size, dims))

    def _monomial(self, dim: SymDim) -> Size | None:
        if len(dim.terms) != 1:
            return None
        ((monomial, factor),) = dim.terms
        if any(atom not in self._atoms for atom in monomial):  # such as divisions that may have a remainder
            return None
        return Size(factor, tuple(self._atoms[atom] for atom in monomial))
