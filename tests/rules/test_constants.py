"""Conditions on constants before rules fold them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.rewrite.match import Match
from graphopt.rewrite.traced_array import TracedArray
from graphopt.rules.building_blocks.broadcasting import along_axis, keeps_shape
from graphopt.rules.building_blocks.computed_constants import affordable, factor_of, rounded

_HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'


def _match(text: str, header: str = _HEADER) -> tuple[Match, dict[str, ir.Value]]:
    """A match at the last node of a model, and the model's values by name."""
    model = ir.from_proto(onnx.parser.parse_model(header + text))
    values = {value.name or "": value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    values |= {output.name or "": output for node in model.graph for output in node.outputs}
    root = list(model.graph)[-1]
    return Match("test", root, {}, context_for(model)), values


@pytest.mark.parametrize(
    ("shape", "axis", "rank", "size", "expected"),
    [
        ((), 1, 4, 3, [1, 1, 1]),
        ((3, 1, 1), 1, 4, 3, [1, 2, 3]),
        ((1, 3, 1, 1), 1, 4, 3, [1, 2, 3]),
        ((1, 1), 1, 2, 3, [1, 1, 1]),
        ((3,), 1, 2, 3, [1, 2, 3]),
        ((3,), 1, 4, 3, None),  # varies along the last axis
        ((3, 1, 1, 1), 1, 4, 3, None),  # by batch
        ((1, 1, 3, 1, 1), 1, 4, 3, None),  # raises the rank
        ((3, 1, 1), 1, 4, 1, None),  # widens
        ((1, 3), 1, 2, 0, None),
    ],
)
def test_along_axis(
    shape: tuple[int, ...], axis: int, rank: int, size: int, expected: list[int] | None
) -> None:
    array = np.arange(1.0, 1 + int(np.prod(shape))).reshape(shape)
    found = along_axis(TracedArray.of(array), axis, rank, size)
    assert (found is None) == (expected is None)
    if found is not None:
        np.testing.assert_array_equal(found.array, expected)


def _rounded(values: Any, dtype: type, over: tuple[int, ...] = ()) -> TracedArray | None:
    return rounded(TracedArray.of(np.asarray(values)), np.dtype(dtype), over)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_rounding_is_fine_and_overflow_is_not(dtype: type) -> None:
    largest = float(ml_dtypes.finfo(dtype).max)
    assert _rounded([1 / 3, -2.0, 0.0], dtype) is not None
    if largest < 1e300:
        assert _rounded([1.0, largest * 2], dtype) is None
    for number in (np.nan, np.inf):
        assert _rounded([number], dtype) is None


def test_digits_are_lost_only_beside_larger_numbers() -> None:
    tiny = np.array([1.0, 3e-8])  # the second has one digit left in float16
    assert _rounded(tiny, np.float16) is None
    assert _rounded(tiny, np.float16, (0,)) is not None
    assert _rounded(tiny[:, None], np.float16, (1,)) is None
    assert _rounded([1e-40 / 3, 0.0], np.float32, (0,)) is not None


def test_shapes_that_broadcast_into_a_shape() -> None:
    m, v = _match(
        """g (float[N, M] x, float[N, 1] y, float[M] z, float[K] k, float u) => (float[N, M] r)
        <float[1, 1] one = {1.0}, float[1, 1, 1] deep = {1.0}, float[3] three = {1.0, 2.0, 3.0}> {
            r = Sum(x, y, z, u, one)
        }"""
    )
    for name in ("x", "y", "z", "u", "one"):
        assert keeps_shape(m, v["x"], v[name]), name
    for name in ("k", "deep", "three"):
        assert not keeps_shape(m, v["x"], v[name]), name
    assert keeps_shape(m, v["x"], v["y"], v["u"]) and not keeps_shape(m, v["x"], v["y"], v["k"])
    assert not keeps_shape(m, v["y"], v["x"])


_WEIGHTS = """g (float[N, 2] x{more}) => (float[N, 2] y, float[N, 2] z)
<float[2, 2] own = {{1.0, 2.0, 3.0, 4.0}}, float[2, 2] shared = {{1.0, 2.0, 3.0, 4.0}}> {{
    a = MatMul(x, own)
    y = MatMul(a, shared)
    z = MatMul(y, shared)
}}"""


def test_new_constant_may_replace_an_unshared_constant() -> None:
    m, v = _match(_WEIGHTS.format(more=""))
    slack = 4096
    assert affordable(m, slack)
    assert not affordable(m, slack + 16)
    assert affordable(m, slack + 16, v["own"])
    assert not affordable(m, slack + 16, v["shared"], v["x"], None)


def test_constant_input_is_not_replaced() -> None:
    header = _HEADER.replace("8", "3", 1)
    m, v = _match(_WEIGHTS.format(more=", float[2, 2] own, float[2, 2] shared"), header)
    assert ir.constant_of(v["own"]) is not None
    assert not affordable(m, 4096 + 16, v["own"])


def test_factors() -> None:
    m, v = _match(
        """g (float[N] x, int32[N] i)
            => (float[N] a, float[N] b, float[N] c, float[N] d, int32[N] e, float[N] f)
        <float two = {2.0}, float zero = {0.0}, int32 three = {3}> {
            a = Mul(two, x)
            b = Div(x, two)
            c = Div(two, x)
            d = Div(x, zero)
            e = Mul(i, three)
            f = Neg(x)
        }"""
    )
    found = {}
    for name, constant in (
        ("a", "two"),
        ("b", "two"),
        ("c", "two"),
        ("d", "zero"),
        ("e", "three"),
        ("f", None),
    ):
        node = v[name].producer()
        assert node is not None
        factor = factor_of(m, node, v[constant] if constant else None)
        found[name] = None if factor is None else factor.array.item()
    assert found == {"a": 2.0, "b": 0.5, "c": None, "d": None, "e": None, "f": -1.0}
