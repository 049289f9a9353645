"""Tensors: the first inner tensor that departs between two models, and errors along the depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt import ir
from graphopt.page.block_html import html_of_blocks
from graphopt.page.run_time_data import NodeIndex
from graphopt.page.section import PageSource, Section
from graphopt.verification.inner_tensors.comparison_text import lines, notes
from graphopt.verification.inner_tensors.departures import ERROR_BINS, ComparedTensor


def build(source: PageSource) -> Section | None:
    """The section; ``None`` if no tensors were compared."""
    if source.comparison is None:
        return None
    found = source.comparison
    indexes = [NodeIndex.of(graph).indexes for graph in source.graphs]
    departed = {one.name: None for one in found.departed}
    data = {
        "bins": list(ERROR_BINS),
        "tensors": {
            "name": [one.name for one in found.tensors],
            "node": [_name(one.pair.a.producer()) for one in found.tensors],
            "nodes": [_nodes(one, indexes) for one in found.tensors],
            "type": [one.kind for one in found.tensors],
            "depth": [one.depth for one in found.tensors],
            "largest": [one.error.largest for one in found.tensors],
            "relative": [one.error.relative for one in found.tensors],
            "identical": [one.error.is_identical for one in found.tensors],
            "departed": [one.name in departed for one in found.tensors],
            "reason": [one.error.reason for one in found.tensors],
        },
    }
    blocks = [*lines(found, source.names), *notes(found)]
    return Section("tensors", "Tensors", 50, html_of_blocks(blocks), data)


def _name(node: ir.Node | None) -> str | None:
    return None if node is None else ir.label(node)


def _nodes(tensor: ComparedTensor, indexes: Sequence[Mapping[str, int]]) -> list[int]:
    """The indexes of the nodes that compute ``tensor`` in the graphs; -1 if a graph has no such node."""
    producers = (value.producer() for value in (tensor.pair.a, tensor.pair.b))
    return [
        -1 if node is None else index.get(ir.label(node), -1)
        for node, index in zip(producers, indexes, strict=False)
    ]
