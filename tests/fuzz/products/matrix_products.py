"""Random MatMul, FusedMatMul and Gemm of floats."""

from __future__ import annotations

from typing import Any

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import Dim, ProductGraph

Known = int | str
_SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 130)
_LARGE = (256, 257, 513, 1030)


def matrix_products(g: ProductGraph) -> None:
    """A product, now and then with a second one that reads its result."""
    rows, depth, columns = (_dim(g) for _ in range(3))
    op = g.cycle("MatMul", "Gemm", "MatMul", "FusedMatMul", "MatMul", "Gemm", "MatMul")
    if op == "Gemm":
        value, dims = _gemm(g, rows, depth, columns), [rows, columns]
    else:
        value, dims = _matmul(g, op, rows, depth, columns)
    if not dims:
        g.output(value)
        return
    channel = len(dims) - 1 if isinstance(dims[-1], int) else None
    known: list[Dim] = list(dims)
    result = add_epilogue(g, value, known, channel)
    if g.chance(0.2) and channel is not None and "Transpose" not in (node.op_type for node in g.nodes):
        weights = g.weight(int(dims[-1]), g.pick(1, 8, 33), scale=0.1)
        g.output(g.node("Tanh", [g.node("MatMul", [result, weights])]))


def _size(g: ProductGraph) -> int:
    return int(g.random.choice(_SIZES if g.chance(0.93) else _LARGE))


def _dim(g: ProductGraph) -> Known:
    size = _size(g)
    return size if g.chance(0.5) else g.symbol(size, _size(g), size, _size(g), 1)


def _is_static(dims: list[Known]) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _gemm(g: ProductGraph, rows: Known, depth: Known, columns: Known) -> str:
    transposed = [g.pick(0, 1), g.pick(0, 1)]
    left = [depth, rows] if transposed[0] else [rows, depth]
    right = [columns, depth] if transposed[1] else [depth, columns]
    operands = [g.input(left), _operand(g, right, 0.6)]
    bias = g.pick([columns], [1], [], [rows, columns], [rows, 1], [1, columns], None)
    if bias is not None:
        operands.append(_operand(g, bias, 0.6))
    attributes = {name: g.pick(0.5, 2.0, 0.0, -1.0) for name in ("alpha", "beta") if g.chance(0.4)}
    return g.node("Gemm", operands, transA=transposed[0], transB=transposed[1], **attributes)


def _operand(g: ProductGraph, dims: list[Known], constant: float) -> str:
    """A constant with a probability, or an input."""
    if _is_static(dims) and g.chance(constant):
        return g.constant(g.normal(*(int(dim) for dim in dims)))
    return g.input(dims)


def _matmul(g: ProductGraph, op: str, rows: Known, depth: Known, columns: Known) -> tuple[str, list[Known]]:
    """A product of operands of one to four axes, and its dims."""
    ranks = g.pick(1, 2, 2, 3, 4), g.pick(1, 2, 2, 2, 3, 4)
    if ranks != (2, 2):
        depth = _positive(g, depth)
    count = max(*ranks, 2) - 2
    batch: list[Known] = [g.pick(1, 2, 3) if g.chance(0.6) else g.symbol(2, 1, 3, 0, 4) for _ in range(count)]
    batches = [[1 if g.chance(0.25) else dim for dim in batch[count - max(rank - 2, 0) :]] for rank in ranks]
    left = [*batches[0], rows, depth] if ranks[0] > 1 else [depth]
    right = [*batches[1], depth, columns] if ranks[1] > 1 else [depth]
    operands = [_transposed(g, left, 0.1), _transposed(g, right, 0.6)]
    padded = [[1] * (count - len(dims)) + dims for dims in batches]
    dims = [b if a == 1 else a for a, b in zip(*padded, strict=True)]
    dims += ([rows] if ranks[0] > 1 else []) + ([columns] if ranks[1] > 1 else [])
    if op == "FusedMatMul":
        scale: Any = g.pick(0.5, 1.0, -2.0)
        return g.node(op, operands, domain="com.microsoft", alpha=scale), dims
    return g.node(op, operands), dims


def _positive(g: ProductGraph, dim: Known) -> Known:
    """``dim``, at least 1: onnxruntime does not write products of empty vectors and batches."""
    if isinstance(dim, int):
        return max(dim, 1)
    g.sizes[dim] = [max(size, 1) for size in g.sizes[dim]]
    return dim


def _transposed(g: ProductGraph, dims: list[Known], constant: float) -> str:
    """An operand, now and then as a transposition."""
    if len(dims) < 2 or g.chance(0.7):
        return _operand(g, dims, constant)
    order = [int(axis) for axis in g.random.permutation(len(dims))]
    stored = list(dims)
    for axis, source in enumerate(order):
        stored[source] = dims[axis]
    return g.node("Transpose", [_operand(g, stored, constant)], perm=order)
