"""Sequences and optionals.

The gradient of a sequence is a sequence; the gradient of an optional is that of its contents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.autodiff import sequence_loop_builders
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import vjp_of_decomposition
from graphopt.autodiff.rule_registry import Cotangents, gradient, non_differentiable

lengths = non_differentiable(
    "SequenceLength", "SequenceEmpty", "OptionalHasElement", reason="it depends on no elements", quiet=True
)


@gradient("SequenceConstruct")
def construct(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """The elements of dy."""
    return [
        op.SequenceAt(dy, op.constant(np.array(index))) if node.needs_grad(index) else None
        for index in range(len(node.inputs))
    ]


@gradient("SequenceAt")
def at(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Zeros with dy at the position."""
    position = _position(op, node, node.input(1))
    return op.SequenceInsert(op.SequenceErase(op.zeros_like(node.x), position), dy, position)


@gradient("SequenceInsert")
def insert(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy without the element at the position; that element."""
    position = node.optional(2)
    if position is None:
        position = op.constant(np.array(-1))
    else:
        position = _position(op, node, position)
    return op.SequenceErase(dy, position), op.SequenceAt(dy, position)


@gradient("SequenceErase")
def erase(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy with zeros inserted at the position."""
    position = node.optional(1)
    last = op.constant(np.array(-1)) if position is None else position
    position = _position(op, node, last)
    return op.SequenceInsert(dy, op.zeros_like(op.SequenceAt(node.x, position)), position)


def _position(op: GraphBuilder, node: PrimalNode, position: ir.Value) -> ir.Value:
    """The nonnegative position in the sequence ``node.x``."""
    known = node.cx.static_ints(position)
    if known is not None and known[0] >= 0:
        return position
    from_end = op.Add(position, op.cast(op.SequenceLength(node.x), op.dtype(position)))
    return from_end if known is not None else op.Where(op.Less(position, 0), from_end, position)


@gradient("ConcatFromSequence")
def concat(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """SplitToSequence(dy)."""
    axis = node.attribute("axis")
    if node.attribute("new_axis", 0):
        return op.SplitToSequence(dy, axis=axis, keepdims=0)

    def size(inner: GraphBuilder, number: ir.Value, element: ir.Value) -> ir.Value:
        return inner.Gather(inner.Shape(element), inner.constant(np.array(axis)), axis=0)

    return op.SplitToSequence(dy, sequence_loop_builders.stack_over_sequence(op, node.x, size), axis=axis)


@gradient("SplitToSequence")
def split(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """ConcatFromSequence(dy)."""
    new = node.optional(1) is None and not node.attribute("keepdims", 1)
    return op.ConcatFromSequence(dy, axis=node.attribute("axis", 0), new_axis=1 if new else None)


@gradient("SequenceMap")
def map_(op: GraphBuilder, node: PrimalNode, *cotangents: ir.Value | None) -> Cotangents:
    """By decomposition into a Loop over the elements."""
    (body,) = ir.bodies(node.raw)
    operands = [node.input(index) for index in range(len(node.inputs))]
    listed = [sequence_loop_builders.is_sequence(value, op.cx) for value in operands]

    def write(inner: GraphBuilder, number: ir.Value, lists: Sequence[ir.Value]) -> list[ir.Value]:
        pairs = zip(operands, listed, strict=True)
        elements = [inner.SequenceAt(value, number) if is_list else value for value, is_list in pairs]
        results = inner.inline_body(body, elements)
        return [inner.SequenceInsert(list_, result) for list_, result in zip(lists, results, strict=True)]

    dtypes = [op.dtype(output) for output in body.outputs]
    count = op.SequenceLength(node.x)
    return vjp_of_decomposition(
        op, node, cotangents, lambda: sequence_loop_builders.repeat_iteration(op, count, dtypes, write)
    )


@gradient("Optional", "OptionalGetElement")
def optional(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy."""
    return dy
