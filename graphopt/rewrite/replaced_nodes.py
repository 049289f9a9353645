"""The nodes that a replacement recomputes, for provenance."""

from __future__ import annotations

from collections.abc import Collection

from graphopt import ir
from graphopt.ops import traits

#: Maximum number of replaced nodes: a factor of the number of nodes in the match, and a constant.
_PER_NODE, _MORE = 4, 16


def replaced_nodes(
    root: ir.Node, nodes: Collection[ir.Node], replacement: Collection[ir.Value]
) -> list[ir.Node]:
    """The nodes between ``root`` and the values that its replacement reads.

    A replacement may also cover nodes outside of the pattern, such as the parts of a concatenated tensor.
    If the replacement does not read all operands, the result may be large. It is then limited to the pattern.

    Args:
        root: the last node of a match.
        nodes: all its nodes.
        replacement: the values that the replacement reads, or the existing values that it consists of.
    """
    most = _PER_NODE * len(nodes) + _MORE
    pending, found = [root], {root: None}
    while pending:
        node = pending.pop()
        if traits.reads_only_shape(node):
            continue
        for value in ir.reads(node):
            producer = value.producer()
            if (
                producer is None
                or producer in found
                or value in replacement
                or ir.constant_of(value) is not None
            ):
                continue
            if len(found) == most:
                return list(nodes)
            found[producer] = None
            pending.append(producer)
    return list(dict.fromkeys([*nodes, *found]))
