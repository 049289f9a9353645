"""merge-ifs: merge Ifs on one condition."""

from __future__ import annotations

import heapq
from dataclasses import field
from typing import ClassVar

from graphopt import ir
from graphopt.context import Action, Context
from graphopt.control_flow.if_branches import Branches, branches_of, insert_if, positions
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class MergeIfs(Pass):
    """Merge Ifs of one graph on the same condition, if data dependences allow it.

    The branches are concatenated, and later branches read the results of earlier branches directly. The
    merged If returns the values with other readers.
    """

    name: ClassVar[str] = "merge-ifs"
    operators: ClassVar[frozenset[str]] = frozenset({"If"})

    def run(self, model: ir.Model, cx: Context) -> None:
        """Merge outer Ifs first: merged branches may contain Ifs on one condition."""
        pending = [model.graph, *(function.graph for function in model.functions.values())]
        while pending:
            graph = pending.pop()
            self._merge_all(graph, cx)
            pending.extend(body for node in graph if node.attributes for body in ir.bodies(node))

    def _merge_all(self, graph: ir.Graph, cx: Context) -> None:
        groups = _Groups(graph, cx)
        last: dict[ir.Value | None, _Group] = {}
        for node in list(graph):
            branches = branches_of(node)
            if branches is None:
                continue
            condition = node.inputs[0]
            group = last.get(condition)
            place = None if group is None else groups.insertion_point(group, node, branches)
            action = None if place is None else cx.begin_rewrite(self.name, node)
            if group is None or place is None or action is None:
                last[condition] = groups.start(node, branches)
            else:
                groups.join(group, node, branches, place, action)
        for group in groups.all:
            if group.actions:
                self._merge(group, cx)

    def _merge(self, group: _Group, cx: Context) -> None:
        """Replace all Ifs of ``group`` by one If."""
        _read_directly(group, cx)
        into = group.branches[0]
        returned: tuple[list[ir.Value], list[ir.Value]] = (list(into[0].outputs), list(into[1].outputs))
        moved = [[node for branch in branches for node in branch] for branches in group.branches[1:]]
        for branches in group.branches[1:]:
            for mine, its, values in zip(into, branches, returned, strict=True):
                values += cx.edit.append_body(its, mine)
        outputs = [output for node in group.nodes for output in node.outputs]
        kept = [index for index, output in enumerate(outputs) if ir.is_read(output)] or [0]
        for mine, values in zip(into, returned, strict=True):
            cx.edit.set_outputs(mine, [values[index] for index in kept])
        merged = insert_if(cx, self.name, group.place, group.nodes, into, [outputs[index] for index in kept])
        for node in reversed(group.nodes):
            cx.edit.remove(node)
        for action, node, nodes in zip(group.actions, group.nodes[1:], moved, strict=True):
            cx.end_rewrite(action, node, [merged, *nodes])


@dataclass(eq=False)
class _Group:
    """Ifs on one condition that are merged.

    Attributes:
        nodes: the Ifs, in order.
        branches: the branches of each.
        place: the If before which the merged If is inserted.
        actions: the permitted changes, one for each If except the first.
        readers: a heap of nodes of the graph that read the Ifs, by an upper bound of their position.
    """

    nodes: list[ir.Node]
    branches: list[Branches]
    place: ir.Node
    actions: list[Action] = field(default_factory=list)
    readers: list[tuple[int, int, ir.Node]] = field(default_factory=list)


class _Groups:
    """The groups of one graph, and the positions of its nodes after merging."""

    def __init__(self, graph: ir.Graph, cx: Context) -> None:
        self.all: list[_Group] = []
        self._graph = graph
        self._cx = cx
        self._positions: dict[ir.Node, int] = {}
        self._group_of: dict[ir.Node, _Group] = {}
        self._pushed = 0

    def start(self, node: ir.Node, branches: Branches) -> _Group:
        """A group of ``node`` alone."""
        group = _Group([node], [branches], node)
        self.all.append(group)
        self._enter(group, node)
        return group

    def join(self, group: _Group, node: ir.Node, branches: Branches, place: ir.Node, action: Action) -> None:
        """Add ``node`` to ``group``, whose merged If is inserted before ``place``."""
        group.nodes.append(node)
        group.branches.append(branches)
        group.actions.append(action)
        group.place = place
        self._enter(group, node)
        for value in ir.captured(node):  # the node may move up
            source = value.producer()
            other = None if source is None else self._group_of.get(source)
            if other is not None:
                self._push(other, node)

    def insertion_point(self, group: _Group, node: ir.Node, branches: Branches) -> ir.Node | None:
        """The node before which ``group`` with ``node`` can be merged: the current one, or ``node``."""
        if not all(map(self._cx.edit.supports_constants_of, group.branches[0], branches)):
            return None
        before = self._position(group.place)
        producers = (value.producer() for value in ir.captured(node))
        if all(
            source is None
            or source.graph is not self._graph
            or self._group_of.get(source) is group
            or self._position(source) < before
            for source in producers
        ):
            return group.place
        first = self._first_reader(group)
        return node if first is None or first >= self._position(node) else None

    def _enter(self, group: _Group, node: ir.Node) -> None:
        self._group_of[node] = group
        for output in node.outputs:
            for user in ir.readers(output):
                holder: ir.Node | None = user
                while holder is not None and holder.graph is not self._graph:
                    holder = self._cx.edit.scopes.holder(holder.graph) if holder.graph is not None else None
                if holder is not None:
                    self._push(group, holder)

    def _push(self, group: _Group, reader: ir.Node) -> None:
        self._pushed += 1
        heapq.heappush(group.readers, (self._position(reader), self._pushed, reader))

    def _first_reader(self, group: _Group) -> int | None:
        """The position of the first node outside of ``group`` that reads a result of it."""
        while group.readers:
            position, _, reader = group.readers[0]
            if self._group_of.get(reader) is group:
                heapq.heappop(group.readers)
            elif position < self._position(reader):
                heapq.heappop(group.readers)
                self._push(group, reader)
            else:
                return position
        return None

    def _position(self, node: ir.Node) -> int:
        """The position of ``node`` after merging."""
        self._positions = self._positions or positions(self._graph)
        group = self._group_of.get(node)
        return self._positions[node if group is None else group.place]


def _read_directly(group: _Group, cx: Context) -> None:
    """Replace the Ifs' outputs that later branches read by the results of the earlier branches."""
    side = {
        body: index
        for branches in group.branches
        for index, branch in enumerate(branches)
        for body in ir.with_bodies(branch)
    }
    for node, branches in zip(group.nodes, group.branches, strict=True):
        for index, output in enumerate(node.outputs):
            for user, place in output.uses():
                if user.graph is not None and user.graph in side:
                    cx.edit.set_input(user, place, branches[side[user.graph]].outputs[index])
