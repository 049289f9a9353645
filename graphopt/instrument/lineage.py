"""Lineage: the original nodes of each node of a result, the derivations between them, and removed nodes.

A :class:`Recorder` observes a run. :class:`Lineage` combines its records with the provenance of the
nodes (:mod:`graphopt.ir.provenance`). The metadata of the result can store it as JSON, under
:data:`KEY`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from graphopt import ir
from graphopt.context import Action, Context
from graphopt.errors import InvalidModel, UsageError, nearest_names
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.util.html_blocks import html_of
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, Table, counted, shortened

#: The key of the metadata entry. It is outside of the namespace ``graphopt.``, which is stripped on save.
KEY = "graphopt:lineage"
#: The version of the stored form.
_VERSION = 1
#: Maximum number of readers that an error names.
_READERS = 5

#: Number of rows, and of names in each cell, of the tables of a lineage.
_ROWS, _NAMES = 100, 4

#: A pass, and the rule that it applied, or the pass itself.
Step = tuple[str, str]


@dataclass(frozen=True)
class NodeLineage:
    """The lineage of one node of a result.

    Attributes:
        name: its name; for a node without a name, its operator and first output.
        originals: the names of the original nodes that it replaces; its own name for an original node.
        steps: the derivations that contributed to it, in order; empty for an original node.
        folded: the names of the original nodes that were folded into constants that it reads.
        absorbed: the names of other original nodes whose results it computes: duplicates, and identities
            that were removed.
    """

    name: str
    originals: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    folded: tuple[str, ...] = ()
    absorbed: tuple[str, ...] = ()

    @property
    def is_original(self) -> bool:
        """Whether the node is an original node without changes."""
        return not self.steps and not self.folded

    def to_dict(self) -> dict[str, Any]:
        """The lineage for JSON."""
        return {
            "node": self.name,
            "originals": list(self.originals),
            "steps": [{"pass": stage, "by": by} for stage, by in self.steps],
            "folded": list(self.folded),
            "absorbed": list(self.absorbed),
        }


@dataclass(frozen=True)
class Fate:
    """The replacements of one original node.

    Attributes:
        name: its name.
        nodes: the nodes of the result that are derived from it, in execution order.
        absorbed: other nodes of the result that compute its result, too (:attr:`NodeLineage.absorbed`).
        folded: the nodes of the result that read a constant into which it was folded.
        steps: the rewrites of the node and of nodes derived from it, in order; for a removed node, the last
            rewrite removed it.
    """

    name: str
    nodes: tuple[str, ...]
    absorbed: tuple[str, ...]
    folded: tuple[str, ...]
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """The replacements for JSON."""
        return {
            "original": self.name,
            "nodes": list(self.nodes),
            "absorbed_into": list(self.absorbed),
            "folded_into": list(self.folded),
            "steps": [{"pass": stage, "by": by} for stage, by in self.steps],
        }


def step_texts(steps: Iterable[Step]) -> list[str]:
    """``steps`` as text: ``drop-identity (peephole)``, ``dce``."""
    return [stage if stage == by else f"{by} ({stage})" for stage, by in steps]


def named_nodes(model: ir.Model, originals: Iterable[str] = ()) -> list[tuple[str, ir.Node]]:
    """All nodes of ``model`` with their names.

    If several nodes have the same name, the name of one in a function contains that of the function:
    ``attention/n8``. In a result, nodes with the names of such ``originals`` keep them.
    """
    known = frozenset(originals)
    counts = Counter(ir.label(node) for graph in ir.graphs_of(model) for node in graph)
    found = [(ir.label(node), node) for node in ir.walk_nodes(model.graph)]
    for (_, function, _), defined in model.functions.items():
        for node in ir.walk_nodes(defined.graph):
            name = ir.label(node)
            scoped = f"{function}/{name}"
            found.append((scoped if counts[name] > 1 or scoped in known else name, node))
    return found


class Recorder(PassInstrumentation):
    """Records the rewrites of each original node in a run.

    Attributes:
        originals: the labels of the nodes before the first pass, in order.
        outputs: the label of the node that computes each value, by name, before the first pass.
        rewrites: for each original node, the passes and rules that rewrote it or nodes derived from it.
    """

    def __init__(self) -> None:
        self.originals: list[str] = []
        self.outputs: dict[str, str] = {}
        self.rewrites: dict[str, dict[Step, None]] = {}
        self._stage = ""
        self._present: dict[str, None] = {}

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Reset the records before the first pass, because a run may be repeated without a faulty rewrite."""
        if index == 1:
            self.rewrites = {}
            self.originals, self.outputs = [], {}
            for name, node in named_nodes(model):
                self.originals.append(name)
                self.outputs |= {value.name: name for value in node.outputs if value.name}
                if name != ir.label(node) and ir.created_by(node) is None:
                    ir.record_origin(node, [name])
            self._present = dict.fromkeys(self.originals)
        self._stage = pass_.name

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Record unused nodes that were removed together with their readers."""
        if not record.changes:
            return
        present = dict.fromkeys(
            name for graph in ir.graphs_of(model) for node in graph for name in ir.origins(node)
        )
        for name in self._present:
            steps = self.rewrites.setdefault(name, {}) if name not in present else {}
            if name not in present and all(stage != pass_.name for stage, _ in steps):
                steps[pass_.name, pass_.name] = None
        self._present = present

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Record the rewrite of ``root``, and of the other nodes that the new nodes ``made`` replace."""
        for name in dict.fromkeys(name for node in (root, *made) for name in ir.origins(node)):
            self.rewrites.setdefault(name, {})[self._stage, action.owner] = None


@dataclass(frozen=True)
class Lineage:
    """The lineage of all nodes of a result.

    Attributes:
        nodes: the lineage of each node of the result, by name, in execution order.
        outputs: the name of the node that computes each value, by the name of the value.
        originals: the names of the original nodes, in order.
        rewrites: the steps that rewrote each original node, in order.
        removed_values: the original node of each value that the result lacks, by the name of the value.
    """

    nodes: Mapping[str, NodeLineage]
    outputs: Mapping[str, str]
    originals: Sequence[str]
    rewrites: Mapping[str, tuple[Step, ...]]
    removed_values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, recorder: Recorder) -> Lineage:
        """The lineage of ``model``, the result of the run that ``recorder`` observed."""
        nodes: dict[str, NodeLineage] = {}
        outputs: dict[str, str] = {}
        for name, node in named_nodes(model, recorder.originals):
            steps = dict.fromkeys((step.stage, step.by) for step in ir.derivation_steps(node))
            folded = dict.fromkeys(one for value in ir.reads(node) for one in ir.folded_from(value))
            own = NodeLineage(name, ir.origins(node), tuple(steps), tuple(folded), ir.absorbed(node))
            nodes.setdefault(name, own)
            outputs |= {value.name: name for value in node.outputs if value.name}
        rewrites = {name: tuple(steps) for name, steps in recorder.rewrites.items()}
        removed = {value: node for value, node in recorder.outputs.items() if value not in outputs}
        return cls(nodes, outputs, recorder.originals, rewrites, removed)

    def __repr__(self) -> str:
        changed = sum(not one.is_original for one in self.nodes.values())
        return f"Lineage({counted(len(self.nodes), 'node')}, {changed:,} of them changed)"

    def _repr_html_(self) -> str:
        return html_of(self.blocks())

    def blocks(self) -> Iterator[Block]:
        """Tables of the changed nodes of the result, and of original nodes without a successor."""
        changed = [one for one in self.nodes.values() if not one.is_original]
        yield f"{len(changed):,} of {counted(len(self.nodes), 'node')} of the result changed"
        table = Table(["node", "originals", "by", "folded", "absorbed"], "<<<<<")
        for one in changed:
            names = (shortened(part, _NAMES) for part in (one.originals, one.folded, one.absorbed))
            originals, folded, absorbed = names
            table.add(one.name, originals, ", ".join(step_texts(one.steps)), folded, absorbed)
        yield from _beginning(table)
        kept = {name for one in self.nodes.values() for name in (*one.originals, *one.folded, *one.absorbed)}
        table = Table(["not in the result", "by"], "<<")
        for name in self.originals:
            if name not in kept:
                table.add(name, ", ".join(step_texts(self.rewrites.get(name, ()))))
        yield from _beginning(table)

    def back(self, name: str) -> NodeLineage | None:
        """The lineage of the node of the result that has this name or an output of this name."""
        return self.nodes.get(name) or self.nodes.get(self.outputs.get(name, ""))

    def forward(self, name: str) -> Fate | None:
        """The replacements of the original node that has this name or an output of this name.

        Outputs that the result computes, too, are values of the result.

        Returns:
            ``None`` if there is no such node.
        """
        if name not in self.originals:
            if name not in self.removed_values:
                return None
            name = self.removed_values[name]
        nodes = dict.fromkeys(one.name for one in self.nodes.values() if name in one.originals)
        absorbed = dict.fromkeys(one.name for one in self.nodes.values() if name in one.absorbed)
        folded = tuple(one.name for one in self.nodes.values() if name in one.folded)
        others = tuple(one for one in absorbed if one not in nodes)
        return Fate(name, tuple(nodes), others, folded, self.rewrites.get(name, ()))

    def unknown(self, name: str, model: ir.Model) -> UsageError:
        """The error for a name without a node in the result or the original.

        Args:
            name: the name.
            model: the original, or the result if it has recorded its lineage.
        """
        for graph in ir.graphs_of(model):
            for kind, values in (("an input", graph.inputs), ("an initializer", graph.initializers.values())):
                value = next((value for value in values if value.name == name), None)
                if value is not None:
                    labels = dict.fromkeys(map(ir.label, ir.readers(value)))
                    hint = f"nodes that read it: {shortened(labels, _READERS)}" if labels else None
                    return UsageError(f"{name!r} is {kind}: no node computes it", hint=hint)
        nearest = nearest_names(name, dict.fromkeys([*self.nodes, *self.outputs, *self.originals]))[:3]
        hint = f"nearest: {', '.join(nearest)}" if nearest else "graphopt dump MODEL lists the nodes"
        return UsageError(f"neither the model nor its original has a node or value {name!r}", hint=hint)

    def to_json(self) -> str:
        """The lineage for metadata, without unchanged nodes that read no folded constant."""
        index = {name: number for number, name in enumerate(self.originals)}

        def numbers(names: Iterable[str]) -> list[int | str]:
            return [index.get(name, name) for name in names]

        changed = [one for one in self.nodes.values() if not one.is_original or one.name not in index]
        data = {
            "version": _VERSION,
            "originals": list(self.originals),
            "nodes": {
                one.name: [
                    numbers(one.originals),
                    [list(step) for step in one.steps],
                    numbers(one.folded),
                    numbers(one.absorbed),
                ]
                for one in changed
            },
            "rewrites": [
                [index.get(name, name), [list(step) for step in steps]]
                for name, steps in self.rewrites.items()
            ],
            "removed_values": {value: index.get(node, node) for value, node in self.removed_values.items()},
        }
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def read(cls, model: ir.Model) -> Lineage | None:
        """The lineage in the metadata of ``model``; ``None`` if there is none.

        Raises:
            InvalidModel: the entry is malformed.
        """
        text = model.metadata_props.get(KEY)
        if text is None:
            return None
        try:
            return cls._parsed(json.loads(text), model)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            raise InvalidModel(
                f"the metadata entry {KEY!r} is damaged",
                hint="graphopt optimize --provenance writes it",
            ) from error

    @classmethod
    def _parsed(cls, data: Any, model: ir.Model) -> Lineage:
        """The lineage of ``model``, decoded from ``data``."""
        if data["version"] != _VERSION:
            raise ValueError(data["version"])
        originals = [str(name) for name in data["originals"]]

        def names(numbers: Iterable[int | str]) -> tuple[str, ...]:
            return tuple(originals[one] if isinstance(one, int) else str(one) for one in numbers)

        def steps(pairs: Iterable[Sequence[str]]) -> tuple[Step, ...]:
            return tuple((str(stage), str(by)) for stage, by in pairs)

        nodes: dict[str, NodeLineage] = {}
        outputs: dict[str, str] = {}
        for name, node in named_nodes(model, originals):
            own = NodeLineage(name, (name,))
            if (found := data["nodes"].get(name)) is not None:
                first, made, folded, absorbed = found
                own = NodeLineage(name, names(first), steps(made), names(folded), names(absorbed))
            nodes.setdefault(name, own)
            outputs |= {value.name: name for value in node.outputs if value.name}
        rewrites = {names([one])[0]: steps(pairs) for one, pairs in data["rewrites"]}
        removed = {str(value): names([node])[0] for value, node in data.get("removed_values", {}).items()}
        return cls(nodes, outputs, originals, rewrites, removed)


def _beginning(table: Table) -> Iterator[Block]:
    """The first rows of ``table``, and the number of the others."""
    if table.rows:
        yield replace(table, rows=table.rows[:_ROWS])
    if len(table.rows) > _ROWS:
        yield f"and {counted(len(table.rows) - _ROWS, 'node')} more"
