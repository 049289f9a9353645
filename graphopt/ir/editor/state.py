"""The state of the editor, unique names, and the count of edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.editor.change_log import ChangeLog
from graphopt.ir.inventory import Inventory
from graphopt.ir.nested_graphs import Scopes
from graphopt.ir.unique_names import TakenNames


class Listener(Protocol):
    """An observer of edits."""

    def replaced(self, old: onnx_ir.Value, new: onnx_ir.Value) -> None:
        """All readers of ``old`` now read ``new``, which is equal to it by contract."""


class EditorState:
    """State of the :class:`~graphopt.ir.editor.editor.Editor`, without edits."""

    def __init__(self, model: onnx_ir.Model) -> None:
        self.model = model
        self.scopes = Scopes(model)
        self.epoch = 0
        self._undone = 0
        self.counts: Counter[str] = Counter()
        self.tally: Counter[tuple[str, str]] = Counter()
        self.log = ChangeLog()
        self.listeners: list[Listener] = []
        self.stage = self.actor = ""
        self.derivations = 0
        self._new_constants: list[onnx_ir.Node] = []
        self.trusts_shape: Callable[[onnx_ir.Value], bool] = lambda output: True
        model.graph.meta[IR_VERSION] = model.ir_version
        self._taken = TakenNames(model)
        self._inventory: tuple[int, Inventory] | None = None
        self._referenced: tuple[int, frozenset[str]] = (-1, frozenset())

    def _changed(self, kind: str, nodes: Iterable[onnx_ir.Node] | None = None) -> None:
        """Count an edit of ``kind``, and log it.

        Args:
            kind: the kind of edit.
            nodes: inserted and changed nodes; by default, the edit may concern all nodes.
        """
        self.epoch += 1
        self.counts[kind] += 1
        if nodes is None:
            self.log.changed_anywhere()
        else:
            self.log.changed(nodes)

    @property
    def inventory(self) -> Inventory:
        """The graphs and operators of the model, collected again after an edit."""
        if self._inventory is None or self._inventory[0] != self.epoch:
            self._inventory = self.epoch, Inventory.of(self.model)
        return self._inventory[1]

    @property
    def revision(self) -> int:
        """The number of edits that are in effect, without those that were undone."""
        return self.epoch - self._undone

    def note_undone(self, revision: int, counts: Counter[str]) -> None:
        """Record that the edits since :attr:`revision` and :attr:`counts` had these values are undone."""
        self._undone += self.revision - revision
        self.counts = counts

    def resync(self, kind: str) -> None:
        """Collect scopes and names again after a change of the model that bypassed this editor.

        Args:
            kind: the kind of edit that the change counts as.
        """
        self.scopes = Scopes(self.model)
        self._taken = TakenNames(self.model)
        self._changed(kind)

    def fresh_name(self, hint: str) -> str:
        """An unused value name: ``hint``, or ``hint_1`` and so on."""
        return self._taken.reserve_value(hint)

    def fresh_node_name(self, hint: str) -> str:
        """An unused node name: ``hint``, or ``hint_1`` and so on."""
        return self._taken.reserve_node(hint)

    def free_names(self, graph: onnx_ir.Graph) -> None:
        """Release the names of values and nodes of ``graph``, which is about to be removed."""
        for node in graph:
            self._taken.free_node(node)
        self._taken.free_values([*graph.inputs, *graph.initializers.values()])


def detach(graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
    """Remove ``node`` from ``graph`` in constant time; onnx-ir's method searches all graph outputs."""
    node.graph = None
    graph._nodes.remove(node)


def graph_of(node: onnx_ir.Node) -> onnx_ir.Graph:
    """The graph that contains ``node``."""
    assert node.graph is not None, f"node {node.name!r} is in no graph"
    return node.graph
