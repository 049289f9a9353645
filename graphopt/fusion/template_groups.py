"""Groups of templates: an anchor, the nodes that its template computes with it, and an epilogue."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import field
from typing import Protocol

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.operator_table import find
from graphopt.fusion.ort_overlap import dequantizes_for_integers, is_computed_on_integers
from graphopt.fusion.template_table import Match, has_template, matches
from graphopt.ops import traits
from graphopt.partitioning.propose_groups import Partition
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of nodes of an epilogue.
_MOST_EPILOGUE_NODES = 16


class TemplatePolicy(Protocol):
    """The decisions about groups of templates; see :class:`graphopt.fusion.kernel_policy.FusionPolicy`."""

    cx: Context
    kind: str

    def obstacle_to_template(self, match: Match) -> str | None: ...

    def obstacle(self, node: ir.Node) -> str | None: ...

    def note_kernel(self, group: Partition) -> None: ...


@dataclass
class TemplateGroups:
    """The groups of templates in one graph.

    Attributes:
        groups: the groups, in the order of their anchors.
        members: the nodes of the groups.
        reasons: the reason for each anchor without a group.
    """

    groups: list[Partition] = field(default_factory=list)
    members: dict[ir.Node, None] = field(default_factory=dict)
    reasons: dict[ir.Node, str] = field(default_factory=dict)


def propose_template_groups(graph: ir.Graph, policy: TemplatePolicy) -> TemplateGroups:
    """The groups of ``graph`` that are faster as templates, according to ``policy``."""
    found = TemplateGroups()
    place = {node: index for index, node in enumerate(graph)}
    for node in _anchors(graph, policy.cx):
        if node in found.members:
            continue
        try:
            group = _group_at(node, policy, found.members, place)
        except CantFuse as reason:
            found.reasons[node] = str(reason)
            continue
        found.groups.append(group)
        found.members |= dict.fromkeys(group.nodes)
    found.groups.sort(key=lambda group: max(place[node] for node in group.nodes))
    found.reasons = {node: reason for node, reason in found.reasons.items() if node not in found.members}
    return found


def _anchors(graph: ir.Graph, cx: Context) -> list[ir.Node]:
    """The anchors in ``graph``; first those whose template computes several anchors."""

    def has_one(anchor: ir.Node) -> bool:
        try:
            return sum(map(has_template, matches(anchor, cx)[0].nodes)) == 1
        except CantFuse:
            return True

    return sorted(filter(has_template, graph), key=has_one)


def _group_at(
    anchor: ir.Node, policy: TemplatePolicy, taken: Container[ir.Node], place: dict[ir.Node, int]
) -> Partition:
    """The group of ``anchor``, with the largest epilogue that has a kernel.

    Raises:
        CantFuse: it has none.
    """
    refusal: CantFuse | None = None
    for match in matches(anchor, policy.cx):
        try:
            _check(match, policy, taken)
        except CantFuse as reason:
            refusal = refusal or reason
            continue
        for nodes in _with_epilogues(match, policy, taken, place):
            group = Partition.of(nodes, policy.kind)
            try:
                policy.note_kernel(group)
                return group
            except CantFuse as reason:
                refusal = refusal or reason
    assert refusal is not None
    raise refusal


def _check(match: Match, policy: TemplatePolicy, taken: Container[ir.Node]) -> None:
    """Raise CantFuse if ``match`` is slower or unused, or its nodes have other readers or groups."""
    reason = policy.obstacle_to_template(match)
    if reason is not None:
        raise CantFuse(reason)
    if any(node in taken for node in match.nodes):
        raise CantFuse("its operands are computed by another template")
    if not any(map(ir.is_read, match.results)):
        raise CantFuse("nothing reads its results")
    for value in (output for node in match.nodes for output in node.outputs):
        inner = all(reader in match.nodes for reader in ir.readers(value)) and not value.is_graph_output()
        if value not in match.results and not inner:
            raise CantFuse(f"{value.name!r} has other readers")


def _with_epilogues(
    match: Match, policy: TemplatePolicy, taken: Container[ir.Node], place: dict[ir.Node, int]
) -> Iterator[list[ir.Node]]:
    """The nodes of ``match`` with its epilogues, the largest first, and without one at last.

    Readers are added in the order of the graph, so that no path leaves the group and returns to it.
    """
    nodes = sorted(match.nodes, key=place.__getitem__)
    found = [list(nodes)]
    results = [value for value in match.results if value.name]
    while len(results) == 1 and len(nodes) < len(match.nodes) + _MOST_EPILOGUE_NODES:
        readers = [reader for value in _live(nodes) for reader in ir.readers(value) if reader not in nodes]
        inner = [reader for reader in readers if reader in place]  # others are in bodies
        if not inner or len(inner) < len(readers):
            break
        reader = min(inner, key=place.__getitem__)
        if reader in taken or not _is_elementwise(reader, policy):
            break
        nodes.append(reader)
        if len(_live(nodes)) != 1 or results[0] in _live(nodes):
            continue
        if not traits.is_alias(reader) and not dequantizes_for_integers(reader):
            found.append(list(nodes))
    return iter(reversed(found))


def _live(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """The values of ``nodes`` that are read outside of them."""
    return list(Partition.of(nodes, "").outputs)


def _is_elementwise(node: ir.Node, policy: TemplatePolicy) -> bool:
    operator = find(node)
    return (
        operator is not None
        and not operator.reduces
        and policy.obstacle(node) is None
        and not is_computed_on_integers(node)
    )
