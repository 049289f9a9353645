"""constant-propagation: compute what does not depend on any input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import facts
from graphopt.passes.base import Pass

#: onnxruntime keeps the weights of a quantized operator quantized only behind this operator.
_KEPT = frozenset({"DequantizeLinear"})
_SMALL_INTS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


@dataclass(frozen=True)
class ConstantPropagation(Pass):
    """Replace nodes whose inputs are all constant by their results.

    What shape facts already know (small integer tensors) costs nothing; the rest is computed by
    one onnxruntime session a graph, with its optimizations off, so that the numbers are the
    runtime's own. Sizes are predicted before anything runs: a result may take the byte limit,
    or what its inputs free; all results together may not grow the model by more than the limit
    or a quarter of its weights. Random nodes are never folded, nor are dequantized weights.

    Attributes:
        limit: bytes that a result may take anyway; ``--fold-limit`` by default.
    """

    name: ClassVar[str] = "constant-propagation"
    limit: int | None = None

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fold in every graph: the main one, bodies and functions."""
        limit = cx.options.fold_limit if self.limit is None else self.limit
        budget = _Budget(limit, max(limit, _weight_bytes(model) // 4))
        for graph in list(ir.graphs_of(model)):
            self._fold_known_ints(graph, cx)
            nodes = self._foldable(graph, cx, budget)
            if nodes:
                self._evaluate(graph, nodes, cx)

    def _fold_known_ints(self, graph: ir.Graph, cx: Context) -> None:
        """Fold what the shape facts know, also where the inputs are not constant (``Shape``)."""
        for node in list(graph):
            if len(node.outputs) != 1 or not _may_fold(node):
                continue
            output = node.outputs[0]
            dtype = cx.dtype(output)
            if dtype not in _SMALL_INTS or not (output.uses() or output.is_graph_output()):
                continue
            numbers, shape = cx.static_ints(output), cx.static_shape(output)
            if (
                numbers is None
                or shape is None
                or prod(shape) != len(numbers)
                or not facts.is_deterministic(node)
            ):
                continue
            self._replace(
                node, {output: ir.tensor(np.array(numbers, dtype.numpy()).reshape(shape))}, graph, cx
            )

    def _foldable(self, graph: ir.Graph, cx: Context, budget: _Budget) -> list[ir.Node]:
        """Nodes of ``graph`` that depend on constants alone and whose results fit the budget."""
        folded: list[ir.Node] = []
        ready: dict[ir.Value, None] = {}

        def is_ready(value: ir.Value | None) -> bool:
            return value is None or value in ready or ir.constant_of(value) is not None

        for node in graph:
            if not all(map(is_ready, node.inputs)) or not _may_fold(node):
                continue
            if not facts.is_deterministic(node) or not all(map(is_ready, _captures(node))):
                continue
            if not budget.admits(node, cx):
                cx.say(self.name, _too_large(node))
                continue
            folded.append(node)
            ready.update((output, None) for output in node.outputs)
        return folded

    def _evaluate(self, graph: ir.Graph, nodes: Sequence[ir.Node], cx: Context) -> None:
        inside = dict.fromkeys(nodes)
        wanted = [
            output
            for node in nodes
            for output in node.outputs
            if output.is_graph_output() or any(user not in inside for user, _ in output.uses())
        ]
        results = cx.evaluator.evaluate(nodes, wanted)
        for node in nodes:
            values = {output: results[output] for output in node.outputs if output in results}
            if values:
                self._replace(node, values, graph, cx)

    def _replace(
        self, node: ir.Node, values: Mapping[ir.Value, ir.TensorProtocol], graph: ir.Graph, cx: Context
    ) -> None:
        action = cx.permit(self.name, node)
        if action is None:
            return
        for old, tensor in values.items():
            # Only a node can be an output of its graph and keep the output's name.
            make = cx.edit.constant_node if old.is_graph_output() else cx.edit.constant
            cx.edit.replace(old, make(graph, tensor, f"{old.name}_folded"))
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            cx.edit.remove(node)
        cx.wrote(action, node, [])


@dataclass
class _Budget:
    """Bytes that folding may still add."""

    limit: int
    growth: int

    def admits(self, node: ir.Node, cx: Context) -> bool:
        """Whether the results of ``node`` may be kept; takes what they add from the budget."""
        sizes = [cx.facts.nbytes(output) for output in node.outputs if output.name]
        if not all(isinstance(size, int) for size in sizes):
            return False
        freed = sum(
            _nbytes(value, cx) for value in node.inputs if value is not None and len(value.uses()) == 1
        )
        size = sum(sizes)
        if size > max(self.limit, freed) or size - freed > self.growth:
            return False
        self.growth -= max(0, size - freed)
        return True


def _nbytes(value: ir.Value, cx: Context) -> int:
    tensor = ir.constant_of(value)
    size = tensor.nbytes if tensor is not None else cx.facts.nbytes(value)
    return size if isinstance(size, int) else 0


def _weight_bytes(model: ir.Model) -> int:
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _may_fold(node: ir.Node) -> bool:
    """Whether folding ``node`` can make sense: a known operator that no function attribute decides."""
    if node.op_type == "Constant" or node.op_type in _KEPT:
        return False
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    return not any(
        attribute.is_ref()
        for body in ir.bodies(node)
        for inner in ir.walk_nodes(body)
        for attribute in inner.attributes.values()
    )


def _captures(node: ir.Node) -> list[ir.Value]:
    """The outer values that the bodies of ``node`` read."""
    captured: dict[ir.Value, None] = {}
    for body in ir.bodies(node):
        inner = dict.fromkeys(ir.with_bodies(body))
        for user in ir.walk_nodes(body):
            for value in user.inputs:
                if value is not None and value.graph not in inner:
                    captured[value] = None
    return list(captured)


def _too_large(node: ir.Node) -> Callable[[], str]:
    return lambda: f"{ir.label(node)} is not folded: its result is too large, or of unknown size"
