"""Write gradients as regions, sums and zeros, which are operators of the domain ``graphopt.ad``."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.sequence_loop_builders import is_sequence
from graphopt.ops import graphopt_operators

#: Values with their gradients.
Gradients = Sequence[tuple[ir.Value, ir.Value]]


def add(op: GraphBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The sum of two gradients of a value: an AutogradAdd for tensors."""
    if is_sequence(a, op.cx):
        return op.sum_gradients(a, b)
    return op.node(graphopt_operators.AUTOGRAD_ADD, [a, b], domain=graphopt_operators.AD_DOMAIN)


def zero(op: GraphBuilder, like: ir.Value) -> ir.Value:
    """A gradient of ``like`` that is known to be zero."""
    return op.node(graphopt_operators.ZERO, [like], domain=graphopt_operators.AD_DOMAIN)


def end_region(
    op: GraphBuilder, inner: GraphBuilder, cotangents: Sequence[ir.Value | None], gradients: Gradients
) -> Gradients:
    """The gradients as results of a GradOf, whose body has the nodes of ``inner``.

    Args:
        inner: the result of ``op.begin_region``.
        cotangents: the gradients that the region depends on, linearly; ``None`` for zero.
        gradients: values with their gradients; those that ``inner`` did not compute are returned unchanged.
    """
    op.stopped += inner.stopped
    likes: dict[ir.Value, ir.Value] = {}
    for value, dx in gradients:
        if inner.has_made(dx):
            likes.setdefault(dx, value)
    if not likes:
        return gradients
    body = inner.end_body(list(likes))
    given = [dy for dy in dict.fromkeys(cotangents) if dy is not None]
    outputs = op.multi_output_node(
        graphopt_operators.GRAD_OF,
        [*given, *likes.values()],
        {"body": body},
        domain=graphopt_operators.AD_DOMAIN,
        outputs=len(likes),
    )
    replaced = dict(zip(likes, outputs, strict=True))
    return [(value, replaced.get(dx, dx)) for value, dx in gradients]
