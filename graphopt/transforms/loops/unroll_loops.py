"""unroll-loops: loop unrolling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.control_flow.known_trip_count import Iterations, StackedOutput, iterations_of
from graphopt.control_flow.loops import declare_shape
from graphopt.ops import traits
from graphopt.passes.base import Pass
from graphopt.util.lazy_dataclass import dataclass

#: Number of nodes that a run may add to a small model; a larger model may at most double.
_BUDGET = 4096


@dataclass(frozen=True)
class UnrollLoops(Pass):
    """Loop unrolling: replace Loops and Scans with few trips and a small body by their iterations.

    The trip count must be known, and the condition of a Loop provably true throughout. Iteration numbers
    become constants, all iterations share the constants of the body, and stacked outputs are concatenated.
    Loops that draw random numbers are not unrolled. A Loop with more trips, and with carried values only, is
    partially unrolled; the remaining iterations follow it.

    Attributes:
        factor: iterations per trip of a partially unrolled Loop; 1 disables partial unrolling.
        body: maximum number of nodes of a repeated body, nested bodies included.
        full: the trip count from which loops are no longer fully unrolled.
    """

    name: ClassVar[str] = "unroll-loops"
    operators: ClassVar[frozenset[str]] = frozenset({"Loop", "Scan"})
    factor: int = 8
    body: int = 32
    full: int = 64

    def run(self, model: ir.Model, cx: Context) -> None:
        """Unroll inner loops first; an outer loop may then be too large."""
        graphs = cx.graphs
        budget = max(_BUDGET, sum(map(len, graphs)))
        for graph in reversed(graphs):
            for node in list(graph):
                if traits.is_loop(node):
                    budget -= self._unroll(node, budget, cx)

    def _unroll(self, node: ir.Node, budget: int, cx: Context) -> int:
        """Unroll ``node`` if possible; returns the number of added nodes."""
        found = iterations_of(node, cx, self.name)
        reason = found if isinstance(found, str) else self._obstacle(node, found, budget, cx)
        if isinstance(found, str) or reason is not None:
            cx.refuse(Refusal(self.name, ir.label(node), reason or ""))
            return 0
        action = cx.begin_rewrite(self.name, node)
        if action is None:
            return 0
        shared = _shared_constants(node, found.body, cx) if found.trips else {}
        made: list[ir.Node] = []
        if found.trips >= self.full:
            loop, found = _several_at_a_time(node, found, shared, self.factor, cx)
            cx.edit.note_origin([loop], [node], self.name)
            made.append(loop)
        made += _write(node, found, shared, self.name, cx)
        cx.edit.clear_body(found.body)
        cx.edit.remove(node)
        cx.end_rewrite(action, node, made)
        return len(made)

    def _obstacle(self, node: ir.Node, loop: Iterations, budget: int, cx: Context) -> str | None:
        """The reason why ``node`` is kept, although its trip count is known."""
        size = sum(inner.op_type != "Constant" for inner in ir.walk_nodes(loop.body))
        copies = loop.trips
        if loop.trips >= self.full:
            whole = f"it runs {loop.trips} times; the limit is below {self.full}"
            if self.factor < 2 or loop.trips < 2 * self.factor or ir.created_by(node) == self.name:
                return whole
            if node.op_type == "Scan" or len(node.outputs) > len(loop.carried) or not loop.carried:
                return f"{whole}, and it has stacked outputs"
            tensors = all(isinstance(formal.type, ir.TensorType) for formal, *_ in loop.carried)
            if not tensors and cx.version(node) < 16:
                return f"{whole}, and its opset has no Identity for what it carries"
            copies = self.factor + loop.trips % self.factor
        if copies > 1 and size > self.body:
            return f"its body has {size} nodes; the limit is {self.body}"
        if copies * size > budget:
            return "the model has reached the limit of growth"
        if loop.trips == 0 and loop.stacks:
            return "it has no trips, and its stacked outputs have unknown shapes"
        if copies * _nested_bytes(loop.body) > cx.options.fold_limit:
            return "constants in nested bodies would be repeated"
        if any(ir.constant_of(value) is None for value in loop.body.initializers.values()):
            return "a caller may override a constant of its body"
        if any(isinstance(formal.type, ir.OptionalType) for formal, *_ in loop.carried):
            return "a carried value is optional, and may change its type from trip to trip"
        if _is_in_loop(node, cx) and _declares_unproven_shapes(loop, cx):
            return "only its body declares shapes, and an enclosing loop may stack tensors without a trip"
        if not cx.is_deterministic(node):
            return "its body may draw random numbers or have effects"
        if any(o.is_graph_output() and cx.dtype(o) is None for o in node.outputs) and cx.version(node) < 16:
            return "an output may not be a tensor"
        return None


def _declares_unproven_shapes(loop: Iterations, cx: Context) -> bool:
    """Whether the body declares shapes that are not inferred; onnxruntime relies on them."""
    return not all(map(cx.edit.trusts_shape, _declared(loop)))


def _declared(loop: Iterations) -> list[ir.Value]:
    """Values whose declared shapes onnxruntime may use for the results of ``loop``."""
    values = [*(formal for formal, *_ in loop.carried), *(stack.value for stack in loop.stacks)]
    return [value for value in values if value.shape is not None]


def _is_in_loop(node: ir.Node | None, cx: Context) -> bool:
    """Whether ``node`` is inside a Loop."""
    while node is not None and node.graph is not None:
        node = cx.edit.scopes.holder(node.graph)
        if node is not None and node.op_type == "Loop" and node.domain == "":
            return True
    return False


def _nested_bytes(body: ir.Graph) -> int:
    """Bytes of the constants in nested bodies, which unrolling copies per iteration."""
    nested = [graph for graph in ir.with_bodies(body) if graph is not body]
    values = [
        value
        for graph in nested
        for value in (*graph.initializers.values(), *(output for node in graph for output in node.outputs))
    ]
    return sum(tensor.nbytes for tensor in map(ir.constant_of, values) if tensor is not None)


def _several_at_a_time(
    node: ir.Node, loop: Iterations, shared: Mapping[ir.Value, ir.Value], factor: int, cx: Context
) -> tuple[ir.Node, Iterations]:
    """Insert a Loop before ``node``; each of its trips computes ``factor`` trips of ``node``.

    Returns the Loop, and the iterations that remain after it.
    """
    graph, edit = node.graph, cx.edit
    assert graph is not None
    number, running, *formals = (_formal(value, cx) for value in loop.body.inputs)
    nodes: list[ir.Node] = []

    def compute(op_type: str, *operands: ir.Value) -> ir.Value:
        nodes.append(edit.make_node(op_type, operands, name=f"{ir.label(node)}_{op_type}"))
        edit.note_origin(nodes[-1:], [node], UnrollLoops.name)
        return nodes[-1].outputs[0]

    first = None
    if ir.is_read(loop.body.inputs[0]):
        first = compute("Mul", number, edit.constant(graph, np.array(factor), "factor"))
    current = dict(zip(loop.body.inputs[2:], formals, strict=True))
    for index in range(factor):
        given = {**shared, loop.body.inputs[1]: running, **current}
        if first is not None:
            offset = edit.constant(graph, np.array(index), "offset")
            given[loop.body.inputs[0]] = compute("Add", first, offset)
        copier = _copier(given, cx)
        copies = _copies(copier, loop.body, shared, UnrollLoops.name, cx)
        nodes += copies
        current = {formal: _copied(copier, end) for formal, _, end, _ in loop.carried}
    # an Identity, because the value may be an input, an outer value, or also another output
    outputs = [compute("Identity", value) for value in (running, *current.values())]
    for output, end in zip(outputs, [running, *loop.body.outputs[1:]], strict=True):
        output.type, output.shape = end.type, None if end.shape is None else end.shape.copy()
    body = ir.Graph(
        [number, running, *formals],
        outputs,
        nodes=nodes,
        opset_imports=dict(loop.body.opset_imports),
        name=loop.body.name,
    )
    body.meta.update(loop.body.meta)
    trips = edit.constant(graph, np.array(loop.trips // factor), "trips")
    inputs = [trips, node.inputs[1], *(start for _, start, _, _ in loop.carried)]
    made = edit.make_node("Loop", inputs, {"body": body}, outputs=len(loop.carried), name=ir.label(node))
    edit.insert_before(node, [made])
    rest = loop.trips % factor
    carried = [
        (formal, start, end, output)
        for (formal, _, end, output), start in zip(loop.carried, made.outputs, strict=True)
    ]
    done = loop.trips - rest
    return made, replace(loop, trips=rest, carried=carried, bind=lambda trip: loop.bind(done + trip))


def _formal(value: ir.Value, cx: Context) -> ir.Value:
    """A new body input with the type and shape of ``value``."""
    shape = None if value.shape is None else value.shape.copy()
    return ir.Value(name=cx.edit.fresh_name(value.name or "input"), type=value.type, shape=shape)


def _copier(given: Mapping[ir.Value, ir.Value], cx: Context) -> ir.Cloner:
    return ir.Cloner(
        dict(given), value_name=cx.edit.fresh_name, node_name=cx.edit.fresh_node_name, declarations=False
    )


def _copies(
    copier: ir.Cloner, body: ir.Graph, shared: Mapping[ir.Value, ir.Value], owner: str, cx: Context
) -> list[ir.Node]:
    """The nodes of one iteration of ``body``, not yet in a graph."""
    originals = [inner for inner in body if inner.outputs[0] not in shared]
    copies = copier.nodes(originals)
    for original, copy in zip(originals, copies, strict=True):
        cx.edit.note_origin([copy], [original], owner)
        for result in copy.outputs:
            result.shape = None  # the shape that the body declares may be wrong for some trips
    return copies


def _write(
    node: ir.Node, loop: Iterations, shared: Mapping[ir.Value, ir.Value], owner: str, cx: Context
) -> list[ir.Node]:
    """Insert the iterations before ``node``, and replace its outputs by theirs; returns the new nodes."""
    current: dict[ir.Value, ir.Value] = {formal: start for formal, start, _, _ in loop.carried}
    elements: dict[StackedOutput, list[ir.Value]] = {stack: [] for stack in loop.stacks}
    made: list[ir.Node] = []
    for trip in range(loop.trips):
        given = loop.bind(trip)
        made += [maker for value in given.values() if (maker := value.producer()) is not None]
        copier = _copier({**shared, **given, **current}, cx)
        copies = _copies(copier, loop.body, shared, owner, cx)
        cx.edit.insert_before(node, copies)
        made += copies
        current = {formal: _copied(copier, end) for formal, _, end, _ in loop.carried}
        for stack, values in elements.items():
            values.append(_copied(copier, stack.value))
    results: list[ir.Value] = []
    for stack, values in elements.items():
        made += _stack(node, stack, values[::-1] if stack.backwards else values, owner, cx)
        results += made[-1].outputs
    for formal, _, _, output in loop.carried:
        if output is not None and ir.is_read(output):
            cx.edit.replace(output, current[formal])
            results.append(current[formal])
    if _is_in_loop(node, cx) and _declared(loop):
        for result in results:
            declare_shape(result, cx)
    return made


def _copied(copier: ir.Cloner, value: ir.Value) -> ir.Value:
    copy = copier.value(value)
    assert copy is not None
    return copy


def _shared_constants(node: ir.Node, body: ir.Graph, cx: Context) -> dict[ir.Value, ir.Value]:
    """New constants in the graph of ``node``, by the constants of its body that they replace."""
    graph = node.graph
    assert graph is not None
    values = [
        *body.initializers.values(),
        *(inner.outputs[0] for inner in body if inner.op_type == "Constant"),
    ]
    tensors = {value: ir.constant_of(value) for value in values}
    return {
        value: cx.edit.constant(graph, tensor, value.name or "constant")
        for value, tensor in tensors.items()
        if tensor is not None
    }


def _stack(
    node: ir.Node, stack: StackedOutput, values: Sequence[ir.Value], owner: str, cx: Context
) -> list[ir.Node]:
    """Concatenate ``values`` along a new axis."""
    graph = node.graph
    assert graph is not None
    if cx.version(node) >= 13:
        axes = cx.edit.constant(graph, np.array([stack.axis]), "axes")
        rows = [cx.edit.make_node("Unsqueeze", [value, axes], name="row") for value in values]
    else:
        rows = [
            cx.edit.make_node("Unsqueeze", [value], {"axes": [stack.axis]}, name="row") for value in values
        ]
    joined = cx.edit.make_node(
        "Concat", [row.outputs[0] for row in rows], {"axis": stack.axis}, name=ir.label(node)
    )
    made = [*rows, joined]
    cx.edit.insert_before(node, made)
    cx.edit.note_origin(made, [node], owner)
    cx.edit.replace(stack.output, joined.outputs[0])
    return made
