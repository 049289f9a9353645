"""A direct interpreter of patterns, to compare the compiled ones with: plain, slow, and without an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.rewrite.operand_checks import attribute_of, is_number, may_bind
from graphopt.rewrite.pattern import Literal, Operand, OpPattern, Var

#: The values of variables by name, and the matched nodes in preorder.
Found = tuple[dict[str, Any], dict[OpPattern, ir.Node]]


def interpret(pattern: OpPattern, root: ir.Node, cx: Context) -> Found | None:
    """The first match of ``pattern`` at ``root``, in the order of backtracking."""
    return next(_node(pattern, root, ({}, {}), cx), None)


def _node(pattern: OpPattern, node: ir.Node, found: Found, cx: Context) -> Iterator[Found]:
    bindings, nodes = found
    if pattern in nodes:
        if nodes[pattern] is node:
            yield found
        return
    if node.op_type not in pattern.op_types or node.domain != pattern.domain or node.overload:
        return
    if nodes and node.graph is not next(iter(nodes.values())).graph:
        return
    if pattern.outputs not in (None, len(node.outputs)):
        return
    bindings = dict(bindings)
    for name, expected in pattern.attributes.items():
        value = attribute_of(node, name, cx.version(node))
        wanted = bindings.setdefault(expected.name, value) if isinstance(expected, Var) else expected
        if isinstance(value, ir.Attr) or (wanted is not value and wanted != value):
            return
    for pairs in _orders(pattern, node):
        yield from _operands(pairs, (bindings, {**nodes, pattern: node}), cx)


def _orders(pattern: OpPattern, node: ir.Node) -> Iterator[list[tuple[Operand, Any]]]:
    """The pairs of operands and inputs: in one order, or two for commutative operators."""
    operands, inputs = pattern.operands, list(node.inputs)
    last = operands[-1] if operands else None
    if isinstance(last, Var) and last.kind == "rest":
        fixed = len(operands) - 1
        values: list[Any] = [*inputs[:fixed], *[None] * (fixed - len(inputs)), tuple(inputs[fixed:])]
        yield list(zip(operands, values, strict=True))
        return
    if any(value is not None for value in inputs[len(operands) :]):
        return
    values = [*inputs[: len(operands)], *[None] * (len(operands) - len(inputs))]
    yield list(zip(operands, values, strict=True))
    if len(operands) == len(inputs) == 2 and traits.is_commutative(node.domain, node.op_type):
        yield list(zip(operands, values[::-1], strict=True))


def _operands(pairs: list[tuple[Operand, Any]], found: Found, cx: Context) -> Iterator[Found]:
    if not pairs:
        yield found
        return
    for more in _operand(*pairs[0], found, cx):
        yield from _operands(pairs[1:], more, cx)


def _operand(operand: Operand, value: Any, found: Found, cx: Context) -> Iterator[Found]:
    bindings, nodes = found
    if isinstance(operand, Var):
        if may_bind(operand, value) and bindings.get(operand.name, value) is value:
            yield {**bindings, operand.name: value}, nodes
    elif not isinstance(value, ir.Value):
        return
    elif isinstance(operand, Literal):
        if is_number(value, operand.number, cx):
            yield found
    else:
        pattern, index = (operand, 0) if isinstance(operand, OpPattern) else (operand.node, operand.index)
        producer = value.producer()
        if producer is not None and producer.outputs[index : index + 1] and producer.outputs[index] is value:
            yield from _node(pattern, producer, found, cx)
