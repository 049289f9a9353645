"""Proofs that a dim is 0 whenever another is."""

from __future__ import annotations

from graphopt.analysis.symbolic.polynomial import Dim, SymDim, dim_of_atom
from graphopt.analysis.symbolic.proofs import bounds, known_nonzero
from graphopt.analysis.symbolic.substitution import substitute, symbols


def zero_with(dim: Dim, cause: Dim) -> bool:
    """Whether ``dim`` is provably 0 whenever ``cause`` is 0."""
    if dim in (0, cause) or known_nonzero(cause):
        return True
    if isinstance(cause, int) or len(cause.terms) > 1:
        return isinstance(cause, SymDim) and _zero_by_symbol(dim, cause)
    # a product is 0 if one of its factors is
    return all(_zero_by_symbol(dim, dim_of_atom(atom)) for atom in cause.terms[0][0])


def _zero_by_symbol(dim: Dim, cause: SymDim) -> bool:
    """Whether ``cause`` is 0 only if one of its symbols is 0, and ``dim`` is 0 if this symbol is."""
    if dim == cause or known_nonzero(cause):
        return True
    for name, atom in symbols(cause).items():
        if atom.lo == 0 and bounds(cause, {name: (1, atom.hi)})[0] >= 1:
            try:
                return substitute(dim, {name: 0}) == 0
            except ZeroDivisionError:
                return True  # a dim without a value contradicts nothing
    return False
