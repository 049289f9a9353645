"""Bounds of dims, and proofs from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from graphopt.analysis.symbolic.polynomial import (
    Atom,
    Dim,
    Extremum,
    FloorDiv,
    Maximum,
    Symbol,
    dim_of_atom,
    term_range,
)
from graphopt.analysis.symbolic.ranges import UNBOUNDED, Range, maximum_range, minimum_range

#: Limits of the search for bounds of a sum: nested substitutions of atoms, and atoms tried on each level.
_PROOF_DEPTH = 2
_PROOF_WIDTH = 4


def bounds(dim: Dim, ranges: Mapping[str, Range] | None = None) -> Range:
    """Lower and upper bound of ``dim`` over all values of its symbols; infinite if unknown.

    Args:
        dim: a dim.
        ranges: bounds by symbol name, which replace the bounds of the symbols.
    """
    if isinstance(dim, int):
        return (dim, dim)
    if ranges is not None:
        return _bounds(dim, ranges, _PROOF_DEPTH)
    if dim._bounds is None:
        dim._bounds = _bounds(dim, None, _PROOF_DEPTH)
    return dim._bounds


def _bounds(dim: Dim, ranges: Mapping[str, Range] | None, depth: int) -> Range:
    if isinstance(dim, int):
        return (dim, dim)
    lo, hi = term_range(dim, None if ranges is None else partial(_atom_range, ranges))
    if depth == 0 or len(dim.terms) == 1 or (lo > -math.inf and lo == hi):
        return (lo, hi)
    # Bounds of a sum are loose if its terms depend on each other, as in d - min(d, 5): move the rest of the
    # sum into one atom at a time, and keep the tightest result.
    candidates = [
        term for term in dim.terms if len(term[0]) == 1 and isinstance(term[0][0], FloorDiv | Extremum)
    ]
    for (atom,), coefficient in candidates[:_PROOF_WIDTH]:
        rest = dim - dim_of_atom(atom) * coefficient
        lo2, hi2 = _bounds_with_atom(atom, coefficient, rest, ranges, depth - 1)
        lo, hi = max(lo, lo2), min(hi, hi2)
    return (lo, hi)


def _bounds_with_atom(
    atom: Atom, coefficient: int, rest: Dim, ranges: Mapping[str, Range] | None, depth: int
) -> Range:
    """Bounds of ``rest + coefficient * atom``, from the definition of the atom."""
    if isinstance(atom, Extremum):
        inner = [_bounds(rest + arg * coefficient, ranges, depth) for arg in atom.operands]
        extremum_range = maximum_range if isinstance(atom, Maximum) == (coefficient > 0) else minimum_range
        return extremum_range(*inner)
    num, den = atom.operands
    if isinstance(den, int):
        # den * (num // den) is in [num - den + 1, num]
        ends = (num - (den - 1), num)
        if coefficient < 0:
            ends = ends[::-1]
        lo = _bounds(rest * den + ends[0] * coefficient, ranges, depth)[0]
        hi = _bounds(rest * den + ends[1] * coefficient, ranges, depth)[1]
        return (-(-lo // den) if isinstance(lo, int) else lo, hi // den if isinstance(hi, int) else hi)
    return UNBOUNDED


def _atom_range(ranges: Mapping[str, Range], atom: Atom) -> Range:
    if isinstance(atom, Symbol):
        return ranges.get(atom.name, (atom.lo, atom.hi))
    return atom.value_range(*[bounds(operand, ranges) for operand in atom.operands])


def known_nonzero(dim: Dim) -> bool:
    """Whether ``dim`` is provably not 0."""
    lo, hi = bounds(dim)
    return lo > 0 or hi < 0


def at_least(dim: Dim, least: int) -> bool:
    """Whether ``dim`` >= ``least`` for all values of its symbols."""
    return bounds(dim)[0] >= least


def equal(a: Dim, b: Dim) -> bool:
    """Whether ``a`` and ``b`` are provably equal for all values of their symbols."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    lo, hi = bounds(a - b)
    return lo == hi == 0
