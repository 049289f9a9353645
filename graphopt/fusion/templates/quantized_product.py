"""MatMul of dequantized operands, with a quantized result or one of floats.

A result has the bits of the operators in onnxruntime without optimizations, up to rounding errors of more
than six standard deviations. Where the machine multiplies bytes, a quantized result is computed on integers,
except for elements whose rounding depends on the rounding of sums (``vnni.h``), and a result of floats
is rounded once.
"""

from __future__ import annotations

import math

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.unknown_sizes import require_equal
from graphopt.util.lazy_dataclass import dataclass

#: Maximum scale, and inverse of the minimum, for which rounding errors are relative to the products.
_MOST_SCALE = 2.0**40
_DOMAINS = ("", ir.MICROSOFT)
#: Element types that kernels of bytes multiply.
BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_OTHER_BATCHES = "the batches of its operands differ"


@dataclass(frozen=True)
class Quantization:
    """Scale and zero point of an operand or result.

    Attributes:
        scale, zero: for all elements; ``scale`` is ``None`` if each column has one, and ``zero`` if each
            column has one.
    """

    scale: float | None
    zero: int | None


@dataclass(frozen=True)
class ProductParameters:
    """Static parameters of ``a · b``, or ``a · bᵀ + bias``.

    Attributes:
        a: ``None`` if ``a`` consists of floats.
        result: ``None`` for a result of floats.
        batched: whether each matrix of ``a`` has its own ``b``.
        is_transposed: whether ``b`` is [columns, depth].
        bias_scale: the scale of an integer bias; ``None`` for a float bias, scales by column, or no bias.
        low, high: bounds of the result before quantization.
    """

    a: Quantization | None
    b: Quantization
    result: Quantization | None
    batched: bool
    is_transposed: bool = False
    bias_scale: float | None = None
    low: float = -math.inf
    high: float = math.inf


def is_faster(match: Match, cx: Context) -> bool:
    """Whether onnxruntime does not multiply on integers: ``a`` is not uint8.

    onnxruntime 1.31 multiplies int8 in single precision on x86-64. From 8 rows on, the kernel takes 0.31 to
    0.56 times its time, at 1 thread on AVX-512 with VNNI.
    """
    a = match.operands[0]
    return a is not None and cx.dtype(a) is not ir.DataType.UINT8


@template("MatMul", is_faster=is_faster)
def quantized_product(anchor: ir.Node, cx: Context) -> Match:
    """a [..., rows, depth] times b [depth, columns], or b [..., depth, columns] of the same batches."""
    left, right = anchor.inputs
    if left is None or right is None:
        raise CantFuse("an input is missing")
    nodes = [anchor]
    a, a_scaling = left, None
    before = quantizer(left.producer(), "DequantizeLinear")
    if before is not None and before.inputs[0] is not None:
        a, a_scaling = before.inputs[0], one_quantization(before, before.inputs[0], cx)
        nodes.append(before)
    elif cx.dtype(left) is not ir.DataType.FLOAT:
        raise CantFuse("no kernels for other types than float")
    before = quantizer(right.producer(), "DequantizeLinear")
    if before is None or before.inputs[0] is None:
        raise CantFuse("its right operand is not dequantized")
    if before not in nodes:
        nodes.append(before)
    b = before.inputs[0]
    b_scaling, scales, zeros = quantization_of_axis(before, b, 1, cx)
    batched = is_batched(a, b, cx)
    result, quantization = anchor.outputs[0], None
    readers = list(ir.readers(result))
    if len(readers) == 1 and not result.is_graph_output():
        behind = quantizer(readers[0], "QuantizeLinear")
        if behind is not None and cx.dtype(behind.outputs[0]) in BYTES:
            try:
                quantization = one_quantization(behind, behind.outputs[0], cx)
            except CantFuse:
                pass  # by other parameters: an epilogue may compute it
            else:
                nodes.append(behind)
                result = behind.outputs[0]
    found = ProductParameters(a_scaling, b_scaling, quantization, batched)
    return Match("quantized_product", tuple(nodes), (a, b, scales, zeros, None, None), (result,), found)


def quantizer(node: ir.Node | None, op: str) -> ir.Node | None:
    """``node`` if it is the quantizer ``op`` with standard precision."""
    if node is None or node.domain not in _DOMAINS or node.op_type != op:
        return None
    if any(name in node.attributes and node.attributes[name].value for name in ("block_size", "precision")):
        return None
    return node


def one_quantization(node: ir.Node, quantized: ir.Value, cx: Context) -> Quantization:
    """The quantization of all elements; raises CantFuse if its parameters are unknown, or differ."""
    if cx.dtype(quantized) not in BYTES:
        raise CantFuse("no kernels for its quantized type")
    scale = None if node.inputs[1] is None else cx.constant(node.inputs[1])
    if scale is None or scale.size != 1 or scale.dtype.name != "float32":
        raise CantFuse("its scale is not one known float")
    number = float(scale.reshape(-1)[0])
    if not 1 / _MOST_SCALE <= number <= _MOST_SCALE:
        raise CantFuse(
            "its scale is not positive, or so small or large that products may not be normal numbers"
        )
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    known = None if zero is None else cx.constant(zero)
    if zero is not None and (known is None or known.size != 1):
        raise CantFuse("its zero point is not one known integer")
    return Quantization(number, 0 if known is None else int(known.reshape(-1)[0]))


def quantization_of_axis(
    node: ir.Node, b: ir.Value, from_end: int, cx: Context
) -> tuple[Quantization, ir.Value | None, ir.Value | None]:
    """The quantization of ``b``, with scales and zero points by column.

    Args:
        from_end: the axis of columns, counted from the end: 1 is the last one.
    """
    try:
        return one_quantization(node, b, cx), None, None
    except CantFuse:
        if cx.dtype(b) not in BYTES:
            raise
    shape = cx.static_shape(b)
    axis = node.attributes["axis"].value if "axis" in node.attributes else 1
    if shape is None or axis not in (-from_end, len(shape) - from_end):
        raise CantFuse("its right operand does not have one scale for each column")
    scales = node.inputs[1]
    zeros = node.inputs[2] if len(node.inputs) > 2 else None
    for value in (scales, zeros):
        if value is not None and cx.static_shape(value) != (shape[-from_end],):
            raise CantFuse("its right operand does not have one scale for each column")
    if scales is None or cx.dtype(scales) is not ir.DataType.FLOAT:
        raise CantFuse("no kernels for scales of other types than float")
    return Quantization(None, 0 if zeros is None else None), scales, zeros


def is_batched(a: ir.Value, b: ir.Value, cx: Context) -> bool:
    """Whether ``b`` has the batches of ``a``, rather than being one matrix.

    Raises:
        CantFuse: a rank is unknown or less than 2, or the batches differ.
    """
    left, right = cx.shape(a), cx.shape(b)
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        raise CantFuse("the rank of an operand is unknown, or less than 2")
    if len(right) == 2:
        return False
    if len(left) != len(right):
        raise CantFuse(_OTHER_BATCHES)
    for one, other in zip(left[:-2], right[:-2], strict=True):
        require_equal(one, other, cx, _OTHER_BATCHES)
    return True
