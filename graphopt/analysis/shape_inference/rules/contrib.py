"""Operators of onnxruntime (com.microsoft) that exported and optimized models use most."""

from __future__ import annotations

from functools import partial

from graphopt import ir
from graphopt.analysis.shape_inference.facts import Fact
from graphopt.analysis.shape_inference.node import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.rules.convolution import global_pool, pool
from graphopt.analysis.shape_inference.rules.matmul import matmul_shape
from graphopt.analysis.shape_inference.rules.recurrent import recurrent_facts
from graphopt.analysis.shape_inference.rules.slicing import concatenated
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
def like_first(given: NodeFacts) -> Fact:
    return given.like(0)


@contrib_rule("QLinearAdd", "QLinearMul")
def qlinear_binary(given: NodeFacts) -> Fact:
    """A, its scale and zero point, B, its own, and those of the result."""
    return Fact(given.dtype(0), given.broadcast([given.shape(0), given.shape(3)]))


@contrib_rule("QLinearWhere")
def qlinear_where(given: NodeFacts) -> Fact:
    """The condition, X, its scale and zero point, and the same of Y and of the result."""
    return Fact(given.dtype(1), given.broadcast([given.shape(0), given.shape(1), given.shape(4)]))


@contrib_rule("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(given: NodeFacts) -> list[Fact]:
    """As LSTM; R is directions, hidden, 4 · hidden."""
    recurrence = given.shape(2)
    return recurrent_facts(given, None if recurrence is None else recurrence[1])


@contrib_rule("QLinearConcat")
def qlinear_concat(given: NodeFacts) -> Fact:
    """Scale and zero point of the result, then a tensor, scale and zero point for each input."""
    shapes = [given.shape(index) for index in range(2, len(given.facts), 3)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known:
        return Fact(given.dtype(2))
    return Fact(given.dtype(2), concatenated(given, known, given.axis(len(known[0]), 0)))


@contrib_rule("QLinearAveragePool", "NhwcMaxPool")
def qlinear_pool(given: NodeFacts) -> Fact:
    if given.node.op_type == "NhwcMaxPool" or given.attr_int("channels_last", 0):
        rank = given.rank(0)
        return Fact(given.dtype(0), None if rank is None else given.fresh_shape(rank))
    return pool(given)


@contrib_rule("QLinearGlobalAveragePool")
def qlinear_global_pool(given: NodeFacts) -> Fact:
    shape = given.shape(0)
    if shape is not None and given.attr_int("channels_last", 0):
        return Fact(given.dtype(0), (shape[0], *(1 for _ in shape[2:]), shape[-1]))
    return global_pool(given)


@contrib_rule("MatMulNBits", "MatMulBnb4")
def matmul_n_bits(given: NodeFacts) -> Fact:
    """A times a weight of K by N that is stored packed."""
    shape = given.shape(0)
    if shape is None:
        return Fact(given.dtype(0))
    return Fact(given.dtype(0), (*shape[:-1], given.attr_int("N", 0)))


@contrib_rule("FusedMatMul", "TransposeMatMul")
def fused_matmul(given: NodeFacts) -> Fact | None:
    """MatMul with either input transposed in its last two dims, or with its rows as the first dim."""
    shapes = []
    for index, side in enumerate("AB"):
        shape = given.shape(index)
        if shape is not None and len(shape) > 2 and given.attr_int(f"transBatch{side}", 0):
            shape = (*shape[1:-1], shape[0], shape[-1])
        if shape is not None and len(shape) > 1 and given.attr_int(f"trans{side}", 0):
            shape = (*shape[:-2], shape[-1], shape[-2])
        shapes.append(shape)
    return Fact(given.dtype(0), matmul_shape(given, *shapes))


@contrib_rule("FusedGemm", "GemmFastGelu")
def fused_gemm(given: NodeFacts) -> Fact:
    a, b = given.shape(0), given.shape(1)
    if a is None or b is None:
        return Fact(given.dtype(0))
    if given.node.op_type == "GemmFastGelu":
        return Fact(given.dtype(0), (*a[:-1], b[-1]))
    rows = a[1 if given.attr_int("transA", 0) else 0]
    return Fact(given.dtype(0), (rows, b[0 if given.attr_int("transB", 0) else 1]))


@contrib_rule("DynamicQuantizeMatMul", "MatMulIntegerToFloat")
def matmul_to_float(given: NodeFacts) -> Fact:
    """The dtype is that of the scale."""
    scale = given.dtype(2)
    return Fact(scale, matmul_shape(given, given.shape(0), given.shape(1)))


@contrib_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_normalization(given: NodeFacts) -> list[Fact]:
    """The result, two statistics that no kernel gives, and the sum of input, skip and bias."""
    statistics = Fact(ir.DataType.FLOAT)
    return [given.like(0), statistics, statistics, given.like(0)]


@contrib_rule("EmbedLayerNormalization")
def embed_layer_normalization(given: NodeFacts) -> list[Fact]:
    """Batch, sequence, hidden; then a mask index."""
    ids, table = given.shape(0), given.shape(2)
    shape = (*ids, table[1]) if ids is not None and table is not None else None
    return [Fact(given.dtype(2), shape), Fact(ir.DataType.INT32), Fact(given.dtype(2), shape)]


@contrib_rule("Attention", "QAttention")
def attention(given: NodeFacts) -> list[Fact]:
    """Batch, sequence and the width of V: a third of the bias, unless ``qkv_hidden_sizes`` tells."""
    shape, bias = given.shape(0), given.shape(2)
    dtype = given.dtype(2 if given.node.op_type == "QAttention" else 0)
    if shape is None:
        return [Fact(dtype)]
    sizes = given.attr_ints("qkv_hidden_sizes")
    width: Dim
    if sizes:
        width = sizes[2]
    else:
        width = given.fresh("hidden") if bias is None else floordiv(bias[0], 3)
    return [Fact(dtype, (shape[0], shape[1], width))]


@contrib_rule("MultiHeadAttention")
def multi_head_attention(given: NodeFacts) -> list[Fact]:
    """Batch, sequence and the width of V, where query and value come apart and unpacked; V also by heads."""
    query, value = given.shape(0), given.shape(2)
    if query is None or value is None or len(query) != 3 or len(value) not in (3, 4):
        return [Fact(given.dtype(0))]
    width = value[2] if len(value) == 3 else value[1] * value[3]
    return [Fact(given.dtype(0), (query[0], query[1], width))]


@contrib_rule("GroupQueryAttention")
def group_query_attention(given: NodeFacts) -> list[Fact]:
    """The shape of the query, into which keys and values may be packed."""
    query = given.shape(0)
    if query is None or len(query) != 3:
        return [Fact(given.dtype(0))]
    if given.has(1):
        return [given.like(0)]
    many, few = given.attr_int("num_heads", 0), given.attr_int("kv_num_heads", 0)
    heads = many + 2 * few
    width = floordiv(query[2] * many, heads) if heads else given.fresh("hidden")
    return [Fact(given.dtype(0), (*query[:2], width))]


@contrib_rule("CDist")
def distances(given: NodeFacts) -> Fact:
    """Rows of A by rows of B."""
    a, b = given.shape(0), given.shape(1)
    return Fact(given.dtype(0), None if a is None or b is None else (a[0], b[0]))
