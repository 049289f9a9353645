"""Bounds of dimensions, and what they prove."""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphopt.analysis.polynomial import (
    Atom,
    Bound,
    Dim,
    Extremum,
    FloorDiv,
    OrElse,
    Range,
    Symbol,
    SymDim,
    lone,
    product_bounds,
    term_bounds,
)

_PROOF_DEPTH = 2
_PROOF_WIDTH = 4


def bounds(dim: Dim, ranges: Mapping[str, Range] | None = None) -> Range:
    """Numbers between which ``dim`` lies for every value of its symbols; infinite where unknown.

    Args:
        ranges: bounds by symbol name, in place of those that the symbols carry.
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
    lo, hi = term_bounds(dim) if ranges is None else _sum_bounds(dim, ranges)
    if depth == 0 or len(dim.terms) == 1 or (lo > -math.inf and lo == hi):
        return (lo, hi)
    # Bounds of a sum are loose where its parts depend on each other, as in d - min(d, 5): pull
    # the rest of the sum into one atom at a time and keep the best of what comes out.
    candidates = [
        term for term in dim.terms if len(term[0]) == 1 and isinstance(term[0][0], FloorDiv | Extremum)
    ]
    for (atom,), coefficient in candidates[:_PROOF_WIDTH]:
        rest = dim - lone(atom) * coefficient
        lo2, hi2 = _absorbed(atom, coefficient, rest, ranges, depth - 1)
        lo, hi = max(lo, lo2), min(hi, hi2)
    return (lo, hi)


def _absorbed(
    atom: Atom, coefficient: int, rest: Dim, ranges: Mapping[str, Range] | None, depth: int
) -> Range:
    """Bounds of ``rest + coefficient * atom``, from the definition of the atom."""
    if isinstance(atom, Extremum):
        inner = [_bounds(rest + arg * coefficient, ranges, depth) for arg in atom.args]
        pick = max if atom.sign * coefficient > 0 else min
        return (pick([r[0] for r in inner]), pick([r[1] for r in inner]))
    if isinstance(atom, FloorDiv) and isinstance(atom.den, int):
        # den * (num // den) lies in [num - den + 1, num]
        ends = (atom.num - (atom.den - 1), atom.num)
        if coefficient < 0:
            ends = ends[::-1]
        lo = _bounds(rest * atom.den + ends[0] * coefficient, ranges, depth)[0]
        hi = _bounds(rest * atom.den + ends[1] * coefficient, ranges, depth)[1]
        return (
            -(-lo // atom.den) if isinstance(lo, int) else lo,
            hi // atom.den if isinstance(hi, int) else hi,
        )
    return (-math.inf, math.inf)


def _sum_bounds(dim: SymDim, ranges: Mapping[str, Range]) -> Range:
    """Like :func:`term_bounds`, with other ranges of the symbols."""
    lo: Bound = 0
    hi: Bound = 0
    for monomial, coefficient in dim.terms:
        low: Bound = coefficient
        high: Bound = coefficient
        for atom in monomial:
            low, high = product_bounds((low, high), _atom_bounds(atom, ranges))
        lo, hi = lo + low, hi + high
    return (lo, hi)


def _atom_bounds(atom: Atom, ranges: Mapping[str, Range]) -> Range:
    if isinstance(atom, Symbol):
        return ranges.get(atom.name, (atom.lo, atom.hi))
    if isinstance(atom, FloorDiv):
        return quotient_bounds(bounds(atom.num, ranges), bounds(atom.den, ranges))
    if isinstance(atom, OrElse):
        return choice_bounds(bounds(atom.first, ranges), bounds(atom.otherwise, ranges))
    assert isinstance(atom, Extremum)
    inner = [bounds(arg, ranges) for arg in atom.args]
    pick = max if atom.sign > 0 else min
    return (pick([r[0] for r in inner]), pick([r[1] for r in inner]))


def quotient_bounds(num: Range, den: Range) -> Range:
    """The range of the floor division of two ranges."""
    if den[0] <= 0:
        if den[0] == 0 and num[0] >= 0:  # the divisor 0 has no value
            return (0, num[1])
        return (-math.inf, math.inf)
    corners = [_floor_quotient(n, d) for n in num for d in den]
    return (min(corners), max(corners))


def choice_bounds(first: Range, otherwise: Range) -> Range:
    """Bounds of ``first``, or of ``otherwise`` where ``first`` is 0."""
    lo = 1 if first[0] == 0 else first[0]
    return (min(lo, otherwise[0]), max(first[1], otherwise[1]))


def _floor_quotient(n: Bound, d: Bound) -> Bound:
    if isinstance(n, float):
        return n
    if isinstance(d, float):
        return 0 if n >= 0 else -1
    return n // d


def known_nonzero(dim: Dim) -> bool:
    """Whether ``dim`` can't be 0."""
    lo, hi = bounds(dim)
    return lo > 0 or hi < 0


def at_least(dim: Dim, least: int) -> bool:
    """Whether ``dim`` >= ``least`` for every value of its symbols."""
    return bounds(dim)[0] >= least


def equal(a: Dim, b: Dim) -> bool:
    """Whether ``a`` and ``b`` are provably the same for every value of their symbols."""
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    lo, hi = bounds(a - b)
    return lo == hi == 0
