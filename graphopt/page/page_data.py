"""The data of a page: graphs in columns, stages of the pipeline, and data of sections.

Columns have one entry for each node or value, so that 20,000 nodes remain small as JSON. Tables are indexed
from 0; -1 is the absence of an entry. Names and texts of a model are untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import IntEnum
from typing import Any, Literal

from graphopt.util.lazy_dataclass import dataclass

#: The version of the schema.
VERSION = 1


class Fate(IntEnum):
    """The outcome for a node of the original, or the origin of a node of the result."""

    UNCHANGED = 0
    REPLACED = 1  #: replaced, in the original; created by a rule or pass, in the result
    FOLDED = 2  #: computed at compile time, into a constant
    REMOVED = 3
    ABSORBED = 4  #: another node computes its result


class ValueKind(IntEnum):
    """The definition of a value."""

    INNER = 0
    INPUT = 1
    INITIALIZER = 2
    OUTPUT = 3


@dataclass(frozen=True)
class Layout:
    """Positions of boxes: an entry for each child, by layer, then from left to right.

    Attributes:
        child: node ``n`` as ``n``, and scope ``s`` as ``-s`` (scope 0 is never a child).
        layer: the row of the child, from 0; edges point to later rows.
        x: the horizontal centre, in widths of boxes.
    """

    child: Sequence[int] = ()
    layer: Sequence[int] = ()
    x: Sequence[float] = ()


@dataclass(frozen=True)
class Scope:
    """A group of nodes that the page can collapse.

    Attributes:
        name: the last component of its path.
        parent: the index of the scope around it; -1 for scope 0, the whole graph.
        kind: the kind of group: common prefix of names, call of a function, or body of a node.
        layout: its nodes and scopes.
    """

    name: str
    parent: int
    kind: Literal["graph", "module", "function", "body"]
    layout: Layout = field(default_factory=Layout)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "layout": vars(self.layout)}


@dataclass(frozen=True)
class NodeColumns:
    """The nodes of a graph, including those of bodies and functions.

    Attributes:
        name: the names in the lineage (:func:`graphopt.instrument.lineage.named_nodes`).
        op: indexes of operators.
        scope: indexes of scopes.
        inputs, outputs: indexes of values; -1 for an omitted input.
        attributes: keys and texts, in which large values are abbreviated.
        by: indexes of makers: in the result, the rule or pass that created the node; in the original, the one
            that replaced or removed it; -1 for an unchanged node.
        fate: values of :class:`Fate`.
        related: indexes of nodes of the other graph that compute the same.
        group: indexes of groups.
        device: indexes of devices.
        notes: reasons why the node was not rewritten or fused, and of its placement.
    """

    name: list[str] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    scope: list[int] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    attributes: list[list[tuple[str, str]] | None] = field(default_factory=list)
    by: list[int] = field(default_factory=list)
    fate: list[int] = field(default_factory=list)
    related: list[list[int]] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    notes: list[list[str] | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class ValueColumns:
    """The values of a graph.

    Attributes:
        name: names.
        type: types such as ``float32[N, 3]``; empty if unknown.
        kind: values of :class:`ValueKind`.
        stats: size and statistics of the elements of constants.
    """

    name: list[str] = field(default_factory=list)
    type: list[str] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    stats: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class GraphData:
    """One model as a graph.

    Attributes:
        id: its role.
        label: its name in the page, such as its file.
        ops: the operators of nodes, as ``Conv`` or ``domain::Op``.
        groups: the name and kind of each group: fusion, autodiff, guard or variant.
        devices: the names of devices.
        scopes: a tree; scope 0 is the whole graph.
        flat: the positions of all nodes without scopes.
    """

    id: Literal["original", "optimized"]
    label: str
    nodes: NodeColumns
    values: ValueColumns
    ops: Sequence[str] = ()
    groups: Sequence[tuple[str, str]] = ()
    devices: Sequence[str] = ()
    scopes: Sequence[Scope] = ()
    flat: Layout = field(default_factory=Layout)

    def to_dict(self) -> dict[str, Any]:
        """The graph for JSON."""
        return {
            "id": self.id,
            "label": self.label,
            "nodes": vars(self.nodes),
            "ops": self.ops,
            "groups": [{"name": name, "kind": kind} for name, kind in self.groups],
            "devices": self.devices,
            "values": vars(self.values),
            "scopes": [scope.to_dict() for scope in self.scopes],
            "flat": vars(self.flat),
        }


@dataclass(frozen=True)
class Stage:
    """A run of a pass, and the difference to the model before it.

    Attributes:
        name: the pass.
        index: its position in the run, from 1.
        seconds: wall time.
        nodes: number of nodes afterwards.
        weight_bytes: bytes of all weights afterwards; ``None`` if unknown.
        rewrites: changes by rule.
        removed, changed: names of nodes.
        added: name, operator, names of inputs and outputs, and maker of each new node.
        truncated: number of further differences, which are not listed.
    """

    name: str
    index: int
    seconds: float
    nodes: int
    weight_bytes: int | None = None
    rewrites: Mapping[str, int] = field(default_factory=dict)
    removed: Sequence[str] = ()
    added: Sequence[tuple[str, str, Sequence[str], Sequence[str], str]] = ()
    changed: Sequence[str] = ()
    truncated: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The stage for JSON."""
        columns = dict(vars(self))
        return {"pass": columns.pop("name"), **columns}


@dataclass(frozen=True)
class PageData:
    """All data of a page.

    Attributes:
        title: the title of the page.
        command: the command that creates it again.
        graphs: the original, the result, or both in this order.
        makers: the rules and passes that columns refer to.
        stages: the stages of the pipeline, if one ran.
        sections: data of sections, by name.
    """

    title: str
    command: str
    graphs: Sequence[GraphData] = ()
    makers: Sequence[str] = ()
    stages: Sequence[Stage] = ()
    sections: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The data for JSON."""
        return {
            "version": VERSION,
            "title": self.title,
            "command": self.command,
            "graphs": [graph.to_dict() for graph in self.graphs],
            "makers": self.makers,
            "stages": [stage.to_dict() for stage in self.stages],
            "sections": self.sections,
        }
