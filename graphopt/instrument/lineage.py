"""Lineage: the original nodes of each node of a result, the derivations between them, and removed nodes.

A :class:`Recorder` observes a run. :class:`Lineage` combines its observations with the provenance of the
nodes (:mod:`graphopt.ir.provenance`). It can be stored in the metadata of the result, as JSON, under
:data:`KEY`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphopt import ir
from graphopt.context import Action, Context
from graphopt.errors import InvalidModel, UsageError, nearest_names
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord
from graphopt.util.lazy_dataclass import dataclass

#: The metadata entry of a model, outside of the namespace ``graphopt.``, which saving strips.
KEY = "graphopt:lineage"
#: The version of the stored form.
_VERSION = 1

#: A pass, and the rule or pass that it applied.
Step = tuple[str, str]


@dataclass(frozen=True)
class NodeLineage:
    """The lineage of one node of a result.

    Attributes:
        name: its name, or its operator and first output.
        originals: the names of the original nodes that it replaces; its own name if it is original.
        steps: the derivations that contributed to it, in order; none if it is original.
        folded: the names of the original nodes that are folded into constants that it reads.
        absorbed: the names of further original nodes whose results it computes: duplicates, and nodes that
            were removed because they changed nothing.
    """

    name: str
    originals: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    folded: tuple[str, ...] = ()
    absorbed: tuple[str, ...] = ()

    @property
    def is_original(self) -> bool:
        """Whether the node replaces only itself."""
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
    """The outcome for one original node.

    Attributes:
        name: its name.
        nodes: the nodes of the result that replace it, in their order.
        folded: the nodes of the result that read a constant into which it is folded.
        steps: the rewrites of the node, or of nodes derived from it, in order; for a removed node, the last
            one removed it.
    """

    name: str
    nodes: tuple[str, ...]
    folded: tuple[str, ...]
    steps: tuple[Step, ...]

    def to_dict(self) -> dict[str, Any]:
        """The outcome for JSON."""
        return {
            "original": self.name,
            "nodes": list(self.nodes),
            "folded_into": list(self.folded),
            "steps": [{"pass": stage, "by": by} for stage, by in self.steps],
        }


class Recorder(PassInstrumentation):
    """Records the rewrites of a run by the original nodes that they concern.

    Attributes:
        originals: the labels of the nodes before the first pass, in order.
        rewrites: the passes, and their rules, that rewrote each original node or nodes derived from it.
    """

    def __init__(self) -> None:
        self.originals: list[str] = []
        self.rewrites: dict[str, dict[Step, None]] = {}
        self._stage = ""
        self._present: dict[str, None] = {}

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Begin again if this is the first pass: a run is repeated without rewrites at fault."""
        if index == 1:
            self.rewrites = {}
            self.originals = [ir.label(node) for graph in ir.graphs_of(model) for node in graph]
            self._present = dict.fromkeys(self.originals)
        self._stage = pass_.name

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Record the nodes that became unused, and were removed together with those that read them."""
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
        """Record the rewrite of ``root``, and of the other nodes that ``made`` replaces."""
        for name in dict.fromkeys(name for node in (root, *made) for name in ir.origins(node)):
            self.rewrites.setdefault(name, {})[self._stage, action.owner] = None


@dataclass(frozen=True)
class Lineage:
    """The lineage of all nodes of a result.

    Attributes:
        nodes: the lineage of each node, by name, in the order of the result.
        outputs: the names of nodes, by the names of their outputs.
        originals: the names of the original nodes, in order.
        rewrites: the steps that rewrote each original node, in order.
    """

    nodes: Mapping[str, NodeLineage]
    outputs: Mapping[str, str]
    originals: Sequence[str]
    rewrites: Mapping[str, tuple[Step, ...]]

    @classmethod
    def of(cls, model: ir.Model, recorder: Recorder) -> Lineage:
        """The lineage of the nodes of ``model``, the result of the run that ``recorder`` observed."""
        nodes: dict[str, NodeLineage] = {}
        outputs: dict[str, str] = {}
        for graph in ir.graphs_of(model):
            for node in graph:
                name = ir.label(node)
                steps = dict.fromkeys((step.stage, step.by) for step in ir.derivation_steps(node))
                folded = dict.fromkeys(one for value in ir.reads(node) for one in ir.folded_from(value))
                own = NodeLineage(name, ir.origins(node), tuple(steps), tuple(folded), ir.absorbed(node))
                nodes.setdefault(name, own)
                outputs |= {value.name: name for value in node.outputs if value.name}
        rewrites = {name: tuple(steps) for name, steps in recorder.rewrites.items()}
        return cls(nodes, outputs, recorder.originals, rewrites)

    def back(self, name: str) -> NodeLineage | None:
        """The lineage of the node of the result with this name, or with an output of this name."""
        return self.nodes.get(name) or self.nodes.get(self.outputs.get(name, ""))

    def forward(self, name: str) -> Fate | None:
        """The outcome for the original node with this name; ``None`` if there is none."""
        if name not in self.originals:
            return None
        nodes = tuple(one.name for one in self.nodes.values() if name in (*one.originals, *one.absorbed))
        folded = tuple(one.name for one in self.nodes.values() if name in one.folded)
        return Fate(name, nodes, folded, self.rewrites.get(name, ()))

    def unknown(self, name: str) -> UsageError:
        """The error for a name of neither a node of the result nor an original node."""
        nearest = nearest_names(name, dict.fromkeys([*self.nodes, *self.outputs, *self.originals]))[:3]
        hint = f"nearest: {', '.join(nearest)}" if nearest else "graphopt dump MODEL lists the nodes"
        return UsageError(f"neither the model nor its original has a node or value {name!r}", hint=hint)

    def to_json(self) -> str:
        """The lineage for metadata; unchanged nodes that read no folded constant are omitted."""
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
        }
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def read(cls, model: ir.Model) -> Lineage | None:
        """The lineage in the metadata of ``model``; ``None`` if there is none.

        Raises:
            InvalidModel: the entry has another form.
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
        """The lineage of ``model`` from its stored form ``data``."""
        if data["version"] != _VERSION:
            raise ValueError(data["version"])
        originals = [str(name) for name in data["originals"]]

        def names(numbers: Iterable[int | str]) -> tuple[str, ...]:
            return tuple(originals[one] if isinstance(one, int) else str(one) for one in numbers)

        def steps(pairs: Iterable[Sequence[str]]) -> tuple[Step, ...]:
            return tuple((str(stage), str(by)) for stage, by in pairs)

        nodes: dict[str, NodeLineage] = {}
        outputs: dict[str, str] = {}
        for graph in ir.graphs_of(model):
            for node in graph:
                name = ir.label(node)
                own = NodeLineage(name, (name,))
                if (found := data["nodes"].get(name)) is not None:
                    first, made, folded, absorbed = found
                    own = NodeLineage(name, names(first), steps(made), names(folded), names(absorbed))
                nodes.setdefault(name, own)
                outputs |= {value.name: name for value in node.outputs if value.name}
        rewrites = {names([one])[0]: steps(pairs) for one, pairs in data["rewrites"]}
        return cls(nodes, outputs, originals, rewrites)
