"""Products of dynamically quantized tensors, as onnxruntime's own operators.

onnxruntime does the same when it creates a session: the benefit is a shorter model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt import ir
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks.kernel_availability import require_kernel
from graphopt.rules.building_blocks.operands import operand, producer_of
from graphopt.rules.building_blocks.shape_equality import has_one_element, same_shape

_TO_FLOAT, _DYNAMIC = "MatMulIntegerToFloat", "DynamicQuantizeMatMul"
_FLOAT = int(ir.DataType.FLOAT)


def _products(op: Any, a: Any, b: Any, points: Any, s: Any, t: Any) -> Iterator[Any]:
    """The product of integers, converted to float, times the scales of both operands."""
    product = op.Cast(op.MatMulInteger(a, b, points.rest(), tag="product"), to=_FLOAT)
    yield op.Mul(product, op.Mul(s, t))
    yield op.Mul(op.Mul(product, s), t)


@fusion(
    _products,
    phase=2,
    pattern="dequantize + MatMul",
    anchors=("MatMulInteger",),
    tags=("onnxruntime:MatMulIntegerToFloatFusion",),
)
def matmul_integer_to_float(
    op: Builder, m: Match, a: ir.Value, b: ir.Value, points: Any, s: ir.Value, t: ir.Value
) -> Outcome:
    """Cast(MatMulInteger(a, b)) * (s * t) → MatMulIntegerToFloat(a, b, s, t)."""
    if not m.cx.target.device.capabilities.all_operators:
        return m.no(f"only the CPU has a kernel for it, not {m.cx.target.device}", a)
    require_kernel(m, _TO_FLOAT, a)
    if m.dtype(a) == ir.DataType.INT8 and m.dtype(b) != ir.DataType.INT8:
        return m.no("the kernel supports int8 only with int8", b)
    if (m.rank(a) or 0) < 2 or m.rank(b) != 2:
        return m.no("it is not a product with a matrix, or its rank is unknown", b)
    source = producer_of(a, "DynamicQuantizeLinear")
    scale = None if source is None else source.outputs[1]
    swapped = t is scale if scale is not None else not has_one_element(m, s)
    first, second = (t, s) if swapped else (s, t)
    if scale is not None and first is not scale:
        return m.no("neither scale is that of the quantized operand", first)
    if not has_one_element(m, first):
        return m.no("the scale of the first operand is not known to be one number", first)
    shape, matrix_shape = m.shape(second), m.shape(b)
    by_column = matrix_shape is not None and same_shape(m, shape, matrix_shape[1:])
    if not has_one_element(m, second) and not by_column:
        return m.no("the scale of the second operand is neither one number nor one per column", second)
    if len(m.shape(first) or ()) > 1 or len(shape or ()) > 1:
        return m.no("a scale has more than one axis", second)
    points = (*points, None, None)[:2]
    return op.fused(op.node(_TO_FLOAT, [a, b, first, second, *points], domain=ir.MICROSOFT))


@fusion(
    lambda op, x, r, c: op.Add(
        op.domain(ir.MICROSOFT).one_of(_TO_FLOAT, _DYNAMIC)(x, r.rest(), tag="product"), c
    ),
    phase=2,
    pattern="dequantize + MatMul",
    anchors=(),
)
def bias_into_quantized_matmul(op: Builder, m: Match, c: ir.Value) -> Outcome:
    """MatMulIntegerToFloat(…) + c → MatMulIntegerToFloat(…, c); likewise DynamicQuantizeMatMul."""
    product = m.node("product")
    bias_index = 6 if product.op_type == _TO_FLOAT else 4
    shape, bias = m.shape(product.outputs[0]), m.shape(c)
    if operand(product, bias_index) is not None:
        return m.no("it already has a bias", product.outputs[0])
    if shape is None or bias is None or not same_shape(m, bias, shape[-1:]):
        return m.no("the summand is not one number per column", c)
    scales = [value for value in product.inputs[2 : bias_index // 2 + 1] if value is not None]
    if any(m.shape(scale) is None or len(m.shape(scale) or ()) > 1 for scale in scales):
        return m.no("the kernel would scale the bias, too: a scale has more than one axis", c)
    if len(scales) > 1 and not has_one_element(m, scales[0]):
        return m.no(
            "the kernel would scale the bias, too: the scale of the first operand is not one number", c
        )
    inputs = [*product.inputs, *[None] * bias_index][:bias_index]
    return op.fused(op.like(product, [*inputs, c]))


def _quantized_here(op: Any, x: Any, b: Any, s: Any, r: Any) -> Any:
    data, scale, point = op.DynamicQuantizeLinear(x, outputs=3)
    return op.domain(ir.MICROSOFT).MatMulIntegerToFloat(data, b, scale, s, point, r.rest())


@fusion(
    _quantized_here,
    phase=2,
    pattern="dequantize + MatMul",
    anchors=(),
    tags=("onnxruntime:DynamicQuantizeMatMulFusion",),
)
def dynamic_quantize_matmul(
    op: Builder, m: Match, x: ir.Value, b: ir.Value, s: ir.Value, r: tuple[ir.Value | None, ...]
) -> Outcome:
    """MatMulIntegerToFloat(DynamicQuantizeLinear(x), b) → DynamicQuantizeMatMul(x, b)."""
    require_kernel(m, _DYNAMIC, x)
    return op.fused(op.node(_DYNAMIC, [x, b, s, *r], domain=ir.MICROSOFT))
