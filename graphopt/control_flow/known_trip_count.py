"""Iterations of Loops and Scans with a known trip count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import LoopForm, entries_of, loop_form, trips_of
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class StackedOutput:
    """An output of a loop that stacks a value of every iteration along ``axis``."""

    value: ir.Value
    output: ir.Value
    axis: int = 0
    backwards: bool = False


@dataclass(frozen=True)
class Iterations:
    """A Loop or Scan with a known trip count.

    Attributes:
        body: its body.
        trips: the trip count.
        carried: for each carried value, the body's input, the first value, the body's output, and
            the loop's output.
        stacks: the outputs with an element per iteration.
        bind: builds the other inputs of an iteration; the keys are the body's inputs.
    """

    body: ir.Graph
    trips: int
    carried: Sequence[tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]]
    stacks: Sequence[StackedOutput]
    bind: Callable[[int], dict[ir.Value, ir.Value]]


def iterations_of(node: ir.Node, cx: Context, owner: str) -> Iterations | str:
    """``node``, a Loop or Scan, if its trip count is known; otherwise the reason why it is unknown.

    Args:
        owner: the name of the pass, recorded as the origin of nodes that select elements.
    """
    form = loop_form(node, cx, short=True)
    if form is None:
        return "its body is a parameter of the function, its opset is too old, or inputs or outputs lack"
    if node.graph is None or not cx.edit.supports_constant(node.graph, ir.DataType.INT64):
        return "the function's opset has no Constant for the numbers of iterations"
    return _of_loop(form, cx) if node.op_type == "Loop" else _of_scan(form, cx, owner)


def _of_loop(form: LoopForm, cx: Context) -> Iterations | str:
    node, body, trips = form.node, form.body, trips_of(form, cx)
    if trips.most is None:
        return "its trip count is not known"
    if trips.least < trips.most:
        return "its condition is not known to stay true"
    number = body.inputs[0]
    read = {value: cx.static_shape(value) for value in body.inputs[: form.head] if ir.is_read(value)}
    if any(shape not in ((), (1,)) for shape in read.values()):
        return "its counter or condition is not a scalar"
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

    stacks = [
        StackedOutput(value, output)
        for value, output in zip(form.rows, form.gathered, strict=False)
        if ir.is_read(output)
    ]
    return Iterations(body, trips.most, _carried(form), stacks, bind)


def _of_scan(form: LoopForm, cx: Context, owner: str) -> Iterations | str:
    node, trips = form.node, trips_of(form, cx).most
    if not trips:
        return "its trip count is not known, or 0"
    sources = node.inputs[form.carried :]
    axes = entries_of(form, "scan_input_axes", len(sources))
    backwards = entries_of(form, "scan_input_directions", len(sources))
    graph = node.graph
    assert graph is not None

    def bind(trip: int) -> dict[ir.Value, ir.Value]:
        given = {}
        for formal, source, axis, back in zip(form.scanned, sources, axes, backwards, strict=True):
            index = cx.edit.constant(graph, np.array(trips - 1 - trip if back else trip), "trip")
            element = cx.edit.make_node("Gather", [source, index], {"axis": axis}, name=ir.label(node))
            cx.edit.insert_before(node, [element])
            cx.edit.note_origin([element], [node], owner)
            given[formal] = element.outputs[0]
        return given

    outputs = form.gathered
    out_axes = entries_of(form, "scan_output_axes", len(outputs))
    out_backwards = entries_of(form, "scan_output_directions", len(outputs))
    gathered = zip(form.rows, outputs, out_axes, out_backwards, strict=True)
    stacks = [
        StackedOutput(value, output, axis, bool(back))
        for value, output, axis, back in gathered
        if ir.is_read(output)
    ]
    return Iterations(form.body, trips, _carried(form), stacks, bind)


def _carried(form: LoopForm) -> list[tuple[ir.Value, ir.Value, ir.Value, ir.Value | None]]:
    return [
        (formal, start, end, output)
        for formal, start, end, output in zip_longest(form.formals, form.starts, form.ends, form.results)
        if start is not None
    ]
