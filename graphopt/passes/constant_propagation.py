"""constant-propagation: compute what does not depend on any input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import facts
from graphopt.passes.base import Pass

#: Only these results can be held by an initializer.
_MAX_RANK = 64


@dataclass(frozen=True)
class ConstantPropagation(Pass):
    """Replace nodes whose inputs are all constant by their results.

    What shape facts already know (small integer tensors) costs nothing; the rest is computed by
    one onnxruntime session with its optimizations off, so that the numbers are the runtime's
    own. A result may take the byte limit, or what its inputs and the folded nodes free; sizes
    are predicted before anything runs. Random nodes are never folded.

    Attributes:
        limit: bytes that a result may take anyway; ``--fold-limit`` by default.
    """

    name: ClassVar[str] = "constant-propagation"
    limit: int | None = None

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fold in every graph: the main one, bodies and functions."""
        limit = cx.options.fold_limit if self.limit is None else self.limit
        for graph in list(ir.graphs_of(model)):
            self._fold_known_ints(graph, cx)
            nodes = self._foldable(graph, cx, limit)
            if nodes:
                self._evaluate(graph, nodes, cx)

    # What the shape facts know -----------------------------------------------------------

    def _fold_known_ints(self, graph: ir.Graph, cx: Context) -> None:
        for node in list(graph):
            if not _may_fold(node) or len(node.outputs) != 1:
                continue
            output = node.outputs[0]
            dtype = cx.dtype(output)
            if dtype not in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL) or output.is_graph_output():
                continue
            if not output.uses() or not facts.is_deterministic(node):
                continue
            numbers, shape = cx.static_ints(output), cx.static_shape(output)
            if numbers is None or shape is None or int(np.prod(shape)) != len(numbers):
                continue
            array = np.array(numbers, dtype.numpy()).reshape(shape)
            self._replace(node, {output: ir.tensor(array)}, graph, cx)

    # What the runtime computes -----------------------------------------------------------

    def _foldable(self, graph: ir.Graph, cx: Context, limit: int) -> list[ir.Node]:
        """Nodes of ``graph`` that depend on constants alone and whose results fit the budget."""
        folded: list[ir.Node] = []
        ready: dict[ir.Value, None] = {}
        for node in graph:
            if not _may_fold(node) or not all(
                value is None or value in ready or ir.constant_of(value) is not None for value in node.inputs
            ):
                continue
            if not facts.is_deterministic(node) or _captures_variable(node, ready):
                continue
            if not self._fits(node, cx, limit):
                cx.say(self.name, lambda node=node: f"{ir.label(node)} is not folded: the result is too large")  # type: ignore[misc]
                continue
            folded.append(node)
            ready.update((output, None) for output in node.outputs)
        return folded

    @staticmethod
    def _fits(node: ir.Node, cx: Context, limit: int) -> bool:
        """Whether each result is small, or no larger than the constants that it stands for."""
        sizes = [cx.facts.nbytes(output) for output in node.outputs if output.name]
        if all(isinstance(size, int) and size <= limit for size in sizes):
            return True
        freed = 0
        for value in node.inputs:
            tensor = ir.constant_of(value)
            if value is not None and len(value.uses()) == 1:
                freed += tensor.nbytes if tensor is not None else _known(cx.facts.nbytes(value))
        return all(isinstance(size, int) for size in sizes) and sum(map(_known, sizes)) <= max(limit, freed)

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
        self, node: ir.Node, values: dict[ir.Value, ir.TensorProtocol], graph: ir.Graph, cx: Context
    ) -> None:
        action = cx.permit(self.name, node)
        if action is None:
            return
        for old, tensor in values.items():
            # A constant can't be an output of its graph by itself; an Identity would bear the name,
            # which saves nothing: a Constant node is the same with one node less.
            if old.is_graph_output():
                continue
            hint = old.name or "folded"
            new = cx.edit.constant(graph, tensor, f"{hint}_folded")
            cx.edit.replace(old, new)
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            cx.edit.remove(node)
        cx.wrote(action, node, [])


def _may_fold(node: ir.Node) -> bool:
    return node.op_type not in ("Constant", "Identity") or (node.op_type == "Identity" and node.domain == "")


def _captures_variable(node: ir.Node, ready: dict[ir.Value, None]) -> bool:
    """Whether a body of ``node`` reads an outer value that is not constant."""
    for body in ir.bodies(node):
        inner = set(ir.with_bodies(body))
        for nested in ir.with_bodies(body):
            for user in nested:
                for value in user.inputs:
                    if value is None or value.graph in inner or value in ready:
                        continue
                    producer = value.producer()
                    if producer is not None and producer.graph in inner:
                        continue
                    if ir.constant_of(value) is None:
                        return True
    return False


def _known(size: object) -> int:
    return size if isinstance(size, int) else 0
