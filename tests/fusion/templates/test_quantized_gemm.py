"""Gemm between quantizers, compared with onnxruntime without optimizations."""

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

#: types of a, b and result, depth, columns, transB, bias (none, integers or floats), operator before the
#: quantizer, whether columns have scales and zero points
_CASES: list[tuple[str, str, str, int, int, int, str, str, bool]] = [
    ("u", "i", "u", 576, 300, 1, "i", "", False),
    ("i", "i", "i", 1024, 33, 1, "f", "relu", False),
    ("u", "u", "u", 100, 64, 0, "i", "clip", False),
    ("i", "u", "i", 31, 17, 1, "i", "", True),
    ("u", "i", "u", 257, 5, 1, "", "relu", True),
    ("i", "i", "u", 64, 100, 0, "f", "", True),
]


def _model() -> Model:
    m = Model()
    for number, (a, b, y, depth, columns, turned, bias, bound, by_column) in enumerate(_CASES):
        x = m.input(f"x{number}", _TYPES[a], "B", depth)
        scaling = [m.constant(np.float32(0.0137)), m.constant(_TYPES[a](131 if a == "u" else 5))]
        inputs = [m.node("DequantizeLinear", [x, *scaling], f"dx{number}")]
        count = columns if by_column else 1
        weights = m.constant(m.bytes(b, *((columns, depth) if turned else (depth, columns))))
        scale = m.random.uniform(0.005, 0.01, count).astype(np.float32)
        zeros = (m.random.integers(118, 130, count) if b == "u" else np.zeros(count)).astype(_TYPES[b])
        parts = [weights, *(m.constant(v if by_column else v[0]) for v in (scale, zeros))]
        inputs.append(m.node("DequantizeLinear", parts, f"dw{number}", axis=1 - turned))
        integers = m.random.integers(-30000, 30000, columns).astype(np.int32)
        if bias == "i":
            own = np.float32(0.0137) * (scale if by_column else scale[0])
            parts = [m.constant(integers), m.constant(own)]
            inputs.append(m.node("DequantizeLinear", parts, f"db{number}", axis=0))
        elif bias == "f":
            inputs.append(m.constant((integers * 1e-3).astype(np.float32)))
        result = m.node("Gemm", inputs, f"y{number}", transB=turned)
        if bound == "relu":
            result = m.node("Relu", [result], f"b{number}")
        elif bound == "clip":
            bounds = [m.constant(np.float32(-3)), m.constant(np.float32(9))]
            result = m.node("Clip", [result, *bounds], f"b{number}")
        # The results fill the range of the type, and are saturated now and then.
        spread = np.float32(np.sqrt(depth) * 0.0137 * 74 * 0.0075 * 74 / 40)
        scaling = [m.constant(spread), m.constant(_TYPES[y](128 if y == "u" else 3))]
        m.output(m.node("QuantizeLinear", [result, *scaling], f"q{number}"), _TYPES[y])
    return m


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(_model().proto(), tmp_path_factory.mktemp("products"))


def _feeds(rows: int) -> dict[str, Array]:
    m = Model()
    return {f"x{number}": m.bytes(case[0], rows, case[3]) for number, case in enumerate(_CASES)}


def test_each_gemm_between_quantizers_has_a_template(products: Compiled) -> None:
    assert products.templates == ["quantized_product"] * len(_CASES)


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("rows", [0, 1, 2, 13, 150])
def test_gemm_between_quantizers_is_bit_identical(products: Compiled, level: int, rows: int) -> None:
    feeds = _feeds(rows)
    plain, single = products.run_plain(feeds), products.run(feeds, level, 1)
    for name, expected in plain.items():
        got = single[name]
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if level >= 3 and (rows > 1 or _CASES[int(name[1:])][5]):
            assert (got == expected).all(), name
        else:  # onnxruntime adds products of a single row in another order, unless b is transposed
            apart = np.abs(got.astype(int) - expected)
            assert apart.max(initial=0) <= 1
            assert (apart > 0).mean() < 1e-2 if apart.size else True
    for name, values in products.run(feeds, level, 2).items():
        assert values.tobytes() == single[name].tobytes()


@pytest.mark.parametrize(
    ("kinds", "rows", "is_taken"),
    [("ii", 1, True), ("ui", 64, False), ("uu", 64, True), ("uu", 1, False), ("uu", "n", False)],
)
def test_products_that_onnxruntime_computes_faster_are_left_to_it(
    kinds: str, rows: int | str, is_taken: bool
) -> None:
    m = Model()
    a = _TYPES[kinds[0]]
    scale = m.constant(np.float32(0.02))
    inputs = [m.node("DequantizeLinear", [m.input("x", a, rows, 40), scale], "dx")]
    inputs.append(m.node("DequantizeLinear", [m.constant(m.bytes(kinds[1], 30, 40)), scale], "dw"))
    y = m.node("Gemm", inputs, "y", transB=1)
    m.output(m.node("QuantizeLinear", [y, scale, m.constant(a(3))], "q"), a)
    assert kernel_count(m) == int(is_taken)
