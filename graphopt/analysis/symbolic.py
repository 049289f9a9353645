"""Symbolic dims: integer polynomials over symbols, floor division, minimum, maximum and choice.

A dim (:data:`Dim`) is an ``int`` or a :class:`SymDim`, a polynomial with integer coefficients over *atoms*:
symbols, floor divisions, minima, maxima and choices. ``+``, ``-``, ``*``, ``//`` and ``%`` work as on ints.
The form is canonical, so that most equal expressions are ``==`` and have equal hashes; a result without atoms
is always an ``int``. A symbol is an integer within its bounds. By default it is at least 0, since a size of
zero is valid. Only identities that hold for all values within the bounds are applied.

The cost of each operation is bounded: an expression that grows too large is replaced by an opaque symbol with
its bounds, named by a hash of its text, so that equal expressions remain equal.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

Bound: TypeAlias = int | float
"""An ``int``, or ``-math.inf`` / ``math.inf`` for no bound."""

Range: TypeAlias = tuple[Bound, Bound]

#: Limits of a polynomial; beyond them it becomes an opaque symbol.
_MAX_TERMS = 16
_MAX_DEGREE = 8
_MAX_COEFFICIENT = 1 << 62
#: Maximum length of the text of an atom, in characters.
_MAX_ATOM_TEXT = 200
#: Maximum number of arguments of a minimum or maximum.
_MAX_ARGS = 6
#: Limits of the search for bounds of a sum: nested substitutions of atoms, and atoms tried on each level.
_PROOF_DEPTH = 2
_PROOF_WIDTH = 4

#: Assumed size of a dynamic dim in estimates of work and memory.
TYPICAL = 16

_PLAIN_NAME = re.compile(r"[A-Za-z_?][\w.?:/@]*")


class Atom(str):
    """An indivisible part of an expression: its canonical text. Atoms with equal text are equal.

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
    """``num // den``, rounded towards minus infinity. It has no value if ``den`` is 0."""

    __slots__ = ("den", "num")
    num: Dim
    den: Dim


class Extremum(Atom):
    """The largest (``sign`` 1) or the smallest (``sign`` -1) of ``args``."""

    __slots__ = ("args", "sign")
    args: tuple[Dim, ...]
    sign: int


class OrElse(Atom):
    """``first``, or ``otherwise`` if ``first`` is 0."""

    __slots__ = ("first", "otherwise")
    first: Dim
    otherwise: Dim


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
        """In graded order: highest degree first, the constant last. Coefficients are nonzero."""
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
        """The symbol, if the expression is a single symbol."""
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
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - self // other * other

    def __rmod__(self, other: int) -> Dim:
        return other - other // self * self


Dim: TypeAlias = int | SymDim


# construction


def symbol(name: str, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
    """The symbol ``name``, an integer in ``[lo, hi]``. Symbols of one name must have equal bounds."""
    return _symbol(name, lo, hi, 0)


def fresh_symbol(hint: str, number: int, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
    """A unique symbol; the caller numbers them. ``number`` > 0 is its birth."""
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
    """The dim with these coefficients by monomial; an int if only the constant term is nonzero."""
    items = [term for term in terms.items() if term[1]]
    if not items:
        return 0
    if len(items) > 1:
        items.sort(key=_order)
    elif not items[0][0]:
        return items[0][1]
    return _bounded(SymDim(tuple(items)))


def _bounded(dim: SymDim) -> Dim:
    """``dim``, or an opaque symbol if it exceeds the limits."""
    terms = dim.terms
    if len(terms) <= _MAX_TERMS and len(terms[0][0]) <= _MAX_DEGREE:
        for _, coefficient in terms:
            if not -_MAX_COEFFICIENT < coefficient < _MAX_COEFFICIENT:
                break
        else:
            return dim
    return opaque(str(dim), *term_bounds(dim), dim.birth)


def opaque(text: str, lo: Bound, hi: Bound, birth: int) -> SymDim:
    """A symbol for the value of an expression, equal for equal text."""
    return _symbol("?" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), lo, hi, birth)


def content_of(a: Dim) -> int:
    """The greatest common divisor of the coefficients."""
    return abs(a) if isinstance(a, int) else math.gcd(*[coefficient for _, coefficient in a.terms])


def birth_of(a: Dim) -> int:
    """The number of the newest fresh symbol in ``a``; 0 for an int."""
    return 0 if isinstance(a, int) else a.birth


# exact division


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
    """``monomial / divisor``, or ``None``."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


# bounds of the terms; bounds() below finds tighter ones


def term_bounds(dim: SymDim) -> Range:
    """Bounds of ``dim`` from the bounds of its atoms, which are assumed to be independent."""
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
    """The product of ``dims``; 1 if empty."""
    number = 1
    symbolic: Dim = 1
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
        else:
            symbolic = dim * symbolic
    return number * symbolic


# bounds and proofs


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
    lo, hi = term_bounds(dim) if ranges is None else _sum_bounds(dim, ranges)
    if depth == 0 or len(dim.terms) == 1 or (lo > -math.inf and lo == hi):
        return (lo, hi)
    # Bounds of a sum are loose if its terms depend on each other, as in d - min(d, 5): move the rest of the
    # sum into one atom at a time, and keep the tightest result.
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
    """Bounds of ``first``, or of ``otherwise`` if ``first`` is 0."""
    lo = 1 if first[0] == 0 else first[0]
    return (min(lo, otherwise[0]), max(first[1], otherwise[1]))


def _floor_quotient(n: Bound, d: Bound) -> Bound:
    if isinstance(n, float):
        return n
    if isinstance(d, float):
        return 0 if n >= 0 else -1
    return n // d


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


# division


def floordiv(a: Dim, b: Dim) -> Dim:
    """``a // b``, rounded towards minus infinity. Raises ZeroDivisionError if ``b`` is the int 0."""
    if isinstance(b, int):
        if isinstance(a, int):
            return a // b
        if b < 0:
            return floordiv(-a, -b)
        return _divide_by_int(a, b)
    if a == 0 or a == b:
        return int(a == b) if known_nonzero(b) else _floordiv_atom(a, b)
    if known_nonzero(b):
        exact = divide_exactly(a, b)
        if exact is not None:
            return exact
    common = math.gcd(content_of(a), content_of(b))
    if common > 1:
        a, b = divide_exactly(a, common) or 0, divide_exactly(b, common) or 0
    return _floordiv_atom(a, b)


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
        if isinstance(atom, FloorDiv) and isinstance(atom.den, int) and (constant or len(rest.terms) == 1):
            return whole + floordiv(atom.num + constant * atom.den, atom.den * b)
    return whole + _floordiv_atom(rest, b)


def _floordiv_atom(num: Dim, den: Dim) -> SymDim:
    text = f"({_nested(num)}//{_nested(den)})"
    lo, hi = quotient_bounds(bounds(num), bounds(den))
    birth = max(birth_of(num), birth_of(den))
    if len(text) > _MAX_ATOM_TEXT:
        return opaque(text, lo, hi, birth)
    atom = FloorDiv(text)
    atom.num, atom.den, atom.lo, atom.hi, atom.birth = num, den, lo, hi, birth
    return lone(atom)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """``a / b``, rounded towards plus infinity."""
    return -floordiv(-a, b)


# minimum and maximum


def dim_max(*args: Dim) -> Dim:
    """The largest of ``args``."""
    return _extremum(1, args)


def dim_min(*args: Dim) -> Dim:
    """The smallest of ``args``."""
    return _extremum(-1, args)


def _extremum(sign: int, args: Iterable[Dim]) -> Dim:
    found = dict.fromkeys(inner for arg in args for inner in _inner_args(sign, arg))
    numbers = [arg for arg in found if isinstance(arg, int)]
    flat: list[Dim] = [arg for arg in found if not isinstance(arg, int)]
    if numbers:
        flat.append(max(numbers) if sign > 0 else min(numbers))
    if len(flat) > _MAX_ARGS:
        return _extremum_atom(sign, flat)
    kept: list[Dim] = []
    for i, arg in enumerate(flat):
        if not any(_dominates(sign, other, arg) for other in kept + flat[i + 1 :]):
            kept.append(arg)
    if len(kept) == 1:
        return kept[0]
    # canonical form: c + max(a, b) for max(a + c, b + c), and k * max(a, b) for max(k*a, k*b)
    shared = _shared_part(kept)
    kept = [arg - shared for arg in kept]
    common = math.gcd(*[content_of(arg) for arg in kept])
    if common > 1:
        kept = [divide_exactly(arg, common) or 0 for arg in kept]
    return _extremum_atom(sign, kept) * max(common, 1) + shared


def _inner_args(sign: int, arg: Dim) -> Iterator[Dim]:
    """The arguments of ``arg`` if it is an extremum of the same kind plus a constant; otherwise ``arg``."""
    if isinstance(arg, SymDim) and len(arg.terms) - (arg.constant != 0) == 1:
        monomial, coefficient = arg.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            atom = monomial[0]
            if isinstance(atom, Extremum) and atom.sign == sign:
                yield from (inner + arg.constant for inner in atom.args)
                return
    yield arg


def _dominates(sign: int, a: Dim, b: Dim) -> bool:
    """Whether ``a`` makes ``b`` redundant in an extremum."""
    return bounds(a - b)[0] >= 0 if sign > 0 else bounds(a - b)[1] <= 0


def _shared_part(args: list[Dim]) -> Dim:
    """The smallest constant plus the common terms of ``args``."""
    constant = min([arg if isinstance(arg, int) else arg.constant for arg in args])
    if any(isinstance(arg, int) for arg in args):
        return constant
    terms = [dict(arg.terms) for arg in args if isinstance(arg, SymDim)]
    first, *others = terms
    shared = {m: c for m, c in first.items() if m and all(other.get(m) == c for other in others)}
    return polynomial(shared) + constant


def _extremum_atom(sign: int, args: list[Dim]) -> SymDim:
    args = sorted(args, key=lambda arg: (isinstance(arg, int), str(arg)))
    text = f"{'max' if sign > 0 else 'min'}({', '.join(map(str, args))})"
    ranges = [bounds(arg) for arg in args]
    pick = max if sign > 0 else min
    lo, hi = pick([r[0] for r in ranges]), pick([r[1] for r in ranges])
    birth = max(map(birth_of, args))
    if len(text) > _MAX_ATOM_TEXT or len(args) > _MAX_ARGS:
        return opaque(text, lo, hi, birth)
    atom = Extremum(text)
    atom.args, atom.sign, atom.lo, atom.hi, atom.birth = tuple(args), sign, lo, hi, birth
    return lone(atom)


# choice


def or_else(first: Dim, otherwise: Dim) -> Dim:
    """``first``, or ``otherwise`` if ``first`` is 0; neither is negative."""
    if isinstance(first, int):
        return first or otherwise
    inner = lone_atom(otherwise)
    if isinstance(inner, OrElse) and inner.first == first:  # first is 0 here
        otherwise = inner.otherwise
    if otherwise in (0, first) or known_nonzero(first):
        return first
    text = f"({_nested(first)} or {_nested(otherwise)})"
    lo, hi = choice_bounds(bounds(first), bounds(otherwise))
    birth = max(birth_of(first), birth_of(otherwise))
    if len(text) > _MAX_ATOM_TEXT:
        return opaque(text, lo, hi, birth)
    atom = OrElse(text)
    atom.first, atom.otherwise, atom.lo, atom.hi, atom.birth = first, otherwise, lo, hi, birth
    return lone(atom)


def _nested(dim: Dim) -> str:
    """The text of ``dim`` as an operand."""
    single = isinstance(dim, int) or (
        len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1
    )
    return str(dim) if single else f"({dim})"


# symbols and values


def lone_atom(dim: Dim) -> Atom | None:
    """The atom, if ``dim`` is a single atom."""
    if isinstance(dim, SymDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def declared_name(dim: Dim) -> str | None:
    """The name of ``dim`` in the model, as ``--dim`` accepts it; ``None`` if it has none."""
    atom = lone_atom(dim)
    return atom.name if isinstance(atom, Symbol) and not atom.birth else None


def within(atom: Atom, dim: Dim) -> bool:
    """Whether ``atom`` occurs anywhere in ``dim``."""
    if isinstance(dim, int):
        return False
    return any(
        atom == part or any(within(atom, inner) for inner in _parts(part))
        for monomial, _ in dim.terms
        for part in monomial
    )


def symbols(dim: Dim) -> dict[str, Symbol]:
    """The symbols within ``dim``, by name, in a stable order."""
    found: dict[str, Symbol] = {}
    if isinstance(dim, SymDim):
        for monomial, _ in dim.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found[atom.name] = atom
                else:
                    for part in _parts(atom):
                        found.update(symbols(part))
    return found


def _parts(atom: Atom) -> tuple[Dim, ...]:
    if isinstance(atom, FloorDiv):
        return (atom.num, atom.den)
    if isinstance(atom, OrElse):
        return (atom.first, atom.otherwise)
    return atom.args if isinstance(atom, Extremum) else ()


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """``dim`` with symbols replaced by name. Raises ZeroDivisionError if a divisor becomes 0."""
    return _rewrite(dim, lambda atom: values.get(atom.name) if isinstance(atom, Symbol) else None)


def replace_atoms(dim: Dim, values: Mapping[Atom, Dim]) -> Dim:
    """``dim`` with atoms of any kind replaced. Raises ZeroDivisionError if a divisor becomes 0."""
    return _rewrite(dim, values.get)


def _rewrite(dim: Dim, lookup: Callable[[Atom], Dim | None]) -> Dim:
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            new = lookup(atom)
            term = (_rebuilt(atom, lookup) if new is None else new) * term
        total = term + total
    return total


def _rebuilt(atom: Atom, lookup: Callable[[Atom], Dim | None]) -> Dim:
    parts = [_rewrite(part, lookup) for part in _parts(atom)]
    if isinstance(atom, FloorDiv):
        return floordiv(*parts)
    if isinstance(atom, OrElse):
        return or_else(*parts)
    return _extremum(atom.sign, parts) if isinstance(atom, Extremum) else lone(atom)


def number(dim: Dim, values: Mapping[str, int]) -> int:
    """The value of ``dim``, given the values of its symbols.

    Raises:
        KeyError: a symbol has no value.
        ZeroDivisionError: a divisor is 0.
    """
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        for atom in monomial:
            coefficient *= _number_of(atom, values)
        total += coefficient
    return total


def _number_of(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        return values[atom.name]
    parts = [number(part, values) for part in _parts(atom)]
    if isinstance(atom, FloorDiv):
        return parts[0] // parts[1]
    if isinstance(atom, OrElse):
        return parts[0] or parts[1]
    assert isinstance(atom, Extremum)
    return max(parts) if atom.sign > 0 else min(parts)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int | None:
    """Like :func:`number`, but ``None`` if a symbol has no value or a divisor is 0."""
    try:
        return number(dim, values)
    except (KeyError, ZeroDivisionError):
        return None


def typical(dim: Dim) -> int | None:
    """The value of ``dim`` if every symbol is :data:`TYPICAL`; ``None`` if a divisor is 0."""
    return evaluate(dim, dict.fromkeys(symbols(dim), TYPICAL))


def zero_with(dim: Dim, cause: Dim) -> bool:
    """Whether ``dim`` is provably 0 whenever ``cause`` is 0."""
    if dim in (0, cause) or known_nonzero(cause):
        return True
    if isinstance(cause, int) or len(cause.terms) > 1:
        return isinstance(cause, SymDim) and _zero_by_symbol(dim, cause)
    # a product is 0 if one of its factors is
    return all(_zero_by_symbol(dim, lone(atom)) for atom in cause.terms[0][0])


def _zero_by_symbol(dim: Dim, cause: SymDim) -> bool:
    """Whether ``cause`` is 0 only if some symbol is 0, and then ``dim`` is 0, too."""
    if dim == cause or known_nonzero(cause):
        return True
    for name, atom in symbols(cause).items():
        if atom.lo == 0 and bounds(cause, {name: (1, atom.hi)})[0] >= 1:
            try:
                return substitute(dim, {name: 0}) == 0
            except ZeroDivisionError:
                return True  # undefined there
    return False
