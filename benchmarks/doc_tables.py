"""Tables of results in pages of the documentation, with the machine and the versions."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.measured_tools import GRAPHOPT
from graphopt.timing import other_optimizers


def publish(options: argparse.Namespace, section: str, text: str, results: dict[str, Any]) -> None:
    """Print the table, and write it and the results to the files given on the command line."""
    print(text)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for path in options.docs:
        page = path.read_text(encoding="utf-8")
        path.write_text(replace_section(page, section, text), encoding="utf-8")


def replace_section(page: str, section: str, text: str) -> str:
    """`page` with `text` between the comments `<!-- begin SECTION -->` and `<!-- end SECTION -->`."""
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page has no single section {section!r}")
    head, rest = page.split(begin)
    return f"{head}{begin}\n{text.strip()}\n{end}{rest.split(end)[1]}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def machine() -> str:
    """The processor, the number of usable cores, and the system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {platform.system()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions(peer_python: str) -> dict[str, str]:
    """Versions of everything that a result depends on."""
    own = {}
    for name in (GRAPHOPT, "onnx", "onnxruntime", "onnxruntime-gpu"):
        try:
            own[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return own | other_optimizers.versions(peer_python)
