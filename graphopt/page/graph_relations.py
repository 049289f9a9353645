"""Relations between the graphs of an original and its result, by lineage or by names."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.instrument.lineage import Lineage, Step
from graphopt.page.page_data import Fate, GraphData


def relate_by_lineage(original: GraphData, result: GraphData, lineage: Lineage) -> list[str]:
    """Fill the columns ``related``, ``fate`` and ``by`` of both graphs; returns the table of makers."""
    makers: dict[str, int] = {}
    sources, nodes = _indexes(original), result.nodes
    for index, name in enumerate(nodes.name):
        found = lineage.back(name)
        if found is None:
            continue
        for source in (*found.originals, *found.absorbed):
            _relate(original, result, sources.get(source), index)
        if not found.is_original and found.steps:
            nodes.fate[index], nodes.by[index] = Fate.REPLACED, _maker(makers, found.steps)
    outcomes = _outcomes(lineage)
    for index, name in enumerate(original.nodes.name):
        fate = outcomes.get(name, Fate.REMOVED)
        original.nodes.fate[index] = fate
        steps = lineage.rewrites.get(name, ())
        if fate is not Fate.UNCHANGED and steps:
            original.nodes.by[index] = _maker(makers, steps)
    return list(makers)


def relate_by_name(original: GraphData, result: GraphData) -> None:
    """Relate nodes of equal names; others are removed in the original, and new in the result."""
    sources = _indexes(original)
    original.nodes.fate[:] = [Fate.REMOVED] * len(original.nodes)
    for index, name in enumerate(result.nodes.name):
        source = sources.get(name)
        result.nodes.fate[index] = Fate.REPLACED
        if source is None:
            continue
        _relate(original, result, source, index)
        is_same = original.ops[original.nodes.op[source]] == result.ops[result.nodes.op[index]]
        fate = Fate.UNCHANGED if is_same else Fate.REPLACED
        original.nodes.fate[source] = result.nodes.fate[index] = fate


def _outcomes(lineage: Lineage) -> dict[str, Fate]:
    """The outcome for each original node that is not removed, by name."""
    found: dict[str, Fate] = {}
    for node in lineage.nodes.values():
        found |= dict.fromkeys(node.absorbed, Fate.ABSORBED)
    for node in lineage.nodes.values():
        found |= dict.fromkeys(node.folded, Fate.FOLDED)
    for node in lineage.nodes.values():
        found |= dict.fromkeys(node.originals, Fate.REPLACED)
    for node in lineage.nodes.values():
        if node.is_original or (node.originals == (node.name,) and not node.steps):
            found[node.name] = Fate.UNCHANGED
    return found


def _relate(original: GraphData, result: GraphData, source: int | None, index: int) -> None:
    if source is not None and source not in result.nodes.related[index]:
        result.nodes.related[index].append(source)
        original.nodes.related[source].append(index)


def _maker(makers: dict[str, int], steps: Iterable[Step]) -> int:
    """The index of the rule or pass of the last of ``steps``."""
    *_, (_, by) = steps
    return makers.setdefault(by, len(makers))


def _indexes(graph: GraphData) -> dict[str, int]:
    """The index of each node by name; the first of several."""
    found: dict[str, int] = {}
    for index, name in enumerate(graph.nodes.name):
        found.setdefault(name, index)
    return found
