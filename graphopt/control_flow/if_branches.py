"""Branches of Ifs, and the replacement of Ifs."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Context

Branches = tuple[ir.Graph, ir.Graph]


def branches_of(node: ir.Node) -> Branches | None:
    """The then and else branches of ``node``; ``None`` if it is not a well-formed If."""
    if node.op_type != "If" or node.domain != "" or len(node.inputs) != 1:
        return None
    then, other = node.attributes.get("then_branch"), node.attributes.get("else_branch")
    if then is None or other is None or then.is_ref() or other.is_ref():
        return None
    both = then.as_graph(), other.as_graph()
    sound = all(not branch.inputs and len(branch.outputs) == len(node.outputs) for branch in both)
    return both if sound else None


def insert_if(
    cx: Context,
    by: str,
    place: ir.Node,
    sources: Sequence[ir.Node],
    branches: Branches,
    outputs: Sequence[ir.Value],
) -> ir.Node:
    """Insert an If before ``place`` whose outputs replace ``outputs``.

    Args:
        by: the name of the pass.
        sources: the nodes that the If replaces, an If on the same condition first; the caller removes them.
        branches: the branches of the new If, which may be branches of a source.
    """
    attributes = {"then_branch": branches[0], "else_branch": branches[1]}
    node = cx.edit.make_node(
        "If", [sources[0].inputs[0]], attributes, outputs=len(outputs), name=ir.label(sources[0])
    )
    cx.edit.insert_before(place, [node])
    cx.edit.note_origin([node], sources, by)
    for old, new in zip(outputs, node.outputs, strict=True):
        was_output = old.is_graph_output()
        cx.edit.replace(old, new)
        if not was_output:
            cx.edit.transfer_name(new, old)
    return node


def inline_branch(cx: Context, node: ir.Node, taken: ir.Graph) -> list[ir.Node]:
    """Replace the If ``node`` by the nodes of its branch ``taken``, which are returned."""
    moved = list(taken)
    for old, new in zip(node.outputs, cx.edit.inline_body(taken, node), strict=True):
        cx.edit.replace(old, new)
    for body in ir.bodies(node):
        if body is not taken:
            cx.edit.clear_body(body)
    cx.edit.remove(node)
    return moved


def positions(graph: ir.Graph) -> dict[ir.Node, int]:
    """The position of each node of ``graph``."""
    return {node: index for index, node in enumerate(graph)}
