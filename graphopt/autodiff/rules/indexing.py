"""Operators that select elements by indices."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import (
    row_numbers,
    scatter_along,
    scatter_elements,
    scatter_moved,
    scatter_positions,
    scatter_rows,
)
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient, non_differentiable

indices = non_differentiable("NonZero", "NonMaxSuppression", reason="its results are indices")


@gradient("Gather")
def gather(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy scatter-added at the indices; dy padded with zeros for known, consecutive indices."""
    x, picks = node.x, node.input(1)
    rank = node.rank(x)
    axis = node.attribute("axis", 0) % rank
    known = node.ints(1)
    if known and known == tuple(range(known[0], known[0] + len(known))) and (known[0] >= 0 or known[-1] < 0):
        part = dy if node.rank(picks) else op.Unsqueeze(dy, [axis])
        return op.Pad(part, _margins(op, x, axis, known[0], known[-1] + 1))
    if axis == 0:
        return scatter_rows(op, x, picks, dy)
    if node.rank(picks) != 1:
        picks = op.Reshape(picks, [-1])
        sizes = [
            op.dim(picks if other == axis else x, other if other != axis else 0) for other in range(rank)
        ]
        dy = op.reshape(dy, op.shape(*sizes))
    return scatter_along(op, x, picks, dy, axis)


def _margins(op: GraphBuilder, x: ir.Value, axis: int, first: int, end: int) -> ir.Value:
    """The pads before ``first`` and from ``end`` along ``axis``; negative ones count from the end of x."""
    size = op.dim(x, axis)
    before: Size
    after: Size
    if isinstance(size, int):
        before, after = (first, size - end) if first >= 0 else (size + first, -end)
    elif first >= 0:
        before, after = first, op.Sub(size, end)
    else:
        before, after = op.Add(size, first), -end
    rank = len(op.cx.shape(x) or ())
    pads: list[Size] = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = before, after
    return op.shape(*pads)


@gradient("GatherElements")
def gather_elements(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy scatter-added at the indices."""
    return scatter_elements(op, op.shape_of(node.x), node.input(1), dy, axis=node.attribute("axis", 0))


@gradient("GatherND")
def gather_nd(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy scatter-added at the indices."""
    x, picks = node.x, node.input(1)
    node.rank(x)  # raises if the rank is unknown
    shape, batch = node.shape(picks), node.attribute("batch_dims", 0)
    depth = shape[-1] if shape else None
    if not isinstance(depth, int):
        return scatter_moved(op, node, dy, [picks], {"batch_dims": batch}, add=True)
    leading = batch + depth
    rows = op.GatherND(row_numbers(op, x, leading), picks, batch_dims=batch)
    return scatter_rows(op, x, rows, dy, leading=leading)


@gradient("Compress")
def compress(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy at the selected positions, otherwise 0."""
    x, axis = node.x, node.attribute("axis")
    picks = op.Squeeze(op.NonZero(node.input(1)), [0])
    if axis is None:
        return scatter_positions(op, x, picks, dy, add=False)
    return scatter_along(op, x, picks, dy, axis % node.rank(x), add=False)


@gradient("TopK")
def top_k(op: GraphBuilder, node: PrimalNode, dy: ir.Value, _: ir.Value | None = None) -> Cotangents:
    """dy at the indices of the selected elements, otherwise 0."""
    return op.ScatterElements(op.zeros_like(node.x), node.output(1), dy, axis=node.attribute("axis", -1))


@gradient("Unique")
def unique(op: GraphBuilder, node: PrimalNode, dy: ir.Value, *_: ir.Value | None) -> Cotangents:
    """dy at the first occurrence of each element, otherwise 0."""
    x, axis = node.x, node.attribute("axis")
    first = node.output(1)
    if axis is None:
        return scatter_positions(op, x, first, dy, add=False)
    return scatter_along(op, x, first, dy, axis % node.rank(x), add=False)


@gradient("ReverseSequence")
def reverse_sequence(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """ReverseSequence(dy)."""
    batch, time = node.attribute("batch_axis", 1), node.attribute("time_axis", 0)
    return op.ReverseSequence(dy, node.input(1), batch_axis=batch, time_axis=time)


@gradient("Trilu")
def trilu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """Trilu(dy)."""
    return op.Trilu(dy, node.optional(1), upper=node.attribute("upper", 1))


@gradient("OneHot")
def one_hot(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dvalues: Σ dy over the off positions and over the on positions."""
    zero, one = op.number(0.0, dy), op.number(1.0, dy)
    bits = op.Concat(op.Unsqueeze(zero, [0]), op.Unsqueeze(one, [0]), axis=0)
    on = op.OneHot(node.x, node.input(1), bits, axis=node.attribute("axis", -1))
    lit = op.ReduceSum(op.Mul(dy, on), keepdims=0)
    dark = op.Sub(op.ReduceSum(dy, keepdims=0), lit)
    return None, None, op.Concat(op.Unsqueeze(dark, [0]), op.Unsqueeze(lit, [0]), axis=0)
