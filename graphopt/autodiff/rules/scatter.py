"""Operators that write updates to positions of a tensor."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import number_range, row_numbers
from graphopt.autodiff.graph_builder import GraphBuilder, Size
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient


class _Positions:
    """The positions of the updates of a ScatterElements or ScatterND.

    Attributes:
        data, indices, updates: the operands.
        y: the result.
    """

    def __init__(self, op: GraphBuilder, node: PrimalNode) -> None:
        self.op = op
        self.node = node
        self.data, self.indices, self.updates = node.x, node.input(1), node.input(2)
        self.y = node.y
        self.by_element = node.op_type == "ScatterElements"
        self.axis = node.attribute("axis", 0) if self.by_element else None

    def take(self, value: ir.Value) -> ir.Value:
        """The elements of ``value``, of the shape of the data, at the positions of the updates."""
        if self.by_element:
            return self.op.GatherElements(value, self.indices, axis=self.axis)
        return self.op.GatherND(value, self.indices)

    def put(self, data: ir.Value, updates: ir.Value, reduction: str | None = None) -> ir.Value:
        """``data`` with ``updates`` written to the positions; only ScatterElements supports a reduction."""
        if self.by_element:
            return self.op.ScatterElements(data, self.indices, updates, axis=self.axis, reduction=reduction)
        assert reduction is None
        return self.op.ScatterND(data, self.indices, updates)

    def flat(self) -> _Positions:
        """An equivalent ScatterElements into a vector, for a ScatterND."""
        if self.by_element:
            return self
        numbers = row_numbers(self.op, self.data, self.node.rank(self.data))
        flat = _Positions(self.op, self.node)
        flat.indices = self.op.Reshape(self.take(numbers), [-1])
        flat.data, flat.updates, flat.y = (
            self.op.Reshape(value, [-1]) for value in (self.data, self.updates, self.y)
        )
        flat.by_element, flat.axis = True, 0
        return flat

    def are_distinct(self) -> bool:
        """Whether each element is known to be written at most once."""
        indices = self.node.constant(1)
        if indices is None or indices.size == 0 or indices.min() < 0:
            return indices is not None and indices.size == 0
        if not self.by_element:
            rows = indices.reshape(-1, indices.shape[-1])
            return len(np.unique(rows, axis=0)) == len(rows)
        assert self.axis is not None
        ordered = np.sort(indices, axis=self.axis)
        return bool(np.all(np.diff(ordered, axis=self.axis)))

    def stays(self) -> ir.Value:
        """Whether each update survives all later updates; the result broadcasts against the updates."""
        op, data, rows = self.op, self.data, self.updates
        leading, rank = self.node.rank(self.updates), self.node.rank(self.data)
        shape = self.node.shape(self.indices)
        if not self.by_element and shape and isinstance(shape[-1], int):  # rows are overwritten as a whole
            rows, leading, rank = self.indices, len(shape) - 1, shape[-1]
        # scatter the numbers of the updates: the surviving number identifies the surviving update
        numbers = row_numbers(op, rows, leading)
        zeros = op.ConstantOfShape(
            op.shape(*(op.dim(data, axis) for axis in range(rank))), value=np.zeros(1, np.int64)
        )
        left = op.Equal(self.take(self.put(zeros, numbers)), numbers)
        missing = list(range(leading, self.node.rank(self.updates)))
        return op.Unsqueeze(left, missing) if missing else left


@gradient("ScatterElements", "ScatterND")
def scatter(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy outside of the updates; dy at the updates; by the product rule, or in equal shares for extrema."""
    positions, reduction = _Positions(op, node), node.attribute("reduction", "none")
    if reduction == "add":
        return dy, None, positions.take(dy)
    if reduction == "none":
        dupdates = positions.take(dy)
        if node.needs_grad(2) and not positions.are_distinct():
            dupdates = op.only_where(positions.stays(), dupdates)
        return positions.put(dy, op.zeros_like(positions.updates)), None, dupdates
    flat = positions.flat()
    dflat = dy if flat.data is node.x else op.Reshape(dy, [-1])
    function = _scatter_product if reduction == "mul" else _scatter_extremum
    found = function(op, flat, dflat)
    return op.reshape_like(found[0], node.x), None, op.reshape_like(found[1], node.input(2))


def _scatter_product(op: GraphBuilder, positions: _Positions, dy: ir.Value) -> tuple[ir.Value, ir.Value]:
    """dy times the other factors, exact for zeros."""
    data, updates = positions.data, positions.updates
    ones = op.ones_like(data)
    by_data = op.Mul(dy, positions.put(ones, updates, "mul"))
    is_zero = op.Equal(updates, 0.0)
    others = op.Where(is_zero, op.number(1.0, updates), updates)
    zeros = positions.take(positions.put(op.zeros_like(data), op.cast_like(is_zero, data), "add"))
    product = op.Div(positions.take(positions.put(ones, others, "mul")), others)
    alone = op.Equal(zeros, op.cast_like(is_zero, data))  # no other factor is zero
    return by_data, op.Mul(positions.take(op.Mul(dy, data)), op.only_where(alone, product))


def _scatter_extremum(op: GraphBuilder, positions: _Positions, dy: ir.Value) -> tuple[ir.Value, ir.Value]:
    """dy, in equal shares, for the elements and updates that equal y."""
    by_data = op.cast_like(op.Equal(positions.data, positions.y), dy)
    by_updates = op.cast_like(op.Equal(positions.updates, positions.take(positions.y)), dy)
    share = op.Div(dy, positions.put(by_data, by_updates, "add"))
    return op.Mul(by_data, share), op.Mul(by_updates, positions.take(share))


@gradient("TensorScatter")
def tensor_scatter(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy outside of the updated positions; dy at the updated positions."""
    past, update, starts = node.x, node.input(1), node.optional(2)
    rank, mode = node.rank(past), node.attribute("mode", "linear")
    axis = node.attribute("axis", -2) % rank
    kept = op.TensorScatter(dy, op.zeros_like(update), starts, axis=axis, mode=mode)
    sizes: list[Size] = [1] * rank
    sizes[axis] = op.dim(update, axis)
    positions = op.reshape(number_range(op, sizes[axis]), op.shape(*sizes))
    if starts is not None:
        positions = op.Add(positions, op.Unsqueeze(starts, list(range(1, rank))))
    if mode == "circular":
        positions = op.Mod(positions, op.shape(op.dim(past, axis)))
    return kept, op.GatherElements(dy, op.expand_like(positions, update), axis=axis)
