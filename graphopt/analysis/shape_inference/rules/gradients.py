"""Gradients of the domain ``graphopt.ad``: a gradient has the element type and shape of its value."""

from __future__ import annotations

from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.ops import graphopt_operators


@shape_rule(graphopt_operators.GRAD_OF, domain=graphopt_operators.AD_DOMAIN)
def grad_of(node: NodeFacts) -> list[Fact]:
    """The last inputs are the values of the gradients."""
    count = len(node.ir.outputs)
    return [_like(node, index) for index in range(len(node.facts) - count, len(node.facts))]


@shape_rule(graphopt_operators.AUTOGRAD_ADD, graphopt_operators.ZERO, domain=graphopt_operators.AD_DOMAIN)
def like_operand(node: NodeFacts) -> Fact:
    """The first operand that is present has the type of the result."""
    return _like(node, 0 if node.has(0) else 1)


def _like(node: NodeFacts, index: int) -> Fact:
    return Fact(node.dtype(index), node.shape(index)) if index >= 0 else Fact()
