"""Loops over sequences of tensors.

The gradient of a sequence is a sequence of the same length: the gradients of its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from graphopt import ir
from graphopt.autodiff.node_builder import NodeBuilder
from graphopt.context import Context

B = TypeVar("B", bound=NodeBuilder)

#: Writes the result for one element, given a builder for the body, the element's index and the element.
WriteElement = Callable[[B, ir.Value, ir.Value], ir.Value]
#: Writes an iteration, given a builder for the body, the iteration's index and the carried sequences; returns
#: the next values of the sequences, then the values to gather.
WriteIteration = Callable[[B, ir.Value, Sequence[ir.Value]], Sequence[ir.Value]]


def is_sequence(value: ir.Value, cx: Context) -> bool:
    """Whether ``value`` is a sequence."""
    return isinstance(cx.facts.type(value) or value.type, ir.SequenceType)


def map_sequence(op: B, sequence: ir.Value, write: WriteElement[B]) -> ir.Value:
    """The sequence of the results of ``write`` for each element of ``sequence``, of the same element type."""

    def iterate(inner: B, index: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
        return [inner.SequenceInsert(carried[0], write(inner, index, inner.SequenceAt(sequence, index)))]

    type_ = op.cx.facts.type(sequence) or sequence.type
    assert type_ is not None
    return repeat_iteration(op, op.SequenceLength(sequence), [type_.dtype], iterate)[0]


def stack_over_sequence(op: B, sequence: ir.Value, write: WriteElement[B]) -> ir.Value:
    """The results of ``write`` for each element, of one shape, stacked along a new first axis."""

    def iterate(inner: B, index: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
        return [write(inner, index, inner.SequenceAt(sequence, index))]

    return repeat_iteration(op, op.SequenceLength(sequence), [], iterate)[0]


def repeat_iteration(
    op: B, count: ir.Value, dtypes: Sequence[ir.DataType], write: WriteIteration[B]
) -> tuple[ir.Value, ...]:
    """The outputs of a new Loop of ``count`` iterations.

    Args:
        count: an int64 scalar.
        dtypes: element types of the carried sequences, which are empty at first.
        write: writes an iteration.
    """
    index = op.formal("number", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
    running = op.formal("running", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
    carried = [op.formal("list", ir.SequenceType(ir.TensorType(dtype))) for dtype in dtypes]
    inner = op.begin_body("each", [index, running, *carried])
    results = write(inner, index, carried)
    body = inner.end_body([inner.Identity(running), *results])
    starts = [op.SequenceEmpty(dtype=int(dtype)) for dtype in dtypes]
    return op.multi_output_node("Loop", [count, None, *starts], {"body": body}, outputs=len(results))
