"""cse: nodes that compute the same become one."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.passes.base import Pass
from graphopt.rewrite import lost_outputs, qdq_propagation


@dataclass(frozen=True)
class CommonSubexpressionElimination(Pass):
    """Merge nodes with the same operator, inputs, attributes and outputs.

    Small integer tensors are also merged where shape facts prove that they hold the same,
    however they were computed: two tensors of one shape need only one Shape.
    A body may reuse what an outer graph has already computed before the node that holds it.
    Random nodes, nodes with bodies and operators of unknown domains are left alone.
    """

    name: ClassVar[str] = "cse"
    tags: ClassVar[tuple[str, ...]] = (
        "onnxslim:cse",
        "onnxoptimizer:eliminate_common_subexpression",
        "onnxruntime:CommonSubexpressionElimination",
    )

    def run(self, model: ir.Model, cx: Context) -> None:
        """Merge duplicates, in each graph and from outer graphs into bodies."""
        quantized = qdq_propagation.has_quantizers(model)
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
                        self._visit(node, scope, cx, quantized)

    def _visit(self, node: ir.Node, scope: _Scope, cx: Context, quantized: bool) -> None:
        keys = [key for key in (_key(node, cx), _contents_key(node, cx)) if key is not None]
        first = next((found for key in keys if (found := scope.find(key)) is not None), None)
        merges = first is not None and _can_merge(node, first, cx)
        if first is None or not merges or (quantized and _provokes(node, first, cx)):
            for key in keys:
                scope.seen.setdefault(key, node)
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
    """What a graph has computed so far, and what its outer graphs had before the node that holds it."""

    outer: _Scope | None = None
    holder: ir.Node | None = None
    seen: dict[Hashable, ir.Node] = field(default_factory=dict)
    position: dict[ir.Node, int] = field(default_factory=dict)

    def find(self, key: Hashable) -> ir.Node | None:
        """The node that has computed ``key`` already."""
        if key in self.seen:
            return self.seen[key]
        scope: _Scope = self
        while scope.outer is not None and scope.holder is not None:
            outer, holder = scope.outer, scope.holder
            found = outer.seen.get(key)
            if found is not None and outer.position[found] < outer.position[holder]:
                return found
            scope = outer
        return None


def _provokes(node: ir.Node, first: ir.Node, cx: Context) -> bool:
    """Whether onnxruntime's propagation of quantization goes wrong if ``first`` replaces ``node``."""
    few = itertools.islice(
        ir.readers(first.outputs[0]), qdq_propagation.FEW
    )  # as many as propagation looks at
    if not any(user.op_type in qdq_propagation.MOVERS for user in (*few, *ir.readers(node.outputs[0]))):
        return False
    return qdq_propagation.would_miscompile(cx, node, first.outputs, workaround=True)


def _can_merge(node: ir.Node, first: ir.Node, cx: Context) -> bool:
    """Whether merging saves something, and leads nobody to believe a wrong declaration.

    It saves nothing if it costs an Identity that bears an output's name. onnxruntime believes the
    declared shapes of outputs: whoever read an output without one must not read one with a wrong one.
    """
    return all(
        cx.edit.can_stand_for(old, new)
        and (not new.is_graph_output() or cx.edit.declared_truly(new))
        and not lost_outputs.is_lost(old, new)
        for old, new in zip(node.outputs, first.outputs, strict=True)
    )


def _key(node: ir.Node, cx: Context) -> Hashable | None:
    """What must be equal for two nodes to compute the same; ``None`` for a node that is not merged."""
    if not node.inputs or not cx.is_deterministic(node) or _narrows_for_a_cast(node):
        return None
    inputs = node.inputs
    order: tuple[int, ...] = tuple(id(value) for value in inputs)
    if len(inputs) == 2 and traits.commutes_exactly(node.domain, node.op_type):
        order = tuple(sorted(order))
    used = tuple(bool(output.name) for output in node.outputs)
    attributes = tuple(
        sorted((name, ir.attribute_key(attribute)) for name, attribute in node.attributes.items())
    )
    return node.domain, node.op_type, node.overload, order, used, attributes


def _narrows_for_a_cast(node: ir.Node) -> bool:
    """Whether ``node`` is a Cast that another Cast reads.

    onnxruntime, with optimizations off too, drops such a Cast if it is all that reads it, even
    if it loses digits: merging two of them would change what they give.
    """
    return node.op_type == "Cast" and any(reader.op_type == "Cast" for reader in ir.readers(node.outputs[0]))


def _contents_key(node: ir.Node, cx: Context) -> Hashable | None:
    """What a node's only output holds, where it is a small integer tensor whose elements are known."""
    if len(node.outputs) != 1 or not node.inputs:
        return None
    output = node.outputs[0]
    contents = cx.known_ints(output)
    return ("holds", cx.dtype(output), cx.shape(output), contents) if contents else None
