"""Other operators of onnxruntime: equivalents of standard operators, and operators that exporters write."""

from __future__ import annotations

from graphopt import ir
from graphopt.autodiff.builder import GraphBuilder
from graphopt.autodiff.lib.attention import counted
from graphopt.autodiff.primal import PrimalNode
from graphopt.autodiff.registry import Cotangents, gradient
from graphopt.autodiff.reverse import vjp_of_decomposition

#: Names of the modes of GridSample since opset 20.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@gradient("com.microsoft::Trilu", "com.microsoft::Pad", "com.microsoft::GatherND")
def alike(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """By the standard's operator."""
    op.require_opset(14)
    return vjp_of_decomposition(
        op, node, [dy], lambda: op.node(node.op_type, node.inputs, node.raw.attributes)
    )


@gradient("com.microsoft::GridSample")
def grid_sample(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """By the standard's operator."""
    op.require_opset(16)
    mode = node.attribute("mode", "bilinear")
    changed = {"mode": _MODES.get(mode, mode)} if op.version >= 20 else {}
    attributes = {**node.raw.attributes, **changed}
    return vjp_of_decomposition(op, node, [dy], lambda: op.node("GridSample", node.inputs, attributes))


@gradient("com.microsoft::ExpandDims")
def expand_dims(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy reshaped to the shape of x."""
    return op.reshape_like(dy, node.x)


@gradient("com.microsoft::Inverse")
def inverse(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """-yᵀ dy yᵀ."""
    rank = node.rank(node.y)
    transposed = op.Transpose(node.y, perm=[*range(rank - 2), rank - 1, rank - 2])
    return op.Neg(op.MatMul(transposed, op.MatMul(dy, transposed)))


@gradient("com.microsoft::CDist")
def distances(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """2 Σ (a - b) dy; 2 Σ (b - a) dy; for the Euclidean metric, dy / 2y in place of dy."""
    metric = node.attribute("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise node.refusal(f"its metric is {metric}")
    a, b = node.x, node.input(1)
    if metric == "euclidean":
        dy = op.only_where(op.Greater(node.y, 0.0), op.Div(op.Mul(dy, 0.5), node.y))
    twice = op.Mul(dy, 2.0)
    to_a = op.Sub(op.Mul(a, op.ReduceSum(twice, [1], keepdims=1)), op.MatMul(twice, b))
    to_b = op.Mul(b, op.Transpose(op.ReduceSum(twice, [0], keepdims=1), perm=[1, 0]))
    return to_a, op.Sub(to_b, op.Gemm(twice, a, transA=1))


@gradient("com.microsoft::EmbedLayerNormalization")
def embed_layer_normalization(
    op: GraphBuilder, node: PrimalNode, dy: ir.Value | None, dmask: None = None, dsum: ir.Value | None = None
) -> Cotangents:
    """By decomposition: LayerNormalization of the sum of the embeddings."""
    op.require_opset(17)
    ids, segments, words, places, kinds, scale, bias = (node.optional(index) for index in range(7))

    def decompose() -> list[ir.Value | None]:
        at = node.optional(8)
        at = op.Unsqueeze(counted(op, op.dim(node.x, 1)), [0]) if at is None else at
        total = op.Add(op.Gather(words, ids, axis=0), op.Gather(places, at, axis=0))
        if segments is not None and kinds is not None:
            total = op.Add(total, op.Gather(kinds, segments, axis=0))
        epsilon = float(node.attribute("epsilon", 1e-12))
        return [op.LayerNormalization(total, scale, bias, axis=-1, epsilon=epsilon), None, total]

    return vjp_of_decomposition(op, node, [dy, None, dsum], decompose)
