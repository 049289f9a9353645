"""Exact division and floor division of dims."""

from __future__ import annotations

import math

from graphopt.analysis.symbolic.polynomial import (
    MAX_TERMS,
    Dim,
    FloorDiv,
    Monomial,
    SymDim,
    as_operand,
    compound,
    content_of,
    graded_order,
    polynomial,
)
from graphopt.analysis.symbolic.proofs import bounds, known_nonzero
from graphopt.analysis.symbolic.ranges import quotient_range


def divide_exactly(a: Dim, b: Dim) -> Dim | None:
    """The polynomial q with ``a == q * b``, or ``None``. Assumes that ``b`` is nonzero."""
    if b == 0:
        return None
    if isinstance(b, int):
        if isinstance(a, int):
            return a // b if a % b == 0 else None
        if any(coefficient % b for _, coefficient in a.terms):
            return None
        return SymDim(tuple((monomial, coefficient // b) for monomial, coefficient in a.terms))
    if isinstance(a, int):
        return 0 if a == 0 else None
    if a == b:
        return 1
    lead, lead_coefficient = b.terms[0]
    rest = dict(a.terms)
    quotient: dict[Monomial, int] = {}
    for _ in range(4 * MAX_TERMS):
        if not rest:
            return polynomial(quotient)
        monomial, coefficient = min(rest.items(), key=graded_order)
        factor = _monomial_quotient(monomial, lead)
        if factor is None or coefficient % lead_coefficient:
            return None
        scale = coefficient // lead_coefficient
        quotient[factor] = scale
        for m, c in b.terms:
            product = tuple(sorted(m + factor))
            left = rest.get(product, 0) - c * scale
            if left:
                rest[product] = left
            else:
                rest.pop(product, None)
    return None


def _monomial_quotient(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """``monomial / divisor``, or ``None``."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def floordiv(a: Dim, b: Dim) -> Dim:
    """``a // b``, rounded towards minus infinity. Raises ZeroDivisionError if ``b`` is the int 0."""
    if isinstance(b, int):
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floordiv(-a, -b)
        return _divide_by_int(a, b)
    if a == 0 or a == b:
        return int(a == b) if known_nonzero(b) else _quotient(a, b)
    if known_nonzero(b):
        exact = divide_exactly(a, b)
        if exact is not None:
            return exact
    common = math.gcd(content_of(a), content_of(b))
    if common > 1:
        a, b = divide_exactly(a, common) or 0, divide_exactly(b, common) or 0
    return _quotient(a, b)


def _divide_by_int(a: SymDim, b: int) -> Dim:
    if b == 0:
        raise ZeroDivisionError(f"({a}) // 0")
    whole = polynomial({monomial: coefficient // b for monomial, coefficient in a.terms})
    rest = polynomial({monomial: coefficient % b for monomial, coefficient in a.terms})
    if isinstance(rest, int):  # 0 <= rest < b
        return whole
    # (g*r + c) // b == (r + c // g) // (b // g) where g divides b
    constant = rest.constant
    common = math.gcd(content_of(rest - constant), b)
    if common > 1:
        shrunk = divide_exactly(rest - constant, common)
        assert shrunk is not None
        return whole + floordiv(shrunk + constant // common, b // common)
    lo, hi = bounds(rest)
    if lo >= 0 and hi < b:
        return whole
    if len(rest.terms) <= 2 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        atom = rest.terms[0][0][0]  # (x // k + c) // b == (x + k*c) // (k*b)
        if isinstance(atom, FloorDiv) and (constant or len(rest.terms) == 1):
            num, den = atom.operands
            if isinstance(den, int):
                return whole + floordiv(num + constant * den, den * b)
    return whole + _quotient(rest, b)


def _quotient(num: Dim, den: Dim) -> SymDim:
    text = f"({as_operand(num)}//{as_operand(den)})"
    return compound(FloorDiv, text, (num, den), quotient_range(bounds(num), bounds(den)))


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b``, rounded towards plus infinity."""
    return -floordiv(-a, b)
