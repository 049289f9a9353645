"""constant-propagation: constant folding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.transforms.scalar._fold_selection import affordable_results, is_shortest_as_fill
from graphopt.transforms.scalar._foldable import (
    NAME,
    constant_nodes,
    may_fold,
    named_outputs,
    nbytes_of,
    remark_unfolded,
    varying_outputs,
)
from graphopt.util.lazy_dataclass import dataclass

#: Operators with sums of products.
_PRODUCTS = frozenset(
    {"Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}
)
_SMALL_INTS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


@dataclass(frozen=True)
class ConstantPropagation(Pass):
    """Constant folding: replace nodes whose inputs are all constant by their results.

    Small integer tensors are read from shape facts; the others are computed by one onnxruntime session per
    graph, with optimizations off, so that results are those of the runtime. Sizes are predicted before any
    node runs: a result may be as large as the limit, or as the constants that it frees. If results of
    similar size would together grow the model by more than the limit, or by more than a quarter of the
    model's large weights, none of them is folded. The decision depends only on the current model, so another
    run makes the same decision. Larger tensors of one repeated number are written as ConstantOfShape. Random
    nodes and DequantizeLinear of weights are never folded.

    Attributes:
        limit: maximum size of a result that frees no constants, in bytes; ``--fold-limit`` by default.
    """

    name: ClassVar[str] = NAME
    proven_exact: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = (
        "onnxslim:constant-folding",
        "onnxoptimizer:eliminate_shape_op",
        "onnxoptimizer:extract_constant_to_initializer",
        "onnxruntime:ConstantFolding",
        "onnxruntime:UnsqueezeElimination",
        "onnxscript:fold-add",
        "onnxscript:fold-abs",
        "onnxscript:fold-shape",
        "onnxscript:fold-size",
        "onnxscript:cast-constant-of-shape-without-value",
    )
    revisits_changes: ClassVar[bool] = True
    limit: int | None = None

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fold in every graph: the main one, bodies and functions."""
        for graph in cx.graphs:
            self._fold_known_ints(graph, cx)
        while self._fold(model, cx):  # results in one graph are constants to the bodies in it
            pass

    def _fold(self, model: ir.Model, cx: Context) -> bool:
        """Fold once in every graph; returns whether other graphs read new constants."""
        limit = cx.options.fold_limit if self.limit is None else self.limit
        most = max(limit, ir.initializer_bytes(model, above=limit) // 4)
        nodes_by_graph = [(graph, constant_nodes(graph, cx)) for graph in cx.graphs]
        kept = affordable_results(nodes_by_graph, cx, limit, most)
        epoch = cx.edit.epoch
        for (graph, nodes), values in zip(nodes_by_graph, kept, strict=True):
            computed = [value for value in values if not self._write_fill(graph, value, cx)]
            if computed:
                self._evaluate(graph, nodes, computed, cx)
        return len(nodes_by_graph) > 1 and cx.edit.epoch != epoch

    def _fold_known_ints(self, graph: ir.Graph, cx: Context) -> None:
        """Fold values known from shape facts, even of nodes without constant inputs (``Shape``)."""
        for node in cx.nodes_to_visit(graph):
            if len(node.outputs) != 1 or not may_fold(node):
                continue
            output = node.outputs[0]
            dtype = cx.dtype(output)
            if (
                dtype not in _SMALL_INTS
                or not ir.is_read(output)
                or not cx.edit.supports_constant(graph, dtype)
            ):
                continue
            numbers, shape = cx.static_ints(output), cx.static_shape(output)
            if (
                numbers is None
                or shape is None
                or prod(shape) != len(numbers)
                or not cx.is_deterministic(node)
            ):
                continue
            self._replace(
                node, {output: ir.tensor(np.array(numbers, dtype.numpy()).reshape(shape))}, graph, cx
            )

    def _write_fill(self, graph: ir.Graph, value: ir.Value, cx: Context) -> bool:
        """Replace ``value`` by a ConstantOfShape if that is the shortest form; returns whether it is."""
        number, shape, node = cx.fill(value), cx.static_shape(value), value.producer()
        if number is None or shape is None or node is None or not is_shortest_as_fill(value, cx):
            return False
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return True
        cx.forget_reads()  # facts recorded the sources of the number and the shape
        dims = cx.edit.constant(graph, ir.tensor(np.array(shape, np.int64)), f"{value.name}_shape")
        attributes = {"value": ir.tensor(np.asarray(number).reshape(1))}
        made = cx.edit.make_node("ConstantOfShape", [dims], attributes, name=f"{ir.label(node)}_declared")
        cx.edit.insert_before(node, [made])
        cx.edit.note_origin([made], [node], self.name)
        cx.edit.replace(value, made.outputs[0])
        cx.edit.remove_with_bodies(node)
        cx.end_rewrite(action, node, [made])
        return True

    def _evaluate(
        self, graph: ir.Graph, nodes: Sequence[ir.Node], kept: Sequence[ir.Value], cx: Context
    ) -> None:
        together = cx.budget.allows(_peak(_dependencies(nodes, kept), kept, cx))
        for batch in [kept] if together else [[value] for value in kept]:
            needed = _dependencies(nodes, batch)
            peak = 0 if together else _peak(needed, batch, cx)
            if not cx.budget.allows(peak):
                cx.budget.oversized.add(ir.label(needed[-1]))
                remark_unfolded(needed[-1], f"computing it would take {peak} bytes of memory", cx)
                continue
            sources = _sources(needed)
            results = cx.evaluator.evaluate(needed, batch)
            computations = _append_to_constant_graph(needed, cx)
            for node in needed:
                values = {output: results[output] for output in node.outputs if output in results}
                if any(_contradicts(cx.shape(output), tensor) for output, tensor in values.items()):
                    # for example, a reduction of an empty tensor over negative axes
                    remark_unfolded(node, "onnxruntime computes another shape than inferred", cx)
                elif values:
                    self._replace(node, values, graph, cx, sources[node], computations)

    def _replace(
        self,
        node: ir.Node,
        values: Mapping[ir.Value, ir.TensorProtocol],
        graph: ir.Graph,
        cx: Context,
        sources: Iterable[ir.Value] = (),
        computations: Mapping[ir.Value, ir.Value] = MappingProxyType({}),
    ) -> None:
        """Replace the outputs of ``node`` by constants of the given ``values``.

        Args:
            sources: the constants from which the values are computed.
            computations: for outputs that depend on weights, the values of the constant graph.
        """
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return
        record = ir.read_record_of(cx.model)
        if record is not None:
            record.begin_computing(sources)
        if any(_is_factor(value, cx) for value in values):
            cx.unproven.add(ir.label(node))
        for old, tensor in values.items():
            if (same := _copied(node, old)) is not None:
                cx.edit.replace(old, same)
                continue
            # Only a node can define a graph output and keep its name.
            make = cx.edit.constant_node if old.is_graph_output() else cx.edit.constant
            new = make(graph, tensor, f"{old.name}_folded")
            if old in computations and (weights := ir.constant_graph_of(cx.model.graph)) is not None:
                weights.define(new, computations[old])
            cx.edit.note_folding(new, node)
            cx.edit.replace(old, new)
        if not any(map(ir.is_read, node.outputs)):
            cx.edit.remove_with_bodies(node)
        cx.end_rewrite(action, node, [])


def _is_factor(value: ir.Value, cx: Context) -> bool:
    """Whether ``value`` is a float operand of a product, for which onnxruntime packs constants.

    The kernel for packed operands adds in another order.
    """
    dtype = cx.dtype(value)
    if dtype is not None and not dtype.is_floating_point():
        return False
    return any(reader.domain != "" or reader.op_type in _PRODUCTS for reader in ir.readers(value))


def _contradicts(dims: Sequence[Dim] | None, tensor: ir.TensorProtocol) -> bool:
    """Whether the shape of ``tensor`` differs from the inferred ``dims``."""
    if dims is None:
        return False
    shape = tensor.shape.numpy()
    return len(dims) != len(shape) or any(
        isinstance(dim, int) and dim != size for dim, size in zip(dims, shape, strict=True)
    )


def _copied(node: ir.Node, output: ir.Value) -> ir.Value | None:
    """The constant that the Identity ``node`` copies: reusing it keeps the name of a parameter."""
    if node.op_type != "Identity" or node.domain or output.is_graph_output():
        return None
    value = node.inputs[0]
    return value if value is not None and ir.computable(value) is not None else None


def _append_to_constant_graph(nodes: Sequence[ir.Node], cx: Context) -> dict[ir.Value, ir.Value]:
    """For each output of ``nodes`` that depends on weights, the value of the constant graph."""
    weights = ir.constant_graph_of(cx.model.graph)
    varying = varying_outputs(nodes)
    if weights is None or not varying:
        return {}
    copies = weights.append(_dependencies(nodes, list(varying)))
    return {output: copy for output in varying if (copy := copies[output]) is not None}


def _sources(nodes: Sequence[ir.Node]) -> dict[ir.Node, dict[ir.Value, None]]:
    """For each of ``nodes``, in topological order, the constants from which its results are computed."""
    found: dict[ir.Node, dict[ir.Value, None]] = {}
    for node in nodes:
        own = found[node] = {}
        for value in ir.reads(node):
            producer = value.producer()
            own.update({value: None} if producer is None else found.get(producer, {value: None}))
    return found


def _dependencies(nodes: Sequence[ir.Node], kept: Sequence[ir.Value]) -> list[ir.Node]:
    """The subset of ``nodes`` on which ``kept`` depends, in order."""
    values = dict.fromkeys(kept)
    needed = []
    for node in reversed(nodes):
        if any(output in values for output in node.outputs):
            needed.append(node)
            values.update((value, None) for value in (*node.inputs, *ir.captured(node)) if value is not None)
    return needed[::-1]


def _peak(nodes: Sequence[ir.Node], kept: Sequence[ir.Value], cx: Context) -> int:
    """Peak bytes of the results of ``nodes``, each freed after its last use."""
    sizes = {value: nbytes_of(value, cx) or 0 for node in nodes for value in named_outputs(node)}
    uses = Counter(value for node in nodes for value in ir.reads(node))
    uses.update(kept)
    now = peak = 0
    for node in nodes:
        now += sum(sizes[value] for value in named_outputs(node))
        peak = max(peak, now)
        for value in ir.reads(node):
            uses[value] -= 1
            if not uses[value]:
                now -= sizes.get(value, 0)
    return peak
