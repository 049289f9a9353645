"""A model as columns of a page: nodes, values, groups and scopes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from graphopt import ir
from graphopt.context import Context
from graphopt.instrument.inferred_type_text import known_types
from graphopt.instrument.lineage import named_nodes
from graphopt.instrument.model_summary import op_name
from graphopt.ir import printer
from graphopt.ops import graphopt_operators
from graphopt.page.constant_statistics import statistics_of
from graphopt.page.page_data import GraphData, NodeColumns, ValueColumns, ValueKind
from graphopt.page.scope_tree import ScopeTree, layout_of, module_path
from graphopt.util.lazy_dataclass import dataclass

#: The kinds of groups, by the domain of their functions.
_GROUPS = {
    graphopt_operators.NATIVE_DOMAIN: "fusion",
    graphopt_operators.AUTODIFF_GROUPS: "autodiff",
    graphopt_operators.GUARD_DOMAIN: "guard",
}


@dataclass(frozen=True)
class NodeRemarks:
    """Further facts about nodes, by name.

    Attributes:
        notes: reasons why a node was not rewritten or fused, and of its placement.
        devices: the device of a node; ``default_device`` for others.
    """

    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    default_device: str = "CPU"


def graph_data(
    cx: Context,
    id: Literal["original", "optimized"],
    label: str,
    remarks: NodeRemarks | None = None,
    originals: Iterable[str] = (),
) -> GraphData:
    """The columns of the model of ``cx``, without relations to another model.

    Constant nodes are values, not nodes. Nodes of bodies and functions have scopes of their own.

    Args:
        cx: the context of the model, which supplies inferred types.
        id: the role of the model.
        label: its name in the page.
        remarks: further facts about its nodes.
        originals: for a result, the names of the original nodes, as
            :func:`graphopt.instrument.lineage.named_nodes` uses them.

    Raises:
        UsageError: the layout library is not installed.
    """
    return _Columns(cx, remarks or NodeRemarks(), originals).graph(id, label)


class _Columns:
    """Collects the columns of one model."""

    def __init__(self, cx: Context, remarks: NodeRemarks, originals: Iterable[str]) -> None:
        self._names = {node: name for name, node in named_nodes(cx.model, originals)}
        self._model, self._remarks, self._types = cx.model, remarks, known_types(cx)
        self._nodes, self._values = NodeColumns(), ValueColumns()
        self._value_index: dict[ir.Value, int] = {}
        self._ops: dict[str, int] = {}
        self._groups: dict[tuple[str, str], int] = {}
        self._devices: dict[str, int] = {}
        self._tree = ScopeTree()
        self._scope: list[int] = []
        self._holders: list[tuple[int, int]] = []

    def graph(self, id: Literal["original", "optimized"], label: str) -> GraphData:
        model = self._model
        self._graph(model.graph, 0, -1)
        for (domain, name, _), function in model.functions.items():
            scope = self._tree.add(name, 0, "function")
            self._graph(function.graph, scope, self._group(domain, name))
        for value in model.graph.outputs:
            self._values.kind[self._value(value)] = ValueKind.OUTPUT
        tree = self._tree.without_single_nodes(self._scope)
        self._nodes.scope.extend(self._scope)
        edges = [*self._edges(), *self._holders]
        flat = layout_of(range(len(self._nodes)), edges)
        return GraphData(
            id,
            label,
            self._nodes,
            self._values,
            list(self._ops),
            list(self._groups),
            list(self._devices),
            tree.laid_out(self._scope, edges),
            flat,
        )

    def _graph(self, root: ir.Graph, scope: int, group: int) -> None:
        """Add the nodes of ``root`` and of its bodies."""
        pending = [(root, scope, -1)]
        while pending:
            graph, scope, holder = pending.pop()
            kind = ValueKind.INPUT if graph is self._model.graph else ValueKind.INNER
            for value in graph.inputs:
                self._value(value, kind)
            bodies: list[tuple[ir.Graph, int, int]] = []
            for node in graph:
                if _is_constant(node):
                    continue
                index = self._node(node, scope, group)
                if holder >= 0:
                    self._holders.append((holder, index))
                for name, body in printer.named_bodies(node):
                    inner = self._tree.add(f"{name} of {ir.label(node)}", self._scope[index], "body")
                    bodies.append((body, inner, index))
            pending += reversed(bodies)

    def _node(self, node: ir.Node, scope: int, group: int) -> int:
        columns, name = self._nodes, ir.label(node)
        columns.name.append(self._names[node])
        columns.op.append(_index(self._ops, op_name(node.domain, node.op_type)))
        self._scope.append(self._tree.module(scope, module_path(node)))
        columns.inputs.append([-1 if value is None else self._value(value) for value in node.inputs])
        columns.outputs.append([self._value(value) for value in node.outputs])
        columns.attributes.append(list(printer.attributes(node)) or None)
        own = self._group(node.domain, node.op_type) if node.op_identifier() in self._model.functions else -1
        columns.group.append(own if own >= 0 else group)
        device = self._remarks.devices.get(name, self._remarks.default_device)
        columns.device.append(_index(self._devices, device))
        columns.notes.append(list(self._remarks.notes.get(name, ())) or None)
        columns.by.append(-1)
        columns.fate.append(0)
        columns.related.append([])
        return len(columns) - 1

    def _group(self, domain: str, name: str) -> int:
        """The index of the group of a function; -1 for a function of the model."""
        kind = _GROUPS.get(domain)
        return -1 if kind is None else self._groups.setdefault((name, kind), len(self._groups))

    def _value(self, value: ir.Value, kind: ValueKind = ValueKind.INNER) -> int:
        if value not in self._value_index:
            self._value_index[value] = len(self._values)
            tensor = value.const_value if value.is_initializer() else ir.constant_of(value)
            if tensor is not None and kind is ValueKind.INNER:
                kind = ValueKind.INITIALIZER
            self._values.name.append(value.name or "")
            self._values.type.append(self._types(value) or "")
            self._values.kind.append(int(kind))
            self._values.stats.append(None if tensor is None else statistics_of(tensor))
        return self._value_index[value]

    def _edges(self) -> Iterator[tuple[int, int]]:
        producer = {value: node for node, values in enumerate(self._nodes.outputs) for value in values}
        for node, values in enumerate(self._nodes.inputs):
            for value in dict.fromkeys(values):
                if value in producer:
                    yield producer[value], node


def _is_constant(node: ir.Node) -> bool:
    """Whether ``node`` is a Constant of known elements, and not of an attribute of its function."""
    if node.op_type != "Constant" or node.domain != "":
        return False
    return all(ir.constant_of(value) is not None for value in node.outputs)


def _index(table: dict[str, int], text: str) -> int:
    return table.setdefault(text, len(table))
