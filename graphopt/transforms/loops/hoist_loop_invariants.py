"""hoist-loop-invariants: loop-invariant code motion."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import LoopForm, loop_form, trips_of
from graphopt.control_flow.speculation import cannot_fail
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Operators without cost. Nodes without inputs, such as Constant, are never moved alone.
_STAY = frozenset({"Identity", "Optional"})


@dataclass(frozen=True)
class HoistLoopInvariants(Pass):
    """Loop-invariant code motion: move nodes that do not depend on the iteration out of the loop body.

    If a loop may run zero times, only nodes that cannot fail are moved. Constants that are inputs of moved
    nodes are also moved. Random nodes and nodes inside an If are not moved.
    """

    name: ClassVar[str] = "hoist-loop-invariants"
    operators: ClassVar[frozenset[str]] = frozenset({"Loop", "Scan"})
    does: ClassVar[str] = "moved"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Process inner loops first, so that nodes may leave several loops."""
        for graph in reversed(cx.graphs):
            for node in list(graph):
                form = loop_form(node, cx) if node.attributes else None
                if form is not None:
                    self._hoist(form, cx)

    def _hoist(self, form: LoopForm, cx: Context) -> None:
        sure = trips_of(form, cx).least > 0
        for node in list(form.body):
            if not _is_invariant(node, form, cx) or not (
                cx.is_deterministic(node) if sure else cannot_fail(node, cx)
            ):
                continue
            action = cx.begin_rewrite(self.name, node)
            if action is None:
                continue
            for value in ir.reads(node):
                if value.graph is form.body:
                    _bring_along(value, form, cx)
            cx.edit.hoist(node, form.node)
            cx.end_rewrite(action, node, [node])


def _is_invariant(node: ir.Node, form: LoopForm, cx: Context) -> bool:
    """Whether ``node`` reads only values from outside the loop, or constants that may leave it."""
    if node.op_type in _STAY or any(output.is_graph_output() for output in node.outputs):
        return False
    values, beside = ir.reads(node), form.node.graph

    def may_leave(value: ir.Value) -> bool:
        tensor = None if value.is_graph_output() else ir.constant_of(value)
        return tensor is not None and beside is not None and cx.edit.supports_constant(beside, tensor.dtype)

    return bool(values) and all(value.graph is not form.body or may_leave(value) for value in values)


def _bring_along(value: ir.Value, form: LoopForm, cx: Context) -> None:
    """Replace the constant ``value`` of the body by one outside the loop."""
    graph, tensor = form.node.graph, ir.constant_of(value)
    assert graph is not None and tensor is not None
    cx.edit.replace(value, cx.edit.constant(graph, tensor, value.name or "constant"))
