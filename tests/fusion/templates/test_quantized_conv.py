"""Convolutions between quantizers, compared with onnxruntime without optimizations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.fusion.backends.c.runtime.samples import compiled
from tests.fusion.templates.byte_results import kernel_count
from tests.fusion.test_low_bit_products import Compiled, Model
from tests.fuzz.kernels.batches import cpu_levels

pytestmark = compiled

Array = np.ndarray
_TYPES: dict[str, Any] = {"u": np.uint8, "i": np.int8}

#: types of x, weights and result, channels, filters, kernel, attributes, bias (none, integers or floats),
#: operator before the quantizer, whether filters have scales and zero points, with an epilogue
_CASES: list[tuple[str, str, str, int, int, tuple[int, int], dict[str, Any], str, str, bool, bool]] = [
    ("u", "i", "u", 16, 17, (3, 3), {"pads": [1, 1, 1, 1]}, "i", "", True, True),
    ("u", "i", "u", 3, 16, (3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 2]}, "i", "relu", False, False),
    ("u", "i", "u", 200, 61, (1, 1), {}, "f", "", False, False),
    ("i", "i", "i", 96, 7, (1, 1), {"strides": [2, 1]}, "", "clip", True, False),
    ("u", "u", "u", 40, 49, (3, 2), {"pads": [2, 1, 2, 0], "dilations": [1, 2]}, "i", "", True, True),
    ("u", "i", "i", 19, 19, (3, 3), {"group": 19, "pads": [1] * 4}, "i", "relu", True, False),
    ("u", "i", "u", 9, 18, (5, 5), {"group": 9, "pads": [2] * 4, "strides": [2, 2]}, "f", "", False, True),
    ("i", "u", "u", 24, 36, (3, 3), {"group": 3, "auto_pad": "SAME_UPPER"}, "i", "", True, False),
    ("u", "i", "u", 1, 50, (1, 5), {"strides": [1, 2]}, "", "", False, False),
    ("u", "i", "u", 300, 20, (2, 2), {"auto_pad": "VALID"}, "i", "clip", True, False),
]


def _model() -> Model:
    m = Model()
    for number, case in enumerate(_CASES):
        x, w, y, channels, filters, kernel, attributes, bias, bound, by_filter, extended = case
        terms = channels // attributes.get("group", 1) * kernel[0] * kernel[1]
        count = filters if by_filter else 1
        value = m.input(f"x{number}", _TYPES[x], "B", channels, "H", "W")
        scaling = [m.constant(np.float32(0.0137)), m.constant(_TYPES[x](131 if x == "u" else 5))]
        inputs = [m.node("DequantizeLinear", [value, *scaling], f"dx{number}")]
        weights = m.constant(m.bytes(w, filters, channels // attributes.get("group", 1), *kernel))
        scale = m.random.uniform(0.005, 0.01, count).astype(np.float32)
        zeros = m.random.integers(118, 130, count) if w == "u" else np.zeros(count)
        parts = [weights, *(m.constant(v if by_filter else v[0]) for v in (scale, zeros.astype(_TYPES[w])))]
        inputs.append(m.node("DequantizeLinear", parts, f"dw{number}", axis=0))
        integers = m.random.integers(-30000, 30000, filters).astype(np.int32)
        if bias == "i":
            own = np.float32(0.0137) * (scale if by_filter else scale[0])
            parts = [m.constant(integers), m.constant(own)]
            inputs.append(m.node("DequantizeLinear", parts, f"db{number}", axis=0))
        elif bias == "f":
            inputs.append(m.constant((integers * 1e-4).astype(np.float32)))
        result = m.node("Conv", inputs, f"y{number}", **attributes)
        if bound == "relu":
            result = m.node("Relu", [result], f"b{number}")
        elif bound == "clip":
            result = m.node(
                "Clip", [result, m.constant(np.float32(-1)), m.constant(np.float32(6))], f"b{number}"
            )
        # The results fill the range of the type, and are saturated now and then.
        spread = np.float32(np.sqrt(terms) * 0.0137 * 74 * 0.0075 * 74 / 50)
        scaling = [m.constant(spread), m.constant(_TYPES[y](128 if y == "u" else 3))]
        result = m.node("QuantizeLinear", [result, *scaling], f"q{number}")
        if extended:
            again = m.node("DequantizeLinear", [result, *scaling], f"e{number}")
            result = m.node("QuantizeLinear", [m.node("Abs", [again], f"a{number}"), *scaling], f"r{number}")
        m.output(result, _TYPES[y])
    return m


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(_model().proto(), tmp_path_factory.mktemp("convolutions"))


def _feeds(batch: int, height: int, width: int) -> dict[str, Array]:
    m = Model()
    return {
        f"x{number}": m.bytes(case[0], batch, case[3], height, width) for number, case in enumerate(_CASES)
    }


def test_each_convolution_between_quantizers_has_a_template(convolutions: Compiled) -> None:
    assert convolutions.templates == ["quantized_conv"] * len(_CASES)


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("shape", [(1, 5, 6), (2, 13, 17), (1, 40, 33), (0, 6, 6), (1, 7, 300)])
def test_convolutions_between_quantizers_are_bit_identical(
    convolutions: Compiled, level: int, shape: tuple[int, int, int]
) -> None:
    feeds = _feeds(*shape)
    plain, single = convolutions.run_plain(feeds), convolutions.run(feeds, level, 1)
    for name, expected in plain.items():
        got = single[name]
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if level >= 3:
            assert (got == expected).all(), name
        else:  # onnxruntime multiplies and adds in one instruction, the kernel in two
            apart = np.abs(got.astype(int) - expected)
            assert apart.max(initial=0) <= 1
            assert (apart > 0).mean() < 1e-3 if apart.size else True
    for name, values in convolutions.run(feeds, level, 2).items():
        assert values.tobytes() == single[name].tobytes()


#: for each model: x, scales of filters, floats of the bias, and an operator before the quantizer with its bounds
_UNUSUAL: list[tuple[str, list[float], list[float], str, list[float]]] = [
    ("u", [0.01, np.nan, np.inf, -np.inf, 0, -0.01, 3e38, 1e-45], [], "", []),
    ("i", [0.01, np.nan, np.inf, -np.inf, 0, -0.01, 3e38, 1e-45], [], "Relu", []),
    ("u", [0.01] * 8, [0, np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0, 1e-45], "", []),
    ("i", [0.01] * 8, [0, np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0, 1e-45], "Relu", []),
    ("u", [0.01] * 8, [0, np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0, 1e-45], "Clip", [-1, 6]),
    ("u", [0.01] * 8, [], "Clip", [5, -5]),
    ("i", [0.01] * 8, [], "Clip", [-np.inf, 0.5]),
]


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
@pytest.mark.parametrize("level", [level for level in cpu_levels() if level >= 3])
def test_results_of_numbers_that_are_not_finite_have_the_bits_of_onnxruntime(
    op: str, level: int, tmp_path: Path
) -> None:
    m, feeds = Model(), {}
    for number, (kind, scales, bias, bound, bounds) in enumerate(_UNUSUAL):
        element, place, axes = _TYPES[kind], str(number), (5, 4) if op == "Conv" else ()
        feeds["x" + place] = m.bytes(kind, 2, 70, *axes)
        x = m.input("x" + place, element, "B", 70, *axes)
        scaling = [m.constant(np.float32(0.02)), m.constant(element(100))]
        inputs = [m.node("DequantizeLinear", [x, *scaling], "dx" + place)]
        kernel = (3, 3) if op == "Conv" else ()
        weights = [m.constant(m.bytes("i", 8, 70, *kernel)), m.constant(np.array(scales, np.float32))]
        inputs.append(m.node("DequantizeLinear", weights, "dw" + place, axis=0))
        if bias:
            inputs.append(m.constant(np.array(bias, np.float32)))
        attributes: dict[str, Any] = {"pads": [1, 1, 1, 1]} if op == "Conv" else {"transB": 1}
        y = m.node(op, inputs, "y" + place, **attributes)
        if bound:
            y = m.node(bound, [y, *(m.constant(np.float32(v)) for v in bounds)], "b" + place)
        scaling = [m.constant(np.float32(0.25)), m.constant(element(30))]
        m.output(m.node("QuantizeLinear", [y, *scaling], "q" + place), element)
    made = Compiled(m.proto(), tmp_path)
    assert made.templates == [{"Conv": "quantized_conv", "Gemm": "quantized_product"}[op]] * len(_UNUSUAL)
    got = made.run(feeds, level, 2)
    for name, expected in made.run_plain(feeds).items():
        assert (got[name] == expected).all(), name


@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-20, 1e20, 3e38])
@pytest.mark.parametrize("place", ["x", "w", "y"])
def test_scales_whose_products_may_not_be_normal_numbers_have_no_template(scale: float, place: str) -> None:
    m = Model()
    scales = {name: m.constant(np.float32(scale if name == place else 0.02)) for name in "xwy"}
    inputs = [m.node("DequantizeLinear", [m.input("x", np.int8, 1, 16, 8, 8), scales["x"]], "dx")]
    inputs.append(m.node("DequantizeLinear", [m.constant(m.bytes("i", 4, 16, 3, 3)), scales["w"]], "dw"))
    y = m.node("Conv", inputs, "y")
    m.output(m.node("QuantizeLinear", [y, scales["y"], m.constant(np.int8(3))], "q"), np.int8)
    assert kernel_count(m) == 0


@pytest.mark.parametrize(
    ("kinds", "channels", "group", "size", "is_taken"),
    [
        ("ui", 3, 1, 8, True),
        ("ui", 16, 1, 8, False),
        ("uu", 64, 1, 8, True),
        ("uu", 128, 1, 8, False),
        ("ii", 128, 1, 8, True),
        ("ui", 16, 4, 8, True),
        ("ui", 16, 16, 16, False),
        ("uu", 16, 16, 16, True),
        ("uu", 16, 16, 8, False),
    ],
)
def test_convolutions_that_onnxruntime_computes_faster_are_left_to_it(
    kinds: str, channels: int, group: int, size: int, is_taken: bool
) -> None:
    m = Model()
    x, w = (_TYPES[kind] for kind in kinds)
    scale = m.constant(np.float32(0.02))
    inputs = [m.node("DequantizeLinear", [m.input("x", x, 1, channels, size, size), scale], "dx")]
    weights = m.constant(m.bytes(kinds[1], 16, channels // group, 3, 3))
    inputs.append(m.node("DequantizeLinear", [weights, scale], "dw"))
    y = m.node("Conv", inputs, "y", group=group, pads=[1, 1, 1, 1])
    m.output(m.node("QuantizeLinear", [y, scale, m.constant(w(3))], "q"), w)
    assert kernel_count(m) == int(is_taken)


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
@pytest.mark.parametrize("outer", ["dequantizers", "product"])
def test_operands_and_readers_in_other_graphs_are_no_part_of_a_kernel(
    op: str, outer: str, tmp_path: Path
) -> None:
    m = Model()
    axes, kernel = ((5, 6), (3, 3)) if op == "Conv" else ((), ())
    x = m.input("x", np.int8, 3, 8, *axes)
    scale, zero = m.constant(np.float32(0.02)), m.constant(np.int8(3))
    weights = m.constant(m.bytes("i", 8, 8, *kernel))
    before = [
        helper.make_node("DequantizeLinear", [x, scale], ["dx"]),
        helper.make_node("DequantizeLinear", [weights, scale], ["dw"]),
    ]
    product = helper.make_node(op, ["dx", "dw"], ["p"])
    m.nodes += before if outer == "dequantizers" else [*before, product]
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = [product] if outer == "dequantizers" else []
        result = helper.make_node("QuantizeLinear", ["p", scale, zero], [f"q_{name}"])
        output = helper.make_tensor_value_info(f"q_{name}", TensorProto.INT8, None)
        nodes = (
            [*inner, result] if name == "then_branch" else [helper.make_node("Identity", [x], [f"q_{name}"])]
        )
        branches[name] = helper.make_graph(nodes, name, [], [output])
    m.input("condition", np.bool_)
    m.nodes.append(helper.make_node("If", ["condition"], ["y"], **branches))
    m.output("y", np.int8)
    made = Compiled(m.proto(), tmp_path)
    feeds = {"x": m.bytes("i", 3, 8, *axes), "condition": np.array(True)}
    assert (made.run(feeds, cpu_levels()[-1], 1)["y"] == made.run_plain(feeds)["y"]).all()
