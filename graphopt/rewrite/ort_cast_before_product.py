"""Casts of transposed operands of products, at which default sessions of onnxruntime crash."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context

_PRODUCTS = {("", "MatMul"), (ir.MICROSOFT, "FusedMatMul")}


def crashes(cx: Context, cast: ir.Node, transpose: ir.Node) -> bool:
    """Whether onnxruntime crashes while it creates a session with ``cast`` of the result of ``transpose``.

    MatmulTransposeFusion of onnxruntime 1.31 exchanges both nodes if a product reads the Cast, and the
    Transpose only moves the first axis behind the other batch axes, or last. If the other operand has another
    rank, the product is not fused after that, and the graph is left inconsistent: NchwcTransformer crashes
    (SIGSEGV), unless the other operand is also transposed. A Cast to integers, or a Cast or Transpose whose
    result is a graph output, is not exchanged.
    """
    values = (cast.outputs[0], transpose.outputs[0])
    dtype = cx.dtype(cast.outputs[0])
    if dtype is not None and not dtype.is_floating_point():
        return False
    if cast.graph is not transpose.graph or any(value.is_graph_output() for value in values):
        return False
    rank = _rank_if_moving_batch(transpose)
    return rank is not None and any(
        _differs(cx, other, rank)
        for node in ir.readers(cast.outputs[0])
        if (node.domain, node.op_type) in _PRODUCTS and node.graph is cast.graph
        for other in node.inputs
        if other is not cast.outputs[0]
    )


def _rank_if_moving_batch(transpose: ir.Node) -> int | None:
    """The rank of the operand, if the first axis becomes the last batch axis, or the last axis."""
    attribute = transpose.attributes.get("perm")
    if attribute is None or attribute.is_ref():
        return None
    perm = list(attribute.as_ints())
    rank = len(perm)
    rest = list(range(1, rank))
    is_moved = rank >= 3 and perm in ([*rest[:-1], 0, rank - 1], [*rest, 0])
    return rank if is_moved else None


def _differs(cx: Context, value: ir.Value | None, rank: int) -> bool:
    shape = None if value is None else cx.shape(value)
    return shape is None or len(shape) != rank
