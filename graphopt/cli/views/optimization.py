"""The output of ``optimize``: the report of one model, as text and as JSON."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.cli.files import sample_model
from graphopt.cli.files.destinations import STDOUT, Plan
from graphopt.cli.invocation import Run
from graphopt.util.text_tables import human_seconds

if TYPE_CHECKING:
    from graphopt.instrument.report import Report


def as_dict(run: Run, source: Path, target: Path | None, report: Report) -> dict[str, Any]:
    """The result for JSON."""
    names = {"source": run.invocation.name_of(source), "target": None if target is None else str(target)}
    told = {**names, **report.to_dict()}
    if target is None or not report.libraries:
        return {**told, "library": None}
    from graphopt.cli.files.kernel_libraries import library_of

    return {**told, "library": str(library_of(target)), "session": _session_of(report, target) or None}


def _session_of(report: Report, target: Path) -> list[str]:
    """Code that runs the result with its library; empty for formats that onnxruntime does not read."""
    from graphopt import ir
    from graphopt.cli.files.kernel_libraries import library_of
    from graphopt.fusion.kernel_library import session_lines

    if not ir.codec_of(target).ort_reads:
        return []
    choice = None if report.tuning is None else report.tuning.choice
    return list(session_lines(target, library_of(target), choice))


def print_report(run: Run, report: Report, source: Path, target: Path | None, planned: Plan) -> None:
    """Print the report of one model, and its destination or how to write it."""
    if run.console.quiet:
        return
    run.console.blocks(report.blocks(run.verbose, warned=True))
    took = human_seconds(report.seconds["all"])
    if target is None:
        run.console.print(f"  {how_to_write(run, planned)}")
        return
    where = "to standard output" if target == STDOUT else target
    run.console.print(f"  wrote     {where}   {took} in all")
    if report.libraries:
        from graphopt.cli.files.kernel_libraries import library_of

        run.console.print(
            f"  wrote     {library_of(target)}   kernels; without it, onnxruntime runs their nodes"
        )
        lines = _session_of(report, target)
        for line in lines or [f"for onnxruntime, graphopt convert {target} makes a .onnx file of the model"]:
            run.console.print(f"              {line}")


def how_to_write(run: Run, planned: Plan) -> str:
    """The last line of a run that writes nothing."""
    words = [word for word in run.invocation.arguments if word != "--dry-run"]
    if planned.sources == (sample_model.PATH,):
        return f"no model written; for one of yours: graphopt {shlex.join(words)} MODEL.onnx"
    if planned.output is None:
        return f"no model written; -o OUT.onnx, or -o -, writes it: graphopt {shlex.join(words)} -o OUT.onnx"
    return f"no model written; this writes {planned.output}: graphopt {shlex.join(words)}"
