"""Outputs that onnxruntime leaves unwritten, or returns with a wrong shape, for empty tensors are not compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.ort.model_runs import Runs
from graphopt.verification.candidate_comparison import CandidateComparison
from graphopt.verification.case import Case
from graphopt.verification.empty_tensor_faults import EmptyTensors, Unreliable
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.verifier import Verifier
from tests.ort.build import data, parse

#: Outputs y [t, 1, 1, 3], h and c [1, 1, 3] of an LSTM over x [t, 1, 4].
LSTM = (
    "g (float[t, 1, 4] x, float[1, 12, 4] w, float[1, 12, 3] r) => (float[t, 1, 1, 3] y, float[D, 1, 3] h, {more}) "
    "{{ y, h, c = LSTM<hidden_size = 3>(x, w, r) {steps} }}"
)
RECURRENT = {
    "x": np.zeros((0, 1, 4), np.float32),
    "w": np.ones((1, 12, 4), np.float32),
    "r": np.ones((1, 12, 3), np.float32),
}


def unreliable(text: str, feeds: Mapping[str, Any], **header: Any) -> Unreliable:
    model: ir.Model = parse(text, **header)
    return EmptyTensors(lambda: model, Runs).unreliable(dict(feeds))


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def test_final_states_of_a_recurrence_over_an_empty_sequence() -> None:
    text = LSTM.format(more="float[D, 1, 3] c, int64[3] s", steps="s = Shape(c)")
    assert unreliable(text, RECURRENT) == Unreliable(elements=frozenset([1, 2])), (
        "not y, which is empty, nor the shape"
    )
    assert unreliable(text, {**RECURRENT, "x": zeros(2, 1, 4)}) == Unreliable()


PRODUCT = "g (float[N, K] a, float[B, K, M] b) => (float[B, N, M] y, float[N, K] z) { p = MatMul(a, b) y = Neg(p) z = Neg(a) }"


def test_matrix_products_over_an_empty_axis() -> None:
    assert unreliable(PRODUCT, {"a": zeros(2, 0), "b": zeros(5, 0, 3)}) == Unreliable(elements=frozenset([0]))
    assert unreliable(PRODUCT, {"a": zeros(2, 4), "b": zeros(5, 4, 3)}) == Unreliable()
    assert unreliable(PRODUCT, {"a": zeros(0, 4), "b": zeros(5, 4, 3)}) == Unreliable(), (
        "the product is empty, too"
    )


def test_products_in_bodies_and_functions() -> None:
    body = (
        "g (bool c, float[N, K] a, float[K, M] b) => (float[N, M] y) { y = If(c) <"
        "then_branch = t () => (float[N, M] u) { u = MatMul(a, b) },"
        " else_branch = e () => (float[N, M] v) { w = MatMul(a, b) v = Neg(w) }> }"
    )
    feeds = {"c": np.array(True), "a": zeros(2, 0), "b": zeros(0, 3)}
    assert unreliable(body, feeds) == Unreliable(elements=frozenset([0]))
    function = (
        '<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[N, K] a, float[K, M] b) => (float[N, M] y)'
        ' { y = local.product(a, b) } <domain: "local", opset_import: ["" : 17]>'
        " product (p, q) => (r) { r = MatMul(p, q) }"
    )
    assert unreliable(function, {"a": zeros(2, 0), "b": zeros(0, 3)}) == Unreliable(elements=frozenset([0]))


@pytest.mark.parametrize(
    ("node", "size", "strays"),
    [
        ("ReduceMean<axes = [-1]>", 0, True),
        ("ReduceMean<axes = [-1]>", 2, False),
        ("ReduceMean<axes = [1]>", 0, False),
        ("ArgMax<axis = -1>", 0, True),
        ("ArgMin<axis = 1>", 0, False),
    ],
)
def test_reductions_over_negative_axes_of_empty_tensors(node: str, size: int, strays: bool) -> None:
    text = f"g (float[N, 2] x) => (y, int64[2] s) {{ y = {node}(x) s = Shape(y) }}"
    found = unreliable(text, {"x": zeros(size, 2)})
    assert found.shapes == (frozenset([0, 1]) if strays else frozenset())


def test_filtered_data_may_be_empty() -> None:
    filtered = "g (float[N, 2] x, float[N, 3] w) => (float[2, 3] y) { n = NonZero(x) k = Gather(x, n) y = MatMul(k, w) }"
    for text, dependent in ((filtered, True), (PRODUCT, False)):
        model = parse(text)
        assert EmptyTensors(lambda model=model: model, Runs).data_dependent is dependent


class Gives:
    """A runner that returns one value."""

    seconds: float | None = None

    def __init__(self, value: Any) -> None:
        self._value = value

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        return [self._value]


@pytest.mark.parametrize(
    ("found", "given", "ok"),
    [
        (Unreliable(), zeros(2, 2) + 7, False),
        (Unreliable(elements=frozenset([0])), zeros(2, 2) + 7, True),
        (Unreliable(elements=frozenset([0])), zeros(2, 1), False),
        (Unreliable(shapes=frozenset([0])), zeros(2, 1), True),
        (Unreliable(shapes=frozenset([0])), np.zeros((2, 2)), False),
        (Unreliable(elements=frozenset([1]), shapes=frozenset([1])), zeros(2, 2) + 7, False),
    ],
)
def test_unreliable_outputs_are_not_compared(found: Unreliable, given: Any, ok: bool) -> None:
    case = Case("N=0", "normal", {}, [zeros(2, 2)], None, [[0.0]], empty=True)
    comparison = CandidateComparison(
        ["y"], Gives(given), Numerics.EXACT, [NumericTraits()], [0.0], None, unreliable=lambda case: found
    )
    (row,) = comparison.rows([case])
    assert row.ok is ok and not row.excused


def test_a_model_equals_itself_and_a_correct_rewrite_on_empty_tensors() -> None:
    recurrent = LSTM.format(more="float[D, 1, 3] e", steps="e = Exp(c)")
    twice = "g (float[N, 2] x) => (float[N, 1] y) { a = ReduceMean<axes = [-1]>(x) y = Identity(a) }"
    reshaped = "g (float[N, 2] x) => (float[N, 1] y) { a = ReduceMean<axes = [1]>(x) y = Identity(a) }"
    for before, after in ((recurrent, recurrent), (PRODUCT, PRODUCT), (twice, reshaped)):
        with Verifier(data(before)) as verifier:
            verdict = verifier.verify(data(after))
            assert verdict.ok and verdict.unverifiable is None, verdict.summary()
            assert any("=0" in row.binding for row in verdict.rows)
