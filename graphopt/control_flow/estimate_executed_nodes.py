"""Estimate the number of nodes that a run executes."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import loop_form, trips_of
from graphopt.ops import graphopt_operators

#: Estimated cost of a guard and its If, in executed nodes.
GUARD_COST = 8
#: Overhead of an iteration, in executed nodes.
_ITERATION = {"Loop": 2, "Scan": 1}
#: Assumed number of iterations of a loop whose trip count is unknown.
_ITERATIONS = 8


def estimate_executed_nodes(model: ir.Model, cx: Context) -> int:
    """The estimated number of nodes that a run of ``model`` executes.

    For an If, the larger branch counts, or the branch for which its guard holds; for a loop, all iterations
    count.
    """
    done: dict[ir.Graph, int] = {}
    for key in ir.functions_callees_first(model):
        _count(model.functions[key].graph, done, cx)
    _count(model.graph, done, cx)
    return done[model.graph]


def _count(graph: ir.Graph, done: dict[ir.Graph, int], cx: Context) -> None:
    """Store the executed nodes of ``graph`` and of its bodies in ``done``."""
    for inner in reversed(list(ir.with_bodies(graph))):
        done[inner] = sum(_cost(node, done, cx) for node in inner)


def _cost(node: ir.Node, done: dict[ir.Graph, int], cx: Context) -> int:
    if node.op_type == "Constant" and not node.domain:
        return 0
    function = cx.model.functions.get(node.op_identifier())
    if function is not None and node.domain != graphopt_operators.NATIVE_DOMAIN:
        return done.get(function.graph, 1)  # absent for a recursive function, which ONNX forbids
    bodies = [done[body] for body in ir.bodies(node)] if node.attributes else []
    if not bodies:
        return 1
    then = graphopt_operators.guarded_branch(node)
    if then is not None:
        return 1 + done[then]
    form = loop_form(node, cx)
    if form is None:
        return 1 + max(bodies)
    trips = trips_of(form, cx).most
    return 1 + (_ITERATIONS if trips is None else trips) * (_ITERATION[node.op_type] + max(bodies))
