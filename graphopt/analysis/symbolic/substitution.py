"""The symbols within a dim, and the value of a dim for given values of its symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.analysis.symbolic.division import floordiv
from graphopt.analysis.symbolic.min_max import extremum, or_else
from graphopt.analysis.symbolic.polynomial import (
    Atom,
    Dim,
    Extremum,
    FloorDiv,
    OrElse,
    Symbol,
    SymDim,
    dim_of_atom,
    lone_atom,
)

#: Assumed size of a dynamic dim in estimates of work and memory.
TYPICAL = 16


def declared_name(dim: Dim) -> str | None:
    """The name of ``dim`` in the model, as ``--dim`` accepts it; ``None`` without a name."""
    atom = lone_atom(dim)
    return atom.name if isinstance(atom, Symbol) and not atom.birth else None


def contains_atom(atom: Atom, dim: Dim) -> bool:
    """Whether ``atom`` occurs anywhere in ``dim``."""
    if isinstance(dim, int):
        return False
    return any(
        atom == part or any(contains_atom(atom, inner) for inner in part.operands)
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
                    for operand in atom.operands:
                        found.update(symbols(operand))
    return found


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """``dim`` with the named symbols replaced. Raises ZeroDivisionError if a divisor becomes 0."""
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
    operands = [_rewrite(operand, lookup) for operand in atom.operands]
    if isinstance(atom, FloorDiv):
        return floordiv(*operands)
    if isinstance(atom, OrElse):
        return or_else(*operands)
    return extremum(type(atom), operands) if isinstance(atom, Extremum) else dim_of_atom(atom)


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
            if isinstance(atom, Symbol):
                coefficient *= values[atom.name]
            else:
                coefficient *= atom.value(*[number(operand, values) for operand in atom.operands])
        total += coefficient
    return total


def evaluate(dim: Dim, values: Mapping[str, int]) -> int | None:
    """Like :func:`number`, but ``None`` if a symbol has no value or a divisor is 0."""
    try:
        return number(dim, values)
    except (KeyError, ZeroDivisionError):
        return None


def typical_size(dim: Dim) -> int | None:
    """The value of ``dim`` if every symbol is :data:`TYPICAL`; ``None`` if a divisor is 0."""
    return evaluate(dim, dict.fromkeys(symbols(dim), TYPICAL))
