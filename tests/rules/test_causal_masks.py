"""Causal masks are recognized regardless of their computation, and other masks are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.ort import session
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.attention.causal_masks import Reader, step_of

#: S queries and T keys; ``y`` is the mask.
HEAD = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[S] q, float[T] k) => (KIND[S, T] y)
    <int64 zero = {0}, int64 one = {1}, float none = {0}, float some = {1}, float low = {-inf}, int64[1] last = {-1},
    int64[1] first = {0}, int64[1] start = {0}, int64[1] two = {1}, float far = {-1e31}, uint8 byte = {1},
    int64[3] stack = {2, 1, 1}, int64[1] skip = {2}, int64 pair = {2}, float[3] vector = {0, -inf, -inf}>
{
    s = Shape(q)
    t = Shape(k)
    n = Squeeze(s)
    m = Squeeze(t)
    rows = Range(zero, n, one)
    i = Unsqueeze(rows, last)
    j = Range(zero, m, one)
    st = Concat<axis = 0>(s, t)
"""
STEPS = {
    "less or equal": ("bool", "y = LessOrEqual(j, i)", (True, False, 0)),
    "less": ("bool", "y = Less(j, i)", (True, False, -1)),
    "greater": ("bool", "y = Greater(j, i)", (False, True, 0)),
    "greater or equal": ("bool", "y = GreaterOrEqual(j, i)", (False, True, -1)),
    "the other way round": ("bool", "y = GreaterOrEqual(i, j)", (True, False, 0)),
    "not": ("bool", "a = Greater(j, i) y = Not(a)", (True, False, 0)),
    "moved": ("bool", "a = Add(i, one) y = Less(j, a)", (True, False, 0)),
    "moved back": ("bool", "a = Sub(j, one) y = Less(a, i)", (True, False, 0)),
    "lower triangle": ("float", "a = Expand(some, st) y = Trilu<upper = 0>(a)", (1.0, 0.0, 0)),
    "upper triangle": ("float", "a = Expand(low, st) y = Trilu<upper = 1>(a, one)", (0.0, -np.inf, 0)),
    "where": ("float", "a = LessOrEqual(j, i) y = Where(a, none, low)", (0.0, -np.inf, 0)),
    "zero of a triangle": (
        "float",
        "a = ConstantOfShape<value = float[1] {1}>(st) b = Trilu<upper = 0>(a) c = Equal(b, none)"
        " y = Where(c, low, none)",
        (0.0, -np.inf, 0),
    ),
    "numbers": (
        "float",
        "a = LessOrEqual(j, i) b = Cast<to = 1>(a) c = Sub(some, b) d = Neg(c) y = Mul(d, some)",
        (0.0, -1.0, 0),
    ),
    "and all": (
        "bool",
        "a = LessOrEqual(j, i) b = GreaterOrEqual(one, zero) y = And(a, b)",
        (True, False, 0),
    ),
    "or none": ("bool", "a = LessOrEqual(j, i) b = Greater(zero, one) y = Or(a, b)", (True, False, 0)),
    "numbers of half precision": (
        "float16",
        "a = LessOrEqual(j, i) b = Where(a, none, far) y = Cast<to = 10>(b)",
        (0.0, -np.inf, 0),
    ),
    "and all, the other way round": (
        "bool",
        "a = LessOrEqual(j, i) b = GreaterOrEqual(one, zero) y = And(b, a)",
        (True, False, 0),
    ),
    "or none, the other way round": (
        "bool",
        "a = LessOrEqual(j, i) b = Greater(zero, one) y = Or(b, a)",
        (True, False, 0),
    ),
    "moved, the other way round": ("bool", "a = Add(one, i) y = Less(j, a)", (True, False, 0)),
    "expanded positions": ("bool", "a = Expand(j, st) y = LessOrEqual(a, i)", (True, False, 0)),
    "bytes": ("uint8", "a = LessOrEqual(j, i) y = Cast<to = 2>(a)", (1, 0, 0)),
    "stacked and taken apart": (
        "bool",
        "a = LessOrEqual(j, i) b = Expand(a, stack) c = Slice(b, two, last, first) d = Slice(b, first, two, first)"
        " y = Squeeze(d, first)",
        (True, False, 0),
    ),
}
OTHERS = {
    "sums of positions": ("bool", "a = Add(i, j) y = LessOrEqual(a, one)"),
    "cut at a place that is given": (
        "bool",
        "a = LessOrEqual(j, i) b = Cast<to = 7>(q) c = Slice(b, first, two) y = Slice(a, c, s, first)",
    ),
    "every other row": ("bool", "a = LessOrEqual(j, i) y = Slice(a, first, s, first, skip)"),
    "positions that may overflow": (
        "bool",
        "a = Cast<to = 2>(i) b = Cast<to = 2>(j) y = LessOrEqual(b, a)",
    ),
    "moved by several numbers": ("bool", "a = Add(j, st) y = LessOrEqual(a, i)"),
    "every other position": ("bool", "a = Range(zero, m, pair) y = LessOrEqual(a, i)"),
    "a row of numbers beside a matrix": ("float", "a = Expand(none, st) y = Add(vector, a)"),
    "keys beside keys": ("bool", "a = Add(j, one) y = LessOrEqual(j, a)"),
    "infinities as integers": ("int64", "a = LessOrEqual(j, i) b = Where(a, none, low) y = Cast<to = 7>(b)"),
    "a row of it for all": (
        "bool",
        "a = LessOrEqual(j, i) b = Slice(a, first, two, first) y = Expand(b, st)",
    ),
    "a row of it beside all": (
        "bool",
        "a = LessOrEqual(j, i) b = Slice(a, first, two, first) c = Or(a, a) y = And(b, c)",
    ),
    "counted from the end": ("bool", "a = LessOrEqual(j, i) y = Slice(a, last, s, first)"),
    "counted down": ("bool", "a = Sub(m, j) y = LessOrEqual(a, i)"),
    "what is not the other": ("bool", "a = LessOrEqual(j, i) b = Not(a) y = Xor(a, b)"),
    "bytes below zero": ("uint8", "a = LessOrEqual(j, i) b = Cast<to = 2>(a) y = Sub(b, byte)"),
    "two diagonals": ("bool", "a = LessOrEqual(j, i) b = Less(j, i) y = Or(a, b)"),
    "turned round": (
        "bool",
        "a = LessOrEqual(j, i) ts = Concat<axis = 0>(t, s) y = Reshape(a, ts)",
    ),
    "positions of keys alone": (
        "bool",
        "a = GreaterOrEqual(j, one) b = GreaterOrEqual(i, zero) y = And(a, b)",
    ),
    "a band": ("bool", "a = LessOrEqual(j, i) b = Add(j, one) c = Greater(b, i) y = And(a, c)"),
    "twice as fast": ("bool", "a = Add(i, i) y = LessOrEqual(j, a)"),
    "given": ("float", "a = Unsqueeze(q, last) y = Add(a, k)"),
    "both triangles": (
        "float",
        "a = Expand(some, st) b = Trilu<upper = 0>(a) y = Trilu<upper = 1>(b)",
    ),
}


def _read(kind: str, body: str) -> tuple[object, onnx.ModelProto]:
    proto = onnx.parser.parse_model(HEAD.replace("KIND", kind) + body + "}")
    model = ir.from_proto(proto)
    (output,) = model.graph.outputs
    root = output.producer()
    assert root is not None
    return step_of(Match("test", root, {}, context_for(model)), output), proto


@pytest.mark.parametrize(("kind", "body", "step"), STEPS.values(), ids=STEPS)
def test_causal_comparisons_are_recognized(kind: str, body: str, step: tuple[float, float, int]) -> None:
    found, proto = _read(kind, body)
    assert found is not None
    near, far, offset = step
    assert (found.near, found.far, found.offset) == (near, far, offset)  # type: ignore[attr-defined]
    for queries, keys in ((3, 3), (2, 5), (5, 2), (1, 1)):
        feeds = {"q": np.zeros(queries, np.float32), "k": np.zeros(keys, np.float32)}
        (given,) = session.run(
            session.create(proto.SerializeToString(), optimizations="off", threads=1), feeds
        )
        np.testing.assert_array_equal(given, np.where(np.tri(queries, keys, offset, dtype=bool), near, far))


@pytest.mark.parametrize(("kind", "body"), OTHERS.values(), ids=OTHERS)
def test_other_comparisons_are_not_causal(kind: str, body: str) -> None:
    found, _ = _read(kind, body)
    assert found is None


def _of_constant(array: np.ndarray) -> Any:
    value = onnx.numpy_helper.from_array(array, "c")
    node = onnx.helper.make_node("Identity", ["c"], ["y"])
    output = onnx.helper.make_tensor_value_info("y", value.data_type, array.shape)
    graph = onnx.helper.make_graph([node], "g", [], [output], [value])
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))
    (root,) = model.graph
    return step_of(Match("test", root, {}, context_for(model)), model.graph.outputs[0])


@pytest.mark.parametrize("offset", [-1, 0, 2])
@pytest.mark.parametrize("shape", [(4, 4), (1, 1, 3, 5), (1, 6, 4)])
def test_constant_causal_masks_are_recognized(shape: tuple[int, ...], offset: int) -> None:
    rows, columns = shape[-2:]
    mask = np.where(np.tri(rows, columns, offset, dtype=bool), 0, -np.inf).astype(np.float32).reshape(shape)
    for flaw in (None, 0, mask.size - 1):
        array = mask.copy()
        if flaw is not None:
            array.reshape(-1)[flaw] = 7
        found = _of_constant(array)
        if flaw is not None:
            assert found is None
        else:
            assert found is not None
            assert (found.near, found.far, found.offset) == (0, -np.inf, offset)


def test_constants_that_are_no_single_matrix_are_none() -> None:
    array = np.where(np.tri(3, 5, dtype=bool), 0, -np.inf).astype(np.float32).reshape(3, 1, 5)
    assert _of_constant(array) is None


def test_constants_with_uniform_rows_are_not_causal() -> None:
    assert _of_constant(np.array([[0, 0], [-np.inf, -np.inf]], np.float32)) is None


@pytest.mark.parametrize(
    ("array", "step"),
    [
        (np.ones((3, 5), np.float32), (1, 1, None)),
        (np.tri(3, 5, dtype=np.int64), (1, 0, 0)),
        (np.array([[False, True]]), (False, True, 0)),
    ],
)
def test_causal_constants_of_any_type_are_recognized(
    array: np.ndarray, step: tuple[float, float, int | None]
) -> None:
    found = _of_constant(array)
    assert (found.near, found.far, found.offset) == step


def test_constants_without_numbers_are_none() -> None:
    assert _of_constant(np.zeros((0, 3), np.float32)) is None
    assert _of_constant(np.array([["a", "b"]], object)) is None


def test_search_limited_by_depth_is_repeated_with_more_depth() -> None:
    proto = onnx.parser.parse_model(
        HEAD.replace("KIND", "bool") + "a = LessOrEqual(j, i) b = Not(a) y = Not(b) }"
    )
    model = ir.from_proto(proto)
    (output,) = model.graph.outputs
    root = output.producer()
    assert root is not None
    reader = Reader(Match("test", root, {}, context_for(model)))
    assert reader.read(output, 3) is None
    assert reader.read(output, 9) is not None
    assert reader.read(output, 1) is not None
