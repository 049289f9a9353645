"""Short expressions as polynomials, independent of the order of their operations."""

from __future__ import annotations

import math
from collections.abc import Iterator

from graphopt import ir

#: Coefficients by the exponents of the variables.
Polynomial = dict[tuple[int, ...], float]

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})
#: Maximum depth of an expression, in nodes.
_DEPTH = 10


def polynomial_of(value: ir.Value, *variables: ir.Value) -> Polynomial | None:
    """``value`` as a polynomial of ``variables``; ``None`` if it is not a polynomial, or too deep."""
    known: dict[ir.Value, Polynomial | None] = {}
    for index, variable in enumerate(variables):
        known[variable] = {tuple(int(index == other) for other in range(len(variables))): 1.0}
    return _polynomial(value, known, (0,) * len(variables), _DEPTH)


def _polynomial(
    value: ir.Value, known: dict[ir.Value, Polynomial | None], one: tuple[int, ...], depth: int
) -> Polynomial | None:
    if value not in known:
        known[value] = _new_polynomial(value, known, one, depth)
    return known[value]


def _new_polynomial(
    value: ir.Value, known: dict[ir.Value, Polynomial | None], one: tuple[int, ...], depth: int
) -> Polynomial | None:
    number = ir.scalar_of(value)
    if number is not None:
        return {one: float(number)}
    node = value.producer()
    if node is None or depth == 0 or not is_arithmetic(node):
        return None
    a, b = (None if side is None else _polynomial(side, known, one, depth - 1) for side in node.inputs)
    if a is None or b is None:
        return None
    if node.op_type in ("Add", "Sub"):
        sign = 1.0 if node.op_type == "Add" else -1.0
        return {powers: a.get(powers, 0.0) + sign * b.get(powers, 0.0) for powers in dict.fromkeys((*a, *b))}
    if node.op_type == "Mul":
        return _times(a, b)
    if list(b) != [one] or b[one] == 0:
        return None
    if node.op_type == "Div":
        return {powers: factor / b[one] for powers, factor in a.items()}
    if b[one] not in (2.0, 3.0):
        return None
    return _times(a, a) if b[one] == 2.0 else _times(_times(a, a), a)


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for p, f in a.items():
        for q, g in b.items():
            powers = tuple(map(sum, zip(p, q, strict=True)))
            result[powers] = result.get(powers, 0.0) + f * g
    return result


def is_arithmetic(node: ir.Node) -> bool:
    """Whether ``node`` adds, subtracts, multiplies, divides or raises to a power."""
    return node.op_type in _ARITHMETIC and node.domain == "" and len(node.inputs) == 2


def operands_within(value: ir.Value, graph: ir.Graph, limit: int) -> Iterator[ir.Value]:
    """The operands of the arithmetic above ``value`` in ``graph``, without constants, nearest first."""
    pending, visited = [value], {value}
    while pending and len(visited) <= limit:
        node = pending.pop(0).producer()
        if node is None or node.graph is not graph or not is_arithmetic(node):
            continue
        for operand in node.inputs:
            if operand is not None and operand not in visited and ir.constant_of(operand) is None:
                visited.add(operand)
                pending.append(operand)
                yield operand


def is_close(found: Polynomial | None, expected: Polynomial, error: float) -> bool:
    """Whether the coefficients equal the coefficients of ``expected``, up to a relative error."""
    powers = dict.fromkeys((*(found or {}), *expected))
    return found is not None and all(
        math.isclose(found.get(power, 0.0), expected.get(power, 0.0), rel_tol=error) for power in powers
    )


def polynomial_text(polynomial: Polynomial | None) -> str:
    """The text of a polynomial of one variable."""
    if polynomial is None:
        return "not a polynomial of the other factor"
    powers = {0: "", 1: " x"}
    return " + ".join(
        f"{factor:.6g}{powers.get(power, f' x^{power}')}" for (power,), factor in sorted(polynomial.items())
    )
