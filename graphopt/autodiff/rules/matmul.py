"""Matrix products, of the standard and of onnxruntime."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.reverse_mode import decomposition
from graphopt.autodiff.rule_registry import Cotangents, gradient


@gradient("MatMul")
def matmul(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy Bᵀ; Aᵀ dy; both summed over broadcast batch axes."""
    a, b = node.x, node.input(1)
    rank_a, rank_b = node.cx.rank(a), node.rank(b)
    if rank_a is None and rank_b == 2:
        return _of_rows(op, node, dy, a, b)
    rank_a = node.rank(a)
    if rank_a == 1 and rank_b == 1:
        return op.Mul(dy, b), op.Mul(dy, a)
    if rank_a == 1:
        dy = op.Unsqueeze(dy, [-2])
    elif rank_b == 1:
        dy = op.Unsqueeze(dy, [-1])
    return _by_left(op, node, dy, a, b, rank_a, rank_b), _by_right(op, node, dy, a, b, rank_a, rank_b)


def _of_rows(op: GraphBuilder, node: PrimalNode, dy: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """The gradients for an A of unknown rank and a matrix B."""
    rows, dy_rows = op.Reshape(a, op.shape(-1, op.dim(b, 0))), op.Reshape(dy, op.shape(-1, op.dim(b, 1)))
    return op.MatMul(dy, op.Transpose(b)), op.Gemm(rows, dy_rows, transA=1)


def _by_left(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value, a: ir.Value, b: ir.Value, rank_a: int, rank_b: int
) -> ir.Value | None:
    if not node.needs_grad(0):
        return None
    rank = max(rank_a, rank_b, 2)
    if rank_b == 1:
        return op.Mul(dy, b)
    if rank == 2:
        da = op.Gemm(dy, b, transB=1)
        return op.Squeeze(da, [0]) if rank_a == 1 else da
    da = op.MatMul(dy, _transposed(op, b, rank_b))
    if rank_a == 1:
        return op.ReduceSum(da, list(range(rank - 1)), keepdims=0)
    return _sum_batches(op, node, da, a, b, rank_a, rank_b)


def _by_right(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value, a: ir.Value, b: ir.Value, rank_a: int, rank_b: int
) -> ir.Value | None:
    if not node.needs_grad(1):
        return None
    rank = max(rank_a, rank_b, 2)
    if rank_a == 1:
        return _sum_batches(op, node, op.Mul(op.Unsqueeze(a, [-1]), dy), b, b, rank_b, rank_b)
    if rank_b <= 2:  # all batches in one product
        rows, dy_rows = a, dy
        if rank > 2:
            rows, dy_rows = op.Flatten(a, axis=rank_a - 1), op.Flatten(dy, axis=rank_a - 1)
        db = op.Gemm(rows, dy_rows, transA=1)
        return op.Squeeze(db, [1]) if rank_b == 1 else db
    return _sum_batches(op, node, op.MatMul(_transposed(op, a, rank_a), dy), b, a, rank_b, rank_a)


def _transposed(op: GraphBuilder, x: ir.Value, rank: int) -> ir.Value:
    return op.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _sum_batches(
    op: GraphBuilder, node: PrimalNode, dx: ir.Value, x: ir.Value, other: ir.Value, rank: int, other_rank: int
) -> ir.Value:
    """``dx`` summed over the batch axes along which ``x`` was broadcast to ``other``."""
    mine, others = node.shape(x), node.shape(other)
    assert mine is not None and others is not None
    batches, needed = mine[:-2], others[:-2]
    if rank >= other_rank and all(
        node.cx.facts.dim_equal(dim, wanted) or wanted == 1
        for dim, wanted in zip(batches[len(batches) - len(needed) :], needed, strict=True)
    ):
        return dx
    return op.reduce_to(dx, x)


@gradient("Gemm")
def gemm(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """α dy Bᵀ; α Aᵀ dy; β dy; for Y = α A B + β C, with the transposes of the attributes."""
    a, b, c = node.x, node.input(1), node.optional(2)
    ta, tb = node.attribute("transA", 0), node.attribute("transB", 0)
    beta = node.attribute("beta", 1.0)
    alpha = None if node.attribute("alpha", 1.0) == 1 else node.attribute("alpha")
    if ta:
        da = op.Gemm(b, dy, transA=tb, transB=1, alpha=alpha)
    else:
        da = op.Gemm(dy, b, transB=1 - tb, alpha=alpha)
    if tb:
        db = op.Gemm(dy, a, transA=1, transB=ta, alpha=alpha)
    else:
        db = op.Gemm(a, dy, transA=1 - ta, alpha=alpha)
    dc = None
    if c is not None and node.needs_grad(2):
        dc = op.reduce_to(dy if beta == 1 else op.Mul(dy, float(beta)), c, node.y)
    return da, db, dc


@decomposition("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul")
def fused_matmul(op: GraphBuilder, node: PrimalNode) -> ir.Value:
    """By decomposition: alpha MatMul(Aᵀ, Bᵀ), with the transposes of the attributes."""
    y = op.MatMul(_matrix_operand(op, node, 0, "A"), _matrix_operand(op, node, 1, "B"))
    alpha = float(node.attribute("alpha", 1.0))
    return y if alpha == 1 else op.Mul(y, alpha)


def _matrix_operand(op: GraphBuilder, node: PrimalNode, index: int, side: str) -> ir.Value:
    """An operand of the product: its first axis moved after the batch axes, then the last two swapped."""
    x = node.input(index)
    rank = node.rank(x)
    axes = list(range(rank))
    if rank > 2 and node.attribute(f"transBatch{side}", 0):
        axes.insert(rank - 2, axes.pop(0))
    if rank > 1 and node.attribute(f"trans{side}", 0):
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else op.Transpose(x, perm=axes)
