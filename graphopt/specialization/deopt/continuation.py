"""The rest of a run from a place on: of the trip, of the loops around it, and of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt import ir
from graphopt.control_flow.loops import LoopForm
from graphopt.specialization.deopt.levels import Level
from graphopt.specialization.deopt.writer import Writer


def write_rest(writer: Writer, levels: Sequence[Level], rows: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
    """Append all that runs behind a place; returns what stands for the outputs of the main graph.

    A loop around the place is gone on with in a residual loop, which makes the trips that are left.

    The seed is ``BailOutGraphBuilderForNode`` of PyTorch's JIT.

    Args:
        writer: knows what stands for the live values.
        levels: the graphs around the place.
        rows: for each output of a loop around it that gathers and is read, the rows of the trips before.
    """
    for level in reversed(levels):
        writer.copy(level.after)
        if level.form is not None:
            _go_on(writer, level.form, rows)
        elif level.holder is not None:
            for output, value in zip(level.holder.outputs, level.graph.outputs, strict=True):
                writer.copier.values[output] = writer.stand_in(value)
    return [writer.stand_in(value) for value in levels[0].graph.outputs]


def _go_on(writer: Writer, form: LoopForm, rows: Mapping[ir.Value, ir.Value]) -> None:
    """Append a loop for the trips that are left, behind the rest of this one."""
    node, body = form.node, form.body
    counter = writer.stand_in(body.inputs[0])
    done = writer.value("Add", [counter, writer.number(1)])
    count = node.inputs[0] if node.inputs else None
    left = None if count is None else writer.value("Sub", [writer.stand_in(count), done])
    ends = [writer.stand_in(value) for value in (body.outputs[0], *form.ends)]
    copy = writer.copied_body(body)
    loop = writer.nodes("Loop", [left, *ends], {"body": copy}, outputs=len(node.outputs), name=ir.label(node))
    _shift(writer.into(copy), copy.inputs[0], done)
    own = [writer.stand_in(row) for row in form.rows]
    for old, new in zip(node.outputs, loop.outputs, strict=True):
        new.type = old.type
        writer.copier.values[old] = new
    for row, output in zip(own, form.gathered, strict=False):
        if output in rows:
            behind = writer.stand_in(output)
            found = _joined(writer, rows[output], counter, writer.unsqueezed(row), behind, output.type)
            writer.copier.values[output] = found


def _shift(writer: Writer, counter: ir.Value, done: ir.Value) -> None:
    """Let the body at work count on from ``done``."""
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
        writer.give([shifted if value is counter else value for value in body.outputs], types)


def _joined(
    writer: Writer,
    before: ir.Value,
    trips: ir.Value,
    own: ir.Value,
    behind: ir.Value,
    type_: ir.TypeProtocol | None,
) -> ir.Value:
    """The rows of ``trips`` trips before, of this one and of those behind, as one tensor.

    A loop that does not run gathers tensors of no known size, which do not go together with others.
    """
    zero = writer.number(0)
    limits = writer.value("Reshape", [trips, writer.number([1])])

    def with_before(inner: Writer) -> list[ir.Value]:
        rows = inner.value("Slice", [before, inner.number([0]), limits, inner.number([0])])
        return [inner.value("Concat", [rows, own], {"axis": 0})]

    first = writer.value("Equal", [trips, zero])
    [found] = writer.either(first, lambda inner: [own], with_before, [type_])
    more = writer.value("Gather", [writer.value("Shape", [behind]), zero], {"axis": 0})
    last = writer.value("Equal", [more, zero])
    [found] = writer.either(
        last,
        lambda inner: [found],
        lambda inner: [inner.value("Concat", [found, behind], {"axis": 0})],
        [type_],
    )
    return found
