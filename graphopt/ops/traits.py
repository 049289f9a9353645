"""Traits of operators, by (domain, op type). Unknown operators have no traits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import onnx

from graphopt import ir
from graphopt.ops import contrib, graphopt_operators

#: Random operators: never folded, merged, duplicated or recomputed.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)

#: Deterministic operators of com.microsoft; its other operators may be nondeterministic.
VENDOR_DETERMINISTIC = frozenset(
    {
        "Attention", "BiasAdd", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "CDist", "ComplexMul",
        "ComplexMulConj", "ConvTransposeWithDynamicPads", "CropAndResize", "DecoderAttention",
        "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention", "DequantizeLinear",
        "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "EmbedLayerNormalization", "ExpandDims",
        "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "GatedRelativePositionBias",
        "GatherBlockQuantized", "GatherND", "Gelu", "GemmaRotaryEmbedding", "GridSample", "GroupNorm",
        "GroupQueryAttention", "Inverse", "Irfft", "LongformerAttention", "MatMulBnb4", "MatMulFpQ4",
        "MatMulInteger16", "MatMulIntegerToFloat", "MatMulNBits", "MaxpoolWithMask", "MoE",
        "MulInteger", "MultiHeadAttention", "MurmurHash3", "NGramRepeatBlock", "NhwcConv",
        "NhwcFusedConv", "NhwcMaxPool", "PackedAttention", "PackedMultiHeadAttention", "Pad",
        "QAttention", "QEmbedLayerNormalization", "QGemm", "QLinearAdd", "QLinearAveragePool",
        "QLinearConcat", "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul",
        "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QMoE",
        "QuantizeLinear", "QuickGelu", "Range", "ReduceSumInteger", "RelativePositionBias",
        "RemovePadding", "RestorePadding", "Rfft", "RotaryEmbedding", "SkipGroupNorm",
        "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SparseAttention",
        "SparseToDenseMatMul", "Tokenizer", "TransposeMatMul", "Trilu", "UnfoldTensor", "Unique",
        "WordConvEmbedding",
    }
)  # fmt: skip

COMMUTATIVE = frozenset(
    {
        "Add",
        "Mul",
        "And",
        "Or",
        "Xor",
        "Equal",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Max",
        "Min",
        "Sum",
        "Mean",
    }
)

#: Element-wise operators with one input (besides attributes and scalar parameters) and one output of its
#: shape.
UNARY_ELEMENTWISE = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BitwiseNot",
        "Cast",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Not",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
    ]
)

#: Element-wise operators with two inputs that broadcast.
BINARY_ELEMENTWISE = frozenset(
    [
        "Add",
        "And",
        "BitShift",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Mod",
        "Mul",
        "Or",
        "Pow",
        "PRelu",
        "Sub",
        "Xor",
    ]
)

#: Element-wise operators with three or any number of inputs that broadcast.
VARIADIC_ELEMENTWISE = ("Where", "Min", "Max", "Sum", "Mean")

#: Comparisons and logical operators with two inputs: the result is boolean.
BOOLEAN_RESULTS = frozenset({"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor"})

#: Reductions over axes to the dtype of the input.
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

#: Control flow: operators with bodies. SequenceMap is a function of the standard.
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

#: Operators that read no elements, only the shape of their input.
SHAPE_ONLY = frozenset({"Shape", "Size"})

#: Views: the same elements in the same order, with other dims.
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

#: Operators that onnxruntime executes without copying elements: the result may share the memory of the input.
ALIASES = frozenset({*RESHAPES, "Identity"})

#: Data movement: elements are moved or relabeled, not computed.
VIEW = frozenset({*RESHAPES, "Transpose", "Expand", "Identity"})

#: Operators that output only elements of their first input: all, some, or some repeatedly.
SELECTS = (
    *RESHAPES, "Transpose", "Expand", "Identity",
    "Compress", "DepthToSpace", "Gather", "GatherElements", "GatherND",
    "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Tile",
)  # fmt: skip

#: Operators that output only elements of inputs: indices of these inputs, ``None`` for all.
MOVES: Mapping[str, tuple[int, ...] | None] = {
    **dict.fromkeys((*SELECTS, "Trilu"), (0,)),
    "Concat": None,
    "Pad": (0, 2),
    "Where": (1, 2),
}  # fmt: skip

#: Operators without rounding errors: they return numbers of their inputs, possibly negated or rounded to an
#: integer, or results of comparisons.
UNROUNDED = frozenset(
    {
        *MOVES, "Abs", "And", "ArgMax", "ArgMin", "Ceil", "Clip", "ConcatFromSequence", "Constant",
        "ConstantOfShape", "Equal", "EyeLike", "Floor", "GlobalMaxPool", "Greater",
        "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Neg",
        "NonZero", "Not", "OneHot", "Optional", "OptionalGetElement", "OptionalHasElement", "Or",
        "ReduceMax", "ReduceMin", "Relu", "Round", "SequenceAt", "SequenceConstruct",
        "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "Shape", "Sign",
        "Size", "SplitToSequence", "TopK", "Unique", "Xor",
    }
)  # fmt: skip

#: Operators whose results have a magnitude of at most 1, which bounds their rounding error.
BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Tanh", "Erf", "Softmax"})

#: Operators whose computation depends on the number of outputs: before opset 14, BatchNormalization is in
#: training mode if it has all five outputs.
OUTPUTS_MATTER = frozenset({"BatchNormalization"})

#: Compute-bound operators.
COMPUTE_BOUND = frozenset(
    [
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DeformConv",
        "Einsum",
        "Gemm",
        "MatMul",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "LSTM",
        "GRU",
        "RNN",
        "Attention",
    ]
)

#: Idempotent operators: f(f(x)) = f(x).
IDEMPOTENT = frozenset({"Abs", "Ceil", "Floor", "Relu", "Round", "Sign"})


def is_commutative(domain: str, op_type: str) -> bool:
    """Whether the operator is commutative in its first two inputs."""
    return domain == "" and op_type in COMMUTATIVE


def commutes_exactly(domain: str, op_type: str) -> bool:
    """Whether swapping the first two inputs preserves every bit of the result.

    Swapping may affect the maximum of 0.0 and -0.0, or of NaN and a number: kernels select one by position.
    """
    return is_commutative(domain, op_type) and op_type not in ("Max", "Min")


def is_elementwise(node: ir.Node) -> bool:
    """Whether each output element depends only on the input elements at the same (broadcast) index."""
    return node.domain == "" and (
        node.op_type in UNARY_ELEMENTWISE
        or node.op_type in BINARY_ELEMENTWISE
        or node.op_type in VARIADIC_ELEMENTWISE
    )


def reads_only_shape(node: ir.Node) -> bool:
    """Whether ``node`` reads the shape of its input, and no elements."""
    return node.domain == "" and node.op_type in SHAPE_ONLY


def is_alias(node: ir.Node) -> bool:
    """Whether onnxruntime may give the result of ``node`` the memory of its first input."""
    return node.domain == "" and node.op_type in ALIASES


def is_loop(node: ir.Node) -> bool:
    """Whether ``node`` is a Loop or a Scan."""
    return node.domain == "" and node.op_type in ("Loop", "Scan")


def reduces(node: ir.Node) -> bool:
    """Whether ``node`` is a reduction over axes, including ArgMax and ArgMin."""
    return node.domain == "" and node.op_type.startswith(("Reduce", "ArgM"))


def moved_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs whose elements ``node`` outputs unchanged; empty if it has other results."""
    if node.domain != "" or node.op_type not in MOVES:
        return []
    positions = MOVES[node.op_type]
    return [
        value
        for index, value in enumerate(node.inputs)
        if value is not None and (positions is None or index in positions)
    ]


def is_random(node: ir.Node) -> bool:
    """Whether ``node`` itself draws random numbers, or updates statistics."""
    if node.domain != "":
        return node.domain == ir.MICROSOFT and node.op_type in {
            "BiasDropout",
            "DropoutGrad",
            "BitmaskBiasDropout",
            "BitmaskDropout",
            "Sampling",
        }
    if node.op_type in RANDOM:
        return True
    if node.op_type == "Dropout":
        return _dropout_trains(node)
    if node.op_type == "BatchNormalization":
        return batchnorm_trains(node)
    return False


def _dropout_trains(node: ir.Node) -> bool:
    """Whether ``training_mode``, an input from opset 12 on, may be true."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        attribute = node.attributes.get("is_test")  # opset 6 and below
        return attribute is not None and not attribute.is_ref() and attribute.value == 0
    return ir.scalar_of(node.inputs[2]) is not False


def batchnorm_trains(node: ir.Node) -> bool:
    """Whether BatchNormalization computes the statistics of its batch."""
    mode = node.attributes.get("training_mode")
    if mode is not None:
        return mode.is_ref() or mode.value != 0
    test = node.attributes.get("is_test")  # opset 6 and below
    if test is not None:
        return test.is_ref() or test.value == 0
    return sum(1 for output in node.outputs if output.name) > 1


@lru_cache(maxsize=4096)
def is_standard(domain: str, op_type: str) -> bool:
    """Whether the operator is part of the ONNX standard, whose operators have no side effects."""
    return domain in ("", "ai.onnx.ml") and onnx.defs.has(op_type, domain)


def is_deterministic(node: ir.Node, functions: Mapping[Any, ir.Function]) -> bool:
    """Whether ``node`` provably has equal outputs for equal inputs.

    This includes its bodies and the functions of the model that it calls.
    """
    pending = [node]
    called: dict[Any, None] = {}
    while pending:
        current = pending.pop()
        if is_random(current):
            return False
        function = functions.get(current.op_identifier()) if functions else None
        if function is not None:
            if function.identifier() not in called:
                called[function.identifier()] = None
                pending.extend(function)
            continue
        vendor = current.domain == ir.MICROSOFT and current.op_type in VENDOR_DETERMINISTIC
        known = vendor or current.domain == graphopt_operators.AD_DOMAIN
        if not known and not is_standard(current.domain, current.op_type):
            return False
        for body in ir.bodies(current):
            pending.extend(body)
    return True


@lru_cache(maxsize=16384)
def default_attribute(domain: str, op_type: str, version: int, name: str) -> Any:
    """The default of attribute ``name`` as a Python value; ``None`` without a default.

    The defaults of onnxruntime's own operators are in :mod:`graphopt.ops.contrib`.
    """
    definition = ir.operator_schema(domain, op_type, version)
    if definition is None:
        return contrib.default(domain, op_type, name)
    attribute = definition.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if isinstance(value, list):
        return tuple(item.decode() if isinstance(item, bytes) else item for item in value)
    return value.decode() if isinstance(value, bytes) else value
