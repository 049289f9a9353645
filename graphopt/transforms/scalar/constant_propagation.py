"""constant-propagation: constant folding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.control_flow.loops import loop_form, trips_of
from graphopt.passes.base import Pass

#: Never folded: onnxruntime keeps weights quantized only if they are read through this operator.
_KEPT = frozenset({"DequantizeLinear"})
_SMALL_INTS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})


#: Largest intermediate value, in bytes.
_INTERIOR_LIMIT = 64 << 20
#: Most trips of a body while folding.
_TRIPS_LIMIT = 1000
#: Size above which a tensor of one repeated number is written as ConstantOfShape, in bytes.
_DECLARED = 1024
#: Operators whose result is one repeated number.
_DECLARING = frozenset({"ConstantOfShape", "Expand"})
#: The opset version that introduced ConstantOfShape.
_SINCE = 9
#: Most nodes visited to compute the bytes that a result frees.
_CONE_LIMIT = 512


@dataclass(frozen=True)
class ConstantPropagation(Pass):
    """Constant folding: replace nodes whose inputs are all constant by their results.

    Small integer tensors are taken from shape facts; the others are computed by one onnxruntime session per
    graph, with optimizations off, so that results are those of the runtime. Sizes are predicted before
    anything runs: a result may have as many bytes as the limit, or as it frees. If results of similar size
    would together grow the model by more than the limit, or by more than a quarter of its large weights, none
    of them is folded. This depends only on the current model, so another run makes the same decision. Larger
    tensors of one repeated number are written as ConstantOfShape. Random nodes and DequantizeLinear of
    weights are never folded.

    Attributes:
        limit: the most bytes of a result that frees no constants; ``--fold-limit`` by default.
    """

    name: ClassVar[str] = "constant-propagation"
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
    limit: int | None = None

    def run(self, model: ir.Model, cx: Context) -> None:
        """Fold in every graph: the main one, bodies and functions."""
        for graph in list(ir.graphs_of(model)):
            self._fold_known_ints(graph, cx)
        while self._fold(model, cx):  # results in one graph are constants to the bodies in it
            pass

    def _fold(self, model: ir.Model, cx: Context) -> bool:
        """Fold once in every graph; returns whether other graphs read new constants."""
        limit = cx.options.fold_limit if self.limit is None else self.limit
        most = max(limit, ir.initializer_bytes(model, above=limit) // 4)
        places = [(graph, self._constant_nodes(graph, cx)) for graph in ir.graphs_of(model)]
        wanted = self._affordable(places, cx, limit, most)
        epoch = cx.edit.epoch
        for (graph, nodes), values in zip(places, wanted, strict=True):
            computed = [value for value in values if not self._declare(graph, value, cx)]
            if computed:
                self._evaluate(graph, nodes, computed, cx)
        return len(places) > 1 and cx.edit.epoch != epoch

    def _fold_known_ints(self, graph: ir.Graph, cx: Context) -> None:
        """Fold values known from shape facts, even of nodes without constant inputs (``Shape``)."""
        for node in list(graph):
            if len(node.outputs) != 1 or not _may_fold(node):
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

    def _constant_nodes(self, graph: ir.Graph, cx: Context) -> list[ir.Node]:
        """Nodes of ``graph`` that depend only on constants, in order."""
        found: list[ir.Node] = []
        computed: dict[ir.Value, None] = {}

        def is_constant(value: ir.Value | None) -> bool:
            return value is None or value in computed or ir.constant_of(value) is not None

        for node in graph:
            if not all(map(is_constant, node.inputs)) or not _may_fold(node):
                continue
            if not cx.is_deterministic(node) or not all(map(is_constant, ir.captured(node))):
                continue
            if not _ends_soon(node, cx):
                cx.say(self.name, _remark(node, "a loop in it may have too many trips"))
                continue
            if any(
                (size := _nbytes(output, cx)) is None or size > _INTERIOR_LIMIT for output in _named(node)
            ):
                cx.say(self.name, _remark(node, "its result is too large, or of unknown size"))
                continue
            found.append(node)
            computed.update((output, None) for output in node.outputs)
        return found

    def _affordable(
        self, places: Sequence[tuple[ir.Graph, list[ir.Node]]], cx: Context, limit: int | None, most: int
    ) -> list[list[ir.Value]]:
        """The results to keep, per graph; results of similar size may add at most ``most`` bytes together."""
        results = (output for _, nodes in places for node in nodes for output in _named(node))
        if limit is not None and sum(_nbytes(result, cx) or 0 for result in results) <= limit:
            limit = None  # any selection fits
        refused: set[int] = set()
        while True:
            growth: Counter[int] = Counter()
            wanted = [self._worth_keeping(*place, cx, limit, growth, refused) for place in places]
            over = {size for size, total in growth.items() if total > most}
            if not over:
                return wanted
            refused |= over

    def _worth_keeping(
        self,
        graph: ir.Graph,
        nodes: Sequence[ir.Node],
        cx: Context,
        limit: int | None,
        growth: Counter[int],
        refused: Container[int],
    ) -> list[ir.Value]:
        """The results of ``nodes`` to keep as constants.

        The search goes backwards from results with other readers. If a result is too large, or the graph does
        not support such a constant, its node stays, and the node's operands are kept instead.

        Args:
            limit: the most bytes of a result that frees no constants; ``None`` for no limit.
            growth: filled with the bytes added by results, by the bit length of their size.
            refused: bit lengths of sizes; no result of such a size is kept.
        """
        inside = dict.fromkeys(nodes)
        kept_nodes: dict[ir.Node, None] = {}
        wanted: list[ir.Value] = []
        for node in reversed(nodes):
            read = [
                output
                for output in _named(node)
                if output.is_graph_output()
                or any(user not in inside or user in kept_nodes for user in ir.readers(output))
            ]
            if not read:
                continue
            dtypes = [dtype for output in read if (dtype := cx.dtype(output)) is not None]
            if not all(cx.edit.supports_constant(graph, dtype) for dtype in dtypes):
                kept_nodes[node] = None
                cx.say(self.name, _remark(node, "the function's opset has no Constant of its type"))
                continue
            if node.op_type in _DECLARING and _stays_declared(node.outputs[0], cx):
                kept_nodes[node] = None
                cx.say(self.name, _remark(node, "it is one repeated number in a few bytes"))
                continue
            if limit is None:
                wanted += read
                continue
            size = sum(0 if _stays_declared(o, cx) else _nbytes(o, cx) or 0 for o in read)
            gain = _freed_by(node, inside, cx)
            grown = max(0, size - gain)
            if size > max(limit, gain) or grown.bit_length() in refused:
                kept_nodes[node] = None
                cx.say(self.name, _remark(node, f"its result takes {size} bytes and frees {gain}"))
                continue
            growth[grown.bit_length()] += grown
            wanted += read
        return wanted

    def _declare(self, graph: ir.Graph, value: ir.Value, cx: Context) -> bool:
        """Replace ``value`` by a ConstantOfShape if that is the shortest form; returns whether it is."""
        number, shape, node = cx.fill(value), cx.static_shape(value), value.producer()
        if number is None or shape is None or node is None or not _stays_declared(value, cx):
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
        self, graph: ir.Graph, nodes: Sequence[ir.Node], wanted: Sequence[ir.Value], cx: Context
    ) -> None:
        together = cx.budget.allows(_peak(_needed(nodes, wanted), wanted, cx))
        for batch in [wanted] if together else [[value] for value in wanted]:
            needed = _needed(nodes, batch)
            peak = 0 if together else _peak(needed, batch, cx)
            if not cx.budget.allows(peak):
                cx.budget.oversized.add(ir.label(needed[-1]))
                cx.say(self.name, _remark(needed[-1], f"computing it would take {peak} bytes of memory"))
                continue
            sources = _sources(needed)
            results = cx.evaluator.evaluate(needed, batch)
            for node in needed:
                values = {output: results[output] for output in node.outputs if output in results}
                if any(_contradicts(cx.shape(output), tensor) for output, tensor in values.items()):
                    # such as a reduction of an empty tensor over negative axes
                    cx.say(self.name, _remark(node, "onnxruntime computes another shape than inferred"))
                elif values:
                    self._replace(node, values, graph, cx, sources[node])

    def _replace(
        self,
        node: ir.Node,
        values: Mapping[ir.Value, ir.TensorProtocol],
        graph: ir.Graph,
        cx: Context,
        sources: Iterable[ir.Value] = (),
    ) -> None:
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return
        record = ir.read_record_of(cx.model)
        if record is not None:
            record.begin_computing(sources)
        for old, tensor in values.items():
            if (same := _copied(node, old)) is not None:
                cx.edit.replace(old, same)
                continue
            # Only a node can be an output of its graph and keep the output's name.
            make = cx.edit.constant_node if old.is_graph_output() else cx.edit.constant
            cx.edit.replace(old, make(graph, tensor, f"{old.name}_folded"))
        if not any(map(ir.is_read, node.outputs)):
            cx.edit.remove_with_bodies(node)
        cx.end_rewrite(action, node, [])


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
    return value if value is not None and ir.constant_of(value) is not None else None


def _stays_declared(value: ir.Value, cx: Context) -> bool:
    """Whether ``value`` is one repeated number for which ConstantOfShape is the shortest form.

    It is not if the result is tiny, or an existing constant of its size can be reused.
    """
    node, size = value.producer(), _nbytes(value, cx)
    if node is None or len(node.outputs) > 1 or size is None or size <= _DECLARED:
        return False
    if any(tensor.nbytes >= size for x in node.inputs if (tensor := ir.constant_of(x)) is not None):
        return False
    number = cx.fill(value)
    return number is not None and number.dtype.kind in "biuf" and cx.version(node) >= _SINCE


def _freed_by(node: ir.Node, inside: Mapping[ir.Node, None], cx: Context) -> int:
    """Bytes of the constants that become unused if the result of ``node`` is kept.

    The count contains the constants read only within the node's maximum fanout-free cone: the largest set of
    constant nodes whose results have no readers outside of the set.
    """
    freed = 0
    reads: Counter[ir.Value] = Counter()
    pending = [node]
    for _ in range(_CONE_LIMIT):
        if not pending:
            break
        for value in pending.pop().inputs:
            if value is None:
                continue
            reads[value] += 1
            if reads[value] < ir.use_count(value) or value.is_graph_output():
                continue
            tensor = ir.constant_of(value)
            producer = value.producer()
            if tensor is not None:
                freed += 0 if cx.is_tied(value) else tensor.nbytes
            elif producer is not None and producer in inside and _only_output_read(producer, value):
                pending.append(producer)
    return freed


def _only_output_read(node: ir.Node, value: ir.Value) -> bool:
    return all(output is value or not ir.use_count(output) for output in node.outputs)


def _sources(nodes: Sequence[ir.Node]) -> dict[ir.Node, dict[ir.Value, None]]:
    """For each of ``nodes``, in topological order, the constants from which its results are computed."""
    found: dict[ir.Node, dict[ir.Value, None]] = {}
    for node in nodes:
        own = found[node] = {}
        for value in ir.reads(node):
            producer = value.producer()
            own.update({value: None} if producer is None else found.get(producer, {value: None}))
    return found


def _needed(nodes: Sequence[ir.Node], wanted: Sequence[ir.Value]) -> list[ir.Node]:
    """The subset of ``nodes`` on which ``wanted`` depends, in order."""
    values = dict.fromkeys(wanted)
    needed = []
    for node in reversed(nodes):
        if any(output in values for output in node.outputs):
            needed.append(node)
            values.update((value, None) for value in (*node.inputs, *ir.captured(node)) if value is not None)
    return needed[::-1]


def _peak(nodes: Sequence[ir.Node], wanted: Sequence[ir.Value], cx: Context) -> int:
    """Peak bytes of the results of ``nodes``, each freed after its last use."""
    sizes = {value: _nbytes(value, cx) or 0 for node in nodes for value in _named(node)}
    uses = Counter(value for node in nodes for value in ir.reads(node))
    uses.update(wanted)
    now = peak = 0
    for node in nodes:
        now += sum(sizes[value] for value in _named(node))
        peak = max(peak, now)
        for value in ir.reads(node):
            uses[value] -= 1
            if not uses[value]:
                now -= sizes.get(value, 0)
    return peak


def _named(node: ir.Node) -> list[ir.Value]:
    return [output for output in node.outputs if output.name]


def _nbytes(value: ir.Value, cx: Context) -> int | None:
    size = cx.facts.nbytes(value)
    return size if isinstance(size, int) else None


def _may_fold(node: ir.Node) -> bool:
    """Whether ``node`` may be folded: no attribute refers to a function's parameter."""
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


def _ends_soon(node: ir.Node, cx: Context) -> bool:
    """Whether every loop in ``node`` provably has few trips."""
    pending = [(node, 1)]
    while pending:
        current, times = pending.pop()
        if current.op_type in ("Loop", "Scan") and current.domain == "":
            trips = _trip_count(current, cx)
            if trips is None or trips * times > _TRIPS_LIMIT:
                return False
            times *= max(trips, 1)
        pending.extend((inner, times) for body in ir.bodies(current) for inner in body)
    return True


def _trip_count(node: ir.Node, cx: Context) -> int | None:
    """The maximum trip count of a Loop or Scan."""
    form = loop_form(node, cx, short=True)
    return None if form is None else trips_of(form, cx).most


def _remark(node: ir.Node, reason: str) -> Callable[[], str]:
    return lambda: f"{ir.label(node)} is not folded: {reason}"
