"""The instrument that records the stages of a run: figures after each pass, and the nodes that it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphopt import ir
from graphopt.context import Context
from graphopt.instrument.model_summary import weights
from graphopt.page.page_data import Stage
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.pass_records import PassRecord

#: Maximum number of nodes listed for one stage, and for all stages together.
_MOST, _MOST_IN_ALL = 2_000, 30_000

#: The name of a node, and the parts whose replacement is a change: operator, inputs, and attributes.
_Parts = tuple[str, tuple[str, str, str], Sequence[ir.Value | None], tuple[Any, ...]]


class StageRecorder(PassInstrumentation):
    """Records a :class:`Stage` for each pass, by one walk over the model after each pass that changed it.

    Nodes are compared by identity and name: a renamed node counts as removed and added.

    Attributes:
        stages: the stages of the last run, in order.
    """

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._parts: dict[ir.Node, _Parts] = {}
        self._weight_bytes = 0
        self._listed = 0

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Begin again if this is the first pass: a run is repeated without rewrites at fault."""
        if index == 1:
            self.stages, self._listed = [], 0
            self._parts, self._weight_bytes = _parts_of(model), _weight_bytes(model)

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Record the differences to the previous stage."""
        removed: list[str] = []
        added: list[tuple[str, str, list[str], list[str], str]] = []
        changed: list[str] = []
        if record.changes:
            before, self._parts = self._parts, _parts_of(model)
            self._weight_bytes = _weight_bytes(model)
            removed = [parts[0] for node, parts in before.items() if not _has(self._parts, node, parts[0])]
            for node, parts in self._parts.items():
                if not _has(before, node, parts[0]):
                    added.append(_added(node, record.name))
                elif before[node] != parts:
                    changed.append(parts[0])
        total = len(removed) + len(added) + len(changed)
        most = min(_MOST, _MOST_IN_ALL - self._listed)
        removed = removed[:most]
        added = added[: most - len(removed)]
        changed = changed[: most - len(removed) - len(added)]
        listed = len(removed) + len(added) + len(changed)
        self._listed += listed
        self.stages.append(
            Stage(
                record.text,
                record.index,
                record.seconds,
                record.nodes,
                self._weight_bytes,
                dict(record.rewrites.most_common()),
                removed,
                added,
                changed,
                total - listed,
            )
        )


def _has(nodes: Mapping[ir.Node, _Parts], node: ir.Node, name: str) -> bool:
    """Whether ``node`` is one of ``nodes``, under this name."""
    found = nodes.get(node)
    return found is not None and found[0] == name


def _parts_of(model: ir.Model) -> dict[ir.Node, _Parts]:
    """The nodes of all graphs except Constant, with their parts."""
    return {
        node: (
            ir.label(node),
            (node.domain, node.op_type, node.overload),
            node.inputs,
            tuple(node.attributes.values()),
        )
        for graph in ir.graphs_of(model)
        for node in graph
        if node.op_type != "Constant"
    }


def _added(node: ir.Node, stage: str) -> tuple[str, str, list[str], list[str], str]:
    """The name, operator, inputs, outputs and maker of a new node."""
    inputs = ["" if value is None else value.name or "" for value in node.inputs]
    outputs = [value.name or "" for value in node.outputs]
    op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return ir.label(node), op, inputs, outputs, ir.created_by(node) or stage


def _weight_bytes(model: ir.Model) -> int:
    return sum(tensor.nbytes for tensor in weights(model))
