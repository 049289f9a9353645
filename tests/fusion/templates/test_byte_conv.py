"""Convolutions of bytes, compared with exact integers in numpy, and with onnxruntime without optimizations."""

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
_TYPES: dict[str, Any] = {"u": np.uint8, "i": np.int8}

#: operator, types of x and weights, channels, filters, kernel, attributes, zero point of weights, scales of
#: filters, with bias and epilogue
_CASES: list[tuple[str, str, str, int, int, tuple[int, int], dict[str, Any], int, bool, bool]] = [
    ("QLinearConv", "u", "u", 16, 16, (3, 3), {"pads": [1, 1, 1, 1]}, 128, True, True),
    ("QLinearConv", "u", "u", 3, 17, (3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 2]}, 121, False, False),
    ("QLinearConv", "i", "i", 5, 61, (1, 1), {}, 0, True, False),
    ("QLinearConv", "i", "i", 7, 3, (5, 2), {"pads": [2, 1, 2, 0], "dilations": [1, 2]}, -3, False, True),
    ("QLinearConv", "u", "i", 64, 33, (1, 1), {"strides": [2, 3]}, 0, True, False),
    ("QLinearConv", "u", "u", 1, 1, (3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, 120, False, False),
    ("QLinearConv", "i", "i", 4, 12, (2, 2), {"auto_pad": "SAME_LOWER"}, 0, False, False),
    ("ConvInteger", "u", "u", 6, 20, (3, 1), {"pads": [1, 0, 1, 0]}, 120, False, False),
    ("ConvInteger", "u", "i", 9, 5, (2, 3), {"auto_pad": "VALID"}, 0, False, False),
    ("QLinearConv", "u", "i", 19, 19, (3, 3), {"group": 19, "pads": [1, 1, 1, 1]}, 0, True, True),
    (
        "QLinearConv",
        "u",
        "u",
        9,
        9,
        (5, 5),
        {"group": 9, "pads": [2] * 4, "strides": [2, 2]},
        119,
        False,
        False,
    ),
    (
        "QLinearConv",
        "i",
        "i",
        3,
        6,
        (4, 6),
        {"group": 3, "pads": [0, 3] * 2, "strides": [3, 1], "dilations": [1, 2]},
        2,
        True,
        False,
    ),
    ("QLinearConv", "i", "i", 6, 36, (3, 3), {"group": 6, "pads": [0, 1, 2, 3]}, 0, True, True),
    ("QLinearConv", "u", "u", 12, 20, (2, 3), {"group": 4, "strides": [1, 3]}, 7, True, False),
    (
        "QLinearConv",
        "u",
        "i",
        1,
        50,
        (1, 7),
        {"pads": [0, 4, 0, 3], "dilations": [1, 2], "strides": [1, 2]},
        0,
        False,
        False,
    ),
    (
        "ConvInteger",
        "u",
        "u",
        10,
        10,
        (3, 3),
        {"group": 10, "auto_pad": "SAME_LOWER", "strides": [2, 2]},
        9,
        False,
        False,
    ),
    ("ConvInteger", "u", "u", 8, 6, (1, 2), {"group": 2, "dilations": [1, 3]}, 120, False, False),
]


def _model() -> tuple[Model, list[dict[str, Any]]]:
    m, parts = Model(), []
    for number, (op, x, w, channels, filters, kernel, attributes, zero, by_filter, extended) in enumerate(
        _CASES
    ):
        count = filters if by_filter else 1
        terms = channels // attributes.get("group", 1)
        own: dict[str, Any] = {"w": m.bytes(w, filters, terms, *kernel), "w_zero": zero}
        own["x_zero"], own["zero"] = 131 if x == "u" else 5, 100 if x == "u" else -7
        own["w_scale"] = m.random.uniform(0.005, 0.01, count).astype(np.float32)
        own["x_scale"] = np.float32(0.0137)
        own["scale"] = np.float32(0.0137 * 0.5 * np.sqrt(terms * kernel[0] * kernel[1]))
        own["bias"] = m.random.integers(-30000, 30000, filters).astype(np.int32) if extended else 0
        inputs = [m.input(f"x{number}", _TYPES[x], "B", channels, "H", "W"), m.constant(own["w"])]
        zeros = [m.constant(_TYPES[x](own["x_zero"])), m.constant(_TYPES[w](zero))]
        if op == "QLinearConv":
            w_zeros = m.constant(np.full(count, zero, _TYPES[w]) if by_filter else _TYPES[w](zero))
            w_scales = m.constant(own["w_scale"] if by_filter else own["w_scale"][0])
            inputs = [inputs[0], m.constant(own["x_scale"]), zeros[0], inputs[1], w_scales, w_zeros]
            inputs += [m.constant(own["scale"]), m.constant(_TYPES[x](own["zero"]))]
            inputs += [m.constant(own["bias"])] if extended else []
            y = m.node(op, inputs, f"y{number}", **attributes)
        else:
            y = m.node(op, [*inputs, *zeros], f"y{number}", **attributes)
        dtype: Any = np.int32 if op == "ConvInteger" else _TYPES[x]
        if extended:
            y, dtype = m.node("DequantizeLinear", [y, m.constant(own["x_scale"])], f"z{number}"), np.float32
        m.output(y, dtype)
        parts.append(own)
    return m, parts


def _exact(x: Array, w: Array, attributes: dict[str, Any]) -> Array:
    """The convolution of integers."""
    kernel, sizes = w.shape[2:], x.shape[2:]
    strides = attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0, 0, 0, 0])
    groups, mode = attributes.get("group", 1), attributes.get("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        steps = zip(sizes, strides, kernel, strict=True)
        total = [max((-(-size // stride) - 1) * stride + taps - size, 0) for size, stride, taps in steps]
        before = [(each + (mode == "SAME_LOWER")) // 2 for each in total]
        pads = [*before, *(each - first for each, first in zip(total, before, strict=True))]
    padded = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    axes = zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    out = [(size - (taps - 1) * dilation - 1) // stride + 1 for size, taps, stride, dilation in axes]
    found = np.zeros((len(x), len(w), *out), np.int64)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * dilations[0], i * dilations[0] + (out[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(j * dilations[1], j * dilations[1] + (out[1] - 1) * strides[1] + 1, strides[1])
            split = padded[:, :, rows, columns].reshape(len(x), groups, w.shape[1], *out)
            parts = np.einsum("ngchw,gfc->ngfhw", split, w[:, :, i, j].reshape(groups, -1, w.shape[1]))
            found += parts.reshape(found.shape)
    return found.astype(np.int32)


def _expected(case: Any, own: dict[str, Any], x: Array) -> Array:
    """The result by the steps of onnxruntime, on exact integers."""
    op, kind, _, _, filters, _, attributes, zero, _, extended = case
    sums = _exact(x.astype(np.int64) - own["x_zero"], own["w"].astype(np.int64) - zero, attributes)
    if op == "ConvInteger":
        return sums
    sums = sums + np.broadcast_to(own["bias"], filters).astype(np.int32)[:, None, None]
    scales = np.broadcast_to((own["x_scale"] * own["w_scale"]) / own["scale"], filters)
    limits = (0, 255) if kind == "u" else (-128, 127)
    found = np.clip(np.rint(sums.astype(np.float32) * scales[:, None, None]) + own["zero"], *limits)
    return found.astype(np.float32) * own["x_scale"] if extended else found.astype(_TYPES[kind])


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiled, list[dict[str, Any]]]:
    m, parts = _model()
    return Compiled(m.proto(), tmp_path_factory.mktemp("convolutions")), parts


def _feeds(batch: int, height: int, width: int) -> dict[str, Array]:
    m = Model()
    return {
        f"x{number}": m.bytes(case[1], batch, case[3], height, width) for number, case in enumerate(_CASES)
    }


def test_each_convolution_of_bytes_has_a_template(convolutions: Any) -> None:
    assert convolutions[0].templates == ["byte_conv"] * len(_CASES)


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("shape", [(1, 5, 6), (2, 13, 17), (1, 40, 33), (3, 7, 64), (0, 6, 6), (1, 6, 700)])
def test_convolutions_of_bytes_are_exact(convolutions: Any, level: int, shape: tuple[int, int, int]) -> None:
    made, parts = convolutions
    feeds = _feeds(*shape)
    expected = [
        _expected(case, own, feeds[f"x{number}"])
        for number, (case, own) in enumerate(zip(_CASES, parts, strict=True))
    ]
    assert_exact(made, feeds, level, expected, _CASES)


@pytest.mark.parametrize("shape", [(1, 5, 6), (2, 13, 17), (1, 40, 33)])
def test_onnxruntime_without_optimizations_has_the_same_bits(
    convolutions: Any, shape: tuple[int, int, int]
) -> None:
    made, _ = convolutions
    assert_bits_of_onnxruntime(made, _feeds(*shape), _CASES)


@pytest.mark.parametrize("level", cpu_levels())
def test_sums_of_the_largest_bytes_do_not_saturate(convolutions: Any, level: int) -> None:
    made, parts = convolutions
    feeds = _feeds(1, 9, 9)
    for values in feeds.values():
        values[:] = np.iinfo(values.dtype).max
    got = made.run(feeds, level, 1)
    for number in (7, 8):
        expected = _expected(_CASES[number], parts[number], feeds[f"x{number}"])
        assert (got[f"y{number}"] == expected).all()


@pytest.mark.parametrize(
    ("kind", "channels", "group", "is_taken"),
    [
        ("uu", 16, 1, True),
        ("ii", 16, 1, True),
        ("ui", 16, 1, False),
        ("ui", 3, 1, True),
        ("ui", 16, 2, True),
        ("uu", 16, 16, False),
    ],
)
def test_convolutions_that_onnxruntime_computes_near_the_peak_are_left_to_it(
    kind: str, channels: int, group: int, is_taken: bool
) -> None:
    m = Model()
    weights = m.bytes(kind[1], 16, channels // group, 3, 3)
    x = m.input("x", _TYPES[kind[0]], 1, channels, 8, 8)
    m.output(m.node("ConvInteger", [x, m.constant(weights)], "y", group=group), np.int32)
    assert kernel_count(m) == int(is_taken)
