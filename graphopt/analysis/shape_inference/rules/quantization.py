"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.shape_inference.facts import Fact
from graphopt.analysis.shape_inference.node import NodeFacts, shape_rule


@shape_rule("QuantizeLinear")
@shape_rule("QuantizeLinear", domain=ir.MICROSOFT)
def quantize(given: NodeFacts) -> Fact:
    """The dtype is that of the zero point, else ``output_dtype``, else uint8."""
    if given.has(2):
        return given.like(0, given.dtype(2)) if given.dtype(2) is not None else Fact(None, given.shape(0))
    return given.like(0, ir.DataType(given.attr_int("output_dtype", 0) or ir.DataType.UINT8))


@shape_rule("DequantizeLinear")
@shape_rule("DequantizeLinear", domain=ir.MICROSOFT)
def dequantize(given: NodeFacts) -> Fact:
    """The dtype is ``output_dtype``, else that of the scale."""
    dtype = given.attr_int("output_dtype", 0)
    return Fact(ir.DataType(dtype) if dtype else given.dtype(1), given.shape(0))


@shape_rule("DynamicQuantizeLinear")
def dynamic_quantize(given: NodeFacts) -> list[Fact]:
    """The quantized tensor, its scale and its zero point."""
    return [given.like(0, ir.DataType.UINT8), Fact(ir.DataType.FLOAT, ()), Fact(ir.DataType.UINT8, ())]
