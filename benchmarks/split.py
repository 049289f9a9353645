"""Split models: saved bytes and step times, relative to saving everything.

    python -m benchmarks.split                                     print the table
    python -m benchmarks.split --only gpt --processes 3 --json out.json
    python -m benchmarks.split --docs docs/split.md

The splits of a model run alternately in several fresh processes, in changing order; a step is a run of the
forward model and of the backward model, with tensors of onnxruntime. Ratios are medians over rounds. The twin
is the split that saves everything, once more: the deviation of its ratio from 1 is noise.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from benchmarks.doc_tables import machine, markdown_table, publish
from benchmarks.measured_models import arguments
from benchmarks.split_models import Training, trainings
from benchmarks.split_step import Step, race
from graphopt import ir
from graphopt.autodiff.losses import Loss
from graphopt.autodiff.split_joint import Split, split
from graphopt.ort import session
from graphopt.process.child import Child
from graphopt.util.text_tables import counted, human_bytes

#: Memory budgets to compare; ``None`` saves everything.
FULL, TWIN, CUT = "everything", "everything again", "cut"
#: Tolerance of gradients against the joint graph, relative to the largest element.
TOLERANCE = 1e-4


def farthest(training: Training, found: Split) -> float:
    """Differences of outputs and gradients from the joint graph, relative to the largest element of each."""
    joint = found.joint.model
    running = session.create(ir.to_bytes(joint), threads=1)
    names = [value.name or "" for value in joint.graph.outputs]
    expected = dict(zip(names, session.run(running, training.feeds), strict=True))
    step = Step(ir.to_bytes(found.forward), ir.to_bytes(found.backward), training.feeds, 1)
    actual = {name: value.numpy() for name, value in step.run().items()}
    return max(
        float(np.abs(value - actual[name]).max() / max(np.abs(value).max(), 1e-6))
        for name, value in expected.items()
    )


def measure(training: Training, processes: int, rounds: int, threads: int) -> dict[str, Any]:
    """Bytes and ratios of times."""
    batch = next(iter(training.feeds.values())).shape[0]

    def made(**how: Any) -> Split:
        wrt = training.parameters
        return split(training.model, Loss.parse(training.loss), wrt, outputs="loss", dims={"N": batch}, **how)

    cut, full = made(), made(save_all=True)
    files = {
        name: (ir.to_bytes(one.forward), ir.to_bytes(one.backward))
        for name, one in ((FULL, full), (CUT, cut))
    }
    files[TWIN] = files[FULL]
    ratios: dict[str, list[float]] = {CUT: [], TWIN: []}
    seconds = []
    for index in range(processes):
        with Child(preload=["onnxruntime", "benchmarks.split_step"]) as child:
            times = child.call(race, files, training.feeds, rounds, threads, index, timeout=600)
        seconds += times[FULL]
        for name, found in ratios.items():
            found.append(float(np.median(np.array(times[name]) / np.array(times[FULL]))))
    return {
        "about": training.about,
        "everything": cut.report.everything,
        "saved": cut.report.saved,
        "ratio": cut.report.ratio,
        "recomputed_flops": cut.report.recomputed_flops / max(cut.report.flops, 1),
        "off": farthest(training, cut),
        "step_ms": 1e3 * float(np.median(seconds)),
        "time": float(np.median(ratios[CUT])),
        "times": ratios[CUT],
        "twin": ratios[TWIN],
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    """One row per model."""
    header = (
        "model",
        "saved without recomputation",
        "saved",
        "ratio",
        "recomputed",
        "step, ms",
        "time",
        "twin",
    )
    rows = [
        (
            row["about"],
            human_bytes(row["everything"]),
            human_bytes(row["saved"]),
            f"{row['ratio']:.2f}",
            f"{row['recomputed_flops']:.1%} of operations",
            f"{row['step_ms']:.1f}",
            f"{row['time']:.2f} ({min(row['times']):.2f} … {max(row['times']):.2f})",
            f"{min(row['twin']):.2f} … {max(row['twin']):.2f}",
        )
        for row in found.values()
    ]
    return markdown_table(header, rows)


def main(words: list[str] | None = None) -> int:
    """Measure; the exit status is 1 if a split is not equivalent."""
    parser = arguments(__doc__.partition("\n")[0], models=False)
    parser.add_argument("--only", default="", metavar="RE", help="models whose names match")
    parser.add_argument("--processes", type=int, default=7, help="fresh processes (default: 7)")
    parser.add_argument(
        "--rounds", type=int, default=15, help="steps of each split in a process (default: 15)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads inside an operator (default: 1)")
    options = parser.parse_args(words)
    found = {}
    for name, training in trainings().items():
        if re.search(options.only, name):
            print(name, file=sys.stderr, flush=True)
            found[name] = measure(training, options.processes, options.rounds, options.threads)
    text = f"{table(found)}\n\n{machine()}; {counted(options.threads, 'thread')}; the machine was shared"
    publish(options, "split", text, found)
    return int(any(row["off"] > TOLERANCE for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
