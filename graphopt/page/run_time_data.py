"""The data of the section on run time: kernels, times of nodes, a tree of scopes, memory, distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.page.page_data import GraphData
from graphopt.page.run_time import ModelRuns, RunTime
from graphopt.timing.bench import Row
from graphopt.timing.memory_over_time import MemoryStep
from graphopt.timing.roofline import KernelTime
from graphopt.util.lazy_dataclass import dataclass

#: Bins of a distribution, and the percentile of times at which it ends: later runs are interruptions.
_BINS, _LAST = 60, 99.0
#: Share of the total time below which the entries of one scope are joined.
_SMALL = 0.0005
#: Maximum number of steps of a curve.
_STEPS = 4_000
#: The scope of kernels that belong to no node of the model.
_INSERTED = "inserted by onnxruntime"


@dataclass(frozen=True)
class NodeIndex:
    """The nodes of a graph by name, and their scopes.

    Attributes:
        graph: the graph.
        indexes: the index of each node, by name; the first of several.
    """

    graph: GraphData
    indexes: dict[str, int]

    @classmethod
    def of(cls, graph: GraphData) -> NodeIndex:
        """The index of ``graph``."""
        indexes: dict[str, int] = {}
        for index, name in enumerate(graph.nodes.name):
            indexes.setdefault(name, index)
        return cls(graph, indexes)

    def nodes(self, kernel: KernelTime) -> list[int]:
        """The nodes that ``kernel`` computes; a node of an inlined function counts as its call."""
        found = (self.place(name)[0] for name in kernel.originals)
        return list(dict.fromkeys(node for node in found if node is not None))

    def place(self, name: str) -> tuple[int | None, list[str]]:
        """The node with this name or, for ``call/inner``, the call, and the names below it."""
        outer, inner = name, list[str]()
        while outer:
            if outer in self.indexes:
                return self.indexes[outer], inner
            outer, _, last = outer.rpartition("/")
            inner.insert(0, last)
        return None, []

    def path(self, node: int) -> list[str]:
        """The names of the scopes around ``node``, outermost first, without that of the whole graph."""
        names: list[str] = []
        scope = self.graph.nodes.scope[node]
        while scope > 0:
            names.append(self.graph.scopes[scope].name)
            scope = self.graph.scopes[scope].parent
        return names[::-1]


def run_time_data(found: RunTime, graphs: Sequence[GraphData]) -> dict[str, Any]:
    """The data for JSON.

    Args:
        found: the measurements, of the models of ``graphs`` in the same order.
        graphs: the graphs of the page; may be empty.
    """
    indexes = [NodeIndex.of(graph) for graph in graphs]
    models = []
    for position, row in enumerate(found.result.rows):
        own = indexes[position] if position < len(indexes) else None
        original = indexes[0] if indexes else None
        models.append(_model(row, found.runs.get(row.name), own, original))
    timing = found.result.timing
    peaks = next((run.roofline.peaks for run in found.runs.values()), None)
    return {
        "device": str(found.device),
        "inputs": found.result.shapes,
        "models": models,
        "peaks": peaks.to_dict() if peaks is not None and found.has_peaks else None,
        "band": [timing.band.low, timing.band.high],
        "twin": list(timing.twin),
        "processes": timing.processes,
        "distribution": distribution([row.speed.times for row in found.result.rows if row.speed]),
    }


def _model(
    row: Row, runs: ModelRuns | None, own: NodeIndex | None, original: NodeIndex | None
) -> dict[str, Any]:
    data: dict[str, Any] = {"name": row.name, "failure": row.failure, "ratios": [], "conclusion": None}
    if row.speed is not None:
        data |= {"p50": row.speed.p50, "p90": row.speed.p90, "p99": row.speed.p99}
        data["ratios"] = list(row.speed.ratios)
        if row.speed.comparison is not None:
            data["conclusion"] = row.speed.comparison.conclusion
    if runs is None:
        return data
    kernels = runs.roofline.kernels
    names = sorted(dict.fromkeys(runs.providers.values()))
    return data | {
        "kernels": {
            "name": [one.name for one in kernels],
            "op": [one.op for one in kernels],
            "milliseconds": [one.milliseconds for one in kernels],
            "executions": [one.executions for one in kernels],
            "flops": [one.flops for one in kernels],
            "bytes": [one.bytes for one in kernels],
            "share": [_share(one) for one in kernels],
            "bound": [one.bound for one in kernels],
            "nodes": [[] if own is None else own.nodes(one) for one in kernels],
            "provider": [names.index(runs.providers[one.name]) for one in kernels],
        },
        "providers": names,
        "time": [] if own is None else time_of_nodes(kernels, own),
        "share": [] if own is None else share_of_nodes(kernels, own),
        "flame": flame(kernels, own, original),
        "memory": curve(runs.memory),
    }


def _share(kernel: KernelTime) -> float | None:
    """The larger share of both peaks; ``None`` if one is unknown."""
    if kernel.compute_share is None or kernel.bandwidth_share is None:
        return None
    return max(kernel.compute_share, kernel.bandwidth_share)


def time_of_nodes(kernels: Sequence[KernelTime], index: NodeIndex) -> list[tuple[int, float]]:
    """Nodes and their milliseconds; the time of a kernel is divided evenly between its nodes."""
    found: dict[int, float] = {}
    for kernel in kernels:
        nodes = index.nodes(kernel)
        for node in nodes:
            found[node] = found.get(node, 0.0) + kernel.milliseconds / len(nodes)
    return sorted(found.items())


def share_of_nodes(kernels: Sequence[KernelTime], index: NodeIndex) -> list[tuple[int, float]]:
    """Nodes and the share of a peak of the slowest kernel that computes them, where it is known."""
    found: dict[int, float] = {}
    for kernel in sorted(kernels, key=lambda one: one.milliseconds):
        share = _share(kernel)
        if share is not None:
            found |= dict.fromkeys(index.nodes(kernel), share)
    return sorted(found.items())


def flame(kernels: Sequence[KernelTime], own: NodeIndex | None, original: NodeIndex | None) -> dict[str, Any]:
    """The time of kernels in seconds as a tree: scopes of the original, then operators, then kernels.

    The time of a kernel is divided evenly between the original nodes that it computes. The nodes of ``own``
    without a related node of ``original`` are in their own scope. Without graphs, the scopes are those in the
    names of nodes.
    """
    root: dict[str, Any] = {"name": "run", "value": 0.0, "children": {}}
    for kernel in kernels:
        paths = _paths(kernel, own, original)
        for path in paths:
            seconds = kernel.milliseconds / 1e3 / len(paths)
            entry = root
            entry["value"] += seconds
            for name in (*path, kernel.op, kernel.name):
                entry = entry["children"].setdefault(name, {"name": name, "value": 0.0, "children": {}})
                entry["value"] += seconds
    return _listed(root, root["value"] * _SMALL)


def _paths(kernel: KernelTime, own: NodeIndex | None, original: NodeIndex | None) -> list[list[str]]:
    if own is None or original is None:
        names = [name.strip("/").split("/")[:-1] for name in kernel.originals]
        return names or [[_INSERTED]]
    paths = []
    for name in kernel.originals:
        node, inner = own.place(name)
        if node is None:
            continue
        related = [] if own is original else own.graph.nodes.related[node]
        around = [original.path(one) for one in related] or [own.path(node)]
        calls = [own.graph.nodes.name[node], *inner[:-1]] if inner else []
        paths += [[*path, *calls] for path in around]
    return paths or [[_INSERTED]]


def _listed(entry: dict[str, Any], least: float) -> dict[str, Any]:
    """``entry`` with its children as a list, those below ``least`` joined into one."""
    children = list(entry["children"].values())
    large = [_listed(child, least) for child in children if child["value"] >= least]
    small = [child for child in children if child["value"] < least]
    if len(small) == 1:
        large.append(_listed(small[0], least))
    elif small:
        total = sum(child["value"] for child in small)
        large.append({"name": f"{len(small):,} others", "value": total, "children": []})
    return {"name": entry["name"], "value": entry["value"], "children": large}


def curve(steps: Sequence[MemoryStep]) -> dict[str, list[Any]]:
    """The memory over time in columns; of several steps that share one point, the one with the most bytes."""
    width = max(1, -(-len(steps) // _STEPS))
    chosen = [
        max(steps[first : first + width], key=lambda step: step.bytes)
        for first in range(0, len(steps), width)
    ]
    return {
        "milliseconds": [step.milliseconds for step in chosen],
        "bytes": [step.bytes for step in chosen],
        "kernel": [step.kernel for step in chosen],
    }


def distribution(series: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Counts of all ``series`` in common bins, up to a percentile, and the numbers of later runs."""
    times = [value for one in series for value in one]
    if not times:
        return {"edges": [], "counts": [], "beyond": []}
    last = max(float(np.percentile(one, _LAST)) for one in series if len(one))
    low = min(times)
    edges = np.linspace(low, max(last, low * 1.001), _BINS + 1)
    counts = [np.histogram(one, edges)[0].tolist() for one in series]
    beyond = [len(one) - sum(counted) for one, counted in zip(series, counts, strict=True)]
    return {"edges": edges.tolist(), "counts": counts, "beyond": beyond}
