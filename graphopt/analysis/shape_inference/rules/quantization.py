"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact


@shape_rule("QuantizeLinear")
@shape_rule("QuantizeLinear", domain=ir.MICROSOFT)
def quantize(node: NodeFacts) -> Fact:
    """The dtype of the zero point, otherwise ``output_dtype``, otherwise uint8."""
    if node.has(2):
        return node.like(0, node.dtype(2)) if node.dtype(2) is not None else Fact(None, node.shape(0))
    return node.like(0, ir.DataType(node.attr_int("output_dtype", 0) or ir.DataType.UINT8))


@shape_rule("DequantizeLinear")
@shape_rule("DequantizeLinear", domain=ir.MICROSOFT)
def dequantize(node: NodeFacts) -> Fact:
    """The dtype ``output_dtype``, by default the dtype of the scale."""
    dtype = node.attr_int("output_dtype", 0)
    return Fact(ir.DataType(dtype) if dtype else node.dtype(1), node.shape(0))


@shape_rule("DynamicQuantizeLinear")
def dynamic_quantize(node: NodeFacts) -> list[Fact]:
    """The quantized tensor, its scale and its zero point."""
    return [node.like(0, ir.DataType.UINT8), Fact(ir.DataType.FLOAT, ()), Fact(ir.DataType.UINT8, ())]
