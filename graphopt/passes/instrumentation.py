"""The interface of instruments, which observe the passes of a pipeline."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context, Observer
from graphopt.passes.base import Pass
from graphopt.passes.pass_records import PassRecord


class PassInstrumentation(Observer):
    """An observer of a run, which never changes the model; a subclass overrides the callbacks that it needs.

    As an :class:`graphopt.context.Observer` it is also notified of rewrites, refusals and remarks. The name
    is that of MLIR's interface.
    """

    def entered(self, stage: str, done: float | None = None) -> None:
        """The run enters another stage, such as ``verifying``; ``done`` is its completed fraction."""

    def created_graph(self, name: str, model: ir.Model, detail: str) -> None:
        """An operation has created ``model``, such as the ``forward-graph`` of a gradient.

        Args:
            name: a name of :data:`graphopt.instrument.graph_text.GRAPHS`.
            model: the graph.
            detail: distinguishes several graphs of one name; may be empty.
        """

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Pass number ``index`` is about to run."""

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """The pass has run."""
