"""A run up to a place, and out of the bodies around it: an If returns early, a loop ends by its condition.

No runtime can stop within a body. So each graph around the place also returns whether the run is to leave,
and the live values. In a loop these are carried, and the trip in which the run leaves skips the rest and lets
the loop end; what it would have gathered is the row before once more, since all rows have to have one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.levels import Level
from graphopt.specialization.deopt.liveness import Live
from graphopt.specialization.deopt.writer import Writer

_BOOL = ir.TensorType(ir.DataType.BOOL)
_INT64 = ir.TensorType(ir.DataType.INT64)


class Exit(Protocol):
    """When a run leaves.

    Attributes:
        counts: whether it needs to know how often the place was reached before.
    """

    counts: bool

    def is_hit(self, writer: Writer, before: ir.Value | None) -> ir.Value:
        """Whether the run is to leave at the place, which it has reached so often ``before``."""

    def passed(self, writer: Writer) -> Mapping[ir.Value, ir.Value]:
        """What all behind the place reads instead of values where the run does not leave."""


@dataclass(frozen=True)
class Left:
    """What the main graph of a new model knows once the run has left, or has not.

    Attributes:
        hit: whether it has left.
        live: what stands for the live values, and for the outputs of loops that gathered.
    """

    hit: ir.Value
    live: Mapping[ir.Value, ir.Value]


@dataclass
class Leaving:
    """Writes the run up to a place.

    Attributes:
        levels: the graphs around the place.
        live: what is to be handed over.
        exit: when to leave.
        cx: of the model that the levels are of.
        resumes: what follows runs where the run does not leave; otherwise only as far as loops need it.
    """

    levels: Sequence[Level]
    live: Live
    exit: Exit
    cx: Context
    resumes: bool

    def write(self, writer: Writer) -> Left:
        """Append all that is before the place, or before the node that holds it, and that node."""
        levels = self.levels
        counts = self.exit.counts and self._in_loop(len(levels) - 1)
        writers, holders = [writer], []
        before = [writer.number(0) if counts else None]
        for depth, level in enumerate(levels):
            writers[depth].copy(level.before)
            if depth + 1 < len(levels):
                is_loop = levels[depth + 1].form is not None
                opened = (self._open_loop if is_loop else self._open_if)(depth + 1, writers[-1], before[-1])
                holders.append(opened.node)
                writers.append(opened.writer)
                before.append(opened.before)
        inner, reached = writers[-1], before[-1]
        hit = self.exit.is_hit(inner, reached)
        if reached is not None:
            reached = inner.value("Add", [reached, inner.number(1)])
        known: dict[ir.Value, ir.Value] = {}
        for depth in reversed(range(1, len(levels))):
            state = hit, reached, known
            hit, reached, known = self._close(depth, writers[depth], holders[depth - 1], *state)
        return Left(hit, {key: known.get(key) or writer.stand_in(key) for key in self._crossing(0)})

    def rest(self, depth: int, wanted: Sequence[ir.Value]) -> _Write:
        """Writes what is behind the place in a level where the run does not leave, and gives ``wanted``."""
        level, is_last = self.levels[depth], depth + 1 == len(self.levels)

        def write(inner: Writer) -> list[ir.Value]:
            passed = self.exit.passed(inner) if is_last else {}
            raw = {value: inner.stand_in(value) for value in passed}
            inner.copier.values.update(passed)
            inner.copy(level.after)
            found = [inner.stand_in(value) for value in wanted]
            inner.copier.values.update(raw)
            return found

        return write

    # What crosses -------------------------------------------------------------------------

    def _crossing(self, depth: int) -> list[ir.Value]:
        """What the node that holds this level hands over: live values, and outputs of loops that gather."""
        keys = zip(self.live.values, self.live.depths, strict=True)
        return [key for key, place in (*keys, *self.live.rows) if place >= depth]

    def _in_loop(self, depth: int) -> bool:
        return any(level.form is not None for level in self.levels[1 : depth + 1])

    def _goes_on(self, depth: int) -> bool:
        """Whether the rest of this level runs where the run does not leave."""
        return self.resumes or self._in_loop(depth)

    def _type(self, value: ir.Value) -> ir.TypeProtocol:
        type_ = self.cx.facts.type(value) or value.type
        if type_ is None:
            raise UnsupportedModel(f"a run can't leave there: the type of {value.name!r} is not known")
        return type_

    def _nothing(self, writer: Writer, value: ir.Value) -> ir.Value:
        """Something of the type of ``value``."""
        shape = self.cx.shape(value)
        return writer.placeholder(self._type(value), None if shape is None else (0,) * len(shape))

    def _row_sizes(self, row: ir.Value) -> list[int] | None:
        """As far as they are declared, or else known to be there."""
        shape = row.shape if row.shape is not None else self.cx.shape(row)
        return None if shape is None else [dim if isinstance(dim, int) else 0 for dim in shape]

    # Bodies -------------------------------------------------------------------------------

    def _open_if(self, depth: int, writer: Writer, before: ir.Value | None) -> _Opened:
        """An If whose branch with the place is empty yet."""
        level, crossing = self.levels[depth], self._crossing(depth)
        holder = level.holder
        assert holder is not None and holder.inputs[0] is not None
        bodies = {
            name: attribute.as_graph()
            for name, attribute in holder.attributes.items()
            if attribute.type is ir.AttributeType.GRAPH
        }
        new = {name: ir.Graph([], [], nodes=[], name=body.name) for name, body in bodies.items()}
        usual = list(holder.outputs) if self._goes_on(depth) else []
        count = len(usual) + 1 + (before is not None) + len(crossing)
        nothing = [self._nothing(writer, key) for key in crossing]
        node = writer.nodes(
            "If", [writer.stand_in(holder.inputs[0])], new, outputs=count, name=ir.label(holder)
        )
        types = [*map(self._type, usual), *self._extra_types(before, crossing)]
        _declare(node, types)
        for name, body in bodies.items():
            if body is level.graph:
                inner = writer.into(new[name])
                continue
            other = writer.into(new[name])
            other.copy(list(body))
            results = [other.stand_in(value) for value in body.outputs] if usual else []
            extra = [writer.number(False), *([] if before is None else [before]), *nothing]
            other.give([*results, *extra], types)
        for output, result in zip(usual, node.outputs, strict=False):
            writer.copier.values[output] = result
        return _Opened(node, inner, before)

    def _open_loop(self, depth: int, writer: Writer, before: ir.Value | None) -> _Opened:
        """A Loop with an empty body that also carries what crosses, and the row before of all it gathers."""
        level, crossing = self.levels[depth], self._crossing(depth)
        form = level.form
        assert form is not None
        body, copier = form.body, writer.copier
        count, condition = (*form.node.inputs[:2], None, None)[:2]
        more = self._extra_types(before, crossing)
        rows = [self._type(output) for output in form.gathered]
        starts = [writer.stand_in(value) for value in form.starts if value is not None]
        starts += [writer.number(False), *([] if before is None else [before])]
        starts += [self._nothing(writer, key) for key in crossing]
        # runtimes make room for rows of declared sizes, so that made-up ones have to be so, too
        sizes = [self._row_sizes(row) for row in form.rows]
        starts += [writer.placeholder(type_, dims) for type_, dims in zip(rows, sizes, strict=False)]
        formals = [_formal(writer, value.name, value.type, value.shape) for value in body.inputs]
        extra = [_formal(writer, "bailout_carried", type_, None) for type_ in (*more, *rows)]
        new = ir.Graph([*formals, *extra], [], nodes=[], name=body.name)
        node = writer.nodes(
            "Loop",
            [
                None if count is None else writer.stand_in(count),
                writer.number(True) if condition is None else writer.stand_in(condition),
                *starts,
            ],
            {"body": new},
            outputs=len(starts) + len(rows),
            name=ir.label(form.node),
        )
        copier.values.update(zip(body.inputs, formals, strict=True))
        carried, total = form.carried, len(starts)
        _declare(node, [*map(self._type, form.ends), *more, *rows, *rows])
        copier.values.update(zip(form.results, node.outputs[:carried], strict=False))
        copier.values.update(zip(form.gathered, node.outputs[total:], strict=True))
        return _Opened(node, writer.into(new), extra[1] if before is not None else None)

    def _close(
        self,
        depth: int,
        writer: Writer,
        node: ir.Node,
        hit: ir.Value,
        reached: ir.Value | None,
        known: Mapping[ir.Value, ir.Value],
    ) -> tuple[ir.Value, ir.Value | None, dict[ir.Value, ir.Value]]:
        """Let a body return; gives what its node tells.

        That is whether the run leaves, how often it could have, and what stands for the live values.

        Args:
            known: what stands for live values of inner levels.
        """
        level, crossing = self.levels[depth], self._crossing(depth)
        live = [known.get(key) or writer.stand_in(key) for key in crossing]
        values = [hit, *([] if reached is None else [reached]), *live]
        types = self._extra_types(reached, crossing)
        if level.form is not None:
            usual, rows = self._rest_of_trip(depth, writer, hit)
            told = [value.type for value in rows]
            writer.give(
                [*usual, *values, *rows, *rows], [*(value.type for value in usual), *types, *told, *told]
            )
            for output, row in zip(writer.graph.outputs[-len(rows) :] if rows else (), rows, strict=True):
                output.shape = row.shape  # by which runtimes size what a loop of no trips gathers
            first = level.form.carried
        else:
            usual = self._rest_of_branch(depth, writer, hit) if self._goes_on(depth) else []
            writer.give([*usual, *values], [*(value.type for value in usual), *types])
            first = len(usual)
        outer = node.outputs[first:]
        crossed = dict(zip(crossing, outer[2 if reached is not None else 1 :], strict=False))
        return outer[0], (outer[1] if reached is not None else None), crossed

    def _rest_of_branch(self, depth: int, writer: Writer, hit: ir.Value) -> list[ir.Value]:
        """What the branch returns, or nothing in particular if the run leaves."""
        level = self.levels[depth]
        nothing = [self._nothing(writer, value) for value in level.graph.outputs]
        types = [self._type(value) for value in level.graph.outputs]
        return writer.either(hit, lambda inner: nothing, self.rest(depth, level.graph.outputs), types)

    def _rest_of_trip(
        self, depth: int, writer: Writer, hit: ir.Value
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        """What the trip hands to the next, with the condition first; and what it gathers."""
        level = self.levels[depth]
        form = level.form
        assert form is not None
        rows = list(form.rows)[: len(form.gathered)]
        body = writer.graph
        formals = body.inputs[2 : 2 + form.carried]
        last = body.inputs[len(body.inputs) - len(rows) :]
        no = writer.number(False)
        wanted = [form.body.outputs[0], *form.ends, *rows]
        types = [_BOOL, *map(self._type, form.ends), *(value.type for value in last)]
        found = writer.either(hit, lambda inner: [no, *formals, *last], self.rest(depth, wanted), types)
        for value, told in zip(found, wanted, strict=True):
            if value.shape is None and told in rows and told.shape is not None:
                value.shape = told.shape.copy()
        return found[: 1 + form.carried], found[1 + form.carried :]

    def _extra_types(self, before: ir.Value | None, crossing: Sequence[ir.Value]) -> list[ir.TypeProtocol]:
        return [_BOOL, *([] if before is None else [_INT64]), *map(self._type, crossing)]


class _Write(Protocol):
    def __call__(self, inner: Writer) -> list[ir.Value]: ...


@dataclass(frozen=True)
class _Opened:
    """A new node, its body at work, and how often the place was reached before, as the body knows it."""

    node: ir.Node
    writer: Writer
    before: ir.Value | None


def _formal(
    writer: Writer, name: str | None, type_: ir.TypeProtocol | None, shape: ir.Shape | None
) -> ir.Value:
    return ir.Value(
        name=writer.edit.fresh_name(name or "input"),
        type=type_,
        shape=None if shape is None else shape.copy(),
    )


def _declare(node: ir.Node, types: Sequence[ir.TypeProtocol]) -> None:
    for output, type_ in zip(node.outputs, types, strict=True):
        output.type = type_
