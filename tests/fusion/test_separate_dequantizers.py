"""Copies of DequantizeLinear for its readers."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.separate_dequantizers import separate_dequantizers
from tests.model_testing import parse

CONSTANTS = "float s = {0.1}, int8 z = {3}, int8[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}"


def separated(body: str, outputs: str) -> ir.Model:
    """The model with separate nodes."""
    model = parse(f"g (int8[4,4] x, float[4,4] v) => ({outputs}) <{CONSTANTS}> {{ {body} }}")
    with context_for(model) as cx:
        separate_dequantizers(model, cx)
    return model


def count(model: ir.Model) -> int:
    return sum(node.op_type == "DequantizeLinear" for node in model.graph)


def test_a_product_gets_its_own_node() -> None:
    model = separated(
        "d = DequantizeLinear(x, s, z) y = MatMul(d, v) t = Neg(d)", "float[4,4] y, float[4,4] t"
    )
    assert count(model) == 2
    (product,) = (node for node in model.graph if node.op_type == "MatMul")
    (negated,) = (node for node in model.graph if node.op_type == "Neg")
    assert product.inputs[0] is not negated.inputs[0]


def test_the_only_readers_of_each_kind_share_a_node() -> None:
    neither = separated("d = DequantizeLinear(x, s, z) y = Abs(d) t = Neg(d)", "float[4,4] y, float[4,4] t")
    assert count(neither) == 1
    assert count(separated("d = DequantizeLinear(x, s, z) y = MatMul(d, v)", "float[4,4] y")) == 1


def test_each_of_several_products_gets_its_own_node() -> None:
    model = separated(
        "d = DequantizeLinear(x, s, z) y = MatMul(d, v) t = MatMul(v, d)", "float[4,4] y, float[4,4] t"
    )
    assert count(model) == 2


def test_each_reader_of_a_constant_gets_its_own_node() -> None:
    model = separated("d = DequantizeLinear(w, s, z) y = Abs(d) t = Add(v, d)", "float[4,4] y, float[4,4] t")
    assert count(model) == 2


def test_an_output_keeps_its_node() -> None:
    model = separated("d = DequantizeLinear(x, s, z) y = MatMul(d, v)", "float[4,4] d, float[4,4] y")
    assert count(model) == 2
    assert model.graph.outputs[0].producer() is not None


def test_sizes_are_read_from_the_quantized_tensor() -> None:
    model = separated("d = DequantizeLinear(x, s, z) y = Shape(d) t = Neg(d)", "int64[2] y, float[4,4] t")
    (shape,) = (node for node in model.graph if node.op_type == "Shape")
    assert shape.inputs[0] is model.graph.inputs[0]


def test_a_second_run_changes_nothing() -> None:
    model = separated(
        "d = DequantizeLinear(x, s, z) y = MatMul(d, v) t = Neg(d)", "float[4,4] y, float[4,4] t"
    )
    before = ir.to_bytes(model)
    with context_for(model) as cx:
        separate_dequantizers(model, cx)
    assert ir.to_bytes(model) == before
