"""Sequences of tensors as gradients of sequences: as long, each tensor the gradient of its counterpart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.context import Context

if TYPE_CHECKING:
    from graphopt.autodiff.builder import GraphBuilder

#: Writes what comes of an element, given its number.
Write = Callable[["GraphBuilder", ir.Value, ir.Value], ir.Value]
#: Writes what an iteration carries on and gathers, given its number and what it carries.
Iterate = Callable[["GraphBuilder", ir.Value, Sequence[ir.Value]], Sequence[ir.Value]]


def is_sequence(value: ir.Value, cx: Context) -> bool:
    """Whether ``value`` is a sequence."""
    return isinstance(cx.facts.type(value) or value.type, ir.SequenceType)


def zeros(op: GraphBuilder, sequence: ir.Value) -> ir.Value:
    """A sequence of zeros."""
    return mapped(op, sequence, lambda inner, number, element: inner.zeros_like(element))


def added(op: GraphBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The sums of the elements of two sequences."""
    return mapped(op, a, lambda inner, number, element: inner.Add(element, inner.SequenceAt(b, number)))


def mapped(op: GraphBuilder, sequence: ir.Value, write: Write) -> ir.Value:
    """The sequence of what is written for each element of ``sequence``, of the same element type."""

    def iterate(inner: GraphBuilder, number: ir.Value, lists: Sequence[ir.Value]) -> list[ir.Value]:
        return [inner.SequenceInsert(lists[0], write(inner, number, inner.SequenceAt(sequence, number)))]

    type_ = op.cx.facts.type(sequence) or sequence.type
    assert type_ is not None
    return repeated(op, op.SequenceLength(sequence), [type_.dtype], iterate)[0]


def gathered(op: GraphBuilder, sequence: ir.Value, write: Write) -> ir.Value:
    """What is written for each element of ``sequence``, of the same shape each, along a new first axis."""

    def iterate(inner: GraphBuilder, number: ir.Value, lists: Sequence[ir.Value]) -> list[ir.Value]:
        return [write(inner, number, inner.SequenceAt(sequence, number))]

    return repeated(op, op.SequenceLength(sequence), [], iterate)[0]


def repeated(
    op: GraphBuilder, count: ir.Value, dtypes: Sequence[ir.DataType], write: Iterate
) -> Sequence[ir.Value]:
    """The outputs of a new Loop of ``count`` iterations.

    Args:
        dtypes: of the elements of the sequences that it carries, which are empty at first.
        write: writes an iteration; returns those sequences, and what is gathered.
    """

    def given(name: str, type_: ir.TypeProtocol, shape: ir.Shape | None) -> ir.Value:
        return ir.Value(name=op.cx.edit.fresh_name(name), type=type_, shape=shape)

    number = given("number", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
    running = given("running", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
    lists = [given("list", ir.SequenceType(ir.TensorType(dtype)), None) for dtype in dtypes]
    inner = op.begin_body("each", [number, running, *lists])
    results = write(inner, number, lists)
    body = inner.end_body([inner.Identity(running), *results])
    starts = [op.SequenceEmpty(dtype=int(dtype)) for dtype in dtypes]
    made = op.node("Loop", [count, None, *starts], {"body": body}, outputs=len(results))
    return [made] if len(results) == 1 else made
