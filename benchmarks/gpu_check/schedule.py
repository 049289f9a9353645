"""Run sections one after the other, each in processes with a limit on their time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_check.report import Report
from benchmarks.gpu_check.rows import Row
from benchmarks.gpu_check.section import RESTART, Section
from benchmarks.measured_tools import ROOT

#: Seconds from the deadline of a section until its process is killed: the time for the last item to end.
_GRACE = 20.0
#: Maximum number of characters of a process's last words in a note.
_WORDS = 200


@dataclass(frozen=True)
class Plan:
    """The arguments of a check.

    Attributes:
        device: the text of ``--device``.
        seconds: seconds for all sections.
        scratch: a folder for models and kernels.
        models: a folder of models, or ``None``.
        items: the items to measure; all if empty.
        worker: the command that runs a section.
    """

    device: str
    seconds: float
    scratch: Path
    models: Path | None = None
    items: Sequence[str] = ()
    worker: Sequence[str] = (sys.executable, "-m", "benchmarks.gpu_check.work")


def run(plan: Plan, report: Report) -> None:
    """Run the sections of ``report``; unused time of a section is left to the later ones."""
    begin = time.monotonic()
    due = begin
    for section in report.sections:
        due += section.seconds
        start = time.monotonic()
        deadline = min(due, begin + plan.seconds)
        if start >= deadline:
            report.add(Row(section.name, "all", "late", note="no time was left"))
            continue
        _run_section(section, plan, report, deadline)
        report.finish(section, time.monotonic() - start)


def _run_section(section: Section, plan: Plan, report: Report, deadline: float) -> None:
    """Run a section in as many processes as it needs: an item that fails or crashes ends its process.

    After the deadline, a process lists the remaining items.
    """
    done: list[str] = []
    while True:
        process = _Process(section, plan, report, deadline, done)
        status = process.run()
        if process.begun is not None:
            note = process.death(status)
            report.add(Row(section.name, process.begun, "failed", note=note))
        elif process.is_late:  # it was to list the remaining items
            return
        elif status not in (0, RESTART):
            report.add(Row(section.name, "all", "failed", note=process.death(status)))
            return
        if status == 0:
            return


class _Process:
    """One process of a section.

    Attributes:
        begun: the item that is being measured.
        is_late: whether it was stopped.
    """

    def __init__(
        self, section: Section, plan: Plan, report: Report, deadline: float, done: list[str]
    ) -> None:
        self._section, self._report, self._deadline, self._done = section, report, deadline, done
        self._log = report.folder / f"{section.name}.log"
        self.begun: str | None = None
        words = [*plan.worker, section.name, "--device", plan.device]
        words += ["--seconds", f"{deadline - time.monotonic():.1f}"]
        words += ["--scratch", str(plan.scratch)]
        words += ["--models", str(plan.models)] if plan.models else []
        words += ["--done", *done] if done else []
        words += ["--items", *plan.items] if plan.items else []
        self._command = words
        self.is_late = False

    def run(self) -> int:
        """Run the process to its end; returns its status, negative if a signal ended it."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                text=True,
                start_new_session=True,
            )
            timer = threading.Timer(
                max(0.0, self._deadline - time.monotonic()) + _GRACE, self._stop, [process]
            )
            timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    self._receive(line)
                return process.wait()
            finally:
                timer.cancel()
                _kill(process)
                process.wait()

    def _stop(self, process: subprocess.Popen[str]) -> None:
        self.is_late = True
        _kill(process)

    def _receive(self, line: str) -> None:
        event = json.loads(line)
        if "begin" in event:
            self.begun = event["begin"]
            self._done.append(event["begin"])
            print(f"gpu-check: {self._section.name}: {self.begun} …", file=sys.stderr, flush=True)
            return
        self.begun = None
        self._report.add(Row(**event))

    def death(self, status: int) -> str:
        """A sentence about the end of the process."""
        if self.is_late:
            return "it took too long, and was stopped"
        how = f"exited with status {status}" if status >= 0 else f"died of {signal.Signals(-status).name}"
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"its process {how}" + (f": {last.strip()[:_WORDS]}" if last else "")


def _kill(process: subprocess.Popen[str]) -> None:
    """End the process and its descendants, which are a session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
