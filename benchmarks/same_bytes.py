"""Compare the bytes that two versions of graphopt write for a folder of models, by hashes.

    python -m benchmarks.same_bytes DIR MODEL.onnx --table table.json
    python -m benchmarks.same_bytes DIR MODEL.onnx --against table.json
    PYTHONPATH=/other/checkout python benchmarks/same_bytes.py DIR --table table.json

Each model below the given folders is optimized at each level, without verification, by whichever graphopt is
importable. The table contains hashes of the model file, its external data, its nodes and its metadata, or the
kind of the error. It is saved as the run proceeds, and a later run with the same table continues it.
`--against` compares with an older table and ends with exit status 1 if any hash differs; it needs no table of
its own.

Models are named by the folder given and the path below it: folders may move, but not be renamed. Only the
bytes of models are compared: `--fuser native` runs without a C compiler, so that no kernel library is built.
Names of kernels are hashes of their bodies and contain no module paths. Error messages are recorded, but only
the exit status is compared, or the class of an exception that is not graphopt's. Timeouts are not compared.

Of the package, the script uses `optimize`, `Result.save` and `__version__`, so that it runs on old commits,
too.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

#: Keyword arguments of `graphopt.optimize`, by level.
LEVELS: dict[str, dict[str, str]] = {
    "-O1": {"pipeline": "O1"},
    "-O2": {"pipeline": "O2"},
    "-O3": {"pipeline": "O3"},
    "--fuser native": {"fuser": "native"},
}
#: Levels by their names on the command line.
_NAMES = {level.split()[-1].strip("-"): level for level in LEVELS}
#: Seconds between two saves of the table.
_SAVE_SECONDS = 5.0
#: Seconds for a child to import graphopt.
_START_SECONDS = 120.0
_TIMEOUT = "timeout"

Hashes = dict[str, str]


@dataclass(frozen=True)
class Case:
    """A model, and its name in tables."""

    name: str
    path: Path


def cases_of(paths: Sequence[Path], sample: int | None = None) -> list[Case]:
    """The models at and below ``paths``, in order.

    Args:
        sample: models of each folder that precede all others, chosen by name; all by default.
    """
    first, rest = [], []
    for path in (path.resolve() for path in paths):
        if path.is_file():
            first.append(Case(path.name, path))
            continue
        found = [Case(f"{path.name}/{file.relative_to(path)}", file) for file in path.rglob("*.onnx")]
        found.sort(key=lambda case: _hash(case.name.encode()))
        count = len(found) if sample is None else sample
        first += found[:count]
        rest += found[count:]
    return list({case.name: case for case in first + rest}.values())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def hashes_of(folder: Path) -> Hashes:
    """Hashes of the model in ``folder``: its file, its other files, its nodes, its metadata."""
    import onnx

    files = sorted(folder.iterdir())
    model = next(file for file in files if file.suffix == ".onnx")
    proto = onnx.load(model, load_external_data=False)
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    return {
        "file": _hash(model.read_bytes()),
        "data": _hash(b"".join(file.read_bytes() for file in files if file != model)),
        "nodes": _hash(b"".join(node.SerializeToString(deterministic=True) for node in nodes)),
        "metadata": _hash(repr([(entry.key, entry.value) for entry in proto.metadata_props]).encode()),
    }


def outcome_of(path: Path, level: str) -> Hashes:
    """Hashes of the result for the model at ``path``; of an error its kind and message."""
    import graphopt

    with tempfile.TemporaryDirectory() as folder:
        try:
            # Its arguments are checked at run time: they differ between the versions that this runs on.
            optimize: Any = graphopt.optimize
            optimize(str(path), verify=False, **LEVELS[level]).save(str(Path(folder, "model.onnx")))
        except Exception as error:
            status = getattr(error, "status", None)
            kind = type(error).__name__ if status is None else f"exit status {int(status)}"
            return {"error": kind, "message": " ".join(str(error).split())[:200]}
        return hashes_of(Path(folder))


def serve(package: str) -> None:
    """Answer requests (lines of JSON) with the graphopt in the folder ``package``."""
    sys.path[0] = package
    answers = os.fdopen(os.dup(1), "w")  # libraries print to the standard output, too
    os.dup2(2, 1)
    import graphopt

    print(json.dumps(graphopt.__version__), file=answers, flush=True)
    for line in sys.stdin:
        path, level = json.loads(line)
        print(json.dumps(outcome_of(Path(path), level)), file=answers, flush=True)


class Child:
    """A process that optimizes models in sequence, and is replaced after a crash or a time-out."""

    def __init__(self, package: Path, scratch: Path, seconds: float) -> None:
        self.package, self.scratch, self.seconds = package, scratch, seconds
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str] = queue.Queue()

    def optimize(self, case: Case, level: str) -> Hashes:
        """Hashes of the result, or the kind of its error."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([str(case.path), level]) + "\n")
            process.stdin.flush()
            answer = self.answers.get(timeout=self.seconds)
        except queue.Empty:
            self.end()
            return {"error": _TIMEOUT}
        except OSError:
            answer = ""
        if answer:
            return dict(json.loads(answer))
        code = process.wait()
        self.process = None
        return {"error": signal.Signals(-code).name if code < 0 else f"ended with {code}"}

    def end(self) -> None:
        """End the process, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _running(self) -> subprocess.Popen[str]:
        if self.process is not None:
            return self.process
        environment = {name: text for name, text in os.environ.items() if not name.startswith("GRAPHOPT_")}
        # Results depend neither on the user's settings and store, nor on the order of sets.
        environment |= {"HOME": str(self.scratch), "TMPDIR": str(self.scratch), "PYTHONHASHSEED": "0"}
        environment |= {"CC": str(self.scratch / "no-compiler"), "GRAPHOPT_TIME_LIMIT": "3600s"}
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve", str(self.package)],
            cwd=self.scratch,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        self.answers = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, self.answers), daemon=True).start()
        try:
            started = self.answers.get(timeout=_START_SECONDS)
        except queue.Empty:
            started = ""
        if not started:
            process.kill()
            raise SystemExit(f"graphopt in {self.package} can't be imported by {sys.executable}")
        self.process = process
        return process


def _pump(stream: TextIO, answers: queue.Queue[str]) -> None:
    """Move lines to ``answers``, and an empty text at the end."""
    for line in stream:
        answers.put(line)
    answers.put("")


class Table:
    """Hashes by model and level, in a JSON file if it has a path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        read = json.loads(path.read_text()) if path is not None and path.exists() else {}
        self.models: dict[str, dict[str, Hashes]] = read.get("models", {})
        self.saved = time.monotonic()
        self.lock = threading.Lock()

    def missing(self, case: Case, levels: Sequence[str]) -> list[str]:
        """The levels that the table lacks; all if the model is another than before."""
        source = _hash(case.path.read_bytes())
        with self.lock:
            known = self.models.get(case.name)
            if known is None or known["source"]["file"] != source:
                known = self.models[case.name] = {"source": {"file": source}}
            return [level for level in levels if level not in known]

    def add(self, name: str, level: str, hashes: Hashes) -> None:
        with self.lock:
            self.models[name][level] = hashes
            if time.monotonic() - self.saved > _SAVE_SECONDS:
                self._save()

    def save(self) -> None:
        with self.lock:
            self._save()

    def _save(self) -> None:
        if self.path is not None:
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps({"models": self.models}, indent=0, sort_keys=True) + "\n")
            temporary.replace(self.path)
        self.saved = time.monotonic()


def differences(old: Mapping[str, Hashes], new: Mapping[str, Hashes]) -> Iterator[tuple[str, str]]:
    """Each level at which the entries of a model differ, with the difference; missing levels are omitted."""
    for level in sorted(old.keys() & new.keys()):
        before, after = old[level], new[level]
        if _TIMEOUT in (before.get("error"), after.get("error")) or level == "source":
            continue
        keys = [
            key for key in ("error", "file", "data", "nodes", "metadata") if before.get(key) != after.get(key)
        ]
        if "error" in keys:
            yield level, f"{_described(before)} → {_described(after)}"
        elif keys:
            yield level, ", ".join(keys)


def _described(hashes: Hashes) -> str:
    if "error" not in hashes:
        return "a model"
    return f"{hashes['error']} ({hashes['message']})" if hashes.get("message") else hashes["error"]


def fill(
    table: Table,
    cases: Sequence[Case],
    levels: Sequence[str],
    *,
    package: Path,
    jobs: int,
    limit: float,
    seconds: float | None,
    old: Mapping[str, Mapping[str, Hashes]],
) -> int:
    """Optimize models missing in ``table``, print differences from ``old``, and return their number."""
    todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in cases:
        todo.put(case)
    begin, counts, stop = time.monotonic(), {"done": 0, "different": 0}, threading.Event()
    failures: list[BaseException] = []

    def work(scratch: Path) -> None:
        child = Child(package, scratch, limit)
        try:
            while not stop.is_set() and (seconds is None or time.monotonic() - begin < seconds):
                try:
                    case = todo.get_nowait()
                except queue.Empty:
                    return
                for level in table.missing(case, levels):
                    table.add(case.name, level, child.optimize(case, level))
                with table.lock:
                    counts["done"] += 1
                    before, after = old.get(case.name), table.models[case.name]
                    if before is not None and before["source"] != after["source"]:
                        print(f"{case.name}: not compared, the model itself is another", flush=True)
                    elif before is not None:
                        for level, found in differences(before, after):
                            counts["different"] += 1
                            print(f"{case.name} {level}: {found}", flush=True)
                    if counts["done"] % 100 == 0:
                        print(f"{counts['done']} of {len(cases)} models", file=sys.stderr, flush=True)
        except BaseException as error:
            failures.append(error)
            stop.set()
        finally:
            child.end()

    with tempfile.TemporaryDirectory() as scratch:
        threads = []
        for index in range(jobs):
            folder = Path(scratch, str(index))
            folder.mkdir()
            threads.append(threading.Thread(target=work, args=(folder,)))
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            table.save()
    if failures:
        raise failures[0]
    compared = sum(case.name in old and case.name in table.models for case in cases)
    summary = (
        f"{counts['done']} of {len(cases)} models, {len(levels)} levels, {time.monotonic() - begin:.0f} s"
    )
    if old:
        summary += f"; {compared} compared, {counts['different']} differences"
    print(summary, flush=True)
    return counts["different"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="models and folders of models")
    parser.add_argument("--table", type=Path, help="the table to write, or to continue")
    parser.add_argument("--against", type=Path, metavar="TABLE", help="an older table to compare with")
    parser.add_argument(
        "--levels", nargs="+", choices=_NAMES, default=list(_NAMES), help="levels (default: all)"
    )
    parser.add_argument("--only", metavar="REGEX", help="only models whose name matches")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="begin with N models of each folder, chosen by name"
    )
    parser.add_argument("--seconds", type=float, help="begin no further model after this time")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds for a model at one level (default: 120)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return 0
    if options.table is None and options.against is None:
        parser.error("give --table, --against, or both")
    if absent := [path for path in options.paths if not path.exists()]:
        parser.error(f"there is no {absent[0]}")
    found = importlib.util.find_spec("graphopt")
    if found is None or found.origin is None:
        parser.error("graphopt is not installed; set PYTHONPATH")
    package = Path(found.origin).resolve().parents[1]
    print(f"graphopt of {package}", file=sys.stderr)

    old: dict[str, dict[str, Hashes]] = {}
    if options.against is not None:
        old = json.loads(options.against.read_text())["models"]
    cases = cases_of(options.paths, options.sample)
    if options.only:
        cases = [case for case in cases if re.search(options.only, case.name)]
    if old:
        cases = [case for case in cases if case.name in old]
    if not cases:
        parser.error("there are no such models")
    different = fill(
        Table(options.table),
        cases,
        [_NAMES[name] for name in options.levels],
        package=package,
        jobs=options.jobs,
        limit=options.limit,
        seconds=options.seconds,
        old=old,
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
