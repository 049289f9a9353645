"""Products of bytes, compared with exact integers in numpy, and with onnxruntime without optimizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fusion.backends.c.runtime.samples import compiled
from tests.fusion.templates.byte_results import assert_bits_of_onnxruntime, assert_exact, kernel_count
from tests.fusion.test_low_bit_products import Compiled, Model
from tests.fuzz.kernels.batches import cpu_levels

pytestmark = compiled

Array = np.ndarray
_TYPES: dict[str, Any] = {"f": np.float32, "u": np.uint8, "i": np.int8}
_SHARED = "com.microsoft"

#: operator, types of a and b, depth, columns, zero points by column, batches of b, with bias and epilogue
_CASES = [
    ("MatMulInteger", "u", "u", 64, 32, False, False, False),
    ("MatMulInteger", "u", "i", 129, 33, True, False, True),
    ("MatMulInteger", "i", "u", 1, 1, False, False, False),
    ("MatMulInteger", "i", "i", 258, 300, False, True, False),
    ("MatMulInteger", "u", "u", 3, 70, None, False, False),
    ("MatMulIntegerToFloat", "u", "u", 70, 65, False, False, True),
    ("MatMulIntegerToFloat", "i", "i", 31, 40, True, False, False),
    ("DynamicQuantizeMatMul", "f", "u", 100, 48, True, False, True),
    ("DynamicQuantizeMatMul", "f", "i", 65, 9, False, False, False),
    ("QLinearMatMul", "u", "u", 130, 70, True, False, False),
    ("QLinearMatMul", "i", "i", 66, 34, False, True, True),
    ("QLinearMatMul", "u", "i", 17, 5, False, False, False),
]


def _model() -> tuple[Model, list[dict[str, Any]]]:
    m, parts = Model(), []
    for number, (op, a, b, depth, columns, by_column, batched, extended) in enumerate(_CASES):
        own: dict[str, Any] = {"b": m.bytes(b, 2 if batched else 1, depth, columns)}
        count = () if not by_column else columns
        own["b_zero"] = None if by_column is None else m.random.integers(-3 if b == "i" else 100, 120, count)
        own["b_scale"] = m.random.uniform(0.005, 0.01, count).astype(np.float32)
        own["a_zero"] = None if by_column is None else np.array(131 if a == "u" else 5)
        own["a_scale"], own["scale"] = np.float32(0.0137), np.float32(0.0137 * 0.5 * np.sqrt(depth))
        own["zero"] = np.array(120 if a == "u" else -4)
        own["bias"] = m.random.standard_normal(columns).astype(np.float32)
        x = m.input(f"a{number}", _TYPES[a], "B", "M", depth)
        w = m.input(f"b{number}", _TYPES[b], "B", depth, columns) if batched else m.constant(own["b"][0])
        a_zero = "" if own["a_zero"] is None or a == "f" else m.constant(own["a_zero"].astype(_TYPES[a]))
        b_zero = "" if own["b_zero"] is None else m.constant(own["b_zero"].astype(_TYPES[b]))
        scales = [m.constant(own["a_scale"]), m.constant(own["b_scale"])]
        bias = [m.constant(own["bias"])] if extended else []
        if op == "MatMulInteger":
            y = m.node(op, [x, w, a_zero, b_zero], f"y{number}")
        elif op == "MatMulIntegerToFloat":
            y = m.node(op, [x, w, *scales, a_zero, b_zero, *bias], f"y{number}", domain=_SHARED)
        elif op == "DynamicQuantizeMatMul":
            y = m.node(op, [x, w, scales[1], b_zero, *bias], f"y{number}", domain=_SHARED)
        else:
            result = [m.constant(own["scale"]), m.constant(own["zero"].astype(_TYPES[a]))]
            y = m.node(op, [x, scales[0], a_zero, w, scales[1], b_zero, *result], f"y{number}")
        dtype: Any = np.int32 if op == "MatMulInteger" else _TYPES[a if op == "QLinearMatMul" else "f"]
        if extended and op == "MatMulInteger":
            scaled = m.node("Mul", [m.node("Cast", [y], f"cast{number}", to=1), scales[1]], f"s{number}")
            y, dtype = m.node("Add", [scaled, *bias], f"z{number}"), np.float32
        elif extended and op == "QLinearMatMul":
            y = m.node("DequantizeLinear", [y, scales[0]], f"z{number}")
            dtype = np.float32
        elif extended:
            y = m.node("Relu", [y], f"z{number}")
        m.output(y, dtype)
        parts.append(own)
    return m, parts


def _expected(case: Any, own: dict[str, Any], a: Array, b: Array) -> Array:
    """The result by the steps of onnxruntime, on exact integers."""
    op, kind, *_, batched, extended = case
    one = np.float32
    a_zero, a_scale = own["a_zero"], own["a_scale"]
    if kind == "f":
        low, high = min(a.min(initial=0), one(0)), max(a.max(initial=0), one(0))
        a_scale = (high - low) / one(255) if high > low else one(1)
        a_zero = np.rint(np.clip(-low / a_scale, one(0), one(255))).astype(np.int32)
        a = np.clip(np.rint(a / a_scale) + a_zero, 0, 255)
    b = b if batched else own["b"]
    zeros = [0 if zero is None else zero for zero in (a_zero, own["b_zero"])]
    sums = (a.astype(np.int64) - zeros[0]) @ (b.astype(np.int64) - zeros[1])
    sums = sums.astype(np.int32)
    if op == "MatMulInteger":
        return sums.astype(one) * own["b_scale"] + own["bias"] if extended else sums
    if op != "QLinearMatMul":
        found = sums.astype(one) * (a_scale * own["b_scale"])
        return np.maximum(found + own["bias"], 0) if extended else found
    limits = (0, 255) if kind == "u" else (-128, 127)
    scale = (a_scale * own["b_scale"]) / own["scale"]
    rounded = np.clip(np.rint(sums.astype(one) * scale) + own["zero"], *limits)
    return rounded.astype(one) * a_scale if extended else rounded.astype(_TYPES[kind])


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiled, list[dict[str, Any]]]:
    m, parts = _model()
    return Compiled(m.proto(), tmp_path_factory.mktemp("products")), parts


def _feeds(rows: tuple[int, int]) -> dict[str, Array]:
    m, feeds = Model(), {}
    for number, (_, a, b, depth, columns, _, batched, _) in enumerate(_CASES):
        floats = m.random.standard_normal((*rows, depth)).astype(np.float32)
        feeds[f"a{number}"] = floats if a == "f" else m.bytes(a, *rows, depth)
        if batched:
            feeds[f"b{number}"] = m.bytes(b, rows[0], depth, columns)
    return feeds


def test_each_product_of_bytes_has_a_template(products: Any) -> None:
    assert products[0].templates == ["byte_product"] * len(_CASES)


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("rows", [(1, 1), (1, 2), (3, 5), (1, 64), (2, 101), (0, 3), (2, 0)])
def test_products_of_bytes_are_exact(products: Any, level: int, rows: tuple[int, int]) -> None:
    made, parts = products
    feeds = _feeds(rows)
    expected = [
        _expected(case, own, feeds[f"a{number}"], feeds.get(f"b{number}", own["b"]))
        for number, (case, own) in enumerate(zip(_CASES, parts, strict=True))
    ]
    assert_exact(made, feeds, level, expected, _CASES)


@pytest.mark.parametrize("rows", [(1, 1), (3, 5), (1, 64), (2, 0)])
def test_onnxruntime_without_optimizations_has_the_same_bits(products: Any, rows: tuple[int, int]) -> None:
    made, _ = products
    assert_bits_of_onnxruntime(made, _feeds(rows), _CASES)


@pytest.mark.parametrize("level", cpu_levels())
def test_sums_of_the_largest_bytes_do_not_saturate(products: Any, level: int) -> None:
    made, parts = products
    feeds = _feeds((2, 7))
    for name, values in feeds.items():
        if values.dtype != np.float32:
            values[:] = np.iinfo(values.dtype).min if name in ("a3", "b3") else np.iinfo(values.dtype).max
    got = made.run(feeds, level, 1)
    for number in (0, 2, 3, 4):
        expected = _expected(
            _CASES[number], parts[number], feeds[f"a{number}"], feeds.get(f"b{number}", parts[number]["b"])
        )
        assert (got[f"y{number}"] == expected).all()


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e-40, np.nan, np.inf, -np.inf])
def test_ranges_of_one_number_are_quantized_as_by_onnxruntime(
    products: Any, level: int, value: float
) -> None:
    made, _ = products
    feeds = _feeds((1, 3))
    feeds["a7"][:] = value
    np.testing.assert_array_equal(made.run(feeds, level, 1)["z7"], made.run_plain(feeds)["z7"])


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_ranges_are_quantized_as_by_onnxruntime(products: Any, level: int, value: float) -> None:
    made, _ = products
    feeds = _feeds((1, 3))
    feeds["a8"][0, 1, 7] = value
    found, expected = (run["y8"] for run in (made.run(feeds, level, 1), made.run_plain(feeds)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("kind", "is_taken"), [("uu", True), ("ii", True), ("ui", False)])
def test_products_that_onnxruntime_computes_at_the_peak_are_left_to_it(kind: str, is_taken: bool) -> None:
    m = Model()
    x = m.input("x", _TYPES[kind[0]], 4, 64)
    m.output(m.node("MatMulInteger", [x, m.constant(m.bytes(kind[1], 64, 32))], "y"), np.int32)
    assert kernel_count(m) == int(is_taken)
