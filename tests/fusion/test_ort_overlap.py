"""Nodes left to onnxruntime, and unprofitable groups."""

from __future__ import annotations

import pytest

import graphopt
from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import groups_of
from graphopt.fusion.ort_overlap import is_builtin, is_widened, overlap
from tests.model_testing import parse

INPUTS = (
    "float[N,64] x, float[64,64] w, float[64] bias, float[N,64] full, float[B,N,64] xs, float[B,M,64] ks,"
    " float[N,64,8,8] maps, float[64,64,1,1] taps, uint8[N,64] q, float one, uint8 zero"
)
SCALES = "float half = {0.5}, float[1] third = {0.3}, float[64] many = {0}, float[2] two = {1, 2}, float even = {2}, int64[1] axes = {0}"


def reason(body: str, name: str, outputs: str = "float[N,64] y") -> str:
    """The reason to leave the node that computes ``name``; empty if there is none."""
    constants = SCALES.replace("many = {0}", "many = {" + ",".join(["1"] * 64) + "}")
    model = parse(f"g ({INPUTS}) => ({outputs}) <{constants}> {{ {body} }}")
    with context_for(model) as cx:
        (node,) = (node for node in model.graph if node.outputs[0].name == name)
        return overlap(node, cx) or ""


NAN = "which onnxruntime drops or propagates depending on the position"
LEFT = {
    "the maximum of a root": ("a = Sqrt(x) y = ReduceMax <axes = [-1]> (a)", "y", NAN),
    "the minimum behind a logarithm and a view": (
        "a = Log(x) b = Unsqueeze(a, axes) c = Neg(b) y = ReduceMin <axes = [0], keepdims = 0> (c)",
        "y",
        NAN,
    ),
    "the maximum of a quotient": ("a = Div(x, full) y = ReduceMax <axes = [-1]> (a)", "y", NAN),
    "the maximum of a broken power": ("a = Pow(x, half) y = ReduceMax <axes = [-1]> (a)", "y", NAN),
    "a softmax of quantized values": (
        "a = DequantizeLinear(q, one, zero) y = Softmax(a)",
        "y",
        "quantized values",
    ),
    "the operand of a quantized product": (
        "a = DequantizeLinear(q, one, zero) y = MatMul(a, w)",
        "a",
        "quantized values",
    ),
    "the result of a quantized product": (
        "a = MatMul(x, w) b = QuantizeLinear(a, one, zero) y = DequantizeLinear(b, one, zero)",
        "b",
        "quantized values",
    ),
    "before a quantization": ("a = Exp(x) y = QuantizeLinear(a, one, zero)", "a", "quantized values"),
    "before a dynamic quantization": (
        "a = Exp(x) y, s, z = DynamicQuantizeLinear(a)",
        "a",
        "quantized values",
    ),
    "a product times a number": ("p = MatMul(x, w) y = Mul(p, half)", "y", "fuses the scale"),
    "a number times a product": ("p = MatMul(x, w) y = Mul(third, p)", "y", "fuses the scale"),
    "a product by a number": ("p = MatMul(x, w) y = Div(p, half)", "y", "fuses the scale"),
    "what a product reads times a number": ("a = Mul(x, half) y = MatMul(a, w)", "a", "fuses the scale"),
    "a bias": ("p = MatMul(x, w) y = Add(p, bias)", "y", "fuses the sum"),
    "a bias in front": ("p = MatMul(x, w) y = Add(bias, p)", "y", "fuses the sum"),
    "a number as bias": ("p = MatMul(x, w) y = Add(p, half)", "y", "fuses the sum"),
    "the activation of a Gemm": ("p = Gemm(x, w, bias) y = Relu(p)", "y", "fuses the activation"),
    "the activation of a product and a bias": (
        "p = MatMul(x, w) a = Add(p, bias) y = Sigmoid(a)",
        "y",
        "fuses the activation",
    ),
    "the normalization of a convolution": (
        "p = Conv(maps, taps) y = BatchNormalization(p, many, many, many, many)",
        "y",
        "fuses the normalization",
    ),
    "the transposition of what a product reads": (
        "t = Transpose <perm = [0,2,1]> (ks) y = MatMul(xs, t)",
        "t",
        "fuses the transposition",
    ),
    "the transposition of a matrix": (
        "t = Transpose(full) y = MatMul(t, x) z = Gemm(t, x)",
        "t",
        "fuses the transposition",
    ),
}

TAKEN = {
    "the maximum of what is fed": ("y = ReduceMax <axes = [-1]> (x)", "y"),
    "the sum of roots": ("a = Sqrt(x) y = ReduceSum(a, axes)", "y"),
    "the maximum of a norm": (
        "s = Mul(x, x) m = ReduceMean <axes = [-1]> (s) e = Add(m, half) r = Sqrt(e) n = Div(x, r)"
        " y = ReduceMax <axes = [-1]> (n)",
        "y",
    ),
    "the maximum of logarithms of clipped numbers": (
        "a = Clip(x, half) b = Log(a) y = ReduceMax <axes = [-1]> (b)",
        "y",
    ),
    "the maximum of squares and quotients by a number": (
        "a = Pow(x, even) b = Div(a, half) y = ReduceMax <axes = [-1]> (b)",
        "y",
    ),
    "the maximum of quotients by a choice of positive numbers": (
        "c = IsNaN(x) e = Exp(x) s = Where(c, e, half) n = Div(x, s) y = ReduceMax <axes = [-1]> (n)",
        "y",
    ),
    "the maximum of a product of what may be NaN": (
        "a = Sqrt(x) p = MatMul(a, w) y = ReduceMax <axes = [-1]> (p)",
        "y",
    ),
    "the maximum of integers": (
        "a = Sqrt(x) b = Cast <to = 6> (a) y = ReduceMax <axes = [-1]> (b)",
        "y",
    ),
    "what is not quantized": ("a = Exp(x) y = Neg(a)", "a"),
    "a function of one quantized value": (
        "a = DequantizeLinear(q, one, zero) y = Div(a, half) b = Exp(y) z = QuantizeLinear(b, one, zero)",
        "b",
    ),
    "a sum before a quantization": ("y = Add(x, full) z = QuantizeLinear(y, one, zero)", "y"),
    "a dequantization of which no product is computed": (
        "y = DequantizeLinear(q, one, zero) z = Neg(y)",
        "y",
    ),
    "a product times what is no constant": ("p = MatMul(x, w) y = Mul(p, one)", "y"),
    "a product times many numbers": ("p = MatMul(x, w) y = Mul(p, many)", "y"),
    "a product plus a number that others read": ("p = MatMul(x, w) y = Add(p, half) z = Exp(p)", "y"),
    "a product times a number that others read": ("p = MatMul(x, w) y = Mul(p, half) z = Exp(p)", "y"),
    "a number less a product": ("p = MatMul(x, w) y = Sub(half, p)", "y"),
    "what products and others read times a number": ("a = Mul(x, half) y = MatMul(a, w) z = Exp(a)", "a"),
    "a product that is returned": ("y = MatMul(x, w) z = Mul(y, half)", "z"),
    "a residual": ("p = MatMul(x, w) y = Add(p, full)", "y"),
    "the bias of a batch of products": ("p = MatMul(xs, w) y = Add(p, bias)", "y"),
    "a bias times a product": ("p = MatMul(x, w) y = Mul(p, bias)", "y"),
    "what a Gemm does not take in": ("p = Gemm(x, w, bias) y = Exp(p)", "y"),
    "the activation of a Gemm that others read": ("p = Gemm(x, w, bias) y = Relu(p) z = Exp(p)", "y"),
    "the activation of a product": ("p = MatMul(x, w) y = Relu(p)", "y"),
    "the activation of a residual": ("p = MatMul(x, w) a = Add(p, full) y = Relu(a)", "y"),
    "the activation of no product": ("a = Exp(x) y = Relu(a)", "y"),
    "the normalization of a convolution that others read": (
        "p = Conv(maps, taps) y = BatchNormalization(p, many, many, many, many) z = Exp(p)",
        "y",
    ),
    "a transposition of other axes": ("t = Transpose <perm = [1,0,2]> (ks) y = MatMul(xs, t)", "t"),
    "all axes of three exchanged": ("t = Transpose(ks) y = MatMul(t, xs)", "t"),
    "a transposition that others read": ("t = Transpose(full) y = MatMul(t, x) z = Exp(t)", "t"),
    "a transposition that is returned": ("y = Transpose(full)", "y"),
}


@pytest.mark.parametrize("name", LEFT)
def test_nodes_fused_by_onnxruntime_are_refused(name: str) -> None:
    body, node, words = LEFT[name]
    assert words in reason(body, node)


@pytest.mark.parametrize("name", TAKEN)
def test_near_misses_are_accepted(name: str) -> None:
    body, node = TAKEN[name]
    outputs = "float[N,64] y" + (", float[N,64] z" if "z = " in body else "")
    assert reason(body, node, outputs) == ""


def test_operators_of_other_domains_are_distinguished() -> None:
    model = parse("g (float[N,64] x) => (float[N,64] y) { p = Abs(x) y = Relu(p) }")
    first, second = model.graph
    with context_for(model) as cx:
        other = cx.edit.make_node("Gemm", first.inputs, {}, name="other", domain="my.own")
        cx.edit.insert_before(first, [other])
        cx.edit.replace(first.outputs[0], other.outputs[0])
        assert overlap(second, cx) is None


def nodes_of(body: str, inputs: str = "float[1,8,9,9] x, float[8,8,1,1] w") -> list[ir.Node]:
    return list(parse(f"g ({inputs}) => (float[A,B,C,D] y) {{ {body} }}").graph)


def test_quick_gelu_is_left_to_onnxruntime() -> None:
    sigmoid, y = nodes_of("s = Sigmoid(x) y = Mul(x, s)")
    x, w = sigmoid.inputs[0], y.inputs[0]
    assert x is not None and w is not None
    with context_for(parse("g (float x) => (float y) { y = Abs(x) }")) as cx:
        assert is_builtin([sigmoid, y], [x], cx)
        assert not is_builtin([sigmoid, y], [x, w], cx) and not is_builtin([sigmoid], [x], cx)


@pytest.mark.parametrize(
    ("body", "dtype", "is_left"),
    [
        ("b = Add(a, f) y = QuantizeLinear(b, one, zero)", "uint8", True),
        ("b = Add(a, f) y = QuantizeLinear(b, one, zero)", "int8", False),
        ("b = Add(a, f) c = Mul(b, f) y = QuantizeLinear(c, one, zero)", "uint8", False),
        ("b = Sub(a, f) y = QuantizeLinear(b, one, zero)", "uint8", False),
        ("b = Transpose(a) y = QuantizeLinear(b, one, zero)", "int8", True),
    ],
)
def test_single_operators_between_quantizers_are_left_to_onnxruntime(
    body: str, dtype: str, is_left: bool
) -> None:
    model = parse(
        f"g ({dtype}[64,64] x, float[64,64] f) => ({dtype}[64,64] y)"
        f" <float one = {{1}}, {dtype} zero = {{1}}> {{ a = DequantizeLinear(x, one, zero) {body} }}"
    )
    with context_for(model) as cx:
        assert is_builtin(list(model.graph), list(model.graph.inputs), cx) is is_left


@pytest.mark.parametrize(
    "body, widened",
    [
        ("p = MatMul(x, w) y = Abs(p)", True),  # input
        ("p = MatMul(x, w) r = Reshape(p, sizes) y = Abs(r)", True),  # input after a move
        ("a = Abs(x) y = MatMul(a, w)", True),  # output
        ("c = Cast <to = 10> (single) y = Abs(c)", False),
        ("y = Abs(x)", False),
    ],
)
def test_values_kept_in_single_precision_are_not_rounded(body: str, widened: bool) -> None:
    model = parse(
        "g (float16[N,64] x, float16[64,64] w, float[N,64] single) => (float16[N,64] y)"
        f" <int64[2] sizes = {{-1, 64}}> {{ {body} }}"
    )
    (node,) = (node for node in model.graph if node.op_type == "Abs")
    with context_for(model) as cx:
        inputs = [value for value in node.inputs if value is not None]
        assert is_widened(inputs, list(node.outputs), cx) is widened


# Unprofitable groups ---------------------------------------------------------------------------------


def outcome(
    body: str, inputs: str, outputs: str, constants: str = ""
) -> tuple[list[list[str]], dict[str, str]]:
    """The operators of each group, and the reasons for all other nodes."""
    model = parse(f"g ({inputs}) => ({outputs}) {constants} {{ {body} }}")
    found = graphopt.partition(model, "fusion")
    fused = groups_of(found.outlined())
    assert all(group.kernel is not None for group in fused)
    return [sorted(group.ops) for group in found.groups], {item.op: item.reason for item in found.reasons}


def test_groups_with_few_elements_are_unprofitable() -> None:
    chain = "a = Exp(x) y = Neg(a)"
    groups, reasons = outcome(chain, "float[7,9] x", "float[7,9] y")
    assert groups == [] and "too few elements" in reasons["Exp"]
    for shape in ("8,8", "N,2"):  # unknown sizes may be large
        assert outcome(chain, f"float[{shape}] x", f"float[{shape}] y")[0] == [["Exp", "Neg"]]
    body = "a = Exp(x) y = ReduceSum <keepdims = 0> (a)"
    assert len(outcome(body, "float[64,64] x", "float y")[0]) == 1  # large inputs


def test_groups_that_save_little_traffic_are_unprofitable() -> None:
    """Separate nodes transfer 26 bytes per element, a kernel 22."""
    groups, reasons = outcome(
        "y = Where(c, x, u) z = Where(d, y, v)",
        "bool[N,64] c, bool[N,64] d, float[N,64] x, float[N,64] u, float[N,64] v",
        "float[N,64] y, float[N,64] z",
    )
    assert groups == [] and "too little memory traffic" in reasons["Where"]
    groups, _ = outcome("y = Exp(x) z = Neg(y)", "float[N,64] x", "float[N,64] y, float[N,64] z")
    assert groups == [["Exp", "Neg"]]  # 16 and 12 bytes


def test_groups_next_to_convolutions_need_a_reduction() -> None:
    shapes = "float[1,8,16,16] x, float[8,8,1,1] w", "float[1,8,16,16] y"
    groups, reasons = outcome("c = Conv(x, w) a = Abs(c) y = Exp(a)", *shapes)
    assert groups == [] and "next to Conv" in reasons["Abs"]
    assert outcome("c = Conv(x, w) a = Abs(c) y = Softmax(a)", *shapes)[0] == [["Abs", "Softmax"]]


def test_size_computations_and_empty_values_are_excluded() -> None:
    sizes = "s = Shape(x) a = Mul(s, two) b = Add(a, two) r = Expand(one, b)"
    groups, reasons = outcome(
        sizes + " y = Identity(r)",
        "float[64,3] x",
        "float[A,B] y",
        "<int64[1] two = {2}, float one = {1}>",
    )
    assert groups == [] and reasons["Mul"] == reasons["Add"] == "it computes sizes"
    nothing = "<int64[1] start = {3}, int64[1] axis = {1}>"
    groups, reasons = outcome(
        "n = Slice(x, start, start, axis) a = Exp(n) y = Neg(a)", "float[N,8] x", "float[N,M] y", nothing
    )
    assert groups == [] and "has no elements" in reasons["Exp"]
