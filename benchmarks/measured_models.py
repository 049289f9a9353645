"""The models that a benchmark measures: from the command line, by default the samples."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from benchmarks.inputs import Entry, entry_of
from benchmarks.measured_tools import ROOT


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


def manifest_cases(folder: Path, manifest: Path | None = None) -> list[Case]:
    """The models of a manifest, by default ``manifest.json`` of ``folder``; without one, all of them."""
    manifest = manifest or folder / "manifest.json"
    if manifest.is_file():
        entries = json.loads(manifest.read_text(encoding="utf-8"))
        return [Case(folder / entry["file"], entry) for entry in entries]
    return [Case(path, entry_of(path)) for path in sorted(folder.glob("*.onnx"))]


def cases(options: argparse.Namespace, scratch: Path) -> list[Case]:
    """The models given on the command line; by default the samples, rebuilt."""
    folder: Path | None = options.models
    if folder is None:
        folder = scratch / "samples"
        build = [sys.executable, str(ROOT / "samples" / "models.py"), "--out", str(folder)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    found = manifest_cases(folder, options.manifest)
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


def progress(items: Sequence[Case]) -> Iterator[Case]:
    """Print the current model on stderr."""
    for i, case in enumerate(items, 1):
        print(f"[{i}/{len(items)}] {case.name}", file=sys.stderr, flush=True)
        yield case
