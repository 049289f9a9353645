"""Polynomials with integer coefficients over atoms: the arithmetic of :mod:`graphopt.analysis.dims`.

A dimension (:data:`Dim`) is an ``int`` or a :class:`SymDim`, a polynomial over *atoms*: symbols,
floor divisions, minima, maxima and choices. There is one canonical form, so that most equal
expressions are equal to ``==`` and ``hash``; a result without atoms is always a plain ``int``.

The cost of each operation is bounded: an expression that grows too large becomes a symbol that
only keeps its bounds, named after its text, so equal expressions still agree.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Bound: TypeAlias = int | float
"""An ``int``, or ``-math.inf`` / ``math.inf`` where there is no bound."""

Range: TypeAlias = tuple[Bound, Bound]

_MAX_TERMS = 16
_MAX_DEGREE = 8
_MAX_COEFFICIENT = 1 << 62
MAX_ATOM_TEXT = 200

_PLAIN_NAME = re.compile(r"[A-Za-z_?][\w.?:/@]*")


class Atom(str):
    """An indivisible part of an expression. It is its canonical text: equal text, equal atom.

    Attributes:
        lo, hi: bounds of its value.
        birth: 0, or the number of the newest fresh symbol within (see :func:`fresh_symbol`).
    """

    __slots__ = ("birth", "hi", "lo")
    lo: Bound
    hi: Bound
    birth: int


class Symbol(Atom):
    """A named unknown."""

    __slots__ = ("name",)
    name: str


class FloorDiv(Atom):
    """``num // den``, rounded towards minus infinity. It has no value where ``den`` is 0."""

    __slots__ = ("den", "num")
    num: Dim
    den: Dim


class Extremum(Atom):
    """The largest (``sign`` 1) or the smallest (``sign`` -1) of ``args``."""

    __slots__ = ("args", "sign")
    args: tuple[Dim, ...]
    sign: int


class OrElse(Atom):
    """``first``, or ``otherwise`` where ``first`` is 0."""

    __slots__ = ("first", "otherwise")
    first: Dim
    otherwise: Dim


Monomial: TypeAlias = tuple[Atom, ...]
"""A product of atoms, sorted, repeated for powers. The empty product is 1."""

Term: TypeAlias = tuple[Monomial, int]


class SymDim:
    """An immutable polynomial over atoms that is not a constant. Build it with operators.

    ``+ - * // %`` take and give :data:`Dim`. ``//`` and ``%`` round like Python's and raise
    ZeroDivisionError for a divisor that is the constant 0.
    """

    __slots__ = ("_bounds", "_hash", "_text", "birth", "terms")

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self.terms = terms
        """In graded order: highest degree first, the constant last. Coefficients are not 0."""
        self.birth = max([atom.birth for monomial, _ in terms for atom in monomial])
        self._hash: int | None = None
        self._text: str | None = None
        self._bounds: Range | None = None

    # identity

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SymDim) and self.terms == other.terms)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.terms)
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            text = ""
            for monomial, coefficient in self.terms:
                size = abs(coefficient)
                factors = ([str(size)] if size != 1 or not monomial else []) + list(monomial)
                sign = " - " if coefficient < 0 else " + "
                text += (sign if text else sign.strip().replace("+", "")) + "*".join(factors)
            self._text = text
        return self._text

    def __repr__(self) -> str:
        return f"SymDim({self})"

    @property
    def symbol(self) -> Symbol | None:
        """The symbol, if the expression is nothing but one symbol."""
        if len(self.terms) == 1:
            monomial, coefficient = self.terms[0]
            if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
                return monomial[0]
        return None

    @property
    def constant(self) -> int:
        """The constant term."""
        monomial, coefficient = self.terms[-1]
        return 0 if monomial else coefficient

    # arithmetic

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, SymDim):
            terms = dict(self.terms)
            for monomial, coefficient in other.terms:
                terms[monomial] = terms.get(monomial, 0) + coefficient
            return polynomial(terms)
        if other == 0:
            return self
        constant = self.constant
        terms_ = self.terms[:-1] if constant else self.terms
        if constant + other:
            terms_ += (((), constant + other),)
        return SymDim(terms_)

    def __radd__(self, other: int) -> Dim:
        return self + other

    def __neg__(self) -> Dim:
        return SymDim(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: int) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, SymDim):
            terms: dict[Monomial, int] = {}
            for m1, c1 in self.terms:
                for m2, c2 in other.terms:
                    product = tuple(sorted(m1 + m2)) if m1 and m2 else m1 or m2
                    terms[product] = terms.get(product, 0) + c1 * c2
            return polynomial(terms)
        if other == 0:
            return 0
        if other == 1:
            return self
        return _bounded(SymDim(tuple((m, c * other) for m, c in self.terms)))

    def __rmul__(self, other: int) -> Dim:
        return self * other

    def __floordiv__(self, other: Dim) -> Dim:
        from graphopt.analysis.dims import floordiv

        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        from graphopt.analysis.dims import floordiv

        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - self // other * other

    def __rmod__(self, other: int) -> Dim:
        return other - other // self * self


Dim: TypeAlias = int | SymDim


# construction


def symbol(name: str, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
    """The symbol ``name``, an integer in ``[lo, hi]``. The same name must keep the same bounds."""
    return _symbol(name, lo, hi, 0)


def fresh_symbol(hint: str, number: int, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
    """A symbol of its own. Who calls numbers them: ``number`` > 0 is its birth."""
    return _symbol(f"{hint}?{number}", lo, hi, number)


def _symbol(name: str, lo: Bound, hi: Bound, birth: int) -> SymDim:
    text = name if _PLAIN_NAME.fullmatch(name) else '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
    atom = Symbol(text)
    atom.name, atom.lo, atom.hi, atom.birth = name, lo, hi, birth
    return lone(atom)


def lone(atom: Atom) -> SymDim:
    """The dim that is one atom."""
    return SymDim((((atom,), 1),))


def _order(term: Term) -> tuple[int, Monomial]:
    return (-len(term[0]), term[0])


def polynomial(terms: Mapping[Monomial, int]) -> Dim:
    """The dim with these coefficients by monomial; an int if no other term is left."""
    items = [term for term in terms.items() if term[1]]
    if not items:
        return 0
    if len(items) > 1:
        items.sort(key=_order)
    elif not items[0][0]:
        return items[0][1]
    return _bounded(SymDim(tuple(items)))


def _bounded(dim: SymDim) -> Dim:
    """``dim``, or a symbol in its place if it is too large to work with."""
    terms = dim.terms
    if len(terms) <= _MAX_TERMS and len(terms[0][0]) <= _MAX_DEGREE:
        for _, coefficient in terms:
            if not -_MAX_COEFFICIENT < coefficient < _MAX_COEFFICIENT:
                break
        else:
            return dim
    return opaque(str(dim), *term_bounds(dim), dim.birth)


def opaque(text: str, lo: Bound, hi: Bound, birth: int) -> SymDim:
    """A symbol for the value of an expression: equal text, equal symbol."""
    return _symbol("?" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), lo, hi, birth)


def content_of(a: Dim) -> int:
    """The greatest common divisor of the coefficients."""
    return abs(a) if isinstance(a, int) else math.gcd(*[coefficient for _, coefficient in a.terms])


def birth_of(a: Dim) -> int:
    """The number of the newest fresh symbol in ``a``; 0 for an int."""
    return 0 if isinstance(a, int) else a.birth


# exact division


def divide_exactly(a: Dim, b: Dim) -> Dim | None:
    """The polynomial q with ``a == q * b``, if there is one. ``b`` is taken to be nonzero."""
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
    for _ in range(4 * _MAX_TERMS):
        if not rest:
            return polynomial(quotient)
        monomial, coefficient = min(rest.items(), key=_order)
        factor = _without(monomial, lead)
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


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """``monomial / divisor``, or None."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


# bounds of the terms as they stand; graphopt.analysis.bounds proves better ones


def term_bounds(dim: SymDim) -> Range:
    """Bounds of ``dim`` from those of its atoms, taken to be independent."""
    lo: Bound = 0
    hi: Bound = 0
    for monomial, coefficient in dim.terms:
        low: Bound = coefficient
        high: Bound = coefficient
        for atom in monomial:
            low, high = product_bounds((low, high), (atom.lo, atom.hi))
        lo, hi = lo + low, hi + high
    return (lo, hi)


def _times(a: Bound, b: Bound) -> Bound:
    return 0 if a == 0 or b == 0 else a * b


def product_bounds(a: Range, b: Range) -> Range:
    """The range of the product of two ranges."""
    if a[0] >= 0 and b[0] >= 0:
        return (_times(a[0], b[0]), _times(a[1], b[1]))
    corners = [_times(x, y) for x in a for y in b]
    return (min(corners), max(corners))


def product(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims``, 1 if there are none."""
    number = 1
    symbolic: Dim = 1
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
        else:
            symbolic = dim * symbolic
    return number * symbolic
