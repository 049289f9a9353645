"""Propagate zero gradients, and remove the computations that they make unnecessary."""

from __future__ import annotations

from collections import deque

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import graphopt_operators


def is_gradient_node(node: ir.Node, op_type: str) -> bool:
    """Whether ``node`` is the operator ``op_type`` of the domain ``graphopt.ad``."""
    return node.domain == graphopt_operators.AD_DOMAIN and node.op_type == op_type


def is_zero(value: ir.Value | None) -> bool:
    """Whether ``value`` is known to be a zero gradient; an omitted value is a zero gradient."""
    if value is None or value.metadata_props.get(graphopt_operators.UNDEFINED) == "true":
        return True
    node = value.producer()
    return node is not None and is_gradient_node(node, graphopt_operators.ZERO)


def walk_gradients(model: ir.Model, cx: Context, owner: str, *, lower: bool) -> None:
    """Remove zero summands and regions with only zero inputs; with ``lower``, lower all others.

    Nodes are visited in topological order, so that one pass propagates all zeros.
    """
    for graph in ir.graphs_of(model):
        pending = deque(graph)
        while pending:
            node = pending.popleft()
            if is_gradient_node(node, graphopt_operators.GRAD_OF):
                pending.extendleft(reversed(_region(node, cx, owner, lower)))
            elif is_gradient_node(node, graphopt_operators.AUTOGRAD_ADD) and 0 < len(node.inputs) < 3:
                _sum(node, cx, owner, lower)


def _region(node: ir.Node, cx: Context, owner: str, lower: bool) -> list[ir.Node]:
    """Replace the GradOf ``node`` by zeros, or by the nodes of its body, which the function returns."""
    attribute = node.attributes.get("body")
    outputs = list(node.outputs)
    count = len(node.inputs) - len(outputs)
    if attribute is None or attribute.is_ref() or count < 0:
        return []
    body, likes = attribute.as_graph(), node.inputs[count:]
    zero = all(map(is_zero, node.inputs[:count]))
    if (not zero and not lower) or None in likes or body.inputs or len(body.outputs) != len(outputs):
        return []
    if not zero and (node.graph is None or not cx.edit.supports_constants_of(node.graph, body)):
        return []
    action = cx.begin_rewrite(owner, node)
    if action is None:
        return []
    if zero:
        made = [
            cx.edit.make_node(
                graphopt_operators.ZERO, [like], domain=graphopt_operators.AD_DOMAIN, name=ir.label(node)
            )
            for like in likes
        ]
        cx.edit.insert_before(node, made)
        cx.edit.note_origin(made, [node], owner)
        results, moved = [zero.outputs[0] for zero in made], []
        cx.edit.clear_body(body)
    else:
        made = moved = list(body)
        results = cx.edit.inline_body(body, node)
    for output, result in zip(outputs, results, strict=True):
        cx.edit.replace(output, result)
    cx.edit.remove(node)
    cx.end_rewrite(action, node, made)
    return moved


def _sum(node: ir.Node, cx: Context, owner: str, lower: bool) -> None:
    """Replace the AutogradAdd ``node`` by its only operand, or by an Add."""
    left, right = (*node.inputs, None)[:2]
    sides = [value for value in (left, right) if value is not None and not is_zero(value)]
    if (len(sides) == 2 and not lower) or (left is None and right is None):
        return
    action = cx.begin_rewrite(owner, node)
    if action is None:
        return
    made: list[ir.Node] = []
    if len(sides) == 2:
        made = [cx.edit.make_node("Add", sides, name=ir.label(node))]
        cx.edit.insert_before(node, made)
        cx.edit.note_origin(made, [node], owner)
        sides = [made[0].outputs[0]]
    result = sides[0] if sides else left if left is not None else right
    assert result is not None
    cx.edit.replace(node.outputs[0], result)
    cx.edit.remove(node)
    cx.end_rewrite(action, node, made)
