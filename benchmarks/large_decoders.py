"""Generate decoders with up to 30 GB of weights, and optimize them under a limit on memory.

    python -m benchmarks.large_decoders list
    python -m benchmarks.large_decoders generate 1b DIR
    python -m benchmarks.large_decoders run DIR [--names 1b,7b] [--limit 6] [-- --no-verify]

The weights are sparse files, so that a model of 30 GB occupies a few hundred MB of disk, until a program
copies the holes as zeros. `run` generates the models that DIR lacks, and optimizes each of them in a fresh
process with a limit on private memory (RLIMIT_DATA; Linux). It reports the peak of anonymous memory of all
processes of the run, the exit status, the verdict, and the bytes of files that the run left in the temporary
folder.
Arguments after `--` are options of `optimize`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.generated_decoder import Shape, weight_files, write

#: Decoders by name. `1b` has the sizes of TinyLlama, `7b` those of Llama 2.
SHAPES = {
    "tiny": Shape(2, 64, 128, 4, 2, 96),
    "tiny-int4": Shape(2, 64, 128, 4, 2, 96, block=32),
    "tiny-files": Shape(2, 64, 128, 4, 2, 96, is_split=True),
    "1b": Shape(22, 2048, 5632, 32, 4, 32000),
    "7b": Shape(32, 4096, 11008, 32, 32, 32000),
    "7b-int4": Shape(32, 4096, 11008, 32, 32, 32000, block=128),
    "15b": Shape(48, 5120, 13824, 40, 40, 32000),
    "files": Shape(44, 1024, 2816, 16, 4, 32000, is_split=True),
    "huge-tensor": Shape(4, 5120, 13824, 40, 8, 263680),
}
#: Seconds between two samples of memory.
_INTERVAL = 0.03


@dataclass(frozen=True)
class Run:
    """One run of `optimize`.

    Attributes:
        model: the decoder's name.
        weights: bytes of its weights.
        status: exit status.
        seconds, cpu_seconds: wall-clock and CPU time.
        anonymous_bytes: peak of anonymous memory of the process and its descendants.
        left_bytes: bytes of files left in the temporary folder.
        message: the verdict, or the error.
    """

    model: str
    weights: int
    status: int
    seconds: float
    cpu_seconds: float
    anonymous_bytes: int
    left_bytes: int
    message: str


def generate(name: str, folder: Path) -> Path:
    """The decoder `name` in `folder`, written unless it exists; returns its path."""
    path = folder / name / "model.onnx"
    if not path.is_file():
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir(parents=True)
        write(SHAPES[name], path)
    return path


def optimize(name: str, path: Path, scratch: Path, limit: float, options: list[str]) -> Run:
    """Optimize the decoder at `path` with at most `limit` GB of private memory in each process."""
    temporary, output = scratch / "tmp", scratch / "out"
    for folder in (temporary, output):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    report = scratch / "report.json"
    command = [*measured_tools.GRAPHOPT_COMMAND, *options, str(path), "-o", str(output / "model.onnx")]
    command += ["--report", str(report)]
    limited = ["sh", "-c", 'ulimit -d "$0" && exec "$@"', str(int(limit * 1e9) // 1024)]
    report.unlink(missing_ok=True)
    before = os.times()
    begin = time.perf_counter()
    with subprocess.Popen(
        [*limited, *command],
        cwd=measured_tools.ROOT,
        env=os.environ | {"TMPDIR": str(temporary), "GRAPHOPT_CACHE": "false"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _anonymous_bytes(process.pid))
            time.sleep(_INTERVAL)
        assert process.stdout is not None
        said = process.stdout.read().strip().splitlines()
    after = os.times()
    left = sum(file.stat().st_blocks * 512 for file in temporary.rglob("*") if file.is_file())
    shutil.rmtree(output)
    return Run(
        name,
        sum(file.stat().st_size for file in weight_files(path)),
        process.returncode,
        time.perf_counter() - begin,
        after.children_user + after.children_system - before.children_user - before.children_system,
        peak,
        left,
        _verdict(report) or (said[-1][:300] if said else ""),
    )


def _verdict(report: Path) -> str:
    """The verdict in a report of `optimize`; empty without a verification."""
    if not report.is_file():
        return ""
    found = json.loads(report.read_text(encoding="utf-8"))
    verification = found.get("verification") or {}
    return str(verification.get("summary") or verification.get("unverifiable") or "")


def _anonymous_bytes(session: int) -> int:
    """Anonymous memory of all processes of the session `session`."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # the process has ended
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return total


def table(runs: list[Run]) -> str:
    """A row per run."""
    header = ["model", "weights GB", "status", "seconds (CPU)", "anonymous MB", "left MB", "verdict"]
    rows = [
        [
            run.model,
            f"{run.weights / 1e9:.1f}",
            run.status,
            f"{run.seconds:.0f} ({run.cpu_seconds:.0f})",
            f"{run.anonymous_bytes / 1e6:.0f}",
            f"{run.left_bytes / 1e6:.0f}",
            run.message,
        ]
        for run in runs
    ]
    return f"{doc_tables.markdown_table(header, rows)}\n\nOn {doc_tables.machine()}."


def main() -> int:
    """Generate models, or optimize them."""
    arguments = sys.argv[1:]
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    parser = measured_models.arguments(__doc__ or "", models=False)
    parser.add_argument("action", choices=("list", "generate", "run"))
    parser.add_argument("operands", nargs="*", help="generate: NAME DIR; run: DIR")
    parser.add_argument("--limit", type=float, default=6.0, help="GB of private memory (default: 6)")
    parser.add_argument("--names", default="1b,7b-int4,7b", help="models of run (default: 1b,7b-int4,7b)")
    options = parser.parse_args(own)
    if options.action == "list":
        print("\n".join(f"{name}: {shape}" for name, shape in SHAPES.items()))
        return 0
    if options.action == "generate":
        name, folder = options.operands
        print(generate(name, Path(folder)))
        return 0
    folder = Path(options.operands[0])
    runs = []
    for name in options.names.split(","):
        path = generate(name, folder)
        runs.append(optimize(name, path, folder / "run", options.limit, arguments[len(own) + 1 :]))
        print(json.dumps(asdict(runs[-1])), file=sys.stderr)
    facts: dict[str, Any] = {"machine": doc_tables.machine(), "limit": options.limit}
    doc_tables.publish(
        options, "large-decoders", table(runs), facts | {"runs": [asdict(run) for run in runs]}
    )
    return int(any(run.status for run in runs))


if __name__ == "__main__":
    sys.exit(main())
