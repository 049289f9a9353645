"""Whether a specialization is worth the guard before it, as far as the graphs tell."""

from __future__ import annotations

from graphopt import ir

#: Nodes that a guard and its If stand for.
_GUARD = 8
#: Iterations that a loop is taken to have.
_ITERATIONS = 8


def steps(graph: ir.Graph) -> int:
    """About how many nodes run: of an If the larger branch, of a loop some iterations."""
    total: dict[ir.Graph, int] = {}
    for inner in reversed(list(ir.with_bodies(graph))):
        total[inner] = sum(_steps(node, total) for node in inner)
    return total[graph]


def _steps(node: ir.Node, done: dict[ir.Graph, int]) -> int:
    bodies = [done[body] for body in ir.bodies(node)] if node.attributes else []
    if node.op_type == "Constant" and not node.domain:
        return 0
    if not bodies:
        return 1
    most = max(bodies)
    return 1 + (most if node.op_type == "If" else _ITERATIONS * most)


def too_little(general: ir.Model, variant: ir.Model) -> str | None:
    """Why ``variant`` is not worth a guard; ``None`` if it is."""
    before, after = steps(general.graph), steps(variant.graph)
    if before - after > _GUARD:
        return None
    return f"about {after} nodes run instead of {before}, which does not pay for a guard"
