"""Nodes that onnxruntime fuses itself at no cost, so that kernels would gain nothing.

Measured with onnxruntime 1.31 on the CPU: it fuses operators into adjacent products and convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.nan_sources import reduces_nans
from graphopt.fusion.operator_table import find, only_moves

#: Activations that onnxruntime fuses into a Gemm.
_GEMM_ACTIVATIONS = frozenset(
    {"Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Softplus", "HardSigmoid", "Selu", "Softsign"}
    | {"ThresholdedRelu"}
)
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear"})
#: Operators with the same bits in a kernel as in onnxruntime, so that they leave quantized results unchanged.
_BIT_IDENTICAL = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Min", "Max", "Clip", "Relu", "LeakyRelu", "PRelu"}
    | {"Floor", "Ceil", "Round", "Where", "Cast", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
    | {"And", "Or", "Xor", "Not"}
)
#: Operators that onnxruntime computes on the integers of their quantized operands.
INTEGER_KERNELS = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "AveragePool", "GlobalAveragePool", "MaxPool", "Resize"}
    | {"Upsample", "Softmax", "TopK", "ArgMax"}
)
#: Operators with an integer kernel that is as fast as a kernel of the same node and its quantizers.
_QLINEAR = frozenset({"Add", "Mul", "Sigmoid", "LeakyRelu", "Concat", "Where"})


def overlap(node: ir.Node, cx: Context) -> str | None:
    """The reason to leave ``node`` to onnxruntime; ``None`` without a reason."""
    if is_computed_on_integers(node):
        return "onnxruntime computes it on quantized values"
    if node.op_type in ("Mul", "Div") and _scales_product(node):
        return "onnxruntime fuses the scale into the adjacent product"
    if node.op_type == "Add" and any(_becomes_gemm(value, cx) for value in node.inputs):
        return "onnxruntime fuses the sum into the product"
    if node.op_type in _GEMM_ACTIVATIONS and _follows_gemm(node, cx):
        return "onnxruntime fuses the activation into the product"
    if node.op_type == "Transpose" and _transposes_product(node, cx):
        return "onnxruntime fuses the transposition into the product"
    if node.op_type == "BatchNormalization" and _follows_product(node):
        return "onnxruntime fuses the normalization into the weights before it"
    if reduces_nans(node, cx):
        return "its operand may contain NaN, which onnxruntime drops or propagates depending on the position"
    return None


def is_computed_on_integers(node: ir.Node) -> bool:
    """Whether onnxruntime may compute ``node``, or its neighbour, on quantized values.

    A quantizer next to another operator may join a kernel. Other operators next to quantizers may if they
    have the same bits in a kernel, or if their operand is one quantized value: a function of 256 numbers with
    small errors hardly ever changes its quantized results.
    """
    before = [_op(value.producer()) for value in node.inputs if value is not None]
    behind = [_op(reader) for output in node.outputs for reader in ir.readers(output)]
    if _op(node) == "DequantizeLinear":
        return any(op in INTEGER_KERNELS for op in behind)
    if _op(node) == "QuantizeLinear":
        return any(op in INTEGER_KERNELS for op in before[:1])
    if "DynamicQuantizeLinear" in behind:
        return True
    if (
        only_moves(node)
        or _op(node) in _BIT_IDENTICAL
        or not any(op in _QUANTIZERS for op in (*before, *behind))
    ):
        return False
    return not _is_function_of_bytes(node)


def dequantizes_for_integers(node: ir.Node) -> bool:
    """Whether ``node`` dequantizes an operand that onnxruntime may process as integers."""
    return _op(node) == "DequantizeLinear" and any(
        _op(reader) in _QLINEAR for reader in ir.readers(node.outputs[0])
    )


def multiplies_dequantized(operands: Sequence[ir.Value | None]) -> bool:
    """Whether a product reads two dequantized ``operands``, which onnxruntime may multiply on integers.

    A template that computes the DequantizeLinear nodes as well has their inputs as operands.
    """
    producers = [None if value is None else value.producer() for value in operands[:2]]
    return len(producers) == 2 and all(_op(producer) == "DequantizeLinear" for producer in producers)


def _is_function_of_bytes(node: ir.Node) -> bool:
    """Whether ``node`` and the nodes before it compute an elementwise function of one dequantized value."""
    while _op(node) != "DequantizeLinear":
        operator = find(node)
        varying = [value for value in node.inputs if value is not None and ir.constant_of(value) is None]
        producer = varying[0].producer() if len(varying) == 1 else None
        if operator is None or operator.reduces or producer is None:
            return False
        node = producer
    return True


def is_builtin(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], cx: Context) -> bool:
    """Whether onnxruntime fuses ``nodes`` into an operator as fast as a kernel.

    Such groups are a QuickGelu, and one operator between quantizers of uint8. Quantizers around moves are
    removed.

    Args:
        inputs: the inputs of the group, without scalar constants.
    """
    ops = sorted(node.op_type for node in nodes)
    if any(op in _QUANTIZERS for op in ops):
        computing = [node for node in nodes if not only_moves(node) and node.op_type not in _QUANTIZERS]
        return not computing or (len(computing) == 1 and _is_qlinear(computing[0], cx))
    return len(inputs) == 1 and ops in (["Mul", "Sigmoid"], ["Mul", "Mul", "Sigmoid"])


def _is_qlinear(node: ir.Node, cx: Context) -> bool:
    """Whether ``node`` is computed by an operator for uint8; onnxruntime has none for int8 on x86-64."""
    quantized = [
        reader.outputs[0] for reader in ir.readers(node.outputs[0]) if _op(reader) == "QuantizeLinear"
    ]
    return node.op_type in _QLINEAR and any(cx.dtype(value) is ir.DataType.UINT8 for value in quantized)


def is_widened(inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], cx: Context) -> bool:
    """Whether half-precision values connect the group to nodes computed in single precision.

    onnxruntime keeps values between such nodes in single precision, without overflow; a kernel between them
    would round to half precision.
    """
    halves = [value for value in inputs if cx.dtype(value) == ir.DataType.FLOAT16]
    if any(_computes(_source(value)) for value in halves):
        return True
    results = [value for value in outputs if cx.dtype(value) == ir.DataType.FLOAT16]
    return any(_computes(reader) for value in results for reader in ir.readers(value))


def _source(value: ir.Value) -> ir.Node | None:
    """The node that computed the elements of ``value``, skipping moves."""
    producer = value.producer()
    while producer is not None and only_moves(producer) and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    return producer


def _computes(node: ir.Node | None) -> bool:
    """Whether ``node`` computes floats."""
    return node is not None and node.op_type not in ("Cast", "Constant")


def _op(node: ir.Node | None) -> str:
    """The operator if the standard or onnxruntime defines it; otherwise an empty string."""
    return "" if node is None or node.domain not in ("", *ir.RUNTIME_DOMAINS) else node.op_type


def _only_reader(value: ir.Value) -> bool:
    return ir.use_count(value) == 1 and not value.is_graph_output()


def _scales_product(node: ir.Node) -> bool:
    """Whether a constant scales the result or an operand of a MatMul."""
    constants = [ir.constant_of(value) for value in node.inputs]
    if not any(tensor is not None and tensor.size == 1 for tensor in constants):
        return False
    behind = list(ir.readers(node.outputs[0]))
    if behind and all(_op(reader) == "MatMul" for reader in behind):
        return True
    return any(
        value is not None and _op(value.producer()) == "MatMul" and _only_reader(value)
        for value in node.inputs
    )


def _becomes_gemm(value: ir.Value | None, cx: Context) -> bool:
    """Whether ``value`` is a matrix product with an added bias that forms a Gemm."""
    if value is None or not _only_reader(value) or _op(value.producer()) != "MatMul":
        return False
    (reader,) = ir.readers(value)
    others = [other for other in reader.inputs if other is not value and other is not None]
    return cx.rank(value) == 2 and bool(others) and all((cx.rank(other) or 0) <= 1 for other in others)


def _follows_gemm(node: ir.Node, cx: Context) -> bool:
    value = node.inputs[0]
    if value is None or not _only_reader(value):
        return False
    producer = value.producer()
    if _op(producer) == "Gemm":
        return True
    return (
        producer is not None
        and producer.op_type == "Add"
        and any(_becomes_gemm(other, cx) for other in producer.inputs)
    )


def _follows_product(node: ir.Node) -> bool:
    """Whether the normalization ``node`` is the only reader of a convolution or product."""
    value = node.inputs[0]
    if value is None or not _only_reader(value):
        return False
    return _op(value.producer()) in ("Conv", "ConvTranspose", "Gemm", "MatMul")


def _transposes_product(node: ir.Node, cx: Context) -> bool:
    """Whether ``node`` exchanges the last two axes, and only products read it."""
    behind = list(ir.readers(node.outputs[0]))
    if not behind or any(_op(reader) not in ("MatMul", "Gemm", "FusedMatMul") for reader in behind):
        return False
    order = node.attributes.get("perm")
    rank = cx.rank(node.outputs[0])
    if rank is None:
        return True
    kept = list(order.as_ints()) if order is not None else list(range(rank))[::-1]
    return kept == [*range(rank - 2), rank - 1, rank - 2]
