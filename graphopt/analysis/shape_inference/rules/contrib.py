"""Frequent operators of onnxruntime's domain, com.microsoft."""

from __future__ import annotations

from functools import partial

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.rules.conv_and_pool import channels_last_pool, global_pool, pool
from graphopt.analysis.shape_inference.rules.matmul import matmul_shape
from graphopt.analysis.shape_inference.rules.recurrent import recurrent_facts
from graphopt.analysis.shape_inference.rules.slice_join_pad import concatenated
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import Dim, floordiv

contrib_rule = partial(shape_rule, domain=ir.MICROSOFT)


@contrib_rule(
    *("BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "GroupNorm", "QuickGelu", "RotaryEmbedding", "Trilu"),
    *("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "BiasAdd", "BiasDropout", "BitmaskDropout"),
    *(
        "BitmaskBiasDropout",
        "Inverse",
        "LongformerAttention",
        "MoE",
        "NGramRepeatBlock",
        "QMoE",
        "ScaledSiLU",
    ),
)
def like_first(node: NodeFacts) -> Fact:
    return node.like(0)


@contrib_rule("QLinearAdd", "QLinearMul")
def qlinear_binary(node: NodeFacts) -> Fact:
    """Inputs: A and B, each with scale and zero point; then scale and zero point of the result."""
    return Fact(node.dtype(0), node.broadcast([node.shape(0), node.shape(3)]))


@contrib_rule("QLinearWhere")
def qlinear_where(node: NodeFacts) -> Fact:
    """Inputs: condition; X and Y, each with scale and zero point; scale and zero point of the result."""
    return Fact(node.dtype(1), node.broadcast([node.shape(0), node.shape(1), node.shape(4)]))


@contrib_rule("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(node: NodeFacts) -> list[Fact]:
    """Like LSTM; R is [directions, hidden, 4 · hidden]."""
    recurrence = node.shape(2)
    return recurrent_facts(node, None if recurrence is None else recurrence[1])


@contrib_rule("QLinearConcat")
def qlinear_concat(node: NodeFacts) -> Fact:
    """Inputs: scale and zero point of the result; then a tensor, its scale and its zero point, repeated."""
    shapes = [node.shape(index) for index in range(2, len(node.facts), 3)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known:
        return Fact(node.dtype(2))
    return Fact(node.dtype(2), concatenated(node, known, node.axis(len(known[0]), 0)))


@contrib_rule("QLinearAveragePool", "NhwcMaxPool")
def qlinear_pool(node: NodeFacts) -> Fact:
    if node.ir.op_type == "NhwcMaxPool" or node.attr_int("channels_last", 0):
        return channels_last_pool(node)
    return pool(node)


@contrib_rule("QLinearGlobalAveragePool")
def qlinear_global_pool(node: NodeFacts) -> Fact:
    shape = node.shape(0)
    if shape is not None and node.attr_int("channels_last", 0):
        return Fact(node.dtype(0), (shape[0], *(1 for _ in shape[2:]), shape[-1]))
    return global_pool(node)


@contrib_rule("MatMulNBits", "MatMulBnb4")
def matmul_n_bits(node: NodeFacts) -> Fact:
    """A times a packed weight [K, N]."""
    shape = node.shape(0)
    if shape is None:
        return Fact(node.dtype(0))
    return Fact(node.dtype(0), (*shape[:-1], node.attr_int("N", 0)))


@contrib_rule("FusedMatMul", "TransposeMatMul")
def fused_matmul(node: NodeFacts) -> Fact | None:
    """MatMul whose inputs may be transposed: the last two dims swapped, or the rows moved to the front."""
    shapes = []
    for index, side in enumerate("AB"):
        shape = node.shape(index)
        if shape is not None and len(shape) > 2 and node.attr_int(f"transBatch{side}", 0):
            shape = (*shape[1:-1], shape[0], shape[-1])
        if shape is not None and len(shape) > 1 and node.attr_int(f"trans{side}", 0):
            shape = (*shape[:-2], shape[-1], shape[-2])
        shapes.append(shape)
    return Fact(node.dtype(0), matmul_shape(node, *shapes))


@contrib_rule("FusedGemm", "GemmFastGelu")
def fused_gemm(node: NodeFacts) -> Fact:
    a, b = node.shape(0), node.shape(1)
    if a is None or b is None:
        return Fact(node.dtype(0))
    if node.ir.op_type == "GemmFastGelu":
        return Fact(node.dtype(0), (*a[:-1], b[-1]))
    rows = a[1 if node.attr_int("transA", 0) else 0]
    return Fact(node.dtype(0), (rows, b[0 if node.attr_int("transB", 0) else 1]))


@contrib_rule("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
def matmul_to_float(node: NodeFacts) -> Fact:
    """The output has the dtype of the scale."""
    scale = node.dtype(2)
    return Fact(scale, matmul_shape(node, node.shape(0), node.shape(1)))


@contrib_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_normalization(node: NodeFacts) -> list[Fact]:
    """Outputs: the result; two row statistics, which no kernel returns; the sum of input, skip and bias."""
    shape = node.shape(0)
    statistics = Fact(ir.DataType.FLOAT, (*shape[:-1], 1) if shape else None)
    return [node.like(0), statistics, statistics, node.like(0)]


@contrib_rule("EmbedLayerNormalization")
def embed_layer_normalization(node: NodeFacts) -> list[Fact]:
    """[batch, sequence, hidden], the mask index [batch], and the sum of embeddings."""
    ids, table = node.shape(0), node.shape(2)
    shape = (*ids, table[1]) if ids is not None and table is not None else None
    index = Fact(ir.DataType.INT32, ids[:1] if ids else None)
    return [Fact(node.dtype(2), shape), index, Fact(node.dtype(2), shape)]


@contrib_rule("Attention", "QAttention")
def attention(node: NodeFacts) -> list[Fact]:
    """[batch, sequence, width of V]; the width is in ``qkv_hidden_sizes``, or a third of the bias."""
    shape, bias = node.shape(0), node.shape(2)
    dtype = node.dtype(2 if node.ir.op_type == "QAttention" else 0)
    if shape is None:
        return [Fact(dtype)]
    sizes = node.attr_ints("qkv_hidden_sizes")
    width: Dim
    if sizes:
        width = sizes[2]
    else:
        width = node.fresh("hidden") if bias is None else floordiv(bias[0], 3)
    return [Fact(dtype, (shape[0], shape[1], width))]


@contrib_rule("MultiHeadAttention")
def multi_head_attention(node: NodeFacts) -> list[Fact]:
    """[batch, sequence, width of V], for separate, unpacked query and value; V may be split into heads.

    Then the present keys and values, [batch, heads, past and new length, width of a head].
    """
    query, value = node.shape(0), node.shape(2)
    if query is None or value is None or len(query) != 3 or len(value) not in (3, 4):
        return [Fact(node.dtype(0))] * 4
    width = value[2] if len(value) == 3 else value[1] * value[3]
    return [Fact(node.dtype(0), (query[0], query[1], width)), _present(node, 1, 6), _present(node, 2, 7)]


def _present(node: NodeFacts, new: int, past: int) -> Fact:
    """Keys or values of MultiHeadAttention: those of input ``past``, and then of input ``new``."""
    old = node.shape(past)
    shape, heads = node.shape(new), node.attr_int("num_heads", 0)
    if (old is None and node.has(past)) or shape is None or heads < 1 or node.has(8):
        return Fact(node.dtype(0))
    if len(shape) == 3:
        shape = (shape[0], heads, shape[1], floordiv(shape[2], heads))
    if len(shape) != 4 or (old is not None and len(old) != 4):
        return Fact(node.dtype(0))
    length = shape[2] if old is None else old[2] + shape[2]
    return Fact(node.dtype(0), (*shape[:2], length, shape[3]))


@contrib_rule("GroupQueryAttention")
def group_query_attention(node: NodeFacts) -> list[Fact]:
    """The shape of the query, into which keys and values may be packed.

    Then the present keys and values, [batch, heads of keys, length, width of a head].
    """
    query = node.shape(0)
    caches = [node.dtype(index) if node.has(index) else node.dtype(0) for index in (3, 4)]
    if query is None or len(query) != 3:
        return [Fact(node.dtype(0)), *map(Fact, caches)]
    many, few = node.attr_int("num_heads", 0), node.attr_int("kv_num_heads", 0)
    heads = many if node.has(1) else many + 2 * few
    if not heads:
        return [Fact(node.dtype(0)), *map(Fact, caches)]
    width = query[2] if node.has(1) else floordiv(query[2] * many, heads)
    present = (query[0], few, node.fresh("present"), floordiv(query[2], heads))
    is_packed = node.attr_int("kv_cache_bit_width", 0) not in (0, 8)
    return [
        Fact(node.dtype(0), (*query[:2], width)),
        *(Fact(dtype, None if is_packed else present) for dtype in caches),
    ]


@contrib_rule("CDist")
def distances(node: NodeFacts) -> Fact:
    """[rows of A, rows of B]."""
    a, b = node.shape(0), node.shape(1)
    return Fact(node.dtype(0), None if a is None or b is None else (a[0], b[0]))
