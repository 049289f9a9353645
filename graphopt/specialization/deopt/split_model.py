"""Split a model at an exit point into a prefix and a continuation, and join both again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.specialization.deopt.continuation import write_continuation
from graphopt.specialization.deopt.enclosing_graphs import Level, levels_of
from graphopt.specialization.deopt.exit_points import ExitPoint
from graphopt.specialization.deopt.graph_writer import Writer
from graphopt.specialization.deopt.liveness import Live, is_given, live_at, type_of
from graphopt.specialization.deopt.prefix_writer import PrefixWriter
from graphopt.specialization.deopt.value_transfer import Transfer, scalar
from graphopt.specialization.empty_model import copy_declaration, empty_like
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Bailout:
    """A model in two parts; run in sequence, they are equivalent to the model.

    Attributes:
        point: the exit point.
        prefix: the prefix. Its inputs are those of the model and, if the exit point is in a loop,
            ``occurrence``, the number of times that the run passes the exit point before it exits. Returns
            ``reached`` and the transferred values, which are meaningful only if ``reached`` is true.
        rest: the continuation. Its inputs are the value at the exit point, the other live values, and the
            required inputs of the model; its outputs are those of the model. A tensor of unknown rank is
            passed as two inputs, the vector of its elements and its shape.
        handed: names of the transferred values, which are outputs of the prefix and inputs of the
            continuation.
        occurrence: the name of this input; ``None`` if the exit point is reached at most once.
        reached: the name of this output.
    """

    point: ExitPoint
    prefix: ir.Model = field(repr=False)
    rest: ir.Model = field(repr=False)
    handed: tuple[str, ...]
    occurrence: str | None
    reached: str


@dataclass(frozen=True)
class _AtOccurrence:
    """Exit when the exit point is reached for the k-th time, from 0."""

    needs_count = True
    wanted: ir.Value | None

    def should_exit(self, writer: Writer, before: ir.Value | None) -> ir.Value:
        if before is None or self.wanted is None:
            return writer.identity(writer.constant(True))
        return writer.value("Equal", [before, self.wanted])

    def substitutions(self, writer: Writer) -> dict[ir.Value, ir.Value]:
        return {}


def bailout_at(model: ir.Model, point: ExitPoint) -> Bailout:
    """Split ``model``, which is not modified, at ``point``.

    Raises:
        UnsupportedModel: a run can't exit at ``point``.
    """
    with context_for(model) as cx:
        levels = levels_of(point, cx)
        live = live_at(point, levels)
        transfers = _transfers(model, point, live, levels, cx)
        return _split_models(model, point, levels, live, transfers, cx)


def _transfers(
    model: ir.Model, point: ExitPoint, live: Live, levels: Sequence[Level], cx: Context
) -> dict[ir.Value, Transfer]:
    """The transfer of each live value, under its own name if that is unique."""
    names = Counter(value.name for graph in ir.graphs_of(model) for value in ir.values_of(graph))
    found: dict[ir.Value, Transfer] = {}
    # inferred sizes in an unreachable branch may contradict the actual ones, which runtimes reject
    certain = all(level.form is not None for level in levels[1:])
    for value in live.values:
        if is_given(value, model.graph):
            found[value] = Transfer(copy_declaration(value))
            continue
        name = value.name or "value"
        name = name if names[name] == 1 else cx.edit.fresh_name(name)
        shape = cx.shape(value)
        sizes = (
            None if shape is None else [dim if certain and isinstance(dim, int) else None for dim in shape]
        )
        found[value] = Transfer.of(name, type_of(value, cx), sizes, cx.edit)
    for output, _ in live.rows:  # placeholders of rows may have any sizes
        name = cx.edit.fresh_name(f"{output.name}_so_far")
        found[output] = Transfer.of(name, type_of(output, cx), _open(output, cx), cx.edit)
    return found


def _open(value: ir.Value, cx: Context) -> list[None] | None:
    """Unknown sizes, one for each axis of ``value``."""
    shape = cx.shape(value)
    return None if shape is None else [None] * len(shape)


def _split_models(
    model: ir.Model,
    point: ExitPoint,
    levels: Sequence[Level],
    live: Live,
    transfers: dict[ir.Value, Transfer],
    cx: Context,
) -> Bailout:
    fresh = cx.edit.fresh_name
    in_loop = any(level.form is not None for level in levels)
    reached_name = fresh("reached")
    reached = scalar(reached_name, ir.DataType.BOOL)
    occurrence = scalar(fresh("occurrence"), ir.DataType.INT64) if in_loop else None
    made = {key: transfer for key, transfer in transfers.items() if not is_given(key, model.graph)}
    outputs = [output for transfer in made.values() for output in transfer.outputs]
    names = tuple(output.name or "" for output in outputs)

    inputs = [copy_declaration(value) for value in model.graph.inputs]
    prefix = empty_like(model, [*inputs, *([] if occurrence is None else [occurrence])], [reached, *outputs])
    writer = Writer.of(prefix)
    writer.copier.values.update(zip(model.graph.inputs, inputs, strict=True))
    left = PrefixWriter(levels, live, _AtOccurrence(occurrence), cx, continues=False).write(writer)
    given = [value for key, transfer in made.items() for value in transfer.pack(writer, left.live[key])]
    writer.set_main_outputs([left.exited, *given])

    rest = empty_like(model, [value for transfer in transfers.values() for value in transfer.inputs])
    writer = Writer.of(rest)
    unpacked = {key: transfer.unpack(writer) for key, transfer in transfers.items()}
    rows = {output: unpacked.pop(output) for output, _ in live.rows}
    writer.copier.values.update(unpacked)
    writer.set_main_outputs(write_continuation(writer, levels, rows))
    return Bailout(point, prefix, rest, names, None if occurrence is None else occurrence.name, reached_name)


def reassemble(model: ir.Model, bailout: Bailout, occurrence: int = 0) -> ir.Model:
    """A model that runs both parts of ``bailout``, or all of ``model`` if the exit point is not reached.

    Args:
        model: the model that was split.
        occurrence: the number of times that the run passes the exit point before it exits.
    """
    joined = empty_like(model)
    writer = Writer.of(joined)
    inputs = {value.name: value for value in joined.graph.inputs}
    prefix, rest = bailout.prefix.graph, bailout.rest.graph
    known = writer.copier.values
    known.update({value: inputs.get(value.name) for value in (*model.graph.inputs, *prefix.inputs)})
    for value in prefix.inputs:
        if value.name == bailout.occurrence:
            known[value] = writer.constant(occurrence)
    writer.copy(list(prefix))
    handed = {value.name: writer.lookup(value) for value in prefix.outputs}

    def resume(inner: Writer) -> list[ir.Value]:
        given = {value: handed.get(value.name) or inputs.get(value.name) for value in rest.inputs}
        inner = inner.with_values(given)
        inner.copy(list(rest))
        return [inner.lookup(value) for value in rest.outputs]

    def run_all(inner: Writer) -> list[ir.Value]:
        inner.copy(list(model.graph))
        return [inner.lookup(value) for value in model.graph.outputs]

    types = [value.type for value in model.graph.outputs]
    writer.set_main_outputs(writer.if_else(handed[bailout.reached], resume, run_all, types))
    return joined
