"""The remainder of a run after an exit point: of the iteration, the enclosing loops, and the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt import ir
from graphopt.control_flow.loops import LoopForm
from graphopt.specialization.deopt.enclosing_graphs import Level
from graphopt.specialization.deopt.graph_writer import Writer


def write_continuation(
    writer: Writer, levels: Sequence[Level], rows: Mapping[ir.Value, ir.Value]
) -> list[ir.Value]:
    """Append all nodes after an exit point; returns the outputs of the main graph.

    An enclosing loop continues as a residual loop over the remaining iterations.

    Modelled on ``BailOutGraphBuilderForNode`` of PyTorch's JIT.

    Args:
        writer: a writer with copies of the live values.
        levels: the graphs around the exit point.
        rows: the rows of earlier iterations, for each used scan output of an enclosing loop.
    """
    for level in reversed(levels):
        writer.copy(level.after)
        if level.form is not None:
            _append_residual_loop(writer, level.form, rows)
        elif level.holder is not None:
            for output, value in zip(level.holder.outputs, level.graph.outputs, strict=True):
                writer.copier.values[output] = writer.lookup(value)
    return [writer.lookup(value) for value in levels[0].graph.outputs]


def _append_residual_loop(writer: Writer, form: LoopForm, rows: Mapping[ir.Value, ir.Value]) -> None:
    """Append a loop over the iterations after the current iteration."""
    node, body = form.node, form.body
    counter = writer.lookup(body.inputs[0])
    done = writer.value("Add", [counter, writer.constant(1)])
    count = node.inputs[0] if node.inputs else None
    remaining = None if count is None else writer.value("Sub", [writer.lookup(count), done])
    ends = [writer.lookup(value) for value in (body.outputs[0], *form.ends)]
    copy = writer.copy_body(body)
    loop = writer.node(
        "Loop", [remaining, *ends], {"body": copy}, outputs=len(node.outputs), name=ir.label(node)
    )
    _shift_counter(writer.in_graph(copy), copy.inputs[0], done)
    own = [writer.lookup(row) for row in form.rows]
    for old, new in zip(node.outputs, loop.outputs, strict=True):
        new.type = old.type
        writer.copier.values[old] = new
    for row, output in zip(own, form.gathered, strict=False):
        if output in rows:
            behind = writer.lookup(output)
            found = _join_rows(writer, rows[output], counter, writer.unsqueeze(row), behind, output.type)
            writer.copier.values[output] = found


def _shift_counter(writer: Writer, counter: ir.Value, done: ir.Value) -> None:
    """Add ``done`` to the counter of the body of ``writer``."""
    body, edit = writer.graph, writer.edit
    if not ir.is_read(counter):
        return
    node = edit.make_node("Add", [counter, done], name="bailout_counter")
    shifted = node.outputs[0]
    shifted.type = counter.type
    if len(body):
        edit.interpose(counter, node)
    else:
        edit.append(body, node)
    if counter in body.outputs:
        types = [value.type for value in body.outputs]
        writer.set_outputs([shifted if value is counter else value for value in body.outputs], types)


def _join_rows(
    writer: Writer,
    before: ir.Value,
    trips: ir.Value,
    own: ir.Value,
    behind: ir.Value,
    type_: ir.TypeProtocol | None,
) -> ir.Value:
    """The rows of ``trips`` earlier iterations, of the current one, and of later ones, as one tensor.

    Empty parts are omitted: a loop without iterations returns rows of unknown sizes, which Concat rejects.
    """
    zero = writer.constant(0)
    limits = writer.value("Reshape", [trips, writer.constant([1])])

    def with_before(inner: Writer) -> list[ir.Value]:
        rows = inner.value("Slice", [before, inner.constant([0]), limits, inner.constant([0])])
        return [inner.value("Concat", [rows, own], {"axis": 0})]

    first = writer.value("Equal", [trips, zero])
    [found] = writer.if_else(first, lambda inner: [own], with_before, [type_])
    more = writer.value("Gather", [writer.value("Shape", [behind]), zero], {"axis": 0})
    last = writer.value("Equal", [more, zero])
    [found] = writer.if_else(
        last,
        lambda inner: [found],
        lambda inner: [inner.value("Concat", [found, behind], {"axis": 0})],
        [type_],
    )
    return found
