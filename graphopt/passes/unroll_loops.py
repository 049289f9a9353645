"""unroll-loops: short loops whose trip count is known become their iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.ir.copying import Copier
from graphopt.passes.base import Pass

#: Nodes that a run may add to a small model; a larger one may at most double.
_ROOM = 4096


@dataclass(frozen=True)
class _Stack:
    """An output of a loop that gathers a value of every iteration along ``axis``."""

    value: ir.Value
    output: ir.Value
    axis: int = 0
    backwards: bool = False


@dataclass(frozen=True)
class _Iterations:
    """A Loop or Scan, told alike.

    Attributes:
        trips: how often the body runs.
        carried: for each carried value, the body's input, the first value, the body's output, and
            the loop's output.
        stacks: the outputs with an element for each iteration.
        bind: makes what else an iteration is given, by the body's inputs.
    """

    body: ir.Graph
    trips: int
    carried: Sequence[tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]]
    stacks: Sequence[_Stack]
    bind: Callable[[int], dict[ir.Value, ir.Value]]


@dataclass(frozen=True)
class UnrollLoops(Pass):
    """Replace each Loop and Scan with few trips and a small body by its iterations.

    The trip count must be known, and the condition of a Loop provably true throughout. Iteration
    numbers become constants, constants of the body are shared by all iterations, and outputs that
    gather a value of each iteration are concatenated. Loops that draw random numbers stay.

    Attributes:
        body: nodes in the body, at most, nested ones included.
        full: loops with fewer trips are unrolled.
    """

    name: ClassVar[str] = "unroll-loops"
    body: int = 32
    full: int = 64

    def run(self, model: ir.Model, cx: Context) -> None:
        """Unroll inner loops first: an outer one may then be too large."""
        graphs = list(ir.graphs_of(model))
        room = max(_ROOM, sum(map(len, graphs)))
        for graph in reversed(graphs):
            for node in list(graph):
                if node.op_type in ("Loop", "Scan") and node.domain == "":
                    room -= self._unroll(node, room, cx)

    def _unroll(self, node: ir.Node, room: int, cx: Context) -> int:
        """Unroll ``node`` unless something is in the way; returns how many nodes came."""
        found = _loop(node, cx) if node.op_type == "Loop" else _scan(node, cx)
        reason = found if isinstance(found, str) else self._obstacle(node, found, room, cx)
        if isinstance(found, str) or reason is not None:
            cx.refuse(Refusal(self.name, ir.label(node), reason or ""))
            return 0
        action = cx.permit(self.name, node)
        if action is None:
            return 0
        made = _write(node, found, self.name, cx)
        cx.edit.clear_body(found.body)
        cx.edit.remove(node)
        cx.wrote(action, node, made)
        return len(made)

    def _obstacle(self, node: ir.Node, loop: _Iterations, room: int, cx: Context) -> str | None:
        """Why ``node`` has to stay, though how often it runs is known."""
        size = sum(inner.op_type != "Constant" for inner in ir.walk_nodes(loop.body))
        if loop.trips >= self.full:
            return f"it runs {loop.trips} times; the limit is below {self.full}"
        if loop.trips and size > self.body:
            return f"its body has {size} nodes; the limit is {self.body}"
        if loop.trips * size > room:
            return "the model has grown enough"
        if loop.trips == 0 and loop.stacks:
            return "it never runs, and what it would gather has no known shape"
        if loop.trips * _nested_bytes(loop.body) > cx.options.fold_limit:
            return "constants in nested bodies would be repeated"
        if any(ir.constant_of(value) is None for value in loop.body.initializers.values()):
            return "a caller may override a constant of its body"
        if any(isinstance(formal.type, ir.OptionalType) for formal, *_ in loop.carried):
            return "a carried value is optional, and may change its type from trip to trip"
        if not cx.is_deterministic(node):
            return "its body may draw random numbers or have effects"
        if any(o.is_graph_output() and cx.dtype(o) is None for o in node.outputs) and cx.version(node) < 16:
            return "an output may not be a tensor"
        return None


def _loop(node: ir.Node, cx: Context) -> _Iterations | str:
    """``node``, a Loop, if it runs a known number of times; otherwise the reason."""
    body = _body(node)
    if body is None:
        return "its body is not its own"
    count, condition = (*node.inputs[:2], None, None)[:2]
    first = (1,) if condition is None else cx.static_ints(condition)
    trips = (0,) if first == (0,) else cx.static_ints(count)
    if trips is None or len(trips) != 1:
        return "its trip count is not known"
    if trips[0] > 0 and (first != (1,) or cx.static_ints(body.outputs[0]) != (1,)):
        return "its condition is not known to stay true"
    starts = node.inputs[2:]
    number = body.inputs[0]
    read = {value: cx.static_shape(value) for value in body.inputs[:2] if ir.is_read(value)}
    if None in starts or any(shape not in ((), (1,)) for shape in read.values()):
        return "a carried value is left out, or its counter or condition is no scalar"
    graph = node.graph
    assert graph is not None

    def bind(trip: int) -> dict[ir.Value, ir.Value]:
        return {
            value: cx.edit.constant(
                graph,
                np.reshape(np.int64(trip) if value is number else np.True_, shape or ()),
                value.name or "trip",
            )
            for value, shape in read.items()
        }

    carried = [
        (formal, start, end, output)
        for formal, start, end, output in zip_longest(
            body.inputs[2:], starts, body.outputs[1 : 1 + len(starts)], node.outputs[: len(starts)]
        )
        if start is not None
    ]
    gathered = zip(body.outputs[1 + len(starts) :], node.outputs[len(starts) :], strict=False)
    stacks = [_Stack(value, output) for value, output in gathered if ir.is_read(output)]
    return _Iterations(body, max(trips[0], 0), carried, stacks, bind)


def _scan(node: ir.Node, cx: Context) -> _Iterations | str:
    """``node``, a Scan, if it runs a known number of times; otherwise the reason."""
    body, scanned = _body(node), node.attributes.get("num_scan_inputs")
    if body is None or scanned is None or scanned.is_ref() or cx.version(node) < 9:
        return "its body is not its own, or its opset is too old"
    inputs = [value for value in node.inputs if value is not None]
    states = len(inputs) - scanned.as_int()
    if len(inputs) != len(body.inputs) or len(node.outputs) != len(body.outputs):
        return "an input or output is left out"
    sources, outputs = inputs[states:], node.outputs[states:]
    in_axes, out_axes = _ints(node, "scan_input_axes", sources), _ints(node, "scan_output_axes", outputs)
    backwards = _ints(node, "scan_input_directions", sources)
    out_backwards = _ints(node, "scan_output_directions", outputs)
    shapes = [cx.shape(source) for source in sources]
    lengths = [
        shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        for shape, axis in zip(shapes, in_axes, strict=True)
    ]
    trips = lengths[0] if lengths else None
    if not isinstance(trips, int) or trips == 0 or any(length != trips for length in lengths):
        return "how often it runs is not known, or it never does"
    graph = node.graph
    assert graph is not None

    def bind(trip: int) -> dict[ir.Value, ir.Value]:
        given = {}
        for formal, source, axis, back in zip(body.inputs[states:], sources, in_axes, backwards, strict=True):
            index = cx.edit.constant(graph, np.array(trips - 1 - trip if back else trip), "trip")
            element = cx.edit.make_node("Gather", [source, index], {"axis": axis}, name=ir.label(node))
            cx.edit.insert_before(node, [element])
            cx.edit.note_origin([element], [node], UnrollLoops.name)
            given[formal] = element.outputs[0]
        return given

    carried = list(zip(body.inputs, inputs[:states], body.outputs, node.outputs, strict=False))
    gathered = zip(body.outputs[states:], outputs, out_axes, out_backwards, strict=True)
    stacks = [
        _Stack(value, output, axis, bool(back))
        for value, output, axis, back in gathered
        if ir.is_read(output)
    ]
    return _Iterations(body, trips, carried, stacks, bind)


def _body(node: ir.Node) -> ir.Graph | None:
    attribute = node.attributes.get("body")
    return None if attribute is None or attribute.is_ref() else attribute.as_graph()


def _ints(node: ir.Node, name: str, values: Sequence[ir.Value]) -> Sequence[int]:
    attribute = node.attributes.get(name)
    return [0] * len(values) if attribute is None else list(attribute.as_ints())


def _nested_bytes(body: ir.Graph) -> int:
    """Bytes of the constants in the bodies within ``body``, of which each iteration gets its own."""
    nested = [graph for graph in ir.with_bodies(body) if graph is not body]
    values = [
        value
        for graph in nested
        for value in (*graph.initializers.values(), *(output for node in graph for output in node.outputs))
    ]
    return sum(tensor.nbytes for tensor in map(ir.constant_of, values) if tensor is not None)


def _write(node: ir.Node, loop: _Iterations, owner: str, cx: Context) -> list[ir.Node]:
    """Put the iterations in front of ``node`` and let all read their results; returns the new nodes."""
    shared = _shared_constants(node, loop.body, cx) if loop.trips else {}
    originals = [inner for inner in loop.body if inner.outputs[0] not in shared]
    current: dict[ir.Value, ir.Value] = {formal: start for formal, start, _, _ in loop.carried}
    elements: dict[_Stack, list[ir.Value]] = {stack: [] for stack in loop.stacks}
    made: list[ir.Node] = []
    for trip in range(loop.trips):
        given = loop.bind(trip)
        made += [maker for value in given.values() if (maker := value.producer()) is not None]
        copier = Copier(
            {**shared, **given, **current},
            value_name=cx.edit.fresh_name,
            node_name=cx.edit.fresh_node_name,
            declarations=False,
        )
        copies = copier.nodes(originals)
        for original, copy in zip(originals, copies, strict=True):
            cx.edit.note_origin([copy], [original], owner)
            for result in copy.outputs:
                result.shape = None  # what a body declares of its outputs need not hold for each trip
        cx.edit.insert_before(node, copies)
        made += copies
        current = {formal: _copied(copier, end) for formal, _, end, _ in loop.carried}
        for stack, values in elements.items():
            values.append(_copied(copier, stack.value))
    for stack, values in elements.items():
        made += _stack(node, stack, values[::-1] if stack.backwards else values, owner, cx)
    for formal, _, _, output in loop.carried:
        if output is not None and ir.is_read(output):
            cx.edit.replace(output, current[formal])
    return made


def _copied(copier: Copier, value: ir.Value) -> ir.Value:
    copy = copier.value(value)
    assert copy is not None
    return copy


def _shared_constants(node: ir.Node, body: ir.Graph, cx: Context) -> dict[ir.Value, ir.Value]:
    """Constants beside ``node`` that stand for those of its body."""
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
    node: ir.Node, stack: _Stack, values: Sequence[ir.Value], owner: str, cx: Context
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
