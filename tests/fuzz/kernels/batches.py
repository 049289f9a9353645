"""Random graphs in batches with one library: each graph runs without and with its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphopt import ir
from graphopt.errors import RuntimeFailure
from graphopt.fusion.backends.c.build_library import Plan
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.fusion.backends.c.source_file import source
from graphopt.fusion.template_kernel import NativeKernel
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fuzz.kernels.all_groups import Grouped, grouped
from tests.fuzz.kernels.compare import mismatches
from tests.fuzz.kernels.operator_graphs import operator_graphs
from tests.fuzz.kernels.random_graphs import RandomGraph, generate

#: Number of kernels per source file.
_UNIT = 12


@dataclass
class Findings:
    """The findings of a batch.

    Attributes:
        faults: mismatches, with the seed of the graph.
        judged: number of outputs that were compared.
        nodes, left: number of nodes of the graphs, and of those without kernels.
        without: reasons for graphs without kernels.
    """

    faults: list[str] = field(default_factory=list)
    judged: int = 0
    nodes: int = 0
    left: int = 0
    without: dict[str, str] = field(default_factory=dict)


def library(
    kernels: Sequence[NativeKernel],
    folder: Path,
    levels: tuple[int, ...],
    quickly: bool = True,
    more: tuple[str, ...] = (),
) -> Path:
    """A library of ``kernels`` with distinct names.

    Args:
        quickly: whether to compile with few optimizations.
        more: further arguments of the compiler.
    """
    units = [source(kernels[start : start + _UNIT]) for start in range(0, len(kernels), _UNIT)]
    plan = Plan(
        tuple(units), len(kernels), find_compiler(None), levels, (*(("-O1",) if quickly else ()), *more)
    )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "kernels.so"
    plan.make(folder, target)
    return target


def cpu_levels() -> tuple[int, ...]:
    """The CPU levels of this machine."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return (2,)
    found = [
        2,
        *([3] if {"avx2", "fma"} <= flags else []),
        *([4] if {"avx512bw", "avx512vl"} <= flags else []),
    ]
    return tuple(found)


def examine(seeds: Sequence[int], folder: Path, level: int) -> Findings:
    """Compile the kernels of the graphs of ``seeds`` for one CPU level, run them, and compare."""
    return _examine({f"seed {seed}": generate(seed) for seed in seeds}, folder, level)


def examine_operators(folder: Path, level: int, few: int | None = None) -> Findings:
    """The same for graphs of one operator each; a missing kernel is also a fault.

    Args:
        few: number of graphs of each operator; by default all.
    """
    return with_missing_kernels(_examine(graphs_of_operators(few), folder, level))


def graphs_of_operators(few: int | None = None) -> dict[str, RandomGraph]:
    """Graphs of one operator each, by name: the first ``few`` of each operator, by default all."""
    kinds: dict[str, list[tuple[str, RandomGraph]]] = {}
    for name, graph in operator_graphs():
        kinds.setdefault(name.split()[0], []).append((name, graph))
    return {name: graph for graphs in kinds.values() for name, graph in graphs[:few]}


def with_missing_kernels(findings: Findings) -> Findings:
    """``findings`` with missing kernels among the faults."""
    findings.faults += [f"{name}: {reason}" for name, reason in findings.without.items()]
    return findings


def _examine(graphs: Mapping[str, RandomGraph], folder: Path, level: int) -> Findings:
    groups = {name: grouped(graph.model) for name, graph in graphs.items()}
    kernels = {kernel.name: kernel for group in groups.values() for kernel in group.kernels}
    path = library(list(kernels.values()), folder, (level,))
    findings = Findings()
    for name, graph in graphs.items():
        group = groups[name]
        if not group.kernels:
            findings.without[name] = "; ".join(group.reasons.values())
            continue
        findings.nodes += len(graph.grower.nodes)
        findings.left += sum(node.domain == "" for node in group.model.graph)
        try:
            _compare(name, graph, group, path, findings)
        except RuntimeFailure as failure:
            findings.faults.append(f"{name}: {failure}")
    return findings


def _compare(name: str, graph: RandomGraph, group: Grouped, path: Path, findings: Findings) -> None:
    without = sessions_without(graph)
    choice = SessionChoice(libraries=(str(path),))
    try:
        with_it = session.create(ir.to_bytes(group.model), threads=2, choice=choice)
    except RuntimeFailure:
        if without:
            raise
        return  # the remaining nodes of a graph of such types do not run either
    judge(name, graph, without, lambda feeds: session.run(with_it, feeds), findings)


def sessions_without(graph: RandomGraph) -> list[session.Session]:
    """Sessions without kernels, not optimized and optimized; none for types that onnxruntime lacks kernels for."""
    plain = graph.model.SerializeToString()
    try:
        return [session.create(plain, optimizations=kind, threads=1) for kind in ("off", "default")]
    except RuntimeFailure:
        return []  # double precision judges alone


def judge(
    name: str,
    graph: RandomGraph,
    without: Sequence[session.Session],
    run: Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]],
    findings: Findings,
) -> None:
    """Compare the results of ``run`` for all sizes of ``graph`` with double precision and with onnxruntime."""
    for sizes in graph.sizes():
        feeds = graph.feeds(sizes)
        try:
            runtimes = [session.run(other, feeds) for other in without]
            exact, margins = graph.expected(feeds)
        except (RuntimeFailure, ValueError):
            continue  # the maximum of nothing, and the like
        got = run(feeds)
        for place, value in enumerate(graph.outputs):
            others = [np.asarray(results[place]) for results in runtimes]
            found = mismatches(np.asarray(got[place]), value.dtype, exact[place], margins[place], others)
            findings.judged += 1
            findings.faults += [
                f"{name} {sizes}{' special' * graph.special}: {value.name} ({value.dtype}) at {text}"
                for text in found
            ]
