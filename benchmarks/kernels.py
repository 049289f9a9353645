"""Native kernels for memory-bound chains, compared with onnxruntime.

    python -m benchmarks.kernels                                 all patterns and sizes, one thread
    python -m benchmarks.kernels --only 'gelu|norm' --threads 2
    python -m benchmarks.kernels --docs docs/kernels.md

Each pattern is optimized by ``fuse-groups`` and timed alternately with the original in fresh processes, in
default sessions with bound inputs and outputs. Ratios are medians over rounds and processes; the twin is the
original once more, and inside the band of its ratios nothing is claimed. Bytes are those of inputs and
outputs, each counted once; a copy of 64 MB in the same rounds measures the memory bandwidth.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bound_sessions import COPIED, COPY, Racer, race
from benchmarks.doc_tables import machine, markdown_table, publish, versions
from benchmarks.kernel_models import PATTERNS, Example
from benchmarks.native_models import Native, natives
from benchmarks.race_options import race_arguments, thread_count
from graphopt.ort import session
from graphopt.process.child import Child
from graphopt.timing import ratios

SIZES = {"256 KB": 256 << 10, "4 MB": 4 << 20, "64 MB": 64 << 20}
ORIGINAL, TWIN, NATIVE = "onnxruntime", "onnxruntime again", "kernels"
#: Tolerance of outputs, relative to the largest element, to check that both compute the same.
TOLERANCE = 1e-5


def error(example: Example, native: Native) -> float:
    """The largest difference from the original's outputs, relative to the largest element of each."""
    expected = session.run(session.create(example.model.SerializeToString(), threads=1), example.feeds)
    actual = session.run(session.create(native.model, threads=1, choice=native.choice), example.feeds)
    worst = 0.0
    for one, two in zip(expected, actual, strict=True):
        a, b = one.astype(np.float64), two.astype(np.float64)
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-12)))
    return worst


def measure(example: Example, native: Native, threads: int, processes: int, seconds: float) -> dict[str, Any]:
    """Times, ratios and bytes per second."""
    plain = Racer(example.model.SerializeToString())
    racers = {ORIGINAL: plain, NATIVE: Racer(native.model, native.choice), TWIN: plain}
    found: list[dict[str, list[float]]] = []
    for index in range(processes):
        with Child(preload=["onnxruntime", "benchmarks.bound_sessions"]) as child:
            found.append(child.call(race, racers, example.feeds, threads, seconds, index, timeout=600))
    band = ratios.band_of([_ratio(times, TWIN) for times in found])
    compared = ratios.compare([_ratio(times, NATIVE) for times in found], band)
    outputs = session.run(session.create(plain.model, threads=1), example.feeds)
    moved = sum(value.nbytes for value in (*example.feeds.values(), *outputs))
    seconds_each = {name: ratios.median([t for times in found for t in times[name]]) for name in found[0]}
    shares = [
        ratios.median([c / k for c, k in zip(times[COPY], times[NATIVE], strict=True)]) * moved / (2 * COPIED)
        for times in found
    ]
    return {
        "milliseconds": {name: value * 1e3 for name, value in seconds_each.items()},
        "speedup": 1 / compared.ratio,
        "conclusion": compared.conclusion,
        "band": [band.low, band.high],
        "gigabytes": moved / seconds_each[NATIVE] / 1e9,
        "copy": 2 * COPIED / seconds_each[COPY] / 1e9,
        "share": ratios.median(shares),
        "groups": native.groups,
        "error": error(example, native),
    }


def _ratio(times: dict[str, list[float]], name: str) -> float:
    return ratios.median([a / b for a, b in zip(times[name], times[ORIGINAL], strict=True)])


#: Columns with the times of the original and the kernel.
TIMING_HEADER = ("onnxruntime (ms)", "kernel (ms)", "speedup", "band")


def timing_cells(row: dict[str, Any]) -> list[str]:
    """The cells of :data:`TIMING_HEADER`, from a result of :func:`measure`."""
    times, (low, high) = row["milliseconds"], row["band"]
    return [
        f"{times[ORIGINAL]:.3g}",
        f"{times[NATIVE]:.3g}",
        f"{row['speedup']:.2f}",
        f"{low:.2f} … {high:.2f}",
    ]


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["pattern"],
            row["size"],
            *timing_cells(row),
            f"{row['gigabytes']:.1f}",
            f"{row['share']:.0%}",
            f"{row['error']:.0e}",
        ]
        for row in rows
    ]
    header = ["pattern", "size", *TIMING_HEADER, "GB/s", "of a copy", "error"]
    return markdown_table(header, lines)


def main() -> int:
    parser = race_arguments(
        __doc__ or "", "patterns whose name matches", processes=5, seconds=1.0, per="process"
    )
    parser.add_argument("--sizes", default=",".join(SIZES), help=f"of {', '.join(SIZES)} (default: all)")
    parser.add_argument("--pipeline", default="fuse-groups", help="default: fuse-groups")
    options = parser.parse_args()
    chosen = [name for name in PATTERNS if re.search(options.only, name)]
    sizes = [name for name in SIZES if name in options.sizes.split(",")]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        small = [PATTERNS[name](SIZES["256 KB"]).model for name in chosen]
        made = natives(small, options.pipeline, Path(folder))
        for name, native in zip(chosen, made, strict=True):
            for size in sizes:
                example = PATTERNS[name](SIZES[size])
                found = measure(example, native, options.threads, options.processes, options.seconds)
                rows.append({"pattern": example.about, "name": name, "size": size} | found)
                print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    copies = ratios.median([row["copy"] for row in rows])
    text = f"{table(rows)}\n\n{thread_count(options)}; a copy moves {copies:.1f} GB/s, on {machine()}."
    section = "kernels" if options.threads == 1 else f"kernels-{options.threads}"
    publish(options, section, text, {"versions": versions(options.peer_python), "patterns": rows})
    return int(any(row["error"] > TOLERANCE for row in rows))


if __name__ == "__main__":
    sys.exit(main())
