"""Relations between the graphs of an original and its result, by lineage or by names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from graphopt.instrument.lineage import Lineage, Step
from graphopt.page.page_data import Fate, GraphData


def relate_by_lineage(original: GraphData, result: GraphData, lineage: Lineage) -> list[str]:
    """Fill the columns ``related``, ``fate`` and ``by`` of both graphs; returns the table of makers."""
    makers: dict[str, int] = {}
    kept: dict[str, None] = {}
    sources, nodes = _indexes(original), result.nodes
    for index, name in enumerate(nodes.name):
        found = lineage.back(name)
        if found is None:
            continue
        named = [sources[one] for one in (*found.originals, *found.absorbed) if one in sources]
        for source in dict.fromkeys(named):
            _relate(original, result, source, index)
        if found.originals == (found.name,) and found.absorbed and _is_same(original, result, sources, index):
            kept[found.name] = None  # the steps are those of the absorbed nodes
        elif not found.is_original and found.steps:
            nodes.fate[index], nodes.by[index] = Fate.REPLACED, _maker(makers, found.steps)
    outcomes = _outcomes(lineage)
    for index, name in enumerate(original.nodes.name):
        fate, steps = outcomes.get(name, (Fate.REMOVED, ()))
        fate = Fate.UNCHANGED if name in kept else fate
        if fate is Fate.REPLACED and not original.nodes.related[index]:
            fate = Fate.FOLDED  # replaced by Constant nodes, which the graph shows as values
        original.nodes.fate[index] = fate
        steps = lineage.rewrites.get(name, ()) or steps
        if fate is not Fate.UNCHANGED and steps:
            original.nodes.by[index] = _maker(makers, steps)
    _drop_notes_of_makers(original, list(makers))
    return list(makers)


def has_lineage_of(original: GraphData, lineage: Lineage) -> bool:
    """Whether ``lineage`` has the nodes of ``original``, and not those of another model."""
    known = frozenset(lineage.originals)
    return all(name in known for name in original.nodes.name)


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
        fate = Fate.UNCHANGED if _is_same(original, result, sources, index) else Fate.REPLACED
        original.nodes.fate[source] = result.nodes.fate[index] = fate


def relation_line(original: GraphData, result: GraphData) -> str:
    """The number of nodes of ``result`` that are related to nodes of ``original``, in words."""
    related = sum(1 for nodes in result.nodes.related if nodes)
    total = len(result.nodes)
    if not related and total:
        return f"no node of {result.label} is related to one of {original.label} by lineage or by name"
    return f"nodes of {result.label} related to nodes of {original.label}: {related:,} of {total:,}"


def _outcomes(lineage: Lineage) -> dict[str, tuple[Fate, Sequence[Step]]]:
    """The outcome for each original node that is not removed, and the last steps to it, by name."""
    found: dict[str, tuple[Fate, Sequence[Step]]] = {}
    nodes = lineage.nodes.values()
    for node in nodes:
        found |= dict.fromkeys(node.absorbed, (Fate.ABSORBED, node.steps))
    for node in nodes:
        found |= dict.fromkeys(node.folded, (Fate.FOLDED, node.steps))
    for node in nodes:
        found |= dict.fromkeys(node.originals, (Fate.REPLACED, node.steps))
    for node in nodes:
        if node.is_original or (node.originals == (node.name,) and not node.steps):
            found[node.name] = Fate.UNCHANGED, ()
    return found


def _is_same(original: GraphData, result: GraphData, sources: Mapping[str, int], index: int) -> bool:
    """Whether the node ``index`` of the result and the original of its name are equal apart from names."""
    source = sources.get(result.nodes.name[index])
    if source is None:
        return False
    one, other = original.nodes, result.nodes
    return (
        original.ops[one.op[source]] == result.ops[other.op[index]]
        and one.attributes[source] == other.attributes[index]
        and len(one.inputs[source]) == len(other.inputs[index])
    )


def _drop_notes_of_makers(original: GraphData, makers: Sequence[str]) -> None:
    """Drop the refusals of the rule that replaced a node: it applied from another node, or later."""
    nodes = original.nodes
    for index, by in enumerate(nodes.by):
        notes = nodes.notes[index]
        if by >= 0 and notes is not None:
            nodes.notes[index] = [note for note in notes if not note.startswith(f"{makers[by]}: ")] or None


def _relate(original: GraphData, result: GraphData, source: int, index: int) -> None:
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
