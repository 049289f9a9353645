"""The instrument that builds a report."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.context import Context
from graphopt.instrument.file_growth import new_constants
from graphopt.instrument.model_summary import Interface, Summary
from graphopt.instrument.report.report import Report
from graphopt.instrument.rewrite_stats import Stats
from graphopt.passes.pass_records import History

if TYPE_CHECKING:
    from graphopt.rewrite.fused_operators import Fused
    from graphopt.rewrite.missed_fusions import Missed
    from graphopt.verification.verdict import Verdict


class ReportBuilder(Stats):
    """Observes one run of a pipeline, and builds its report.

    Args:
        model: the model before the run.
        by_pass: add up the weights after each pass.
    """

    def __init__(self, model: ir.Model, *, by_pass: bool = False) -> None:
        super().__init__(by_pass=by_pass)
        self.original, self.interface = Summary.of(model), Interface.of(model)
        self._begin = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def finished(self) -> None:
        """Stop the clock of the passes."""
        self.seconds["optimize"] = time.perf_counter() - self._begin

    def build(
        self,
        model: ir.Model,
        cx: Context,
        history: History,
        *,
        fused: Iterable[Fused],
        missed: Iterable[Missed],
        verdict: Verdict | None,
        stopped: bool,
    ) -> Report:
        """The report on ``model``, the result.

        Args:
            model: the model after the run.
            missed: partial matches of the patterns of fused operators.
            verdict: the comparison with the original, if it was made.
            stopped: whether the number of rewrites was limited.
        """
        if verdict is not None:
            self.seconds["verify"] = verdict.seconds
        loaded = [f"warning: {remark}" for remark in model.graph.meta.get(ir.LOADED_WITH, ())]
        return Report(
            history.pipeline,
            self.original,
            Summary.of(model),
            self.interface,
            history.records,
            history.skipped,
            self.rewrites,
            self.refusals,
            verdict=verdict,
            next_action=cx.denied if stopped else None,
            seconds=self.seconds,
            weight_bytes=self.weight_bytes,
            made=new_constants(model, self.makers),
            remarks=[*loaded, *history.remarks, *cx.budget.remarks()],
            fused=list(fused),
            missed=list(missed),
            costs=cx.costs if cx.decisions else None,
            decisions=cx.decisions,
        )
