"""Write the nodes that run up to an exit point, and the exits from the bodies around it.

No runtime can stop within a body. So each graph around the exit point also returns the live values and
whether the run exits. A loop carries both. The iteration in which the run exits skips its remaining nodes and
ends the loop by its condition; its scan outputs repeat the previous row, because all rows must have one
shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from graphopt import ir
from graphopt.context import Context
from graphopt.control_flow.loops import LoopForm
from graphopt.specialization.deopt.enclosing_graphs import Level
from graphopt.specialization.deopt.graph_writer import Writer
from graphopt.specialization.deopt.liveness import Live, type_of
from graphopt.util.lazy_dataclass import dataclass

_BOOL = ir.TensorType(ir.DataType.BOOL)
_INT64 = ir.TensorType(ir.DataType.INT64)


class ExitCondition(Protocol):
    """The condition under which a run exits.

    Attributes:
        needs_count: whether the condition depends on the number of earlier visits of the exit point.
    """

    needs_count: bool

    def should_exit(self, writer: Writer, before: ir.Value | None) -> ir.Value:
        """A scalar: whether the run exits now, after it reached the exit point ``before`` times."""

    def substitutions(self, writer: Writer) -> Mapping[ir.Value, ir.Value]:
        """Replacements for values after the exit point, if the run does not exit."""


@dataclass(frozen=True)
class PrefixResult:
    """Values in the main graph of the new model, after the prefix.

    Attributes:
        exited: whether the run has exited.
        live: copies of the live values, and of the scan outputs of enclosing loops.
    """

    exited: ir.Value
    live: Mapping[ir.Value, ir.Value]


@dataclass
class PrefixWriter:
    """Writes the nodes that run up to an exit point.

    Attributes:
        levels: the graphs around the exit point.
        live: the values to transfer.
        exit: the condition of the exit.
        cx: the context of the model that contains the levels.
        continues: whether a run that does not exit computes the model's outputs; otherwise nodes after the
            exit point are written only as far as further iterations need them.
    """

    levels: Sequence[Level]
    live: Live
    exit: ExitCondition
    cx: Context
    continues: bool

    def write(self, writer: Writer) -> PrefixResult:
        """Append all nodes before the exit point, with the bodies around it; returns the resulting values."""
        levels = self.levels
        counts = self.exit.needs_count and self._in_loop(len(levels) - 1)
        writers, holders = [writer], []
        before = [writer.constant(0) if counts else None]
        for depth, level in enumerate(levels):
            writers[depth].copy(level.before)
            if depth + 1 < len(levels):
                form = levels[depth + 1].form
                if form is None:
                    opened = self._open_if(depth + 1, writers[-1], before[-1])
                else:
                    opened = self._open_loop(depth + 1, form, writers[-1], before[-1])
                holders.append(opened.node)
                writers.append(opened.writer)
                before.append(opened.before)
        inner, reached = writers[-1], before[-1]
        hit = self.exit.should_exit(inner, reached)
        if reached is not None:
            reached = inner.value("Add", [reached, inner.constant(1)])
        known: dict[ir.Value, ir.Value] = {}
        for depth in reversed(range(1, len(levels))):
            state = hit, reached, known
            hit, reached, known = self._close(depth, writers[depth], holders[depth - 1], *state)
        return PrefixResult(hit, {key: known.get(key) or writer.lookup(key) for key in self._live_out(0)})

    def continuation(self, depth: int, wanted: Sequence[ir.Value]) -> Callable[[Writer], list[ir.Value]]:
        """A function that appends the nodes of a level after the exit point, and returns ``wanted``."""
        level, is_last = self.levels[depth], depth + 1 == len(self.levels)

        def write(inner: Writer) -> list[ir.Value]:
            passed = self.exit.substitutions(inner) if is_last else {}
            raw = {value: inner.lookup(value) for value in passed}
            inner.copier.values.update(passed)
            inner.copy(level.after)
            found = [inner.lookup(value) for value in wanted]
            inner.copier.values.update(raw)
            return found

        return write

    # Live values ---------------------------------------------------------------------------

    def _live_out(self, depth: int) -> list[ir.Value]:
        """The live values and scan outputs that the node around this level returns."""
        keys = zip(self.live.values, self.live.depths, strict=True)
        return [key for key, level in (*keys, *self.live.rows) if level >= depth]

    def _in_loop(self, depth: int) -> bool:
        return any(level.form is not None for level in self.levels[1 : depth + 1])

    def _continues(self, depth: int) -> bool:
        """Whether this level continues after the exit point if the run does not exit."""
        return self.continues or self._in_loop(depth)

    def _type(self, value: ir.Value) -> ir.TypeProtocol:
        return type_of(value, self.cx)

    def _dummy(self, writer: Writer, value: ir.Value) -> ir.Value:
        """A placeholder of the type of ``value``."""
        shape = self.cx.shape(value)
        return writer.placeholder(self._type(value), None if shape is None else (0,) * len(shape))

    def _row_sizes(self, row: ir.Value) -> list[int] | None:
        """The sizes of a row: declared, otherwise inferred, otherwise 0."""
        shape = row.shape if row.shape is not None else self.cx.shape(row)
        return None if shape is None else [dim if isinstance(dim, int) else 0 for dim in shape]

    # Bodies -------------------------------------------------------------------------------

    def _open_if(self, depth: int, writer: Writer, before: ir.Value | None) -> _Opened:
        """Append an If whose branch with the exit point is still empty."""
        level, live_out = self.levels[depth], self._live_out(depth)
        holder = level.holder
        assert holder is not None and holder.inputs[0] is not None
        bodies = {
            name: attribute.as_graph()
            for name, attribute in holder.attributes.items()
            if attribute.type is ir.AttributeType.GRAPH
        }
        new = {name: ir.Graph([], [], nodes=[], name=body.name) for name, body in bodies.items()}
        usual = list(holder.outputs) if self._continues(depth) else []
        count = len(usual) + 1 + (before is not None) + len(live_out)
        nothing = [self._dummy(writer, key) for key in live_out]
        node = writer.node("If", [writer.lookup(holder.inputs[0])], new, outputs=count, name=ir.label(holder))
        types = [*map(self._type, usual), *self._extra_types(before, live_out)]
        _declare(node, types)
        for name, body in bodies.items():
            if body is level.graph:
                inner = writer.in_graph(new[name])
                continue
            other = writer.in_graph(new[name])
            other.copy(list(body))
            results = [other.lookup(value) for value in body.outputs] if usual else []
            extra = [writer.constant(False), *([] if before is None else [before]), *nothing]
            other.set_outputs([*results, *extra], types)
        for output, result in zip(usual, node.outputs, strict=False):
            writer.copier.values[output] = result
        return _Opened(node, inner, before)

    def _open_loop(self, depth: int, form: LoopForm, writer: Writer, before: ir.Value | None) -> _Opened:
        """Append a Loop with an empty body that also carries the live values and the previous rows."""
        live_out = self._live_out(depth)
        body, copier = form.body, writer.copier
        count, condition = (*form.node.inputs[:2], None, None)[:2]
        more = self._extra_types(before, live_out)
        rows = [self._type(output) for output in form.gathered]
        starts = [writer.lookup(value) for value in form.starts if value is not None]
        starts += [writer.constant(False), *([] if before is None else [before])]
        starts += [self._dummy(writer, key) for key in live_out]
        # runtimes allocate rows of the declared sizes, so placeholders must have these sizes
        sizes = [self._row_sizes(row) for row in form.rows]
        starts += [writer.placeholder(type_, dims) for type_, dims in zip(rows, sizes, strict=False)]
        formals = [_formal(writer, value.name, value.type, value.shape) for value in body.inputs]
        extra = [_formal(writer, "bailout_carried", type_, None) for type_ in (*more, *rows)]
        new = ir.Graph([*formals, *extra], [], nodes=[], name=body.name)
        node = writer.node(
            "Loop",
            [
                None if count is None else writer.lookup(count),
                writer.constant(True) if condition is None else writer.lookup(condition),
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
        return _Opened(node, writer.in_graph(new), extra[1] if before is not None else None)

    def _close(
        self,
        depth: int,
        writer: Writer,
        node: ir.Node,
        hit: ir.Value,
        reached: ir.Value | None,
        known: Mapping[ir.Value, ir.Value],
    ) -> tuple[ir.Value, ir.Value | None, dict[ir.Value, ir.Value]]:
        """Set the outputs of a body; returns the corresponding outputs of its node.

        These are: whether the run exits, the number of visits of the exit point, and the live values.

        Args:
            known: copies of the live values of inner levels.
        """
        level, live_out = self.levels[depth], self._live_out(depth)
        live = [known.get(key) or writer.lookup(key) for key in live_out]
        values = [hit, *([] if reached is None else [reached]), *live]
        types = self._extra_types(reached, live_out)
        if level.form is not None:
            usual, rows = self._finish_iteration(depth, level.form, writer, hit)
            row_types = [value.type for value in rows]
            writer.set_outputs(
                [*usual, *values, *rows, *rows],
                [*(value.type for value in usual), *types, *row_types, *row_types],
            )
            for output, row in zip(writer.graph.outputs[-len(rows) :] if rows else (), rows, strict=True):
                output.shape = row.shape  # runtimes use this shape for a loop without iterations
            first = level.form.carried
        else:
            usual = self._finish_branch(depth, writer, hit) if self._continues(depth) else []
            writer.set_outputs([*usual, *values], [*(value.type for value in usual), *types])
            first = len(usual)
        outer = node.outputs[first:]
        crossed = dict(zip(live_out, outer[2 if reached is not None else 1 :], strict=False))
        return outer[0], (outer[1] if reached is not None else None), crossed

    def _finish_branch(self, depth: int, writer: Writer, hit: ir.Value) -> list[ir.Value]:
        """The results of the branch; placeholders if the run exits."""
        level = self.levels[depth]
        nothing = [self._dummy(writer, value) for value in level.graph.outputs]
        types = [self._type(value) for value in level.graph.outputs]
        return writer.if_else(
            hit, lambda inner: nothing, self.continuation(depth, level.graph.outputs), types
        )

    def _finish_iteration(
        self, depth: int, form: LoopForm, writer: Writer, hit: ir.Value
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        """The condition and the carried values for the next iteration, and the rows."""
        rows = list(form.rows)[: len(form.gathered)]
        body = writer.graph
        formals = body.inputs[2 : 2 + form.carried]
        last = body.inputs[len(body.inputs) - len(rows) :]
        no = writer.constant(False)
        wanted = [form.body.outputs[0], *form.ends, *rows]
        types = [_BOOL, *map(self._type, form.ends), *(value.type for value in last)]
        found = writer.if_else(
            hit, lambda inner: [no, *formals, *last], self.continuation(depth, wanted), types
        )
        for value, original in zip(found, wanted, strict=True):
            if value.shape is None and original in rows and original.shape is not None:
                value.shape = original.shape.copy()
        return found[: 1 + form.carried], found[1 + form.carried :]

    def _extra_types(self, before: ir.Value | None, live_out: Sequence[ir.Value]) -> list[ir.TypeProtocol]:
        return [_BOOL, *([] if before is None else [_INT64]), *map(self._type, live_out)]


@dataclass(frozen=True)
class _Opened:
    """A new node, the writer of its body, and the body's value with the number of exit point visits."""

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
