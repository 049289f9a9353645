"""Refuse gradients of models whose initializers were folded into constants, or merged with equal ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt import ir
from graphopt.autodiff.return_running_statistics import statistics
from graphopt.autodiff.reverse_mode import ByRule, dependences
from graphopt.context import Context
from graphopt.errors import UsageError

_HINT = "differentiate the model before it is optimized; or, for a joint graph, add the name to its --wrt"


def check_folded_initializers(cx: Context, ends: Sequence[str], wrt: Iterable[str], by: ByRule) -> None:
    """Check that gradients of the values ``ends`` count each initializer of the original model.

    Raises:
        UsageError: the values depend on a constant that was folded from a value of ``wrt``, or on a value of
            ``wrt`` that also replaces other initializers; or a running statistic replaces others.
    """
    folded: dict[str, ir.Value] = {}
    found = _constants(cx, ends, by)
    for value in found:
        for source in ir.sources_of(value):
            if source != value.name:
                folded.setdefault(source, value)
    values = {value.name: value for value in ir.values_of(cx.model.graph)}
    for name in statistics(cx.model.graph):
        for other in _merged_with(values[name]):
            raise UsageError(
                f"the running statistic {name!r} was merged with {other!r}, which was equal", hint=_HINT
            )
    for name in wrt:
        if name not in values:
            continue
        if name in folded:
            raise UsageError(
                f"the gradient of {name!r} would be incomplete: {folded[name].name!r} was folded from it",
                hint=_HINT,
            )
        for other in _merged_with(values[name]) if values[name] in found else ():
            raise UsageError(
                f"the gradient of {name!r} would include that of {other!r}, which had the same contents",
                hint=_HINT,
            )


def _merged_with(value: ir.Value) -> list[str]:
    """The names of the other initializers that ``value`` replaces."""
    return [name for name in ir.merged_into(value) if name != value.name]


def _constants(cx: Context, ends: Sequence[str], by: ByRule) -> dict[ir.Value, None]:
    """The values to which cotangents of the values ``ends`` may flow, and the constants of bodies."""
    graph, names = cx.model.graph, frozenset(ends)
    found = dependences(graph, (value for value in ir.values_of(graph) if value.name in names), by, cx)
    for node in graph:
        if any(output in found for output in node.outputs):
            for body in (inner for own in ir.bodies(node) for inner in ir.with_bodies(own)):
                found.update(dict.fromkeys(ir.constants_in(body)))
    return found
