"""profile-autograd-zero: watch which gradients are zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.ops import graphopt_operators
from graphopt.passes.base import Pass
from graphopt.transforms.autodiff._zero_gradients import is_gradient_node, is_zero
from graphopt.transforms.profile._profiling_nodes import obstacle, supports_profiling, watch
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ProfileAutogradZero(Pass):
    """Watch whether the gradients that regions receive are zero: ``dy → ProfileZero(dy)``.

    The gradients are the inputs ``dy`` of ``GradOf(dy…, x…)``. A node ``Profile`` that ``instrument`` inserts
    after the same gradient reads the new node. Profiles record which gradients were zero in each run.

    Modelled on ``InsertProfileNodesForSpecializeAutogradZero`` of PyTorch's JIT.
    """

    name: ClassVar[str] = "profile-autograd-zero"
    does: ClassVar[str] = "inserted"

    def run(self, model: ir.Model, cx: Context) -> None:
        """Watch each gradient once."""
        found = dict.fromkeys(gradient for graph in ir.graphs_of(model) for gradient in _gradients(graph))
        if not found or not supports_profiling(model, cx, self.name):
            return
        for value in reversed(found):
            producer = value.producer()
            graph = value.graph if producer is None else producer.graph
            reason = "it is in no graph" if graph is None else obstacle(graph, cx.rank(value), cx)
            if cx.dtype(value) is None:
                reason = "its type is unknown"
            if reason is not None:
                cx.refuse(Refusal(self.name, value.name or "", reason, value.name))
            else:
                watch(value, graphopt_operators.PROFILE_ZERO, cx, self.name)


def _gradients(graph: ir.Graph) -> Iterator[ir.Value]:
    """The gradients that regions of ``graph`` receive, except those known to be zero."""
    for node in graph:
        if not is_gradient_node(node, graphopt_operators.GRAD_OF):
            continue
        for value in node.inputs[: len(node.inputs) - len(node.outputs)]:
            producer = None if value is None else value.producer()
            while producer is not None and graphopt_operators.is_profiling_node(
                producer, graphopt_operators.PROFILE
            ):
                value = producer.inputs[0]
                producer = None if value is None else value.producer()
            is_watched = graphopt_operators.is_profiling_node(producer, graphopt_operators.PROFILE_ZERO)
            if value is not None and value.name and not is_watched and not is_zero(value):
                yield value
