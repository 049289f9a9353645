"""cse: common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.passes.base import Pass
from graphopt.rewrite.ort_vetoes import OrtVetoes
from graphopt.rewrite.proposed_rewrite import ProposedRewrite
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class CommonSubexpressionElimination(Pass):
    """Common subexpression elimination: merge nodes with equal operator, inputs, attributes and outputs.

    Small integer tensors are also merged if shape facts prove equal contents: two tensors of one shape need
    only one Shape. A body may reuse values that an outer graph computed before the node that contains it.
    Random nodes, nodes with bodies and operators of unknown domains are not merged.
    """

    name: ClassVar[str] = "cse"
    proven_exact: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = (
        "onnxslim:cse",
        "onnxoptimizer:eliminate_common_subexpression",
        "onnxruntime:CommonSubexpressionElimination",
    )

    def run(self, model: ir.Model, cx: Context) -> None:
        """Merge duplicates, in each graph and from outer graphs into bodies."""
        vetoes = OrtVetoes(cx)
        for root in (model.graph, *(function.graph for function in model.functions.values())):
            pending: list[tuple[ir.Graph, _Scope]] = [(root, _Scope())]
            while pending:
                graph, scope = pending.pop()
                for node in list(graph):
                    scope.position[node] = len(scope.position)
                    nested = ir.bodies(node) if node.attributes else []
                    if nested:
                        pending.extend((body, _Scope(scope, node)) for body in nested)
                    else:
                        self._visit(node, scope, cx, vetoes)

    def _visit(self, node: ir.Node, scope: _Scope, cx: Context, vetoes: OrtVetoes) -> None:
        keys = [key for key in (_key(node, cx), _contents_key(node, cx)) if key is not None]
        first = next((found for key in keys if (found := scope.find(key)) is not None), None)
        if first is None or not _can_merge(node, first, cx, vetoes):
            for key in keys:
                scope.representatives.setdefault(key, node)
            return
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return
        for old, new in zip(node.outputs, first.outputs, strict=True):
            cx.edit.replace(old, new)
        cx.edit.remove(node)
        cx.end_rewrite(action, node, [first])


@dataclass
class _Scope:
    """The values computed so far: in a graph, and in outer graphs before the node that contains it."""

    outer: _Scope | None = None
    holder: ir.Node | None = None
    representatives: dict[Hashable, ir.Node] = field(default_factory=dict)
    position: dict[ir.Node, int] = field(default_factory=dict)

    def find(self, key: Hashable) -> ir.Node | None:
        """An earlier node with this ``key``."""
        if key in self.representatives:
            return self.representatives[key]
        scope: _Scope = self
        while scope.outer is not None and scope.holder is not None:
            outer, holder = scope.outer, scope.holder
            found = outer.representatives.get(key)
            if found is not None and outer.position[found] < outer.position[holder]:
                return found
            scope = outer
        return None


def _can_merge(node: ir.Node, first: ir.Node, cx: Context, vetoes: OrtVetoes) -> bool:
    """Whether merging saves a node, and exposes no reader to a wrong declared shape.

    Merging saves nothing if an Identity is needed to keep the name of an output. onnxruntime relies on the
    declared shapes of outputs, so readers of a value without a declared shape must not read an output with a
    wrong one.
    """
    is_possible = all(
        cx.edit.can_replace(old, new) and (not new.is_graph_output() or cx.edit.trusts_shape(new))
        for old, new in zip(node.outputs, first.outputs, strict=True)
    )
    rewrite = ProposedRewrite(node, first.outputs, is_followed_by_workaround=True)
    return is_possible and vetoes.reason_against(rewrite) is None


def _key(node: ir.Node, cx: Context) -> Hashable | None:
    """The key that is equal for equivalent nodes; ``None`` for a node that is not merged."""
    if not node.inputs or not cx.is_deterministic(node) or _narrows_for_a_cast(node):
        return None
    inputs = node.inputs
    order: tuple[int, ...] = tuple(id(value) for value in inputs)
    if len(inputs) == 2 and traits.commutes_exactly(node.domain, node.op_type):
        order = tuple(sorted(order))
    used = tuple(bool(output.name) for output in node.outputs)
    attributes = tuple(
        sorted((name, ir.attribute_key(attribute)) for name, attribute in node.attributes.data.items())
    )
    return node.domain, node.op_type, node.overload, order, used, attributes


def _narrows_for_a_cast(node: ir.Node) -> bool:
    """Whether ``node`` is a Cast that another Cast reads.

    If the second Cast is the only reader, onnxruntime removes the first one, even with optimizations off, and
    even if the Cast loses digits. Merging two such Casts would change their results.
    """
    return node.op_type == "Cast" and any(reader.op_type == "Cast" for reader in ir.readers(node.outputs[0]))


def _contents_key(node: ir.Node, cx: Context) -> Hashable | None:
    """A key for the contents of a single output that is a small integer tensor with known elements."""
    if len(node.outputs) != 1 or not node.inputs:
        return None
    output = node.outputs[0]
    contents = cx.known_ints(output)
    return ("holds", cx.dtype(output), cx.shape(output), contents) if contents else None
