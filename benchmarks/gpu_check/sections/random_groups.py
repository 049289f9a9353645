"""Kernels of random graphs, and of graphs of one operator each, compared with double precision."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu_check.native import kernel_levels, require_backend
from benchmarks.gpu_check.rows import Column, number
from benchmarks.gpu_check.section import Bench, Measure, Outcome, Section
from graphopt import config, ir
from graphopt.errors import RuntimeFailure
from graphopt.fusion.backend import backend_for
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.util.disk_store import Store
from tests.fuzz.kernels.all_groups import grouped
from tests.fuzz.kernels.compare import mismatches
from tests.fuzz.kernels.operator_graphs import operator_graphs
from tests.fuzz.kernels.random_graphs import RandomGraph, generate

#: Random graphs of one item, and the number of items: on a device and in a rehearsal.
_SEEDS = 12
_ITEMS, _REHEARSED = 6, 1
#: Graphs of one operator in an item.
_OPERATORS = 40
_MOST = 3


def _items(bench: Bench) -> dict[str, Measure]:
    require_backend(bench.device)
    items: dict[str, Measure] = {}
    for first in range(0, (_REHEARSED if bench.is_rehearsal else _ITEMS) * _SEEDS, _SEEDS):
        seeds = range(first, first + _SEEDS)
        items[f"seeds {seeds[0]}–{seeds[-1]}"] = partial(_random, bench, seeds)
    for first in range(0, len(_operators()), _OPERATORS) if not bench.is_rehearsal else ():
        items[f"operators {first}–{first + _OPERATORS - 1}"] = partial(_single, bench, first)
    return items


def _operators() -> dict[str, RandomGraph]:
    """The first graph of each operator, by name."""
    found: dict[str, tuple[str, RandomGraph]] = {}
    for name, graph in operator_graphs():
        found.setdefault(name.split()[0], (name, graph))
    return dict(found.values())


def _random(bench: Bench, seeds: range) -> Outcome:
    return examine({f"seed {seed}": generate(seed) for seed in seeds}, bench)


def _single(bench: Bench, first: int) -> Outcome:
    return examine(dict(list(_operators().items())[first : first + _OPERATORS]), bench)


def examine(graphs: Mapping[str, RandomGraph], bench: Bench) -> Outcome:
    """Build the kernels of ``graphs`` in one library, run them on the device, and compare all outputs."""
    backend = backend_for(bench.device)
    assert backend is not None
    groups = {name: grouped(graph.model) for name, graph in graphs.items()}
    kernels = {
        kernel.name: kernel
        for group in groups.values()
        for kernel in group.kernels
        if backend.features.unsupported_part(kernel) is None
    }
    store, compiler = Store(bench.scratch), config.current().compiler
    library = backend.build(
        list(kernels.values()), store, compiler=compiler, levels=kernel_levels(bench.device)
    )
    choice = SessionChoice(libraries=(str(library),))
    faults: list[str] = []
    compared = 0
    for name, graph in graphs.items():
        reference = _reference(graph)
        if reference is None:
            continue
        made = session.create(ir.to_bytes(groups[name].model), device=bench.device, choice=choice)
        for sizes in graph.sizes():
            found = _faults(graph, made, reference, sizes)
            compared += found is not None
            faults += [f"{name} {sizes}: {fault}" for fault in found or ()]
    figures = {"graphs": len(graphs), "kernels": len(kernels), "compared": compared, "faults": len(faults)}
    return Outcome(figures, "; ".join(faults[:_MOST]))


def _reference(graph: RandomGraph) -> Any:
    """A session of the graph on the CPU; ``None`` if onnxruntime lacks kernels for its types."""
    try:
        return session.create(graph.model.SerializeToString(), optimizations="off")
    except RuntimeFailure:
        return None


def _faults(graph: RandomGraph, made: Any, reference: Any, sizes: Mapping[str, int]) -> list[str] | None:
    """Elements outside of the margins; ``None`` if onnxruntime or numpy do not support the inputs."""
    feeds = graph.feeds(sizes)
    try:
        expected = session.run(reference, feeds)
        exact, margins = graph.expected(feeds)
    except (RuntimeFailure, ValueError):  # the maximum of nothing, and the like
        return None
    outputs = session.run(made, feeds)
    compared = zip(graph.outputs, outputs, expected, exact, margins, strict=True)
    return [
        f"{value.name} at {fault}"
        for value, got, other, wanted, margin in compared
        for fault in mismatches(np.asarray(got), value.dtype, wanted, margin, [np.asarray(other)])
    ]


SECTION = Section(
    "random",
    "Kernels of random graphs, compared with double precision",
    30.0,
    (
        Column("graphs", "graphs"),
        Column("kernels", "kernels"),
        Column("compared", "runs"),
        Column("faults", "faults"),
        Column("seconds", "s", number(2)),
    ),
    _items,
)
