"""Maximum, minimum and choice of dims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from graphopt.analysis.symbolic.division import divide_exactly
from graphopt.analysis.symbolic.polynomial import (
    Dim,
    Extremum,
    Maximum,
    Minimum,
    OrElse,
    SymDim,
    as_operand,
    birth_of,
    compound,
    content_of,
    lone_atom,
    opaque,
    polynomial,
)
from graphopt.analysis.symbolic.proofs import bounds, known_nonzero
from graphopt.analysis.symbolic.ranges import or_else_range

#: Maximum number of operands of a minimum or maximum.
_MAX_OPERANDS = 6


def dim_max(*args: Dim) -> Dim:
    """The largest of ``args``."""
    return extremum(Maximum, args)


def dim_min(*args: Dim) -> Dim:
    """The smallest of ``args``."""
    return extremum(Minimum, args)


def extremum(kind: type[Extremum], args: Iterable[Dim]) -> Dim:
    """The largest or the smallest of ``args``, by ``kind``."""
    found = dict.fromkeys(inner for arg in args for inner in _operands(kind, arg))
    numbers = [arg for arg in found if isinstance(arg, int)]
    flat: list[Dim] = [arg for arg in found if not isinstance(arg, int)]
    if numbers:
        flat.append(kind.value(numbers))
    if len(flat) > _MAX_OPERANDS:
        return _canonical(kind, flat)
    kept: list[Dim] = []
    for i, arg in enumerate(flat):
        if not any(_dominates(kind, other, arg) for other in kept + flat[i + 1 :]):
            kept.append(arg)
    if len(kept) == 1:
        return kept[0]
    # canonical form: c + max(a, b) for max(a + c, b + c), and k * max(a, b) for max(k*a, k*b)
    shared = _shared_part(kept)
    kept = [arg - shared for arg in kept]
    common = math.gcd(*[content_of(arg) for arg in kept])
    if common > 1:
        kept = [divide_exactly(arg, common) or 0 for arg in kept]
    return _canonical(kind, kept) * max(common, 1) + shared


def _operands(kind: type[Extremum], arg: Dim) -> Iterator[Dim]:
    """The operands of ``arg`` if it is an atom of ``kind`` plus a constant; otherwise ``arg``."""
    if isinstance(arg, SymDim) and len(arg.terms) - (arg.constant != 0) == 1:
        monomial, coefficient = arg.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], kind):
            yield from (inner + arg.constant for inner in monomial[0].operands)
            return
    yield arg


def _dominates(kind: type[Extremum], a: Dim, b: Dim) -> bool:
    """Whether ``a`` makes ``b`` redundant in an extremum."""
    return bounds(a - b)[0] >= 0 if kind is Maximum else bounds(a - b)[1] <= 0


def _shared_part(args: list[Dim]) -> Dim:
    """The smallest constant plus the common terms of ``args``."""
    constant = min([arg if isinstance(arg, int) else arg.constant for arg in args])
    if any(isinstance(arg, int) for arg in args):
        return constant
    terms = [dict(arg.terms) for arg in args if isinstance(arg, SymDim)]
    first, *others = terms
    shared = {m: c for m, c in first.items() if m and all(other.get(m) == c for other in others)}
    return polynomial(shared) + constant


def _canonical(kind: type[Extremum], args: list[Dim]) -> SymDim:
    args = sorted(args, key=lambda arg: (isinstance(arg, int), str(arg)))
    text = f"{'max' if kind is Maximum else 'min'}({', '.join(map(str, args))})"
    value_range = kind.value_range(*map(bounds, args))
    if len(args) > _MAX_OPERANDS:
        return opaque(text, *value_range, max(map(birth_of, args)))
    return compound(kind, text, tuple(args), value_range)


def or_else(first: Dim, otherwise: Dim) -> Dim:
    """``first``, or ``otherwise`` if ``first`` is 0; neither is negative."""
    if isinstance(first, int):
        return first or otherwise
    inner = lone_atom(otherwise)
    if isinstance(inner, OrElse) and inner.operands[0] == first:  # first is 0 here
        otherwise = inner.operands[1]
    if otherwise in (0, first) or known_nonzero(first):
        return first
    text = f"({as_operand(first)} or {as_operand(otherwise)})"
    return compound(OrElse, text, (first, otherwise), or_else_range(bounds(first), bounds(otherwise)))
