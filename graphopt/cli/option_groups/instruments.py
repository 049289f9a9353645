"""The instruments that options request, and the instrument that updates the progress bar."""

from __future__ import annotations

from pathlib import Path

from graphopt import ir
from graphopt.cli.output.console import Advance
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation


def instruments(folder: Path | None) -> list[PassInstrumentation]:
    """The instrument that dumps models into ``folder``, if given."""
    found: list[PassInstrumentation] = []
    if folder is not None:
        from graphopt.instrument.dump import Dump, DumpOptions

        found.append(Dump(DumpOptions("onnx", changed=True), folder=folder))
    return found


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
