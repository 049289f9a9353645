"""Gemm of dequantized operands with a quantized result, optionally after Relu or Clip.

It shares the kernel of :mod:`.quantized_product`. Products are added to the bias, in onnxruntime's order.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.template_table import Match, template
from graphopt.fusion.templates.quantized_conv import dequantized, quantized_bias, quantizer_behind
from graphopt.fusion.templates.quantized_product import (
    ProductParameters,
    one_quantization,
    quantization_of_axis,
)

#: Minimum number of rows for which kernels of two uint8 operands are faster.
_MIN_ROWS = 8


def is_faster(match: Match, cx: Context) -> bool:
    """Whether onnxruntime is slower.

    At 1 thread on AVX-512 with VNNI, the kernel took 0.02 to 0.1 of the time of onnxruntime 1.31 for int8.
    For two uint8 operands, it took 0.6 for 8 rows or more, and 1.0 to 1.15 for one; for uint8 times int8,
    1.25 to 1.4.
    """
    a, b = match.operands[:2]
    assert a is not None and b is not None
    if cx.dtype(a) is ir.DataType.INT8:
        return True
    rows = (cx.shape(a) or (None,))[0]
    return cx.dtype(b) is ir.DataType.UINT8 and isinstance(rows, int) and rows >= _MIN_ROWS


@template("Gemm", is_faster=is_faster)
def quantized_gemm(anchor: ir.Node, cx: Context) -> Match:
    """``a · b + bias``: a [rows, depth], b [depth, columns], or ``bᵀ`` of b [columns, depth]."""
    attributes = {name: attribute.value for name, attribute in anchor.attributes.items()}
    if attributes.get("transA", 0) or any(attributes.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise CantFuse("no kernels of 8-bit integers with alpha, beta or transA")
    is_transposed = bool(attributes.get("transB", 0))
    a, a_node = dequantized(anchor, 0, cx)
    b, b_node = dequantized(anchor, 1, cx)
    shape = cx.static_shape(b)
    if cx.rank(a) != 2 or shape is None or len(shape) != 2:
        raise CantFuse("its right operand is not a matrix of known shape")
    b_quantization, scales, zeros = quantization_of_axis(b_node, b, 2 if is_transposed else 1, cx)
    columns = shape[0 if is_transposed else 1]
    bias, bias_scales, bias_scale, bias_nodes = quantized_bias(anchor, columns, cx)
    low, high, behind = quantizer_behind(anchor, cx)
    result = behind[-1].outputs[0]
    found = ProductParameters(
        one_quantization(a_node, a, cx),
        b_quantization,
        one_quantization(behind[-1], result, cx),
        batched=False,
        is_transposed=is_transposed,
        bias_scale=bias_scale,
        low=low,
        high=high,
    )
    nodes = tuple(dict.fromkeys((anchor, a_node, b_node, *bias_nodes, *behind)))
    operands = (a, b, scales, zeros, bias, bias_scales)
    return Match("quantized_product", nodes, operands, (result,), found)
