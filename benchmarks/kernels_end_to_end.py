"""Native kernels in whole models: pre- and postprocessing of networks, and small networks.

    python -m benchmarks.kernels_end_to_end                      all, one thread
    python -m benchmarks.kernels_end_to_end --only llama --threads 2
    python -m benchmarks.kernels_end_to_end --docs docs/kernels.md

Each model is timed unmodified, after -O3, and after -O3 with native kernels, in default sessions on the CPU,
by graphopt's harness: fresh processes, a new order in each round, medians of the ratios; the original runs
twice, and inside the 5th to 95th percentile of the ratios between the two nothing is claimed. The error is
the largest difference from the original's output relative to that output's largest element.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.doc_tables import machine, markdown_table, publish, versions
from benchmarks.kernel_models import NETWORKS, Example
from benchmarks.latency import distance
from benchmarks.native_models import Native, natives
from benchmarks.race_options import race_arguments, thread_count
from graphopt.ort import session
from graphopt.timing.alternating_runs import RaceLimits, Setup
from graphopt.timing.compare_speed import compare_speed

ORIGINAL, FUSED, NATIVE = "original", "-O3", "native"
PIPELINES = {FUSED: "O3", NATIVE: "native"}


def measure(example: Example, made: dict[str, Native], threads: int, limits: RaceLimits) -> dict[str, Any]:
    """Ratios to the original's time, and differences from its outputs."""
    plain = example.model.SerializeToString()
    setup = Setup(
        example.feeds, threads=threads, choices={name: native.choice for name, native in made.items()}
    )
    sources = {ORIGINAL: plain, **{name: native.model for name, native in made.items()}}
    timing = compare_speed(sources, setup, limits)
    expected = session.run(session.create(plain, threads=threads), example.feeds)
    errors = {}
    for name, native in made.items():
        running = session.create(native.model, threads=threads, choice=native.choice)
        errors[name] = max(map(distance, expected, session.run(running, example.feeds)))
    compared = {name: timing.speeds[name].comparison for name in made}
    return {
        "milliseconds": timing.speeds[ORIGINAL].p50,
        "speedups": {name: 1 / found.ratio for name, found in compared.items() if found is not None},
        "conclusions": {name: found.conclusion for name, found in compared.items() if found is not None},
        "band": [timing.band.low, timing.band.high],
        "kernels": len(made[NATIVE].groups),
        "errors": errors,
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        low, high = row["band"]
        cells = [
            f"{row['speedups'][name]:.2f}{' slower' * (row['conclusions'][name] == 'slower')}"
            for name in PIPELINES
        ]
        lines.append(
            [
                row["model"],
                f"{row['milliseconds']:.2f}",
                *cells,
                f"{low:.2f} … {high:.2f}",
                row["kernels"],
                f"{row['errors'][NATIVE]:.0e}",
            ]
        )
    header = ["model", "original (ms)", "-O3", "-O3 and kernels", "band", "kernels run", "error"]
    return markdown_table(header, lines)


def main() -> int:
    parser = race_arguments(
        __doc__ or "", "models whose name matches", processes=7, seconds=30.0, per="model"
    )
    options = parser.parse_args()
    limits = RaceLimits(processes=options.processes, seconds=options.seconds)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for name in NETWORKS if re.search(options.only, name)]:
            example = NETWORKS[name]()
            made = {
                kind: natives([example.model], pipeline, Path(folder))[0]
                for kind, pipeline in PIPELINES.items()
            }
            rows.append(
                {"model": example.about, "name": name} | measure(example, made, options.threads, limits)
            )
            print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    text = f"{table(rows)}\n\nSpeedups over the original; {thread_count(options)}, on {machine()}."
    section = "kernels-models" if options.threads == 1 else f"kernels-models-{options.threads}"
    publish(options, section, text, {"versions": versions(options.peer_python), "models": rows})
    return int(any(row["conclusions"][NATIVE] == "slower" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
