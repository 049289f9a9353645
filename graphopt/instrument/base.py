"""What instruments have in common: they watch, and never transform."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context, Observer
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Record


class Watcher(Observer):
    """Told of everything that happens in a run; a subclass overrides what it cares for.

    It serves as a :class:`graphopt.passes.pipeline.Instrument` (passes begin and end) and as a
    :class:`graphopt.context.Observer` (rewrites, refusals, remarks) at once.
    """

    def entered(self, stage: str, done: float | None = None) -> None:
        """The run enters another stage, such as ``verifying``; ``done`` is the share of it that is over."""

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Pass number ``index`` is about to run."""

    def after_pass(self, pass_: Pass, record: Record, model: ir.Model, cx: Context) -> None:
        """The pass is done."""
