"""Graphs of the samples and of their results: positions, edges, and relations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphopt.compiler import Compiler
from graphopt.compiler.page_source import page_source
from graphopt.page.page_data import Fate, GraphData
from graphopt.page.section import PageSource
from tests.page.report_pages import MODELS
from zoo import SAMPLES

pytest.importorskip("fast_sugiyama")


@pytest.fixture(scope="module", params=MODELS)
def source(request: pytest.FixtureRequest) -> PageSource:
    """The graphs of a sample and its result by -O3."""
    return page_source(Compiler(verify=False, pipeline="O3"), SAMPLES[request.param].build())


def _edges(graph: GraphData) -> Iterator[tuple[int, int]]:
    producer = {value: node for node, values in enumerate(graph.nodes.outputs) for value in values}
    for node, values in enumerate(graph.nodes.inputs):
        yield from ((producer[value], node) for value in values if value in producer)


def test_data_flows_downwards(source: PageSource) -> None:
    for graph in source.graphs:
        layer = dict(zip(graph.flat.child, graph.flat.layer, strict=True))
        assert all(layer[first] < layer[second] for first, second in _edges(graph))


def test_every_node_is_in_one_box(source: PageSource) -> None:
    for graph in source.graphs:
        placed = [child for scope in graph.scopes for child in scope.layout.child if child >= 0]
        assert sorted(placed) == sorted(graph.flat.child) == list(range(len(graph.nodes)))


def test_every_node_of_the_result_has_an_origin_or_a_maker(source: PageSource) -> None:
    nodes = source.graphs[1].nodes
    assert all(related or by >= 0 for related, by in zip(nodes.related, nodes.by, strict=True))


def test_fates_agree_with_relations(source: PageSource) -> None:
    nodes = source.graphs[0].nodes
    for fate, by, related in zip(nodes.fate, nodes.by, nodes.related, strict=True):
        assert (by == -1) == (fate == Fate.UNCHANGED), "each change has a maker"
        if fate in (Fate.UNCHANGED, Fate.REPLACED, Fate.ABSORBED):
            assert related
        elif fate == Fate.REMOVED:
            assert not related


def test_indexes_are_in_range(source: PageSource) -> None:
    for graph, other in zip(source.graphs, reversed(source.graphs), strict=True):
        nodes = graph.nodes
        assert max(nodes.op) < len(graph.ops) and max(nodes.device) < len(graph.devices)
        assert max(nodes.scope) < len(graph.scopes) and max(nodes.group) < len(graph.groups)
        assert max(nodes.by) < len(source.makers)
        assert all(one < len(other.nodes) for related in nodes.related for one in related)


def test_nodes_of_native_groups() -> None:
    compiler = Compiler(verify=False, fuser="native")
    graph = page_source(compiler, SAMPLES["transformer"].build()).graphs[1]
    assert graph.groups and {kind for _, kind in graph.groups} == {"fusion"}
    assert sum(group >= 0 for group in graph.nodes.group) > len(graph.groups)
