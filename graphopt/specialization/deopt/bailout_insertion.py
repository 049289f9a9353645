"""Insert bailouts into a model: if a guard fails, the run continues in the general model."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace

from graphopt import ir
from graphopt.context import context_for
from graphopt.errors import UnsupportedModel
from graphopt.specialization.deopt.continuation import write_continuation
from graphopt.specialization.deopt.enclosing_graphs import Level, levels_of
from graphopt.specialization.deopt.exit_checks import Check, checks_of
from graphopt.specialization.deopt.exit_points import ExitPoint, exit_points_of_guards
from graphopt.specialization.deopt.graph_writer import Writer
from graphopt.specialization.deopt.liveness import Live, is_fixed, live_at
from graphopt.specialization.deopt.prefix_writer import PrefixWriter
from graphopt.specialization.empty_model import empty_like
from graphopt.util.argument_checks import checked
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ModelWithBailouts:
    """The result of :func:`insert_bailouts`.

    Attributes:
        model: equivalent to the original, whether guards hold or not. After each check, a guard that always
            holds is a source of facts; ``remove-profile-nodes`` removes it.
        exit_points: the points at which a run can exit.
        refused: exit points whose guards were removed instead, with the reasons.
    """

    model: ir.Model = field(repr=False)
    exit_points: tuple[ExitPoint, ...]
    refused: tuple[tuple[ExitPoint, str], ...]


@checked
def insert_bailouts(model: ir.Model, *, most: int | None = None) -> ModelWithBailouts:
    """Replace each guard of ``model`` by an If that continues in the general model if the guard fails.

    The general continuation is copied once for each exit point, so the model grows by up to its own size each
    time.

    Modelled on ``InsertBailOuts`` of PyTorch's JIT.

    Args:
        model: a model with guards on which no rewrite has relied yet; it is not modified.
        most: the maximum number of exit points; later ones are refused. Adjacent guards, such as those of
            inputs, share one exit point.
    """
    general, points = exit_points_of_guards(model)
    with context_for(general) as cx:
        groups: list[tuple[list[ExitPoint], list[Level]]] = []
        refused: list[tuple[ExitPoint, str]] = []
        for point in points:
            last = groups[-1][0][0] if groups else None
            if last is not None and (last.graph, last.after) == (point.graph, point.after):
                groups[-1][0].append(point)
                continue
            try:
                if most is not None and len(groups) == most:
                    raise UnsupportedModel(f"the limit of {most} is reached")
                groups.append(([point], levels_of(point, cx)))
            except UnsupportedModel as failure:
                refused.append((point, failure.message))
        checks = checks_of([here for here, _ in groups], [levels for _, levels in groups], cx)
    current = general
    copies = {value: value for graph in ir.graphs_of(general) for value in ir.values_of(graph)}
    # from the last to the first, so that the graphs around the remaining ones are unchanged
    done: list[ExitPoint] = []
    for (here, levels), check in reversed(list(zip(groups, checks, strict=True))):
        asserted = {item.value for item in check.assertions}
        refused += [
            (point, "it asserts nothing that can be checked") for point in here if point.value not in asserted
        ]
        if not check.assertions:
            continue
        here = [point for point in here if point.value in asserted]
        try:
            current, copies = _insert(current, copies, here[0], levels, check)
            done += here[::-1]
        except UnsupportedModel as failure:
            if any(later.depends_on(point.value) for later in checks for point in here):
                raise
            refused += [(point, failure.message) for point in here]
    return ModelWithBailouts(current, tuple(done[::-1]), tuple(refused))


def _insert(
    current: ir.Model,
    copies: Mapping[ir.Value, ir.Value],
    point: ExitPoint,
    levels: Sequence[Level],
    check: Check,
) -> tuple[ir.Model, dict[ir.Value, ir.Value]]:
    """``current`` with one more bailout, and the copies of the values of the general model.

    Args:
        copies: the values of ``current``, by the corresponding values of the general model.
        point: the exit point in the general model, with its ``levels``.
    """
    with context_for(current) as cx:
        here = _corresponding(current, copies, point, levels)
        general = live_at(point, levels)
        live = Live(
            tuple(copies[value] for value in general.values),
            general.depths,
            tuple((copies[output], depth) for output, depth in general.rows),
        )
        prefix = PrefixWriter(levels_of(here, cx), live, check.mapped(copies), cx, continues=True)
        model = empty_like(current)
        writer = Writer.of(model)
        writer.copier.values.update(zip(current.graph.inputs, model.graph.inputs, strict=True))
        left = prefix.write(writer)
        outputs = list(current.graph.outputs)
        known = writer.copier.values
        early = {output for node in prefix.levels[0].before for output in node.outputs}
        late = [index for index, value in enumerate(outputs) if not _is_there(value, early)]

        def bail_out(inner: Writer) -> list[ir.Value]:
            live_values = {value: left.live[copies[value]] for value in general.values}
            rows = {output: left.live[copies[output]] for output, _ in general.rows}
            found = write_continuation(inner.with_values(live_values), levels, rows)
            return [found[index] for index in late]

        types = [outputs[index].type for index in late]
        go_on = prefix.continuation(0, [outputs[index] for index in late])
        results = writer.if_else(left.exited, bail_out, go_on, types)
        whole = [writer.lookup(value) if index not in late else None for index, value in enumerate(outputs)]
        by_index = dict(zip(late, results, strict=True))
        writer.set_main_outputs([value or by_index[index] for index, value in enumerate(whole)])
        found = {value: known.get(now) for value, now in copies.items()}
        return model, {value: now for value, now in found.items() if now is not None}


def _is_there(output: ir.Value, early: Container[ir.Value]) -> bool:
    """Whether an output of the main graph is already computed at the exit point."""
    return output in early or output.is_graph_input() or is_fixed(output)


def _corresponding(
    current: ir.Model, copies: Mapping[ir.Value, ir.Value], point: ExitPoint, levels: Sequence[Level]
) -> ExitPoint:
    """The point of ``current`` that corresponds to ``point`` of the general model."""
    graph = current.graph
    for level in levels[1:]:
        holder = None if level.holder is None else copies[level.holder.outputs[0]].producer()
        if level.holder is None or holder is None:
            raise ValueError("an inner level has no holder")
        name = next(
            name
            for name, attribute in level.holder.attributes.items()
            if attribute.type is ir.AttributeType.GRAPH and attribute.value is level.graph
        )
        graph = holder.attributes[name].as_graph()
    after = None if point.after is None else copies[point.after.outputs[0]].producer()
    return replace(point, value=copies[point.value], graph=graph, after=after)
