"""Run the command line on corrupted models, in processes whose crashes are detected.

``python -m tests.fuzz.files.run --seed 0 --cases 10000`` reports faults, and exits with status 1 if there are any.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

#: Time limit of one case, in seconds.
PATIENCE = 30.0
#: One of this many cases is also verified, which is slow.
VERIFIED = 5


@dataclass(frozen=True)
class Ended:
    """The result for one corrupted model: exit status, negative for a signal, and output."""

    case: int
    model: str
    status: int
    said: str
    seconds: float

    @property
    def is_fault(self) -> bool:
        """Whether that is no way to end."""
        return self.status not in range(7) or "Traceback" in self.said or self.seconds > PATIENCE


def broken(seed: int, case: int) -> tuple[str, bytes]:
    """The name of the model that ``case`` corrupts, and the corrupted bytes."""
    from onnx import parser

    from tests.fuzz.files.mutations import mutate
    from tests.fuzz.files.sources import SOURCES

    name = list(SOURCES)[case % len(SOURCES)]
    return name, mutate(
        parser.parse_model(SOURCES[name]).SerializeToString(), random.Random(f"{seed}/{case}")
    )


def run(seed: int, first: int, last: int) -> list[Ended]:
    """Run cases ``first`` to ``last`` (exclusive), in a new process whenever one crashes or hangs."""
    found: list[Ended] = []
    while first < last:
        ended = _run_until_death(seed, first, last)
        found += ended
        first = ended[-1].case + 1
    return found


def _run_until_death(seed: int, first: int, last: int) -> list[Ended]:
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.files.run", "--serve", str(seed), str(first), str(last)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    found: list[Ended] = []
    while True:
        watchdog = threading.Timer(2 * PATIENCE, process.kill)
        watchdog.start()
        begin = time.monotonic()
        line = process.stdout.readline()
        watchdog.cancel()
        if not line:
            break
        found.append(Ended(**json.loads(line)))
    status = process.wait()
    process.stdout.close()
    if len(found) < last - first:
        case = first + len(found)
        found.append(
            Ended(case, broken(seed, case)[0], status or 99, "the process died", time.monotonic() - begin)
        )
    return found


def _serve(seed: int, first: int, last: int) -> None:
    from graphopt.cli.main import main

    replies = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryDirectory() as folder:
        path, target = Path(folder) / "m.onnx", Path(folder) / "o.onnx"
        for case in range(first, last):
            name, data = broken(seed, case)
            path.write_bytes(data)
            verify = [] if case // 21 % VERIFIED == 0 else ["--no-verify"]
            said, begin = io.StringIO(), time.monotonic()
            with redirect_stdout(said), redirect_stderr(said):
                status = int(main(["optimize", str(path), "-o", str(target), "-q", *verify], {}))
            ended = Ended(case, name, status, said.getvalue()[:600], time.monotonic() - begin)
            print(json.dumps(vars(ended)), file=replies, flush=True)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--serve", nargs=3, type=int)
    given = parser.parse_args()
    if given.serve:
        _serve(*given.serve)
        return 0
    begin = time.monotonic()
    found = run(given.seed, given.first, given.first + given.cases)
    faults = [ended for ended in found if ended.is_fault]
    for ended in faults:
        print(
            f"case {ended.case} ({ended.model}): status {ended.status}, {ended.seconds:.1f} s, {ended.said!r}"
        )
    told = ", ".join(
        f"{count:,} × {status}" for status, count in sorted(Counter(e.status for e in found).items())
    )
    seconds = time.monotonic() - begin
    print(f"seed {given.seed}: {len(found):,} cases, {len(faults)} faults; statuses {told}; {seconds:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(_main())
