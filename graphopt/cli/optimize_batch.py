"""The optimization of several models by ``graphopt optimize``: one after the other, with a summary."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from textwrap import shorten
from typing import Any

from graphopt.cli.files.optimize_files import Plan
from graphopt.cli.optimize_job import Job
from graphopt.cli.output.command_output import Output
from graphopt.cli.output.error_messages import report_error
from graphopt.cli.views import optimization
from graphopt.errors import ExitStatus, is_interruption
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, counted, human_bytes, human_seconds

_TOTAL = "total"
#: Maximum characters of the reason of a failure in the list; stderr has all.
_REASON = 100


@dataclass
class Batch:
    """The models of one command, and the entries of the finished ones, in order.

    Attributes:
        job: the optimization of each model.
        planned: the models and the files of their results.
        entries: the report of each model for JSON, or the error of a model that failed.
        status: the exit status of the most severe failure.
        starts: the times at which the optimization of each model began, as :func:`time.perf_counter` returns.
    """

    job: Job
    planned: Plan
    entries: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0
    starts: list[float] = field(default_factory=list)
    _begin: float = field(default_factory=time.perf_counter)

    def run(self) -> None:
        """Optimize the models; prints a line for each as soon as it is written, or has failed.

        Raises:
            KeyboardInterrupt: the run was interrupted; the models written by then have their entries. An
                import that is interrupted raises ImportError with this cause.
        """
        try:
            self._run()
        except BaseException as error:
            if is_interruption(error):
                self._add_written()
            raise

    def _run(self) -> None:
        planned = self.planned
        for source, target, label in zip(planned.sources, planned.targets, self._labels, strict=True):
            self.starts.append(time.perf_counter())
            try:
                report, reuse = self.job.optimize(source, target, planned)
            except Exception as error:  # the remaining models are still optimized
                if is_interruption(error):
                    raise
                self._failed(source, label, error)
                continue
            self.entries.append(optimization.as_dict(self.job.run, source, target, report, reuse))
            self._print_line(label, self.entries[-1], report.seconds["all"])

    def _add_written(self) -> None:
        """Add the entry of the model in progress if its result is already written."""
        planned, at = self.planned, len(self.entries)
        if at == len(self.starts):
            return
        run, target = self.job.run, planned.targets[at]
        if target is None or target not in self.job.reports or target not in run.invocation.changed():
            return
        report, reuse = self.job.reports[target]
        report = report.having(seconds={"all": time.perf_counter() - self.starts[at]})
        self.entries.append(optimization.as_dict(run, planned.sources[at], target, report, reuse))
        self._print_line(self._labels[at], self.entries[-1], report.seconds["all"])

    @property
    def _labels(self) -> list[str]:
        """The name of each model in the list."""
        planned = self.planned
        pairs = zip(planned.names, planned.targets, strict=True)
        return [f"{name} → {to.name}" if planned.marks and to else str(name) for name, to in pairs]

    @property
    def _width(self) -> int:
        return max(len(_TOTAL), *map(len, self._labels))

    def _failed(self, source: Path, label: str, error: Exception) -> None:
        run = self.job.run
        failure = report_error(
            error,
            debug=run.invocation.debug,
            kept=run.save_repro is not None,
            about=run.invocation.name_of(source),
            files=(str(source),),
            names=run.invocation.names,
            color=run.console.color,
        )
        self.status = max(self.status, failure.status)
        self.entries.append({"source": run.invocation.name_of(source), "error": failure.to_dict()})
        reason = shorten(_about_it(failure.message, str(source)), _REASON, placeholder=" …")
        run.console.print(f"  {label:{self._width}}  failed: {reason}")

    def _print_line(self, label: str, entry: dict[str, Any], seconds: float) -> None:
        before, after = entry["original"]["nodes"], entry["optimized"]["nodes"]
        verified = optimization.brief_verdict(entry["verification"])
        kernels = f"  {counted(len(entry['kernels']), 'kernel')}" if entry["kernels"] else ""
        cached = "  cached" if entry["cache"] is not None and entry["cache"]["hit"] else ""
        self.job.run.console.print(
            f"  {label:{self._width}}  {before:,} → {after:,} nodes{kernels}{verified}{cached}"
            f"  {human_seconds(seconds)}"
        )

    def output(self, interrupted: bool = False) -> Output:
        """The entries so far, and the summary.

        Args:
            interrupted: whether the run ended early.
        """
        status = int(ExitStatus.INTERRUPTED if interrupted else self.status)
        summary = self._summary()
        data = {"models": self.entries, "summary": summary, "interrupted": interrupted, "status": status}
        return Output(data, self._lines(summary), status=status)

    def _summary(self) -> dict[str, Any]:
        """Counts of models, and the sums of the figures of those that are optimized.

        ``file_bytes`` is ``None`` if nothing is written; ``unverified`` are models whose outputs were not
        compared; ``interrupted`` is the model in progress at an interruption, and ``left`` are those not
        started.
        """
        done = [entry for entry in self.entries if "error" not in entry]
        sizes = [[entry[side]["file_bytes"] for side in ("original", "optimized")] for entry in done]
        is_sized = all(size is not None for pair in sizes for size in pair)
        return {
            "models": len(self.planned.sources),
            "optimized": len(done),
            "unchanged": sum(not _is_changed(entry) for entry in done),
            "unverified": sum(not _is_verified(entry) for entry in done),
            "failed": len(self.entries) - len(done),
            "interrupted": len(self.starts) - len(self.entries),
            "left": len(self.planned.sources) - len(self.starts),
            "nodes": [sum(entry[side]["nodes"] for entry in done) for side in ("original", "optimized")],
            "file_bytes": [sum(column) for column in zip(*sizes, strict=True)] if done and is_sized else None,
            "seconds": time.perf_counter() - self._begin,
        }

    def _lines(self, summary: dict[str, Any]) -> Iterator[Block]:
        (before, after), sizes = summary["nodes"], summary["file_bytes"]
        if summary["optimized"]:
            written = "" if sizes is None else f"  {human_bytes(sizes[0])} → {human_bytes(sizes[1])}"
            took = human_seconds(summary["seconds"])
            yield f"  {_TOTAL:{self._width}}  {before:,} → {after:,} nodes{written}  {took}"
        parts = {"unchanged": "unchanged", "unverified": "not verified"}
        details = ", ".join(f"{summary[key]} {word}" for key, word in parts.items() if summary[key])
        line = f"  {counted(summary['optimized'], 'model')} optimized" + (f" ({details})" if details else "")
        for key, word in {"failed": "failed", "interrupted": "interrupted", "left": "not started"}.items():
            line += f", {summary[key]} {word}" if summary[key] else ""
        yield line
        if self.planned.is_dry:
            yield f"  {optimization.how_to_write(self.job.run, self.planned)}"


def _about_it(message: str, path: str) -> str:
    """``message`` for a line that begins with the name of the file ``path``."""
    text = message.removesuffix(f": {path}")
    return re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w/-]|\.\w)", "it", text)


def _is_changed(entry: dict[str, Any]) -> bool:
    return any(record["changes"] for record in entry["passes"])


def _is_verified(entry: dict[str, Any]) -> bool:
    verdict = entry["verification"]
    return verdict is not None and verdict["unverifiable"] is None
