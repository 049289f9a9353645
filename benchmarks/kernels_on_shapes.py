"""Kernels of products, recurrences and attention over the shapes of real models, compared with onnxruntime.

    python -m benchmarks.kernels_on_shapes MODELS
    python -m benchmarks.kernels_on_shapes MODELS --operators 'Conv|LSTM' --threads 2
    python -m benchmarks.kernels_on_shapes MODELS --docs docs/kernels.md

All groups that have a template are raced one by one, as by `graphopt kernels --candidates`: in a model of
one call, with the inputs that it has in a run of the whole model, in fresh processes, alternately with
onnxruntime's kernels of the same nodes. Equal calls of all models are raced once. Shares of the peak are
those of the operations in the products, by the measured peak of multiply-adds (docs/bench.md). For each
operator, the table has at most --rows shapes, evenly chosen by their number of operations.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import measured_models
from benchmarks.doc_tables import geometric_mean, machine, markdown_table, publish, versions
from benchmarks.inputs import make_feeds
from benchmarks.measured_models import Case
from graphopt import config, ir
from graphopt.fusion.group_functions import groups_of
from graphopt.fusion.kernel_library import Toolchain
from graphopt.fusion.template_table import has_template
from graphopt.ort.devices import CPU
from graphopt.ort.session_options import SessionChoice
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.kernel_costs import group_operations
from graphopt.timing.measure_peaks import peaks_of
from graphopt.tuning.call_subjects import CallSubject, call_subjects
from graphopt.tuning.kernel_candidates import propose_candidates
from graphopt.tuning.race_kernels import KERNEL, NODES, RaceResult, race_kernels
from graphopt.util.disk_store import Store

#: Names of element types in onnxruntime's profiles, by the names in subjects.
_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Shape:
    """A group with a template at the sizes of a model."""

    model: str
    operator: str
    subject: CallSubject
    libraries: SessionChoice
    operations: int | None


def shapes_of(case: Case, folder: Path, known: set[tuple[str, ...]]) -> list[Shape]:
    """The groups of a model that have a template, except those in ``known``, which is extended."""
    settings = replace(config.current(), cache_dir=folder)
    model, _ = propose_candidates(ir.load(case.path), settings)
    anchors = {}
    for group in groups_of(model):
        found = [node.op_type for node in group.function.graph if has_template(node)]
        if found and group.kernel is not None:
            anchors[group.name] = (found[0], group.function)
    if not anchors:
        return []
    libraries = Toolchain(settings, CPU).libraries(model)
    result = []
    for subject in call_subjects(model, make_feeds(case.entry, 0), CPU).subjects:
        key = (subject.group, *subject.types)
        if subject.group in anchors and key not in known:
            known.add(key)
            operator, function = anchors[subject.group]
            operations = group_operations(function, [_typed(text) for text in subject.types])
            result.append(Shape(case.name, operator, subject, libraries.choice, operations))
    return result


def _typed(text: str) -> tuple[str, list[int]]:
    """Type and dims, from text such as ``constant float[3,4]``."""
    kind, _, dims = text.removeprefix("constant ").removesuffix("]").partition("[")
    return _TYPES.get(kind, kind), [int(dim) for dim in dims.split(",") if dim]


def chosen(found: Sequence[Shape], rows: int) -> list[Shape]:
    """At most ``rows`` shapes for each operator, evenly by their number of operations."""
    by_operator: dict[str, list[Shape]] = {}
    for shape in sorted(found, key=lambda shape: (shape.operator, shape.operations or 0)):
        by_operator.setdefault(shape.operator, []).append(shape)
    return [
        shapes[index]
        for shapes in by_operator.values()
        for index in sorted({round(i * (len(shapes) - 1) / max(rows - 1, 1)) for i in range(rows)})
    ]


class _NoStore:
    """Keeps no results of races."""

    def recall(self, subject: CallSubject) -> RaceResult | None:
        return None

    def keep(self, subject: CallSubject, result: RaceResult) -> None:
        pass


def row_of(shape: Shape, result: RaceResult, peak: float | None) -> dict[str, Any]:
    """Times, ratio and shares of the peak."""
    measurement = result.measurement
    assert measurement is not None, "there is no limit on the time"
    gigaflops = {
        name: None if shape.operations is None else shape.operations / seconds / 1e9
        for name, seconds in result.seconds.items()
    }
    return {
        "operator": shape.operator,
        "group": shape.subject.group,
        "model": shape.model,
        "inputs": list(shape.subject.types),
        "calls": len(shape.subject.calls),
        "mflop": None if shape.operations is None else shape.operations / 1e6,
        "milliseconds": {name: seconds * 1e3 for name, seconds in result.seconds.items()},
        "ratio": None if measurement.failure else measurement.ratio,
        "band": [measurement.band.low, measurement.band.high],
        "reason": result.reason,
        "shares": {
            name: None if rate is None or peak is None else rate / peak for name, rate in gigaflops.items()
        },
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    header = [
        "operator", "inputs", "model", "MFLOP", "onnxruntime (ms)", "kernel (ms)", "ratio", "band",
        "of the peak, onnxruntime", "kernel",
    ]  # fmt: skip
    lines = []
    for row in rows:
        if row["ratio"] is None:
            continue
        times, (low, high) = row["milliseconds"], row["band"]
        sizes = " ".join(re.sub(r"^(constant )?\w+", "", text).replace(",", "×") for text in row["inputs"])
        work = "" if row["mflop"] is None else f"{row['mflop']:.3g}"
        shares = [
            "" if row["shares"][name] is None else f"{row['shares'][name]:.0%}" for name in (NODES, KERNEL)
        ]
        lines.append(
            [
                row["operator"], sizes, row["model"], work, f"{times[NODES]:.3g}", f"{times[KERNEL]:.3g}",
                f"{row['ratio']:.2f}", f"{low:.2f} … {high:.2f}", *shares,
            ]
        )  # fmt: skip
    return markdown_table(header, lines)


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The geometric mean, and the number of shapes that the kernel wins, by operator."""
    lines = []
    for operator in dict.fromkeys(row["operator"] for row in rows):
        found = [row for row in rows if row["operator"] == operator and row["ratio"] is not None]
        won = sum(row["reason"] == "faster" for row in found)
        if found:
            mean = geometric_mean([row["ratio"] for row in found])
            lines.append(f"- {operator}: faster at {won} of {len(found)} shapes, geometric mean {mean:.2f}")
    return lines


def main() -> int:
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--operators", default="", metavar="RE", help="only operators whose name matches")
    parser.add_argument("--rows", type=int, default=8, help="shapes per operator (default: 8)")
    parser.add_argument("--threads", type=int, default=1, help="threads of onnxruntime (default: 1)")
    options = parser.parse_args()
    found: list[Shape] = []
    known: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for case in measured_models.progress(measured_models.cases(options, folder)):
            found += shapes_of(case, folder / "store", known)
        shapes = chosen(
            [shape for shape in found if re.search(options.operators, shape.operator)], options.rows
        )
        peak = peaks_of(Store(folder / "store"), options.threads).of_type("float")
        rows = []
        for shape in shapes:
            setup = Setup({}, device=CPU, threads=options.threads)
            (result,) = race_kernels([shape.subject], setup, shape.libraries, _NoStore(), seconds=600)
            rows.append(row_of(shape, result, None if peak is None else peak / 1e9))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    count = f"{options.threads} thread{'s' * (options.threads != 1)}"
    where = f"{count}; peak {0 if peak is None else peak / 1e9:.0f} GFLOP/s, on {machine()}."
    text = "\n".join([table(rows), "", *summary(rows), "", where])
    section = "kernels-shapes" if options.threads == 1 else f"kernels-shapes-{options.threads}"
    publish(options, section, text, {"versions": versions(options.peer_python), "shapes": rows})
    return int(any(row["ratio"] is None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
