"""The command line of the check."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import doc_tables, gpu_check
from benchmarks.gpu_check import schedule
from benchmarks.gpu_check.gpu_name import gpu_name
from benchmarks.gpu_check.plan import SECTIONS
from benchmarks.gpu_check.report import Report
from benchmarks.measured_tools import ROOT
from graphopt.errors import ExitStatus, GraphoptError, RuntimeFailure
from graphopt.ort.devices import CPU, Device, choose

#: Seconds for all sections; with the end of the last item, a run takes at most eight minutes.
_SECONDS = 440.0


def machine(device: Device) -> Mapping[str, str]:
    """The device and the versions that the results depend on."""
    import onnxruntime

    return {
        "device": doc_tables.machine() if device == CPU else gpu_name(device),
        "onnxruntime": onnxruntime.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="gpu-check", description=gpu_check.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [section.name for section in SECTIONS]
    parser.add_argument(
        "--device", default="cuda", help="cuda, cuda:N, or cpu for a rehearsal (default: cuda)"
    )
    parser.add_argument(
        "--only", nargs="*", choices=names, default=names, metavar="SECTION", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--items", nargs="*", default=[], metavar="ITEM", help="only these items")
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="models to measure beside the samples, instead of generated networks",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build" / "gpu-check",
        metavar="DIR",
        help="for results.jsonl and results.md",
    )
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help=f"for all sections (default: {_SECONDS:.0f})"
    )
    parser.add_argument(
        "--docs", type=Path, action="append", default=[], metavar="FILE", help="put the tables into this page"
    )
    options = parser.parse_args()
    if options.models is not None and not options.models.is_dir():
        parser.error(f"no such folder: {options.models}")
    try:
        device, _note = choose(options.device)
    except GraphoptError as failure:
        unavailable = isinstance(failure, RuntimeFailure)
        remedy = "; graphopt doctor has details, and --device cpu rehearses the check" if unavailable else ""
        print(f"gpu-check: {failure}{remedy}", file=sys.stderr)
        return int(failure.status)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # ends the section's process, too
    sections = [section for section in SECTIONS if section.name in options.only]
    report = Report(options.out, sections, machine(device))
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
            plan = schedule.Plan(
                options.device, options.seconds, Path(scratch), options.models, options.items
            )
            schedule.run(plan, report)
    finally:
        print(report.text())
    for page in options.docs:
        text = page.read_text(encoding="utf-8")
        page.write_text(doc_tables.replace_section(text, "gpu-check", report.text()), encoding="utf-8")
    if missing := report.missing(options.items):
        print(f"gpu-check: no section has an item {missing[0]!r}; without --items, all run", file=sys.stderr)
        return int(ExitStatus.USAGE)
    return int(report.has_faults)


if __name__ == "__main__":
    sys.exit(main())
