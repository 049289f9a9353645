"""dissolve-groups: inline native groups, so that other passes can optimize their nodes."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.backend import backend_for
from graphopt.fusion.group_functions import note_signatures, signatures_of
from graphopt.numerics import Numerics
from graphopt.ops import graphopt_operators
from graphopt.partitioning.outline_groups import COPIED_BYTES
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class DissolveGroups(Pass):
    """Inline the calls of native groups, if ``fuse-groups`` may create new ones.

    Rules match operators, not groups. The names of the ungrouped nodes are restored, so that optimizing a
    result again returns the same result.
    """

    name: ClassVar[str] = "dissolve-groups"
    for_speed: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Inline all groups."""
        if obstacle_to_groups(model, cx) is None:
            dissolve(model, cx)


def obstacle_to_groups(model: ir.Model, cx: Context) -> str | None:
    """The reason why ``model`` can't have groups; ``None`` if it can."""
    if backend_for(cx.options.device) is None:
        return f"there are no kernels for {cx.options.device}"
    if cx.options.numerics is Numerics.EXACT:
        return "kernels are not bit-exact, as --exact requires"
    return None


def dissolve(model: ir.Model, cx: Context) -> None:
    """Inline all calls of groups."""
    groups = [key for key in model.functions if key[0] == graphopt_operators.NATIVE_DOMAIN]
    if not groups:
        return
    for key in groups:
        cx.edit.free_names(model.functions[key].graph)
    graphs = cx.graphs
    constants: dict[ir.Graph, _Constants] = {}
    for graph in graphs:
        holder = cx.edit.scopes.holder(graph)
        around = constants[holder.graph] if holder is not None and holder.graph is not None else None
        constants[graph] = _Constants(graph, around, holder)
    calls = [(graph, node) for graph in graphs for node in graph if node.op_identifier() in groups]
    first = {node.op_identifier(): node for _, node in reversed(calls)}
    # the first call of each function uses the original names, other calls use new names
    for graph, call in sorted(calls, key=lambda item: first[item[1].op_identifier()] is not item[1]):
        if ir.inline_obstacle(cx.edit, call) is None:
            position = constants[graph].position[call]
            _lift_constants(ir.inline_call(cx.edit, call, prefixed=False), position, constants[graph], cx)
    called = {node.op_identifier() for graph in ir.graphs_of(model) for node in graph}
    for key in groups:
        if key not in called:
            cx.edit.remove_function(model.functions[key])
    note_signatures(model, signatures_of(model), cx)
    cx.invalidate("inline")


class _Constants:
    """Constants of a graph by name, and small ones by contents, as after ``constant-pooling``.

    Attributes:
        position: position of each node in the graph, before groups were dissolved.
    """

    def __init__(self, graph: ir.Graph, around: _Constants | None, holder: ir.Node | None) -> None:
        """Collect the constants of ``graph``, a body of the node ``holder`` of the graph of ``around``."""
        self.graph = graph
        self._around = around
        self._holder = holder
        self.position = {node: index for index, node in enumerate(graph)}
        self._by_name: dict[str, ir.Value] = {}
        self._by_contents: dict[str, ir.Value] = {}
        for value in ir.constants_in(graph):
            self._add(value)

    def _add(self, value: ir.Value) -> None:
        tensor = ir.constant_of(value)
        if tensor is None:
            return
        self._by_name[value.name or ""] = value
        if tensor.nbytes <= COPIED_BYTES:
            self._by_contents.setdefault(ir.hash_of(tensor), value)

    def get(self, tensor: ir.TensorProtocol, name: str, position: int, cx: Context) -> ir.Value:
        """A constant with the contents of ``tensor``, visible at ``position``; a new constant if none exists.

        Args:
            name: name of the preferred constant, and of a new one.
        """
        found = self._find(tensor, name, position)
        if found is None:
            found = cx.edit.constant(self.graph, tensor, name)
            self._add(found)
        return found

    def _find(self, tensor: ir.TensorProtocol, name: str, position: int) -> ir.Value | None:
        contents = ir.hash_of(tensor)
        for value in (self._by_name.get(name), self._by_contents.get(contents)):
            known = ir.constant_of(value)
            if value is None or known is None or ir.hash_of(known) != contents:
                continue
            producer = value.producer()
            if producer is None or self.position.get(producer, position) < position:
                return value
        if self._around is None or self._holder is None:
            return None
        return self._around._find(tensor, name, self._around.position[self._holder])


def _lift_constants(nodes: list[ir.Node], position: int, constants: _Constants, cx: Context) -> None:
    """Replace inlined Constant nodes by constants of the graph with their original names.

    Args:
        nodes: the nodes of a function, inlined at ``position``.
    """
    for node in nodes:
        tensor = ir.constant_of(node.outputs[0]) if node.op_type == "Constant" else None
        if tensor is None or node.name is None:
            continue
        cx.edit.replace(node.outputs[0], constants.get(tensor, node.name, position, cx))
        cx.edit.remove(node)
