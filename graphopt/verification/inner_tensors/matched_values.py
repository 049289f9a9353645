"""Match the values of two models that contain the same tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from graphopt import ir
from graphopt.util.lazy_dataclass import dataclass

#: Names that consist of a counter: exporters use the same name for different values.
_NUMBERED = re.compile(r"([A-Za-z:_]*[_:])?\d+")


@dataclass(frozen=True)
class MatchedValues:
    """Two values that contain the same tensor if the models are equivalent.

    Attributes:
        a, b: the values of both models.
        is_sure: whether they have the same name, which passes preserve only for equal contents. The nodes of
            other values have a common origin, and may compute different parts of an expression.
    """

    a: ir.Value
    b: ir.Value
    is_sure: bool


def match_values(
    a: ir.Model, b: ir.Model, origins: Mapping[str, Sequence[str]] | None = None
) -> list[MatchedValues]:
    """The matched values of the main graphs, in the topological order of ``a``, without constants.

    Values are matched by their names, and then by the nodes that compute them: nodes with equal names and
    operators, or a node of ``b`` whose recorded origins (:mod:`graphopt.ir.provenance`) are nodes of ``a``.
    ``origins`` has the origins of nodes by name, if they are not recorded in the nodes.
    """
    ours, theirs = compared_values(a), compared_values(b)
    named = {value.name: value for value in theirs}
    found: dict[ir.Value, MatchedValues] = {}
    for value in ours:
        twin = named.get(value.name)
        if twin is not None:
            found[value] = MatchedValues(value, twin, _is_sure(value, twin))
    matched = {pair.b for pair in found.values()}
    for value, twin in _by_origin(a, b, origins or {}):
        is_free = value not in found and twin not in matched
        if is_free and not ir.constant_of(value) and not ir.constant_of(twin):
            found[value] = MatchedValues(value, twin, is_sure=False)
            matched.add(twin)
    return [found[value] for value in ours if value in found]


def compared_values(model: ir.Model) -> list[ir.Value]:
    """Values of the main graph that have readers, except inputs and constants, in topological order."""
    return [
        value
        for node in model.graph
        for value in node.outputs
        if value.name and ir.is_read(value) and ir.constant_of(value) is None
    ]


def _is_sure(value: ir.Value, twin: ir.Value) -> bool:
    """Whether two values of the same name contain the same tensor if the models are equivalent."""
    if value.is_graph_output() or not _NUMBERED.fullmatch(value.name or ""):
        return True
    node, other = value.producer(), twin.producer()
    return node is not None and other is not None and node.op_identifier() == other.op_identifier()


def _by_origin(
    a: ir.Model, b: ir.Model, origins_of: Mapping[str, Sequence[str]]
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Candidate pairs, whose nodes have a common origin, with duplicates."""
    nodes = {ir.label(node): node for node in a.graph}
    last: dict[tuple[str, ...], ir.Node] = {}
    for node in b.graph:
        known_origins = origins_of.get(ir.label(node))
        last[tuple(known_origins or ir.origins(node))] = (
            node  # earlier nodes with the same origins compute its operands
        )
    for origins, node in last.items():
        known = [nodes[name] for name in origins if name in nodes]
        if len(known) < len(origins):
            continue
        result = _result(known)
        if result is None or len(node.outputs) != len(result.outputs):
            continue
        if (
            len(known) == 1
            and ir.label(node) == origins[0]
            and node.op_identifier() != result.op_identifier()
        ):
            continue  # the name of another computation
        yield from zip(result.outputs, node.outputs, strict=True)


def _result(nodes: list[ir.Node]) -> ir.Node | None:
    """The only one of ``nodes`` whose outputs other nodes read; ``None`` if there are several."""
    if len(nodes) == 1:
        return nodes[0]
    inside = dict.fromkeys(nodes)
    ends = [
        node
        for node in nodes
        if any(
            value.is_graph_output() or any(use.node not in inside for use in value.uses())
            for value in node.outputs
        )
    ]
    return ends[0] if len(ends) == 1 else None
