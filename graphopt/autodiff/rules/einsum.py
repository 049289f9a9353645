"""Einsum: the gradient of each operand is an Einsum of dy and the other operands."""

from __future__ import annotations

import string
from typing import Any

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient
from graphopt.util.lazy_dataclass import dataclass


@dataclass
class _Equation:
    """An equation without ellipses: a letter for each axis.

    Attributes:
        terms: the letters of each operand.
        result: the letters of the output.
        consistent: letters whose sizes are known to be equal in all operands; other letters may broadcast.
    """

    terms: list[str]
    result: str
    consistent: set[str]


@gradient("Einsum")
def einsum(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Einsum of dy and the other operands, broadcast along indices that only this operand has."""
    equation = _parsed(node)
    operands = [node.input(index) for index in range(len(node.inputs))]
    return [
        _by_operand(op, node, dy, equation, operands, index) if node.needs_grad(index) else None
        for index in range(len(operands))
    ]


def _by_operand(
    op: GraphBuilder,
    node: PrimalNode,
    dy: ir.Value,
    equation: _Equation,
    operands: list[ir.Value],
    index: int,
) -> ir.Value:
    x, term = operands[index], equation.terms[index]
    others = [operand for position, operand in enumerate(operands) if position != index]
    terms = [equation.result, *(other for position, other in enumerate(equation.terms) if position != index)]
    present = set("".join(terms))
    inputs = [dy, *others]
    wanted = ""
    used = present | set(term)
    for position, letter in enumerate(term):
        if letter in term[:position]:  # a diagonal: the identity matrix spreads it
            second = next(each for each in string.ascii_letters if each not in used)
            used.add(second)
            inputs.append(op.identity_matrix(op.dim(x, position), x))
            terms.append(letter + second)
            present |= {letter, second}
            wanted += second
        else:
            wanted += letter
    found = "".join(letter for letter in wanted if letter in present)
    simple = terms == [found]
    dx = dy if simple else op.Einsum(*inputs, equation=f"{','.join(terms)}->{found}")
    lone = [position for position, letter in enumerate(wanted) if letter not in present]
    if lone:
        dx = op.Unsqueeze(dx, lone)
    broadcast = set(term) & present - equation.consistent
    if broadcast:
        dx = op.reduce_to(dx, x)
    return op.Expand(dx, op.shape_of(x)) if broadcast or lone else dx


def _parsed(node: PrimalNode) -> _Equation:
    text = node.attribute("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    ranks = [node.rank(node.input(index)) for index in range(len(terms))]
    unnamed = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    free = [letter for letter in string.ascii_letters if letter not in text]
    longest = max((count for count, term in zip(unnamed, terms, strict=True) if "..." in term), default=0)
    ellipsis = "".join(free[:longest])
    if not arrow:
        named = left.replace("...", "").replace(",", "")
        right = "..." * ("..." in left) + "".join(
            sorted(letter for letter in set(named) if named.count(letter) == 1)
        )
    result = right.replace("...", ellipsis)
    explicit = [
        term.replace("...", ellipsis[longest - count :]) for term, count in zip(terms, unnamed, strict=True)
    ]
    if len(set(result)) < len(result):
        raise node.refusal("an index is repeated in the result")
    return _Equation(explicit, result, _consistent(node, explicit))


def _consistent(node: PrimalNode, terms: list[str]) -> set[str]:
    dims: dict[str, list[Any]] = {}
    for index, term in enumerate(terms):
        shape = node.shape(node.input(index))
        assert shape is not None
        for letter, dim in zip(term, shape, strict=True):
            dims.setdefault(letter, []).append(dim)
    return {
        letter
        for letter, found in dims.items()
        if all(node.cx.facts.dim_equal(found[0], dim) for dim in found[1:])
    }
