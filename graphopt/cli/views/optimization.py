"""The output of ``optimize``: the report of one model, as text and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.cli.files import sample_model
from graphopt.cli.files.optimize_files import STDOUT, Plan
from graphopt.cli.invocation import Run
from graphopt.util.text_tables import Block, human_seconds

if TYPE_CHECKING:
    from graphopt.cli.files.reused_results import Reuse
    from graphopt.instrument.report import Report
    from graphopt.result_cache.stored_result import StoredReport


def as_dict(
    run: Run, source: Path, target: Path | None, report: Report | StoredReport, reuse: Reuse | None
) -> dict[str, Any]:
    """The result for JSON."""
    names = {"source": run.invocation.name_of(source), "target": None if target is None else str(target)}
    found = {**names, **report.to_dict(), "cache": None if reuse is None else reuse.to_dict()}
    if target is None or not report.libraries:
        return {**found, "library": None}
    from graphopt.cli.files.write_kernel_libraries import library_of

    return {**found, "library": str(library_of(target)), "session": _session_of(run, report, target) or None}


def brief_verdict(verdict: Mapping[str, Any] | None) -> str:
    """Two words about a verdict for JSON, if there is one."""
    if verdict is None:
        return ""
    why = verdict["unverifiable"]
    return "  verified" if why is None else f"  not verified: {why.partition(' (')[0]}"


def _session_of(run: Run, report: Report | StoredReport, target: Path) -> list[str]:
    """Code that runs the result with its library; empty for formats that onnxruntime does not read."""
    from graphopt import ir
    from graphopt.cli.files.write_kernel_libraries import library_of
    from graphopt.fusion.kernel_library import session_lines

    if not ir.codec_of(target).ort_reads:
        return []
    tuning = getattr(report, "tuning", None)
    choice = None if tuning is None else tuning.choice
    return list(session_lines(target, library_of(target), choice, run.compiler.target.kind))


def text(
    run: Run, report: Report | StoredReport, reuse: Reuse | None, target: Path | None, planned: Plan
) -> Iterator[Block]:
    """The report of one model, and the destination of the result or the command that writes the result."""
    yield from report.blocks(run.verbose, warned=True)
    if reuse is not None:
        yield from reuse.lines(run.verbose)
    if target is None:
        yield f"  {how_to_write(run, planned)}"
        return
    where = "to standard output" if target == STDOUT else target
    yield f"  wrote     {where}   {human_seconds(report.seconds['all'])} in all"
    if report.libraries:
        from graphopt.cli.files.write_kernel_libraries import library_of

        yield f"  wrote     {library_of(target)}   kernels; without it, onnxruntime runs their nodes"
        lines = _session_of(run, report, target)
        for line in lines or [f"graphopt convert {target} OUT.onnx writes a model that onnxruntime reads"]:
            yield f"              {line}"


def how_to_write(run: Run, planned: Plan) -> str:
    """The last line of the report if nothing is written."""
    words = [word for word in run.invocation.arguments if word != "--dry-run"]
    if planned.sources == (sample_model.PATH,):
        return f"no model written; for another model: graphopt {shlex.join(words)} MODEL.onnx"
    if planned.output is None:
        return f"no model written; -o OUT.onnx, or -o -, writes it: graphopt {shlex.join(words)} -o OUT.onnx"
    return f"no model written; this writes {planned.output}: graphopt {shlex.join(words)}"
