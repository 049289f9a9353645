"""Dims as polynomials with integer coefficients over atoms, in a canonical form."""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, TypeAlias

from graphopt.analysis.symbolic.ranges import (
    Bound,
    Range,
    maximum_range,
    minimum_range,
    or_else_range,
    product_range,
    quotient_range,
)

#: Limits of a polynomial; a larger polynomial becomes an opaque symbol.
MAX_TERMS = 16
_MAX_DEGREE = 8
_MAX_COEFFICIENT = 1 << 62
#: Maximum length of the text of an atom, in characters.
_MAX_ATOM_TEXT = 200

_PLAIN_NAME = re.compile(r"[A-Za-z_?][\w.?:/@]*")


class Atom(str):
    """An indivisible part of an expression, as canonical text. Atoms with equal text are equal.

    Attributes:
        operands: the dims from which it is computed.
        lo, hi: bounds of its value.
        birth: 0, or the number of the newest fresh symbol within (see :func:`fresh_symbol`).
    """

    __slots__ = ("birth", "hi", "lo", "operands")
    operands: tuple[Dim, ...]
    lo: Bound
    hi: Bound
    birth: int
    value: ClassVar[Callable[..., int]]
    """The value of an atom, from the values of its operands."""
    value_range: ClassVar[Callable[..., Range]]
    """The range of an atom, from the ranges of its operands."""


class Symbol(Atom):
    """A named unknown, without operands."""

    __slots__ = ("name",)
    name: str


class FloorDiv(Atom):
    """``operands[0] // operands[1]``, rounded towards minus infinity; undefined if the divisor is 0."""

    __slots__ = ()
    value = staticmethod(operator.floordiv)
    value_range = staticmethod(quotient_range)


class OrElse(Atom):
    """``operands[0]``, or ``operands[1]`` if ``operands[0]`` is 0."""

    __slots__ = ()
    value = staticmethod(lambda first, otherwise: first or otherwise)
    value_range = staticmethod(or_else_range)


class Extremum(Atom):
    """The largest operand (:class:`Maximum`) or the smallest (:class:`Minimum`)."""

    __slots__ = ()


class Maximum(Extremum):
    """The largest operand."""

    __slots__ = ()
    value = staticmethod(max)
    value_range = staticmethod(maximum_range)


class Minimum(Extremum):
    """The smallest operand."""

    __slots__ = ()
    value = staticmethod(min)
    value_range = staticmethod(minimum_range)


Monomial: TypeAlias = tuple[Atom, ...]
"""A product of atoms, sorted, repeated for powers. The empty product is 1."""

Term: TypeAlias = tuple[Monomial, int]


class SymDim:
    """An immutable polynomial over atoms that is not constant, created by :func:`symbol` and operators.

    ``+ - * // %`` accept and return :data:`Dim`. ``//`` and ``%`` round as in Python and raise
    ZeroDivisionError for the constant divisor 0.
    """

    __slots__ = ("_bounds", "_hash", "_text", "birth", "terms")

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self.terms = terms
        """The terms in graded order: highest degree first, the constant last. Coefficients are nonzero."""
        self.birth = max([atom.birth for monomial, _ in terms for atom in monomial])
        self._hash: int | None = None
        self._text: str | None = None
        self._bounds: Range | None = None

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
    def constant(self) -> int:
        """The constant term."""
        monomial, coefficient = self.terms[-1]
        return 0 if monomial else coefficient

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
        return _opaque_if_large(SymDim(tuple((m, c * other) for m, c in self.terms)))

    def __rmul__(self, other: int) -> Dim:
        return self * other

    def __floordiv__(self, other: Dim) -> Dim:
        from graphopt.analysis.symbolic.division import floordiv

        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        from graphopt.analysis.symbolic.division import floordiv

        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - self // other * other

    def __rmod__(self, other: int) -> Dim:
        return other - other // self * self


Dim: TypeAlias = int | SymDim


def symbol(name: str, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
    """The symbol ``name``, an integer in ``[lo, hi]``. Symbols with the same name must have equal bounds."""
    return _symbol(name, lo, hi, 0)


def fresh_symbol(hint: str, number: int, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
    """A unique symbol. The caller numbers such symbols from 1; a later one has a higher ``number``."""
    return _symbol(f"{hint}?{number}", lo, hi, number)


def _symbol(name: str, lo: Bound, hi: Bound, birth: int) -> SymDim:
    text = name if _PLAIN_NAME.fullmatch(name) else '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
    atom = Symbol(text)
    atom.name, atom.operands, atom.lo, atom.hi, atom.birth = name, (), lo, hi, birth
    return dim_of_atom(atom)


def compound(kind: type[Atom], text: str, operands: tuple[Dim, ...], value_range: Range) -> SymDim:
    """The dim that is one atom of ``kind``, or an opaque symbol if its text is too long."""
    lo, hi = value_range
    birth = max(map(birth_of, operands))
    if len(text) > _MAX_ATOM_TEXT:
        return opaque(text, lo, hi, birth)
    atom = kind(text)
    atom.operands, atom.lo, atom.hi, atom.birth = operands, lo, hi, birth
    return dim_of_atom(atom)


def dim_of_atom(atom: Atom) -> SymDim:
    """The dim that is one atom."""
    return SymDim((((atom,), 1),))


def lone_atom(dim: Dim) -> Atom | None:
    """The atom, if ``dim`` is a single atom."""
    if isinstance(dim, SymDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def as_operand(dim: Dim) -> str:
    """The text of ``dim`` as an operand, in parentheses unless it is an int or a single atom."""
    return str(dim) if isinstance(dim, int) or lone_atom(dim) is not None else f"({dim})"


def graded_order(term: Term) -> tuple[int, Monomial]:
    """The sort key of terms: highest degree first."""
    return (-len(term[0]), term[0])


def polynomial(terms: Mapping[Monomial, int]) -> Dim:
    """The dim with these coefficients by monomial; an int if only the constant term is nonzero."""
    items = [term for term in terms.items() if term[1]]
    if not items:
        return 0
    if len(items) > 1:
        items.sort(key=graded_order)
    elif not items[0][0]:
        return items[0][1]
    return _opaque_if_large(SymDim(tuple(items)))


def _opaque_if_large(dim: SymDim) -> Dim:
    """``dim``, or an opaque symbol if it exceeds the limits."""
    terms = dim.terms
    if len(terms) <= MAX_TERMS and len(terms[0][0]) <= _MAX_DEGREE:
        for _, coefficient in terms:
            if not -_MAX_COEFFICIENT < coefficient < _MAX_COEFFICIENT:
                break
        else:
            return dim
    return opaque(str(dim), *term_range(dim), dim.birth)


def opaque(text: str, lo: Bound, hi: Bound, birth: int) -> SymDim:
    """A symbol for the value of an expression, equal for equal text."""
    return _symbol("?" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), lo, hi, birth)


def content_of(a: Dim) -> int:
    """The greatest common divisor of the coefficients."""
    return abs(a) if isinstance(a, int) else math.gcd(*[coefficient for _, coefficient in a.terms])


def birth_of(a: Dim) -> int:
    """The number of the newest fresh symbol in ``a``; 0 for an int."""
    return 0 if isinstance(a, int) else a.birth


def product(dims: Iterable[Dim]) -> Dim:
    """The product of ``dims``; 1 if empty."""
    number = 1
    symbolic: Dim = 1
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
        else:
            symbolic = dim * symbolic
    return number * symbolic


def term_range(dim: SymDim, range_of: Callable[[Atom], Range] | None = None) -> Range:
    """The range of ``dim`` from the ranges of its atoms, as if they were independent.

    ``range_of`` replaces the bounds of the atoms.
    """
    lo: Bound = 0
    hi: Bound = 0
    for monomial, coefficient in dim.terms:
        low: Bound = coefficient
        high: Bound = coefficient
        for atom in monomial:
            factor = (atom.lo, atom.hi) if range_of is None else range_of(atom)
            low, high = product_range((low, high), factor)
        lo, hi = lo + low, hi + high
    return (lo, hi)
