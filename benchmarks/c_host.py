"""The host in C, samples/host/host.c, against Python on bundles of models: the same variant, the same bits.

    python -m benchmarks.c_host DIR --only 'bert|gpt2|silero'

Each model is profiled on all of its sets of shapes but the last, and compiled to a bundle with variants for
them. The host is built with gcc's sanitizers, and runs all sets, each with two sets of values. It must select
the variant that `graphopt.Bundle` selects, and return the same bits. With `--native`, the bundles have
kernels, which both load. The exit status is 1 if a run differs or fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import graphopt
from benchmarks import doc_tables, measured_models
from benchmarks.inputs import make_feeds
from benchmarks.measured_models import Case
from benchmarks.measured_tools import ROOT
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.util.ort_array_conversion import LOW_TYPES

SOURCE = ROOT / "samples" / "host" / "host.c"
#: The header of the functions that the host uses, because the wheel of onnxruntime has none.
HEADERS = ROOT / "tests" / "samples" / "include"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror")
SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
#: Seconds to compile the host, and to run a model.
PATIENCE = 120


def runtime() -> Path | None:
    """The library of the installed onnxruntime; ``None`` if the wheel has none for C."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    return next(iter(sorted(folder.glob("libonnxruntime.so.*"))), None)


def build(
    folder: Path, flags: Sequence[str] = SANITIZED, *, headers: Path = HEADERS, source: Path = SOURCE
) -> Path:
    """Compile the host, or another ``source``, to ``folder`` and link it with the installed onnxruntime.

    Raises:
        NoCompiler: there is no C compiler.
        RuntimeError: onnxruntime's wheel has no library for C, or the compiler fails.
    """
    library = runtime()
    if library is None:
        raise RuntimeError("this onnxruntime has no library for C")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # for the linker, and as programs name it
        (folder / name).symlink_to(library)
    target = folder / source.stem
    link = (f"-L{folder}", "-lonnxruntime", f"-Wl,-rpath,{folder}")
    words = [*STRICT, *flags, f"-I{headers}", f"-I{SOURCE.parent}", str(source), *link, "-o", str(target)]
    find_compiler().run(words, folder, PATIENCE)
    return target


@dataclass(frozen=True)
class HostRun:
    """One run of the host.

    Attributes:
        status: the exit status.
        variant: the variant that ran; ``None`` if none did.
        outputs: the arrays in the files that it wrote, by name of the output.
        errors: the text on standard error.
    """

    status: int
    variant: str | None
    outputs: dict[str, np.ndarray[Any, Any]]
    errors: str


def run(
    program: Path, bundle: Path, feeds: Mapping[str, np.ndarray[Any, Any]], folder: Path, *words: str
) -> HostRun:
    """Run the host, with the inputs and outputs as files in the new ``folder``."""
    folder.mkdir()
    files = []
    for number, (name, array) in enumerate(feeds.items()):
        np.save(folder / f"{number}.npy", array)
        files.append(f"{name}={folder / f'{number}.npy'}")
    command = [str(program), str(bundle), *files, "-o", str(folder / "out"), *words]
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment
    )
    ran = [line.removeprefix("ran ") for line in done.stdout.splitlines() if line.startswith("ran ")]
    outputs = {}
    for file in sorted(folder.glob("out/*")):
        if file.suffix != ".npy":
            raise RuntimeError(f"the host left {file}")
        outputs[file.stem] = np.load(file)
    return HostRun(done.returncode, ran[0] if ran else None, outputs, done.stderr)


def differences(found: HostRun, bundle: graphopt.Bundle, feeds: Mapping[str, Any]) -> list[str]:
    """The differences between a run of the host and one in Python; empty if they are identical."""
    if found.status != 0 or found.errors:
        return [f"exit status {found.status}: {found.errors.strip()}"]
    expected, faults = bundle.run(feeds), []
    if found.variant != bundle.choose(feeds):
        faults.append(f"ran {found.variant}, not {bundle.choose(feeds)}")
    if found.outputs.keys() != expected.keys():
        faults.append(f"wrote {sorted(found.outputs)}, not {sorted(expected)}")
    for name in found.outputs.keys() & expected.keys():
        if not same_bits(found.outputs[name], expected[name]):
            faults.append(f"{name} differs")
    return sorted(faults)


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have the same shape, type and bits; types that numpy lacks are compared as bits."""
    if one.shape != other.shape:
        return False
    if other.dtype.kind == "O":
        return bool(one.dtype.kind == "U" and one.tolist() == other.tolist())
    lacking = any(low.dtype == other.dtype for low in LOW_TYPES.values())
    return (one.dtype == other.dtype or lacking) and one.tobytes() == other.tobytes()


@dataclass(frozen=True)
class Checked:
    """The runs of one model: their numbers by variant, and the faults."""

    model: str
    kernels: int
    runs: dict[str, int]
    faults: list[str]


def check(case: Case, program: Path, scratch: Path, *, native: bool) -> Checked:
    """Write a bundle of the model, and compare the runs of all sets of shapes."""
    sets = range(len(case.entry["shape_sets"]))
    profiled = [make_feeds(case.entry, index, seed) for index in sets[:-1] or sets for seed in (0, 1)]
    profile = scratch / "profile.json"
    graphopt.record_profile(case.path, profiled).write(profile)
    folder = scratch / "model.gopt"
    words = ["compile", str(case.path), "-o", str(folder), "--profile", str(profile), "--no-verify"]
    subprocess.run(
        [sys.executable, "-m", "graphopt", *words, *(("--fuser", "native") if native else ())],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    bundle = graphopt.Bundle(folder, device="cpu", trusted=native)
    runs: dict[str, int] = {}
    faults = []
    for index in sets:
        for seed in (0, 7):
            feeds = make_feeds(case.entry, index, seed)
            found = run(program, folder, feeds, scratch / f"{index}-{seed}")
            runs[str(found.variant)] = runs.get(str(found.variant), 0) + 1
            faults += [f"set {index}, seed {seed}: {fault}" for fault in differences(found, bundle, feeds)]
    return Checked(case.name, len(list(folder.glob("*.so"))), runs, faults)


def table(results: Sequence[Checked]) -> str:
    """The results as Markdown."""
    rows = [
        [
            one.model,
            str(one.kernels),
            ", ".join(f"{count} × {name}" for name, count in sorted(one.runs.items())),
            "; ".join(one.faults) or "same bits",
        ]
        for one in results
    ]
    return doc_tables.markdown_table(["model", "libraries", "runs", "outputs"], rows)


def main() -> int:
    """Check all models, print the table, and insert it into documents."""
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--include", type=Path, default=HEADERS, help="the folder of onnxruntime_c_api.h")
    parser.add_argument("--native", action="store_true", help="with native kernels")
    options = parser.parse_args()
    results: list[Checked] = []
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        program = build(scratch, headers=options.include)
        for case in measured_models.progress(measured_models.cases(options, scratch)):
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                results.append(check(case, program, Path(folder), native=options.native))
            print(table(results[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    facts = {"machine": doc_tables.machine(), "versions": doc_tables.versions(options.peer_python)}
    name = "c-host-native" if options.native else "c-host"
    doc_tables.publish(options, name, table(results), facts | {"models": [*map(asdict, results)]})
    return int(any(one.faults for one in results))


if __name__ == "__main__":
    sys.exit(main())
