"""The text of a placement: nodes on the CPU and copies, grouped by reason and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from graphopt.placement.explain_placement import ExplainedCopy, PlacementExplanation
from graphopt.placement.prediction import Cause, NodePlacement, Prediction
from graphopt.util.grouping import grouped
from graphopt.util.text_tables import Line, counted, shortened

_Item = TypeVar("_Item")

#: Maximum number of sites per reason without -v.
_SITES = 1
#: Maximum number of readers of a copy.
_READERS = 2


def placement_lines(found: PlacementExplanation, *, everything: bool) -> Iterator[str]:
    """The lines of ``explain``.

    Args:
        everything: list all sites, and the nodes that only compute with sizes.
    """
    before, after = map(_summary, (found.original, found.optimized))
    yield Line(f"placement on {found.device}: {before}; after -O3: {after}", "title")
    if found.differences is not None:
        yield from _differences(found)
    sizes = [node for node in found.on_cpu if node.cause is Cause.SIZES]
    others = [node for node in found.on_cpu if node.cause is not Cause.SIZES]
    for nodes in grouped(others, lambda node: (node.op_type, node.reason, node.remedy)):
        yield Line(f"on the CPU {len(nodes)} × {nodes[0].op_type}: {nodes[0].reason}", "title")
        yield from _sites(nodes, _node_site, nodes[0].remedy, everything=everything)
    for copies in grouped(found.copies, lambda one: (one.copy.to_host, one.reason, one.remedy)):
        side = "host" if copies[0].copy.to_host else "device"
        yield Line(f"copied to the {side} {len(copies)} ×: {copies[0].reason}", "title")
        yield from _sites(copies, _copy_site, copies[0].remedy, everything=everything)
    if sizes:
        yield Line(f"on the CPU {len(sizes)} × computation of sizes, which are in host memory", "title")
        if everything:
            yield from (f"  at     {_node_site(node)}" for node in sizes)


def _differences(found: PlacementExplanation) -> Iterator[str]:
    if not found.differences:
        yield Line("the placement of a session is as predicted", "title")
        return
    yield Line(f"a session on {found.device} differs from the prediction", "title")
    yield from (f"  {one}" for one in found.differences)


def _summary(found: Prediction) -> str:
    nodes, copies = counted(len(found.nodes), "node"), counted(len(found.copies), "copy", "copies")
    return f"{len(found.on_cpu)} of {nodes} on the CPU, {copies}"


def _sites(
    items: Sequence[_Item], text: Callable[[_Item], str], remedy: str | None, *, everything: bool
) -> Iterator[str]:
    for item in items if everything else items[:_SITES]:
        yield f"  at     {text(item)}"
    if len(items) > _SITES and not everything:
        yield f"  and at {len(items) - _SITES} more (-v lists them)"
    if remedy is not None:
        yield f"  do     {remedy}"


def _node_site(node: NodePlacement) -> str:
    return f"{node.op_type} {node.node}"


def _copy_site(one: ExplainedCopy) -> str:
    copy = one.copy
    source = "an input" if copy.producer is None else f"computed by {copy.producer}"
    return f"{copy.tensor}, {source}, read by {shortened(copy.readers, _READERS)}"
