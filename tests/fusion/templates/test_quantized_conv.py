"""Convolutions between quantizers, compared with onnxruntime without optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
