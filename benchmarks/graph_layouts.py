"""Layouts of layered graphs by several libraries: time, memory and crossings.

Each layout runs in its own process with a limit of time. The graph is that of a large model: residual blocks,
and the edges of a constant that all blocks read.

Usage: python -m benchmarks.graph_layouts [--nodes 5000,20000] [--limit 60]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

Edge = tuple[int, int]

#: Names of methods, with their packages.
PACKAGES = {
    "layered_layout": "fast-sugiyama",
    "fast-sugiyama": "fast-sugiyama",
    "igraph": "igraph",
    "grandalf": "grandalf",
}


def edges_of(count: int) -> list[Edge]:
    """Edges of ``count`` nodes: a chain, residual edges over 8 nodes, and a node that all blocks read."""
    chain = [(node, node + 1) for node in range(count - 1)]
    residual = [(node, node + 8) for node in range(0, count - 8, 10)]
    return [*chain, *residual, *((0, node) for node in range(10, count, 100))]


def by_layered_layout(count: int, edges: Sequence[Edge]) -> None:
    """The function of the report page: own layers, and fast-sugiyama for the order within a layer."""
    from graphopt.page.layered_layout import layered_layout

    layered_layout(count, edges)


def by_fast_sugiyama(count: int, edges: Sequence[Edge]) -> None:
    """All steps of fast-sugiyama, with its defaults."""
    import fast_sugiyama

    list(fast_sugiyama.from_edges(list(edges)))


def by_igraph(count: int, edges: Sequence[Edge]) -> None:
    """``Graph.layout_sugiyama`` of igraph."""
    igraph = importlib.import_module("igraph")
    igraph.Graph(n=count, edges=list(edges), directed=True).layout_sugiyama()


def by_grandalf(count: int, edges: Sequence[Edge]) -> None:
    """``SugiyamaLayout`` of grandalf."""
    graphs, layouts = (importlib.import_module(f"grandalf.{name}") for name in ("graphs", "layouts"))
    sys.setrecursionlimit(10 * count)
    vertices = [graphs.Vertex(node) for node in range(count)]
    for vertex in vertices:
        vertex.view = layouts.VertexViewer(w=1, h=1)
    graph = graphs.Graph(
        vertices, [graphs.Edge(vertices[first], vertices[second]) for first, second in edges]
    )
    for component in graph.C:
        layout = layouts.SugiyamaLayout(component)
        layout.init_all()
        layout.draw()


METHODS: dict[str, Callable[[int, Sequence[Edge]], None]] = {
    "layered_layout": by_layered_layout,
    "fast-sugiyama": by_fast_sugiyama,
    "igraph": by_igraph,
    "grandalf": by_grandalf,
}


def measure(method: str, count: int) -> dict[str, float]:
    """CPU seconds of a layout in this process, and the growth of its memory in MB."""
    edges = edges_of(count)
    METHODS[method](4, edges_of(4))  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    METHODS[method](count, edges)
    seconds = time.process_time() - begin
    return {"seconds": seconds, "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000}


def measured(method: str, count: int, limit: int) -> str:
    """The cells of a table: seconds and memory, or the reason for their absence."""
    words = [sys.executable, "-m", "benchmarks.graph_layouts", "--one", method, "--nodes", str(count)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"> {limit} s | "
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return f"{lines[-1].partition(':')[0] if lines else f'exit status {done.returncode}'} | "
    found = json.loads(done.stdout)
    return f"{found['seconds']:.2f} s | {found['mb']:.0f} MB"


def main() -> None:
    """Print the table of docs/report.md, or one measurement as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="5000,20000")
    parser.add_argument("--limit", type=int, default=60, help="seconds for each layout")
    parser.add_argument("--one", choices=METHODS)
    arguments = parser.parse_args()
    counts = [int(text) for text in arguments.nodes.split(",")]
    if arguments.one is not None:
        print(json.dumps(measure(arguments.one, counts[0])))
        return
    print(f"| layout | {' | '.join(f'{count:,} nodes | memory' for count in counts)} |")
    print("|---" * (1 + 2 * len(counts)) + "|")
    for method in METHODS:
        version = importlib.metadata.version(PACKAGES[method])
        cells = " | ".join(measured(method, count, arguments.limit) for count in counts)
        print(f"| {method} ({PACKAGES[method]} {version}) | {cells} |", flush=True)


if __name__ == "__main__":
    main()
