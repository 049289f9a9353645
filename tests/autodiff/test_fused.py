"""Gradients of onnxruntime's own and fused operators."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import IncompleteGradient, NoGradient
from tests.autodiff.models import check
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)
DOMAINS = ', "com.microsoft" : 1'
#: Tolerance for curved functions in float32.
BENT = 5e-3


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def doubles(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def checked(
    inputs: str, call: str, feeds: dict[str, np.ndarray], *, opset: int = 18, **more: object
) -> ir.Model:
    kind = "double" if "double" in inputs else "float"
    header = f'<ir_version: 10, opset_import: ["" : {opset}{DOMAINS}]> '
    text = f"{header} m ({inputs}) => ({kind} y) {{ y = com.microsoft.{call} }}"
    return check(text, feeds, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("opset", [13, 24])
@pytest.mark.parametrize("call", ["Gelu(x)", "FastGelu(x)", "QuickGelu(x)", "QuickGelu<alpha=1.0>(x)"])
def test_activations(call: str, opset: int) -> None:
    joint = checked("float[N,5] x", call, {"x": floats(3, 5)}, opset=opset, tolerance=BENT, twice=True)
    assert ops(joint).count(call.partition("(")[0].partition("<")[0]) == 1
    assert "Swish" not in ops(joint)  # its result is that of the fused operator


@pytest.mark.parametrize("name", ["BiasGelu", "FastGelu"])
def test_activations_with_bias(name: str) -> None:
    feeds = {"x": floats(3, 5), "b": floats(5)}
    checked("float[N,5] x, float[5] b", f"{name}(x, b)", feeds, opset=13, tolerance=BENT)


@pytest.mark.parametrize(
    ("activation", "again"),
    [
        ('"Relu"', False),
        ('"Sigmoid"', False),
        ('"LeakyRelu", activation_alpha=0.25', False),
        ('"LeakyRelu", activation_alpha=-0.25', True),
        ('"HardSigmoid", activation_alpha=0.2, activation_beta=0.5', False),
        ('"Elu", activation_alpha=0.75', False),
        ('"ThresholdedRelu", activation_alpha=0.5', False),
        ('"Softplus"', True),
        ('"Softsign"', True),
    ],
)
def test_products_with_activations(activation: str, again: bool) -> None:
    feeds = {
        "a": np.array([[1, -0.5, 0.25], [0.5, 1, -1]], np.float32),
        "w": np.array([[1, 0.5], [-0.25, 1], [0.75, -0.5]], np.float32),
        "c": np.array([0.5, -0.75], np.float32),
    }
    call = f"FusedGemm<activation={activation}, alpha=0.5, transB=0>(a, w, c)"
    joint = checked("float[M,K] a, float[K,2] w, float[2] c", call, feeds, tolerance=BENT)
    assert (ops(joint).count("Gemm") == 3) == again  # the operand of the activation is recomputed if required


@pytest.mark.parametrize(
    ("activation", "z"),
    [("Tanh", True), ("Sigmoid", False), ("HardSigmoid", False), ("LeakyRelu", False), ("Clip", False)],
)
def test_convolutions_with_activations(activation: str, z: bool) -> None:
    numbers = {"HardSigmoid": [0.2, 0.5], "LeakyRelu": [0.125], "Clip": [-8.0, 8.0]}.get(activation)
    told = f", activation_params=[{', '.join(map(str, numbers))}]" if numbers else ""
    x = floats(1, 2, 5, 5) + (4 if activation == "LeakyRelu" else 0)
    w = np.abs(floats(3, 2, 3, 3)) if activation == "LeakyRelu" else floats(3, 2, 3, 3) * 0.1
    feeds = {"x": x, "w": w, "b": floats(3), **({"z": floats(1, 3, 5, 5)} if z else {})}
    inputs = "float[N,2,H,W] x, float[3,2,3,3] w, float[3] b" + (", float[N,3,H,W] z" if z else "")
    call = f'FusedConv<activation="{activation}"{told}, pads=[1,1,1,1]>({", ".join(feeds)})'
    joint = checked(inputs, call, feeds, tolerance=BENT)
    assert ops(joint).count("FusedConv") == 1


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((2, 3, 4), (2, 5, 4), "transB=1"),
        ((2, 4, 3), (2, 4, 5), "transA=1, alpha=0.5"),
        ((4, 2, 3), (3, 2, 5), "transBatchA=1, transBatchB=1, transA=0"),
        ((3, 2, 4), (2, 4, 5), "transBatchA=1, alpha=-2.0"),
        ((4,), (2, 4, 5), "transA=1"),
    ],
)
def test_products_of_transposed_operands(a: tuple[int, ...], b: tuple[int, ...], attributes: str) -> None:
    feeds = {"a": doubles(*a), "b": doubles(*b)}
    inputs = ", ".join(f"double[{','.join(f'{n}{i}' for i in range(x.ndim))}] {n}" for n, x in feeds.items())
    checked(inputs, f"FusedMatMul<{attributes}>(a, b)", feeds, twice=True)


def test_unknown_activation_is_refused() -> None:
    text = """m (float[M,K] a, float[K,N] w) => (float y)
        { y = com.microsoft.FusedGemm<activation="Affine">(a, w) }"""
    with pytest.raises(NoGradient, match="activation Affine is unknown"):
        differentiate(parse(text, domains=DOMAINS), ["y"], ["a"])


# Quantization -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "columns"), [(4, 64), (4, 48), (8, 64), (2, 32)])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_with_quantized_weights(bits: int, columns: int, zeros: bool) -> None:
    rows, block = 3, 32
    blocks, blob = -(-columns // block), block * bits // 8
    sizes = [(rows, blocks, blob), (rows, -(-blocks * bits // 8))]
    packed = [RANDOM.integers(0, 256, size).astype(np.uint8) for size in sizes]
    feeds = {"a": floats(2, columns), "b": packed[0], "s": floats(rows, blocks) / 8}
    feeds |= {"z": packed[1], "c": floats(rows)} if zeros else {}
    inputs = f"float[M,{columns}] a, uint8[{rows},{blocks},{blob}] b, float[{rows},{blocks}] s"
    inputs += f", uint8[{rows},{packed[1].shape[1]}] z, float[{rows}] c" if zeros else ""
    call = f"MatMulNBits<K={columns}, N={rows}, bits={bits}, block_size={block}>"
    checked(inputs, f"{call}(a, b, s{', z, , c' if zeros else ''})", feeds)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_quantized_tables(bits: int) -> None:
    rows, width, block = 6, 64, 32
    packed = [RANDOM.integers(0, 256, (rows, size * bits // 8)).astype(np.uint8) for size in (width, 2)]
    feeds = {"d": packed[0], "i": np.array([[0, 3], [3, 5]]), "s": floats(rows, 2) / 8, "z": packed[1]}
    inputs = f"uint8[{rows},{width * bits // 8}] d, int64[A,B] i, float[{rows},2] s, uint8[{rows},{2 * bits // 8}] z"
    call = f"GatherBlockQuantized<bits={bits}, block_size={block}, quantize_axis=1>(d, i, s, z)"
    checked(inputs, call, feeds)


@pytest.mark.parametrize("scales", ["float", "float[5]"])
def test_integer_products(scales: str) -> None:
    b, t = RANDOM.integers(-100, 100, (4, 5)).astype(np.int8), np.abs(floats(*([5] if "[" in scales else [])))
    feeds = {
        "a": RANDOM.integers(0, 256, (2, 3, 4)).astype(np.uint8),
        "b": b,
        "s": np.array(0.01, np.float32),
        "t": np.asarray(t / 16, np.float32),
        "z": np.array(100, np.uint8),
        "c": floats(5),
    }
    inputs = f"uint8[A,B,4] a, int8[4,5] b, float s, {scales} t, uint8 z, float[5] c"
    checked(inputs, "MatMulIntegerToFloat(a, b, s, t, z, , c)", feeds, tolerance=BENT)
    feeds = {"a": floats(2, 3, 4), "b": b, "t": np.asarray(t / 16, np.float32), "c": floats(5)}
    inputs = f"float[A,B,4] a, int8[4,5] b, {scales} t, float[5] c"
    checked(inputs, "DynamicQuantizeMatMul(a, b, t, , c)", feeds, wrt=["t", "c"], tolerance=BENT)


NUMBERS = RANDOM.integers(-100, 100, (2, 3, 8)).astype(np.int8)


@pytest.mark.parametrize(
    ("dims", "attributes", "scales"),
    [
        ("", "", ()),
        ("[1]", "", (1,)),
        ("[D]", "<axis=-2>", (3,)),
        ("[8]", "<axis=2>", (8,)),
        ("[D,E,F]", "<axis=2, block_size=4>", (2, 3, 2)),
        ("[D,E,F]", "<axis=1, block_size=2>", (2, 2, 8)),  # the last block is shorter
        ("[2,2,8]", "<axis=1, block_size=2>", (2, 2, 8)),
    ],
)
@pytest.mark.parametrize("opset", [13, 25])
def test_scales(dims: str, attributes: str, scales: tuple[int, ...], opset: int) -> None:
    if opset == 13 and (len(scales) > 1 or scales == (1,)):
        pytest.skip("opset 13 has no blocks, and onnxruntime's kernel no scales of one element")
    known = "[2,3,8]" if "2,2" in dims else "[A,B,C]"
    zero = np.asarray(RANDOM.integers(-9, 9, scales).astype(np.int8))
    feeds = {"x": NUMBERS, "s": np.asarray(np.abs(floats(*scales)), np.float32), "z": zero}
    text = f"""m (int8{known} x, float{dims} s, int8{dims} z) => (float[A,B,C] y)
        {{ y = DequantizeLinear{attributes}(x, s, z) }}"""
    check(text, feeds, opset=opset)


def test_rounding_stops_gradients_and_is_reported() -> None:
    text = """m (float[A,B] x, float s) => (float[A,B] y)
        { q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) y = Add(d, x) }"""
    joint = differentiate(parse(text), ["y"], ["x", "s"])
    assert [(stop.op, stop.reason) for stop in joint.stopped] == [("QuantizeLinear", "it rounds")]
    assert "DequantizeLinear" in ops(joint.model)


def test_dynamic_scale_has_a_gradient() -> None:
    text = "m (float[A,B] x) => (float s) { q, s, z = DynamicQuantizeLinear(x) }"
    apart = RANDOM.permutation(12).reshape(3, 4).astype(np.float32) / 4  # no step changes its extremes
    for x in (apart - 1.3, apart + 1, -apart - 1):
        check(text, {"x": x})


def test_incomplete_gradients_through_scales_are_warned_of() -> None:
    quantized = (
        "q, s, z = DynamicQuantizeLinear(x) a = MatMulInteger(q, v, z) b = Cast<to = 1>(a) y = Mul(b, s)"
    )
    fused = "c = Abs(x) y = com.microsoft.DynamicQuantizeMatMul(c, v, r)"
    for op, body in (("DynamicQuantizeLinear", quantized), ("DynamicQuantizeMatMul", fused)):
        text = f"m (float[A,B] x, uint8[B,2] v, float r) => (float[A,2] y) {{ {body} }}"
        model = parse(text, domains=', "com.microsoft" : 1')
        with pytest.warns(IncompleteGradient, match=f"through {op} .* are incomplete: it rounds") as caught:
            joint = differentiate(model, ["y"], ["x"])
        partly = [(item.op, item.node) for item in joint.stopped if item.partly]
        assert len(caught) == 1 and partly == [(op, f"{op}({'q' if op.endswith('Linear') else 'y'})")]
    with warnings.catch_warnings(action="error"):  # neither rounding nor x is on the way
        differentiate(model, ["y"], ["r"])
        differentiate(
            parse("m (float[A] x) => (float s) { q, s, z = DynamicQuantizeLinear(x) }"), ["s"], ["x"]
        )


# Others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "call", "feeds"),
    [
        ("double[A,B,C] x, int64 k", "Trilu<upper=0>(x, k)", {"x": doubles(2, 3, 4), "k": np.array(1)}),
        ("double[A,B] x, int32 a", "ExpandDims(x, a)", {"x": doubles(2, 3), "a": np.array(1, np.int32)}),
        ("double[A,B,B] x", "Inverse(x)", {"x": doubles(2, 3, 3) + 4 * np.eye(3)}),
        (
            "double[A,B,C] x, int64[M,2] i",
            "GatherND(x, i)",
            {"x": doubles(2, 3, 4), "i": np.array([[0, 1], [1, 2], [0, 1]])},
        ),
        ("double[M,N] a, double[K,N] b", "CDist(a, b)", {"a": doubles(3, 4), "b": doubles(5, 4)}),
        (
            "double[M,N] a, double[K,N] b",
            'CDist<metric="euclidean">(a, b)',
            {"a": doubles(3, 4), "b": doubles(5, 4)},
        ),
        (
            "float[A,B] x, int64[4] p, float v",
            "Pad(x, p, v)",
            {"x": floats(2, 3), "p": np.array([1, 0, 2, 1]), "v": np.array(1, np.float32)},
        ),
        (
            "float[A,B,C,D] x, float[A,E,F,2] g",
            'GridSample<mode="bilinear">(x, g)',
            {"x": floats(1, 2, 4, 4), "g": np.tanh(floats(1, 3, 3, 2)) / 8},
        ),
    ],
)
@pytest.mark.parametrize("opset", [16, 22])
def test_others(inputs: str, call: str, feeds: dict[str, np.ndarray], opset: int) -> None:
    wrt = [name for name in feeds if name != "g"]
    checked(inputs, call, feeds, opset=opset, wrt=wrt, tolerance=1e-5 if "double" in inputs else None)


@pytest.mark.parametrize(("limit", "step"), [(4.1, 0.7), (-4.1, -0.7), (0.1, 0.7)])
def test_ranges(limit: float, step: float) -> None:
    feeds = {"s": np.array(0.3), "l": np.array(limit), "d": np.array(step)}
    text = "m (double s, double l, double d) => (double[N] y) { y = Range(s, l, d) }"
    joint = check(text, feeds, wrt=["s", "d"], twice=True)
    assert "Loop" not in ops(joint)


def test_embeddings() -> None:
    feeds = {
        "i": RANDOM.integers(0, 7, (2, 3)).astype(np.int32),
        "k": RANDOM.integers(0, 2, (2, 3)).astype(np.int32),
        **{name: floats(rows, 8) for name, rows in (("w", 7), ("p", 5), ("t", 2))},
        **{"g": floats(8), "b": floats(8)},
    }
    inputs = (
        """int32[B,S] i, int32[B,S] k, float[7,8] w, float[5,8] p, float[2,8] t, float[8] g, float[8] b"""
    )
    header = f'<ir_version: 10, opset_import: ["" : 18{DOMAINS}]> '
    text = f"""{header} m ({inputs}) => (float y, float s)
        {{ y, , s = com.microsoft.EmbedLayerNormalization(i, k, w, p, t, g, b) }}"""
    check(text, feeds, tolerance=BENT)
