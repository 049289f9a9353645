"""Shared parts of benchmarks: models, tools as commands, the machine's description, tables for the docs."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx

from benchmarks.inputs import Entry, entry_of
from graphopt.timing import other_optimizers

ROOT = Path(__file__).resolve().parent.parent
GRAPHOPT = "graphopt"
# Equivalent to the console script, wherever that is installed.
GRAPHOPT_COMMAND = [
    sys.executable,
    "-c",
    "import sys; from graphopt.cli.main import main; sys.exit(main())",
    "optimize",
]


@dataclass(frozen=True)
class Outcome:
    """A run of a tool: its exit status (``None`` after a timeout), seconds, and the last line of stderr."""

    status: int | None
    seconds: float
    message: str


@dataclass(frozen=True)
class Tool:
    """An optimizer as a command line, to which IN and OUT are appended."""

    name: str
    command: tuple[str, ...]
    before_target: tuple[str, ...] = ()

    def run(self, source: Path, target: Path, timeout: float = 600) -> Outcome:
        """Optimize `source` into `target` in a separate process."""
        command = [*self.command, str(source), *self.before_target, str(target)]
        begin = time.perf_counter()
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(None, time.perf_counter() - begin, f"no result after {timeout:.0f} s")
        seconds = time.perf_counter() - begin
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        words = [line for line in words if not line.startswith("hint:")]
        return Outcome(done.returncode, seconds, words[-1][:300] if words else "")


@dataclass(frozen=True)
class Usage:
    """Resource usage of a run of a tool; `status` as in Outcome."""

    status: int
    message: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    anonymous_bytes: int | None = None


def metered(tool: Tool, source: Path, target: Path, *, sample: bool = False) -> Usage:
    """Optimize `source` into `target`; returns resource usage, with anonymous memory if `sample`."""
    meter = [
        sys.executable,
        "-S",
        str(ROOT / "benchmarks" / "resource_usage.py"),
        *(["--sample"] if sample else []),
    ]
    command = [*meter, *tool.command, str(source), *tool.before_target, str(target)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Usage(**json.loads(done.stdout.splitlines()[-1]))


def graphopt_tool(*options: str) -> Tool:
    return Tool(GRAPHOPT, (*GRAPHOPT_COMMAND, *options), ("-o",))


def peer_tools(python: str) -> list[Tool]:
    """The peers installed for the interpreter `python`."""
    return [Tool(name, other_optimizers.command(python, name)) for name in other_optimizers.versions(python)]


def judge(original: Path, result: Path, entry: Entry) -> dict[str, Any]:
    """The verdict of benchmarks.judge, in a separate process, because an invalid model may crash it."""
    command = [sys.executable, "-m", "benchmarks.judge", str(original), str(result)]
    recipe = json.dumps({key: entry[key] for key in ("inputs", "shape_sets")})
    done = subprocess.run(
        [*command, "--entry", recipe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"verdict": "refused", "detail": f"onnxruntime ended with status {done.returncode}"}
    verdict: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return verdict


def count_nodes(path: Path) -> int:
    """Nodes of the graph and of the bodies nested in it, without Constant; function bodies do not count."""
    count, pending = 0, [onnx.load(path, load_external_data=False).graph]
    while pending:
        for node in pending.pop().node:
            count += node.op_type != "Constant" or node.domain not in ("", "ai.onnx")
            for attribute in node.attribute:
                pending.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
    return count


def size_on_disk(path: Path) -> int:
    """Bytes of the model and of its external data files."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    files = {item.value for tensor in tensors for item in tensor.external_data if item.key == "location"}
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in sorted(files))


@dataclass(frozen=True)
class Case:
    """A model to measure on, and its manifest entry."""

    path: Path
    entry: Entry

    @property
    def name(self) -> str:
        return self.path.stem


def cases(options: argparse.Namespace, scratch: Path) -> list[Case]:
    """The models given on the command line; by default the samples, rebuilt."""
    folder: Path | None = options.models
    if folder is None:
        folder = scratch / "samples"
        build = [sys.executable, str(ROOT / "samples" / "models.py"), "--out", str(folder)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    manifest = options.manifest or folder / "manifest.json"
    if manifest.is_file():
        entries = json.loads(manifest.read_text(encoding="utf-8"))
        found = [Case(folder / entry["file"], entry) for entry in entries]
    else:
        found = [Case(path, entry_of(path)) for path in sorted(folder.glob("*.onnx"))]
    chosen = [case for case in found if re.search(options.only, case.name)]
    if not chosen:
        sys.exit(f"no model to measure in {folder}" + (f" matches {options.only!r}" if options.only else ""))
    return chosen


def arguments(description: str, *, models: bool = True) -> argparse.ArgumentParser:
    """The options of all benchmarks; without `models`, for a benchmark that generates its models."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if models:
        parser.add_argument("models", nargs="?", type=Path, help="a folder of models (default: the samples)")
        parser.add_argument(
            "--manifest",
            type=Path,
            help="recipes for inputs, known results of peers (default: MODELS/manifest.json)",
        )
        parser.add_argument("--only", default="", metavar="RE", help="only models whose name matches")
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="PYTHON",
        help="an interpreter with the peers installed",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument(
        "--docs", type=Path, action="append", default=[], metavar="FILE", help="put the table into this page"
    )
    return parser


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


def progress(items: Sequence[Case]) -> Iterator[Case]:
    """Print the current model on stderr."""
    for i, case in enumerate(items, 1):
        print(f"[{i}/{len(items)}] {case.name}", file=sys.stderr, flush=True)
        yield case
