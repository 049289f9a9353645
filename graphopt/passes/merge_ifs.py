"""merge-ifs: Ifs on the same condition become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes._ifs import branches_of, positions, put_if
from graphopt.passes.base import Pass


@dataclass(frozen=True)
class MergeIfs(Pass):
    """Merge Ifs of one graph on the same condition, as far as what lies between them allows it.

    The branches of the second follow those of the first, and read what those return.
    """

    name: ClassVar[str] = "merge-ifs"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Merge outer Ifs first: branches that come together may hold Ifs on one condition."""
        pending = [model.graph, *(function.graph for function in model.functions.values())]
        while pending:
            graph = pending.pop()
            self._merge_all(graph, cx)
            pending.extend(body for node in graph if node.attributes for body in ir.bodies(node))

    def _merge_all(self, graph: ir.Graph, cx: Context) -> None:
        last: dict[ir.Value | None, ir.Node] = {}
        position: dict[ir.Node, int] = {}
        for node in list(graph):
            branches = branches_of(node)
            if branches is None:
                continue
            position = position or positions(graph)
            condition = node.inputs[0]
            first = last.get(condition)
            if first is not None:
                node = self._merge(first, node, position, cx) or node
            last[condition] = node

    def _merge(
        self, first: ir.Node, second: ir.Node, position: dict[ir.Node, int], cx: Context
    ) -> ir.Node | None:
        place = _place(first, second, position, cx)
        one, two = branches_of(first), branches_of(second)
        if place is None or one is None or two is None:
            return None
        if not all(map(cx.edit.takes_constants_of, one, two)):
            return None
        action = cx.permit(self.name, second)
        if action is None:
            return None
        for mine, its in zip(one, two, strict=True):
            _read_directly(first, mine, its, cx)
        moved = [node for its in two for node in its]
        for mine, its in zip(one, two, strict=True):
            for output in cx.edit.absorb(its, mine):
                cx.edit.add_output(mine, output)
        merged = put_if(cx, self.name, place, [first, second], one, [*first.outputs, *second.outputs])
        position[merged] = position[place]
        cx.edit.remove(second)
        cx.edit.remove(first)
        cx.wrote(action, second, [merged, *moved])
        return merged


def _place(first: ir.Node, second: ir.Node, position: dict[ir.Node, int], cx: Context) -> ir.Node | None:
    """Where both can stand: before what reads the first, and behind what the second's branches read."""
    graph = first.graph
    needed = [value.producer() for value in ir.captured(second)]
    if all(
        node is None or node is first or node.graph is not graph or position[node] < position[first]
        for node in needed
    ):
        return first
    readers = [_holder_in(graph, node, cx) for output in first.outputs for node in ir.readers(output)]
    if all(reader is not None and position[reader] >= position[second] for reader in readers):
        return second
    return None


def _holder_in(graph: ir.Graph | None, node: ir.Node | None, cx: Context) -> ir.Node | None:
    """The node of ``graph`` in whose bodies ``node`` stands, or ``node`` itself."""
    while node is not None and node.graph is not graph:
        node = cx.edit.scopes.holder(node.graph) if node.graph is not None else None
    return node


def _read_directly(first: ir.Node, branch: ir.Graph, reader: ir.Graph, cx: Context) -> None:
    """Let ``reader`` read what ``branch`` returns, instead of the outputs of ``first``."""
    inside = set(ir.with_bodies(reader))
    for output, returned in zip(first.outputs, branch.outputs, strict=True):
        for user, index in list(output.uses()):
            if user.graph in inside:
                cx.edit.set_input(user, index, returned)
