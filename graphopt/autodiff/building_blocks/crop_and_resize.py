"""A linear Resize of a region, in terms of standard operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode


def cropped(
    op: GraphBuilder, node: PrimalNode, roi: ir.Value, positions: Sequence[tuple[int, int]], count: int
) -> ir.Value:
    """A Resize of x with ``tf_crop_and_resize``, with 0 for positions outside of x.

    Along an axis of size L an element is Σ max(0, 1 - ``|c - j|``) x[j], where c ranges from start (L - 1) to
    end (L - 1) (ONNX Operators, Resize).

    Args:
        roi: starts, then ends, of ``count`` axes.
        positions: the cropped axes of x, each with its index in ``roi``.
    """
    rank = node.rank(node.x)
    letters = "abcdefghijklmnopqrstuvwxy"[:rank]
    y = node.x
    for axis, position in positions:
        start, end = op.Gather(roi, [position]), op.Gather(roi, [count + position])
        last = op.Sub(op.cast_like(op.shape(op.dim(node.x, axis)), roi), 1.0)
        size = op.dim(node.y, axis)
        steps = op.Max(op.Sub(op.cast_like(op.shape(size), roi), 1.0), op.number(1.0, roi))
        share = op.Div(op.cast_like(_up_to(op, size), roi), steps)
        if size == 1:
            share = op.number(0.5, roi)
        at = op.Mul(op.Add(start, op.Mul(share, op.Sub(end, start))), last)
        inside = op.And(op.GreaterOrEqual(at, 0.0), op.LessOrEqual(at, last))
        distance = op.Sub(op.Unsqueeze(at, [1]), op.cast_like(_up_to(op, op.dim(node.x, axis)), roi))
        weights = op.cast_like(op.Relu(op.Sub(1.0, op.Abs(distance))), y)
        result = letters.replace(letters[axis], "z")
        y = op.Einsum(weights, y, equation=f"z{letters[axis]},{letters}->{result}")
        trailing = list(range(1, rank - axis))
        y = op.only_where(op.Unsqueeze(inside, trailing) if trailing else inside, y)
    return y


def _up_to(op: GraphBuilder, size: int | ir.Value) -> ir.Value:
    """0, 1, … below ``size``."""
    if isinstance(size, int):
        return op.constant(np.arange(size))
    return op.Range(op.constant(np.int64(0)), op.Squeeze(size, [0]), op.constant(np.int64(1)))
