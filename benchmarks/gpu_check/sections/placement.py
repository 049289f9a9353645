"""Predicted placement of nodes on providers, compared with that of sessions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import graphopt
from benchmarks.gpu_check.example_models import Case, cases
from benchmarks.gpu_check.rows import Column
from benchmarks.gpu_check.section import Bench, Measure, NotApplicable, Outcome, Section
from graphopt.ort import session
from graphopt.placement import compare_placement, predict
from graphopt.placement.compare_placement import RECORDING

#: Maximum number of differences in a note.
_MOST = 3


def _items(bench: Bench) -> dict[str, Measure]:
    if bench.device.capabilities.is_host:
        raise NotApplicable(f"sessions for the {bench.device} place all nodes there")
    return {name: partial(_measure, bench, make) for name, make in cases(bench).items()}


def _measure(bench: Bench, make: Callable[[], Case]) -> Outcome:
    import onnxruntime

    case = make()
    prediction = predict(graphopt.load_model(case.path), bench.device)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*RECORDING)
    made = session.create(case.path, device=bench.device, optimizations="off", options=options)
    different = compare_placement(made, prediction)
    figures = {
        "nodes": len(prediction.nodes),
        "on_cpu": sum(not node.on_device for node in prediction.nodes),
        "copies": len(prediction.copies),
        "differences": len(different),
    }
    return Outcome(figures, "; ".join(map(str, different[:_MOST])))


SECTION = Section(
    "placement",
    "Predicted placement of nodes, compared with sessions",
    25.0,
    (
        Column("nodes", "nodes"),
        Column("on_cpu", "predicted on the CPU"),
        Column("copies", "predicted copies"),
        Column("differences", "nodes placed otherwise"),
    ),
    _items,
)
