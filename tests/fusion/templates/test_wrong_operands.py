"""Nodes that onnxruntime rejects have no template, and any number is printed as C."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion import template_table
from graphopt.fusion.backends.c import BACKEND
from graphopt.fusion.group_functions import groups_of
from graphopt.fusion.loops.ir import CantFuse
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import parse

CONV = "g (float[1,2,L] x, float[4,2,3] w, float[{bias}] b) => (float[1,4,M] y) {{ y = Conv {attributes} (x, w, b) }}"
LSTM = """g (float[{x}] x, float[1,32,4] w, float[{r}] r) => (float[S,1,B,8] y) {{
    y = LSTM <hidden_size = 8> (x, w, r)
}}"""


def grouped(text: str, opset: int = 17) -> ir.Model:
    model = parse(text, opset=opset)
    with context_for(model) as cx:
        make_pipeline("fuse-groups").eager().run(model, cx)
    return model


@pytest.mark.parametrize(
    ("bias", "attributes", "has_template"),
    [
        ("4", "", True),
        ("4", "<dilations = [1048576], pads = [1048576, 0]>", False),
        ("4", "<dilations = [4611686018427387904]>", False),
        ("4", "<pads = [4611686018427387904, 4611686018427387904]>", False),
        ("4", "<strides = [4611686018427387904]>", False),
        ("4", '<auto_pad = "SAME_UPPER", strides = [5]>', True),
        ("4", '<auto_pad = "SAME_UPPER", strides = [6]>', False),
        ("1,4", "", False),
        ("4,1", "", False),
    ],
)
def test_convolutions(bias: str, attributes: str, has_template: bool) -> None:
    assert bool(grouped(CONV.format(bias=bias, attributes=attributes)).functions) is has_template


@pytest.mark.parametrize(("stride", "has_template"), [(5, True), (6, False)])
def test_convolutions_of_bytes(stride: int, has_template: bool) -> None:
    body = (
        f'y = QLinearConv <auto_pad = "SAME_LOWER", strides = [{stride}, {stride}]> (x, s, z, w, s, z, s, z)'
    )
    inputs = "int8[1,2,H,W] x, int8[4,2,3,3] w"
    text = f"g ({inputs}) => (int8[1,4,M,N] y) <float s = {{0.5}}, int8 z = {{3}}> {{ {body} }}"
    assert bool(grouped(text).functions) is has_template


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "g (double[M,K] x, double[K,N] w) => (double[M,N] y) { y = MatMul(x, w) }",
            "other types than float",
        ),
        (CONV.format(bias="4", attributes='<auto_pad = "SAME_UPPER", strides = [6]>'), "crops the operand"),
    ],
)
def test_the_reason_is_that_of_the_template_of_the_operator_alone(text: str, reason: str) -> None:
    model = parse(text)
    with context_for(model) as cx, pytest.raises(CantFuse, match=reason):
        template_table.matches(next(iter(model.graph)), cx)


@pytest.mark.parametrize(
    ("x", "r", "has_template"),
    [("S,B,4", "1,32,8", True), ("S,B,4", "32,8", False), ("B,4", "1,32,8", False)],
)
def test_recurrences(x: str, r: str, has_template: bool) -> None:
    assert bool(grouped(LSTM.format(x=x, r=r)).functions) is has_template


@pytest.mark.parametrize(
    ("attributes", "has_template"),
    [
        ("K = 64, N = 8, block_size = 32", True),
        ("K = 64, N = 8, block_size = 0", False),
        ("K = 64, N = 8, block_size = 48", False),
        ("N = 8, block_size = 32", False),
    ],
)
def test_products_of_few_bits(attributes: str, has_template: bool) -> None:
    inputs = "float[3,64] x, uint8[8,2,16] w, float[16] s"
    body = f"y = com.microsoft.MatMulNBits <{attributes}, bits = 4> (x, w, s)"
    assert bool(grouped(f"g ({inputs}) => (float[3,8] y) {{ {body} }}").functions) is has_template


def test_products_of_dequantized_operands_are_left_to_the_integers_of_onnxruntime() -> None:
    text = """g (uint8[16,64] x, uint8[64,64] w) => (uint8[16,64] y)
        <float s = {0.5}, uint8 z = {3}> {
        a = DequantizeLinear(x, s, z)
        b = DequantizeLinear(w, s, z)
        p = MatMul(a, b)
        y = QuantizeLinear(p, s, z)
    }"""
    model = parse(text)
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    assert not model.functions


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e-45, 0.1])
def test_numbers_are_literals_of_c(number: float) -> None:
    model = parse("g (float[M,K] x, float[K,N] w) => (float[M,N] y) { y = Gemm <alpha = 2.0> (x, w) }")
    node = next(iter(model.graph))
    node.attributes["alpha"] = ir.Attr("alpha", ir.AttributeType.FLOAT, number)
    with context_for(model) as cx:
        make_pipeline("fuse-groups").eager().run(model, cx)
    (group,) = groups_of(model)
    assert group.kernel is not None
    (line,) = [text for text in BACKEND.render([group.kernel]).splitlines() if "product->alpha =" in text]
    literal = line.split("=")[1].strip(" ;")
    assert literal.startswith(("__builtin_", "-__builtin_")) or float.fromhex(literal[:-1]) > 0


@pytest.mark.parametrize(("mask", "has_template"), [("B,2,Q,K", True), ("Q,K", False), ("2,Q,K", False)])
def test_masks_of_multi_head_attention_have_four_axes(mask: str, has_template: bool) -> None:
    inputs = f"float[B,Q,16] q, float[B,K,16] k, float[B,K,16] v, float[{mask}] m"
    body = "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , m)"
    text = f"g ({inputs}) => (float[B,Q,16] y) {{ {body} }}"
    assert bool(grouped(text).functions) is has_template


@pytest.mark.parametrize(
    ("keys", "past", "has_template"),
    [("K", "P", True), ("5", "P", True), ("K", "7", True), ("5", "7", False)],
)
def test_onnxruntime_infers_no_types_of_known_numbers_of_keys(
    keys: str, past: str, has_template: bool
) -> None:
    inputs = f"float[1,Q,16] q, float[1,{keys},16] k, float[1,{keys},16] v, float[1,2,{past},8] pk, float[1,2,{past},8] pv"
    outputs = "float[1,Q,16] y, float[1,2,T,8] ok, float[1,2,T,8] ov"
    body = "y, ok, ov = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , , pk, pv)"
    assert bool(grouped(f"g ({inputs}) => ({outputs}) {{ {body} }}").functions) is has_template


@pytest.mark.parametrize(
    ("attributes", "results", "has_template"),
    [
        ("", "y, ok, ov", True),
        (", softcap = 2.0", "y, ok, ov", True),
        (", local_window_size = 4", "y, ok, ov", True),
        (", softcap = 2.0, local_window_size = 4", "y, ok, ov", False),
        (", local_window_size = 0", "y, ok, ov", False),
        (", smooth_softmax = 1", "y, ok, ov", False),
        (", do_rotary = 1", "y, ok, ov", False),
        ("", "y", False),
    ],
)
def test_grouped_attention(attributes: str, results: str, has_template: bool) -> None:
    inputs = "float[B,Q,32] q, float[B,Q,16] k, float[B,Q,16] v, int32[B] used, int32 total"
    body = f"com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2{attributes}>"
    call = f"{results} = {body} (q, k, v, , , used, total)"
    outputs = "float[B,Q,32] y" + ", float[B,2,Q,8] ok, float[B,2,Q,8] ov" * ("ok" in results)
    assert bool(grouped(f"g ({inputs}) => ({outputs}) {{ {call} }}").functions) is has_template


@pytest.mark.parametrize(
    ("attributes", "outputs", "has_template"),
    [
        ("", "y, float[1,2,P,8] ok, float[1,2,P,8] ov", True),
        ("", "y", False),
        ("", "y, float[1,2,P,8] ok", False),
        ("<left_window_size = -1>", "y, float[1,2,P,8] ok, float[1,2,P,8] ov", True),
        ("<left_window_size = 1>", "y, float[1,2,P,8] ok, float[1,2,P,8] ov", False),
        ("<right_window_size = 0>", "y, float[1,2,P,8] ok, float[1,2,P,8] ov", False),
    ],
)
def test_attention_whose_results_are_read(attributes: str, outputs: str, has_template: bool) -> None:
    inputs = "float[1,2,1,8] q, float[1,2,1,8] k, float[1,2,1,8] v, float[1,2,O,8] pk, float[1,2,O,8] pv"
    body = f"y, ok, ov = Attention {attributes} (q, k, v, , pk, pv)"
    text = f"g ({inputs}) => (float[1,2,1,8] {outputs}) {{ {body} }}"
    assert bool(grouped(text, 25).functions) is has_template


def test_products_that_nothing_reads_have_no_template() -> None:
    body = "y = Neg(x) p = MatMulInteger(x, w)"
    assert not grouped(f"g (int8[M,4] x, int8[4,8] w) => (int8[M,4] y) {{ {body} }}").functions
