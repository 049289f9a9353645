"""Symbolic dimensions: integer polynomials over symbols, floor division, min and max.

``+``, ``-``, ``*``, ``//`` and ``%`` work on :data:`Dim` as on Python's ints, as do the functions
here. A symbol stands for an integer within its bounds, by default at least 0: a size of zero is
legal. Nothing is simplified that does not hold for every value within the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from graphopt.analysis.bounds import (
    at_least,
    bounds,
    choice_bounds,
    equal,
    known_nonzero,
    quotient_bounds,
)
from graphopt.analysis.polynomial import (
    MAX_ATOM_TEXT,
    Atom,
    Bound,
    Dim,
    Extremum,
    FloorDiv,
    OrElse,
    Range,
    Symbol,
    SymDim,
    birth_of,
    content_of,
    divide_exactly,
    fresh_symbol,
    lone,
    opaque,
    polynomial,
    product,
    symbol,
)

__all__ = [
    "TYPICAL", "Atom", "Bound", "Dim", "Extremum", "OrElse", "Range", "SymDim", "Symbol", "at_least",
    "bounds", "ceildiv", "declared_name", "dim_max", "dim_min", "divide_exactly", "equal", "evaluate",
    "floordiv", "fresh_symbol", "known_nonzero", "lone", "lone_atom", "number", "or_else", "polynomial",
    "product", "replace_atoms",
    "substitute", "symbol", "symbols", "typical", "within", "zero_with",
]  # fmt: skip

_MAX_ARGS = 6

#: What a dynamic dim is taken to be where work and memory are estimated.
TYPICAL = 16

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
    if len(text) > MAX_ATOM_TEXT:
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
    # max(a + c, b + c) is written c + max(a, b), and max(k*a, k*b) as k * max(a, b)
    shared = _shared_part(kept)
    kept = [arg - shared for arg in kept]
    common = math.gcd(*[content_of(arg) for arg in kept])
    if common > 1:
        kept = [divide_exactly(arg, common) or 0 for arg in kept]
    return _extremum_atom(sign, kept) * max(common, 1) + shared


def _inner_args(sign: int, arg: Dim) -> Iterator[Dim]:
    """The arguments of ``arg`` where it is itself the same extremum, plus a constant."""
    if isinstance(arg, SymDim) and len(arg.terms) - (arg.constant != 0) == 1:
        monomial, coefficient = arg.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            atom = monomial[0]
            if isinstance(atom, Extremum) and atom.sign == sign:
                yield from (inner + arg.constant for inner in atom.args)
                return
    yield arg


def _dominates(sign: int, a: Dim, b: Dim) -> bool:
    """Whether ``a`` makes ``b`` needless beside it."""
    return bounds(a - b)[0] >= 0 if sign > 0 else bounds(a - b)[1] <= 0


def _shared_part(args: list[Dim]) -> Dim:
    """The smallest constant, and the terms that all of ``args`` have in common."""
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
    if len(text) > MAX_ATOM_TEXT or len(args) > _MAX_ARGS:
        return opaque(text, lo, hi, birth)
    atom = Extremum(text)
    atom.args, atom.sign, atom.lo, atom.hi, atom.birth = tuple(args), sign, lo, hi, birth
    return lone(atom)


# choice


def or_else(first: Dim, otherwise: Dim) -> Dim:
    """``first``, or ``otherwise`` where ``first`` is 0; neither is negative."""
    if isinstance(first, int):
        return first or otherwise
    inner = lone_atom(otherwise)
    if isinstance(inner, OrElse) and inner.first == first:  # which is 0 there
        otherwise = inner.otherwise
    if otherwise in (0, first) or known_nonzero(first):
        return first
    text = f"({_nested(first)} or {_nested(otherwise)})"
    lo, hi = choice_bounds(bounds(first), bounds(otherwise))
    birth = max(birth_of(first), birth_of(otherwise))
    if len(text) > MAX_ATOM_TEXT:
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
    """The atom, if ``dim`` is nothing but one atom."""
    if isinstance(dim, SymDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return None


def declared_name(dim: Dim) -> str | None:
    """What the model calls ``dim``, if it does: then ``--dim`` and ``--dim-range`` take the name."""
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
    """The number that ``dim`` is, where each symbol has a value.

    Raises:
        KeyError: a symbol has none.
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
    """The same; ``None`` if a symbol has no value or a divisor is 0."""
    try:
        return number(dim, values)
    except (KeyError, ZeroDivisionError):
        return None


def typical(dim: Dim) -> int | None:
    """The number that ``dim`` is where every symbol is :data:`TYPICAL`; None if a divisor is 0 there."""
    return evaluate(dim, dict.fromkeys(symbols(dim), TYPICAL))


def zero_with(dim: Dim, cause: Dim) -> bool:
    """Whether ``dim`` is provably 0 wherever ``cause`` is."""
    if dim in (0, cause) or known_nonzero(cause):
        return True
    if isinstance(cause, int) or len(cause.terms) > 1:
        return isinstance(cause, SymDim) and _zero_by_symbol(dim, cause)
    # a product is 0 where one of its factors is
    return all(_zero_by_symbol(dim, lone(atom)) for atom in cause.terms[0][0])


def _zero_by_symbol(dim: Dim, cause: SymDim) -> bool:
    """Whether ``cause`` can be 0 only where some symbol is, and ``dim`` is 0 there."""
    if dim == cause or known_nonzero(cause):
        return True
    for name, atom in symbols(cause).items():
        if atom.lo == 0 and bounds(cause, {name: (1, atom.hi)})[0] >= 1:
            try:
                return substitute(dim, {name: 0}) == 0
            except ZeroDivisionError:
                return True  # no value at all
    return False
