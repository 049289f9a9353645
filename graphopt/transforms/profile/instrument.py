"""instrument: insert profiling nodes after watched values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import ClassVar

from graphopt import ir
from graphopt.analysis.data_dependent_shapes import values_with_data_dependent_shapes
from graphopt.context import Context, Refusal
from graphopt.errors import unknown
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.transforms.profile._profiling_nodes import (
    count_runs,
    is_watched,
    obstacle,
    supports_profiling,
    watch,
)
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted


class Watch(Enum):
    """The values that profiled runs record."""

    #: The inputs of the model.
    INPUTS = "inputs"
    #: Also intermediate values with data-dependent shapes.
    SHAPES = "shapes"
    #: Also all other tensors that nodes compute.
    ALL = "all"


def parse_watch(text: str) -> Watch:
    """The kind of this name.

    Raises:
        UsageError: there is no such kind.
    """
    try:
        return Watch(text)
    except ValueError:
        kinds = [kind.value for kind in Watch]
        raise unknown("kind of watched values", text, kinds, plural="kinds of watched values") from None


@dataclass(frozen=True)
class Selection:
    """The values to watch.

    Attributes:
        inputs: inputs of the model.
        inner: intermediate values.
        left_out: other candidates, with the reasons why they are not watched.
    """

    inputs: tuple[ir.Value, ...]
    inner: tuple[ir.Value, ...]
    left_out: Mapping[ir.Value, str]


@dataclass(frozen=True)
class Instrument(Pass):
    """Insert a profiling node after each watched value, and a counter of runs.

    ``x → Profile(x)``, in the main graph and in bodies of Ifs, Loops and Scans. Graph outputs still return
    ``x``. Profiling nodes are calls of identity functions, so that the model still runs. ``drop-counters``
    and ``remove-profile-nodes`` remove them.

    The following values are not watched, and the reason is recorded: values whose name occurs in several
    bodies; values of unknown rank in loops; values of functions, which are called at several sites
    (``inline-functions`` inlines them), and of bodies of other operators.

    Modelled on ``ProfilingRecord::instrumentGraph`` of PyTorch's JIT.

    Attributes:
        watch: ``inputs`` of the model, ``shapes`` (also values with data-dependent shapes), ``all`` tensors.
        limit: watch only the first ``limit`` intermediate values.
    """

    watch: Watch = Watch.SHAPES
    limit: int = 1024

    name: ClassVar[str] = "instrument"
    does: ClassVar[str] = "inserted"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Select all values first, because profiling nodes are also values."""
        if not supports_profiling(model, cx, self.name):
            return
        found = self.select(model, cx)
        for value, reason in found.left_out.items():
            cx.refuse(Refusal(self.name, value.name or "", reason, value.name))
        # reversed, so that the profiling nodes of several outputs of a node are in the order of the outputs
        for value in reversed([*found.inputs, *found.inner]):
            watch(value, graphopt_operators.PROFILE, cx, self.name)
        count_runs(model.graph, cx, self.name)

    def select(self, model: ir.Model, cx: Context) -> Selection:
        """The values to watch."""
        graph = model.graph
        tensors = [value for value in graph.inputs if value.name and isinstance(value.type, ir.TensorType)]
        inputs = [value for value in tensors if not is_watched(value)]
        inner: list[ir.Value] = []
        left_out: dict[ir.Value, str] = {}
        names = Counter(value.name for inner in ir.with_bodies(graph) for value in ir.values_of(inner))
        for value, place in self._candidates(model, cx):
            if is_watched(value):
                continue
            reason = obstacle(place, cx.rank(value), cx)
            if reason is None and names[value.name] > 1:
                reason = "its name occurs in several bodies"
            if reason is None and len(inner) == self.limit:
                reason = f"the limit of {counted(self.limit, 'value')} is reached"
            if reason is None:
                inner.append(value)
            else:
                left_out[value] = reason
        return Selection(tuple(inputs if len(graph) else ()), tuple(inner), left_out)

    def _candidates(self, model: ir.Model, cx: Context) -> Iterator[tuple[ir.Value, ir.Graph]]:
        """Intermediate values, each with its graph."""
        match self.watch:
            case Watch.INPUTS:
                return iter(())
            case Watch.SHAPES:
                return _data_dependent(model, cx)
            case Watch.ALL:
                return _tensors(model, cx)


def _data_dependent(model: ir.Model, cx: Context) -> Iterator[tuple[ir.Value, ir.Graph]]:
    for value, _ in values_with_data_dependent_shapes(model, cx.facts, bodies=True):
        producer = value.producer()
        graph = value.graph if producer is None else producer.graph
        if graph is not None:
            yield value, graph


def _tensors(model: ir.Model, cx: Context) -> Iterator[tuple[ir.Value, ir.Graph]]:
    """All tensors that nodes compute, and the inputs of bodies."""
    for graph in ir.with_bodies(model.graph):
        given = () if graph is model.graph else graph.inputs
        for value in (*given, *(output for node in graph for output in node.outputs)):
            type_ = cx.facts.type(value) or value.type
            if value.name and isinstance(type_, ir.TensorType) and ir.constant_of(value) is None:
                yield value, graph
