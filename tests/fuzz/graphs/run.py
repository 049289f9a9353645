"""Generate models, optimize them, and report violated invariants.

    python -m tests.fuzz.graphs.run --seed 0 --count 20000 --jobs 2 --out build/fuzz

Each model comes from a seed of its own. They are examined in child processes, which may die: the
seed at which one did is a finding too, unless it died while the model grew. Results are kept in
OUT/results.jsonl, one line a seed, and seeds that are there already are not examined again;
what a seed stands for depends on the rules, so keep a folder for each version of them. A model
with findings is written to OUT/SEED.onnx. `--show SEED` prints and examines one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import onnx

from graphopt.process.child import Child
from tests.fuzz.graphs.generate import generate
from tests.fuzz.graphs.invariants import examine, plans

ROOT = Path(__file__).parents[2]
#: Seeds that one process examines.
BATCH = 100
#: Time limit of one seed, in seconds.
PATIENCE = 120.0


def model_of(seed: int) -> tuple[onnx.ModelProto, list[Any]]:
    """The model of a seed, and the ways in which it is optimized."""
    random = Random(seed)
    return generate(random), plans(random)


# In a child -----------------------------------------------------------------------------------


def work(seeds: Sequence[int], out: Path, isolate: bool) -> None:
    """Examine ``seeds``; lines of JSON on stdout report the start, the end and the findings of each."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # native code prints there

    def tell(**words: Any) -> None:
        print(json.dumps(words), file=replies, flush=True)

    with Child(preload=("onnxruntime", "graphopt.ort.model_runs")) as child:
        for seed in seeds:
            tell(seed=seed, state="growing")
            begin = time.monotonic()
            try:
                model, ways = model_of(seed)
            except Exception as error:
                tell(seed=seed, state="done", status="generator failed", detail=repr(error))
                continue
            path = out / f"{seed}.onnx"
            path.write_bytes(model.SerializeToString())
            tell(seed=seed, state="examining")
            findings = examine(model, ways, child, isolate=isolate)
            if not findings:
                path.unlink()
            seconds = round(time.monotonic() - begin, 2)
            faults = [finding for finding in findings or () if finding.is_fault]
            status = "refused" if findings is None else "found" if faults else "good"
            told = [[finding.kind, finding.plan, finding.detail[:500]] for finding in findings or []]
            tell(seed=seed, state="done", status=status, findings=told, seconds=seconds)


# In the parent --------------------------------------------------------------------------------


class Sweep:
    """Distributes seeds to child processes and collects their findings."""

    def __init__(self, seeds: Sequence[int], out: Path) -> None:
        self._out = out
        self._log = out / "results.jsonl"
        self._lock = threading.Lock()
        out.mkdir(parents=True, exist_ok=True)
        self.results = {seed: result for seed, result in self._known() if seed in seeds}
        self._open = iter([seed for seed in seeds if seed not in self.results])
        self._wanted = len(seeds)

    def run(self, jobs: int) -> None:
        threads = [threading.Thread(target=self._drain) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _known(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._log.exists():
            for line in self._log.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # cut off where the last run ended
                    result = json.loads(line)
                    yield result["seed"], result

    def _drain(self) -> None:
        while True:
            with self._lock:
                batch = [seed for _, seed in zip(range(BATCH), self._open, strict=False)]
            if not batch:
                return
            while batch:
                batch = self._batch(batch)

    def _batch(self, seeds: list[int], isolate: bool = False) -> list[int]:
        """Examine ``seeds`` in one process; returns the remaining seeds after a crash."""
        command = [sys.executable, "-m", "tests.fuzz.graphs.run", "--out", str(self._out)]
        command += ["--isolate"] if isolate else []
        process = subprocess.Popen(
            [*command, "--work", *map(str, seeds)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
        reader.start()
        state, left = "growing", list(seeds)
        watch = threading.Timer(PATIENCE, process.kill)
        watch.start()
        for line in process.stdout:
            message = json.loads(line)
            watch.cancel()
            watch = threading.Timer(PATIENCE, process.kill)
            watch.start()
            state = message.pop("state")
            if state == "done":
                left.remove(message["seed"])
                self._note(message)
        watch.cancel()
        process.wait()
        reader.join()
        if left and process.returncode:
            seed = left.pop(0)
            if state == "examining" and not isolate:
                self._batch([seed], isolate=True)  # it may be the original that dies
                return left
            words = "".join(errors).strip().splitlines()[-1:]
            detail = f"exit status {process.returncode}: {' '.join(words)[:300]}"
            status = "found" if state == "examining" else "generator failed"
            findings = [["crash", "", detail]] if status == "found" else []
            self._note({"seed": seed, "status": status, "findings": findings, "detail": detail})
        return left

    def _note(self, result: dict[str, Any]) -> None:
        with self._lock:
            self.results[result["seed"]] = result
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            for kind, plan, detail in result.get("findings", ()):
                print(f"seed {result['seed']}: {kind} under {plan}: {detail}", flush=True)
            if len(self.results) % 500 == 0:
                print(f"[{len(self.results)}/{self._wanted}]", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """All in one line."""
        status = Counter(result["status"] for result in self.results.values())
        kinds = Counter(finding[0] for r in self.results.values() for finding in r.get("findings", ()))
        judged = status["good"] + status["found"]
        seeds = sorted(self.results)
        share = 100 * judged / max(1, len(seeds))
        found = ", ".join(f"{kind} ×{count}" for kind, count in sorted(kinds.items())) or "nothing"
        return (
            f"seeds {seeds[0]} to {seeds[-1]}: {len(seeds)} graphs, {judged} judged ({share:.1f} %),"
            f" {status['refused']} that onnxruntime refuses, {status['generator failed']} not generated;"
            f" found: {found}"
        )


def show(seed: int) -> None:
    """Print the model of a seed, and its findings."""
    model, ways = model_of(seed)
    print(onnx.printer.to_text(model))
    findings = examine(model, ways)
    print("refused by onnxruntime" if findings is None else "\n".join(map(str, findings)) or "good")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="tests.fuzz.graphs.run",
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="default: %(default)s")
    parser.add_argument("--show", type=int, metavar="SEED", help="print and examine the model of one seed")
    parser.add_argument("--isolate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.show is not None:
        show(options.show)
        return 0
    if options.work:
        work(options.work, options.out, options.isolate)
        return 0
    sweep = Sweep(range(options.seed, options.seed + options.count), options.out)
    sweep.run(options.jobs)
    print(sweep.summary())
    return int(any(result["status"] == "found" for result in sweep.results.values()))


if __name__ == "__main__":
    sys.exit(main())
