"""The instruments that options request, and the instrument that updates the progress bar."""

from __future__ import annotations

import sys
from pathlib import Path

from graphopt import ir
from graphopt.cli.invocation import Run
from graphopt.cli.output.console import Advance
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation


def instruments(run: Run, folder: Path | None) -> list[PassInstrumentation]:
    """The instruments for ``--log``, and for dumping into ``folder``."""
    found: list[PassInstrumentation] = []
    if folder is not None:
        from graphopt.instrument.dump import Dump, DumpOptions

        found.append(Dump(DumpOptions("onnx", changed=True), folder=folder))
    if run.settings.log:
        found.append(make_log(run.settings.log))
    return found


def make_log(spec: str) -> PassInstrumentation:
    """The instrument of ``--log``, which prints to stderr."""
    from graphopt.instrument.log import Log
    from graphopt.passes.pipelines import registry
    from graphopt.rules import all_rules

    return Log(spec, sys.stderr, registry().passes, all_rules())


class Progress(PassInstrumentation):
    """Shows the current pass on a progress bar."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def entered(self, stage: str, done: float | None = None) -> None:
        """Show the stage."""
        self._advance(done, stage)

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Show the pass."""
        self._advance(None, f"{index} {pass_.name}")
