"""What a Loop and a Scan that run a known number of times do, told alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from graphopt import ir
from graphopt.context import Context


@dataclass(frozen=True)
class Stack:
    """An output of a loop that gathers a value of every iteration along ``axis``."""

    value: ir.Value
    output: ir.Value
    axis: int = 0
    backwards: bool = False


@dataclass(frozen=True)
class Iterations:
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
    stacks: Sequence[Stack]
    bind: Callable[[int], dict[ir.Value, ir.Value]]


def iterations_of_loop(node: ir.Node, cx: Context) -> Iterations | str:
    """``node``, a Loop, if it runs a known number of times; otherwise the reason."""
    body = _body(node)
    if body is None:
        return "its body is not its own"
    count, condition = (*node.inputs[:2], None, None)[:2]
    first = (1,) if condition is None else cx.static_ints(condition)
    trips = (0,) if first == (0,) else cx.static_ints(count)
    if trips is None or len(trips) != 1:
        return "its trip count is not known"
    if trips[0] > 0 and (first != (1,) or (trips[0] > 1 and cx.static_ints(body.outputs[0]) != (1,))):
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
                (np.array(trip, np.int64) if value is number else np.array(True)).reshape(shape or ()),
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
    stacks = [Stack(value, output) for value, output in gathered if ir.is_read(output)]
    return Iterations(body, max(trips[0], 0), carried, stacks, bind)


def iterations_of_scan(node: ir.Node, cx: Context) -> Iterations | str:
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
            cx.edit.note_origin([element], [node], "unroll-loops")
            given[formal] = element.outputs[0]
        return given

    carried = list(zip(body.inputs, inputs[:states], body.outputs, node.outputs, strict=False))
    gathered = zip(body.outputs[states:], outputs, out_axes, out_backwards, strict=True)
    stacks = [
        Stack(value, output, axis, bool(back)) for value, output, axis, back in gathered if ir.is_read(output)
    ]
    return Iterations(body, trips, carried, stacks, bind)


def _body(node: ir.Node) -> ir.Graph | None:
    attribute = node.attributes.get("body")
    return None if attribute is None or attribute.is_ref() else attribute.as_graph()


def _ints(node: ir.Node, name: str, values: Sequence[ir.Value]) -> Sequence[int]:
    attribute = node.attributes.get(name)
    return [0] * len(values) if attribute is None else list(attribute.as_ints())
