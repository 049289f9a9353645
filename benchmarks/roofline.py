"""The lost time of kernels, compared with the peaks of the machine, by operator.

    python -m benchmarks.roofline                        the networks of benchmarks.kernel_models
    python -m benchmarks.roofline DIR --native           a folder of models, also with native kernels
    python -m benchmarks.roofline --native --docs docs/kernels.md

Each model is profiled as by ``graphopt bench --roofline``, in a default session on the CPU. The lost time of
a kernel is its time beyond the least time, which its operations require at the peak of multiply-adds, or its
bytes at the bandwidth of a copy. Kernels without a formula, such as those of Einsum, lose no time in this
table.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks.doc_tables import machine, markdown_table, publish, versions
from benchmarks.inputs import Feeds, make_feeds
from benchmarks.kernel_models import NETWORKS
from benchmarks.measured_models import arguments, cases
from benchmarks.native_models import natives
from graphopt import config, ir
from graphopt.ort import session
from graphopt.ort.devices import CPU
from graphopt.ort.session_options import SessionChoice
from graphopt.timing.alternating_runs import Setup, output_shapes
from graphopt.timing.kernel_profile import KernelProfile
from graphopt.timing.measure_peaks import peaks_of
from graphopt.timing.roofline import KernelTime, Roofline
from graphopt.util.disk_store import Store

#: Number of operators in the table.
LISTED = 10
NATIVE = "native"


@dataclass(frozen=True)
class Measured:
    """A model and its inputs."""

    name: str
    model: ir.Model
    feeds: Feeds


def models(options: Any, scratch: Path) -> Iterator[Measured]:
    """The models of the folder, or the networks."""
    if options.models is not None:
        for case in cases(options, scratch):
            yield Measured(case.name, ir.load(case.path), make_feeds(case.entry, 0))
        return
    for name in [name for name in NETWORKS if re.search(options.only, name)]:
        example = NETWORKS[name]()
        yield Measured(name, ir.from_proto(example.model), example.feeds)


def profiles(one: Measured, threads: int, folder: Path, *, native: bool) -> list[KernelProfile]:
    """Profiles of the model, and of the model with native kernels if ``native``."""
    found = [(one.name, one.model, SessionChoice())]
    if native:
        (made,) = natives([ir.to_proto(one.model)], NATIVE, folder)
        found.append((f"{one.name}, {NATIVE}", ir.from_proto(onnx.load_from_string(made.model)), made.choice))
    data = ir.to_bytes(one.model)
    outputs = session.run(session.create(data, threads=threads), one.feeds)
    choices = {name: choice for name, _, choice in found}
    setup = Setup(one.feeds, output_shapes(outputs), CPU, threads, choices=choices)
    result = []
    for number, (name, model, _) in enumerate(found):
        path = folder / f"{number}.onnx"
        ir.save(model, path)
        result.append(KernelProfile.of(name, path, model, setup))
    return result


def model_rows(found: Sequence[Roofline]) -> str:
    """A table of models: time, operators, share far from both peaks."""
    lines = []
    for one in found:
        shares: dict[str, float] = {}
        for kernel in one.kernels:
            name = label(kernel.op)
            shares[name] = shares.get(name, 0.0) + one.share([kernel])
        largest = sorted(shares.items(), key=lambda item: -item[1])[:3]
        lines.append(
            [
                one.model,
                f"{one.milliseconds:.3g}",
                ", ".join(f"{name} {share:.0%}" for name, share in largest),
                f"{one.lost_milliseconds / (one.milliseconds or 1.0):.0%}",
                f"{one.far_share:.0%}",
                f"{one.unknown_share:.0%}",
            ]
        )
    header = ["model", "ms", "largest shares", "lost", "far from both peaks", "unknown"]
    return markdown_table(header, lines)


def operator_rows(found: Sequence[Roofline]) -> str:
    """A table of the operators with the most lost time over all models, relative to the models' times."""
    lost: dict[str, list[tuple[float, Roofline, KernelTime]]] = {}
    for one in found:
        for kernel in one.kernels:
            share = (kernel.lost_milliseconds or 0.0) / (one.milliseconds or 1.0)
            lost.setdefault(label(kernel.op), []).append((share, one, kernel))
    ranked = sorted(lost.items(), key=lambda item: -sum(share for share, *_ in item[1]))
    lines = []
    for op, kernels in ranked[:LISTED]:
        share, model, kernel = max(kernels, key=lambda entry: entry[0])
        lines.append(
            [
                op,
                len(kernels),
                len({one.model for _, one, _ in kernels}),
                f"{sum(entry[0] for entry in kernels) / len(found):.1%}",
                f"{sum(entry[2].lost_milliseconds or 0.0 for entry in kernels):.3g}",
                f"{model.model}: {share:.0%}, {reach(kernel)}",
            ]
        )
    header = ["operator", "kernels", "models", "share lost", "lost ms", "largest loss in one kernel"]
    return markdown_table(header, lines)


def label(op: str) -> str:
    """The name of an operator; of a native group, without the digest."""
    return re.sub(r"_[0-9a-f]{12}$", " (group)", op)


def reach(kernel: KernelTime) -> str:
    """The shares of both peaks."""
    return f"{kernel.compute_share or 0:.0%} of products, {kernel.bandwidth_share or 0:.0%} of a copy"


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--threads", type=int, default=1, help="threads of onnxruntime (default: 1)")
    parser.add_argument("--native", action="store_true", help="also profile models with native kernels")
    options = parser.parse_args()
    store = Store(config.current().cache_dir)
    found: list[KernelProfile] = []
    with tempfile.TemporaryDirectory() as folder:
        for one in models(options, Path(folder)):
            print(one.name, file=sys.stderr, flush=True)
            found += profiles(one, options.threads, Path(folder), native=options.native)
        rooflines = [one.roofline(peaks_of(store, options.threads)) for one in found]
    peaks = rooflines[0].peaks
    rates = ", ".join(f"{kind} {peak.rate / 1e9:.0f}" for kind, peak in peaks.flops.items())
    count = f"{options.threads} thread{'s' * (options.threads != 1)}"
    text = (
        f"{model_rows(rooflines)}\n\n{operator_rows(rooflines)}\n\n"
        f"{count}; peaks in GFLOP/s: {rates}; a copy moves {peaks.bandwidth.rate / 1e9:.1f} GB/s;"
        f" on {machine()}."
    )
    section = "roofline" if options.threads == 1 else f"roofline-{options.threads}"
    results = {
        "versions": versions(options.peer_python),
        "models": [one.to_dict() for one in rooflines],
    }
    publish(options, section, text, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
