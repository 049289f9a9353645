"""Operands, producers and attributes of nodes."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Match


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index``; ``None`` if it is missing."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer_of(
    value: ir.Value | None, *op_types: str, domains: Container[str] = ("",), graph: ir.Graph | None = None
) -> ir.Node | None:
    """The producer of ``value``, if it is one of ``op_types`` (by default, of any operator).

    Args:
        domains: the domains of the operators; by default, the standard domain.
        graph: the graph that must contain the producer.
    """
    node = None if value is None else value.producer()
    if node is None or node.domain not in domains or node.overload:
        return None
    if (op_types and node.op_type not in op_types) or (graph is not None and node.graph is not graph):
        return None
    return node


def computed_by(value: ir.Value) -> ir.Node | None:
    """The node that computes the elements of ``value``, before any views."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in traits.VIEW:
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node


def other_operand(node: ir.Node, x: ir.Value) -> ir.Value:
    """The operand of the binary ``node`` other than ``x``; ``x`` itself if it is both."""
    a, b = node.inputs
    other = b if a is x else a
    assert other is not None
    return other


def ints_of(m: Match, node: ir.Node, index: int, name: str, default: Any = None) -> Any:
    """Integers in input ``index`` or attribute ``name``; ``default`` without either, ``None`` if unknown."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return None if attribute.is_ref() else tuple(attribute.value)
    value = operand(node, index)
    return default if value is None else m.ints(value)


def int_of(m: Match, node: ir.Node, name: str, default: int) -> int:
    """Integer attribute ``name``."""
    value = m.attribute(node, name)
    return default if value is None else int(value)
