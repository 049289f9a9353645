"""Comparison by the specification where kernels leave numbers undefined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.verification.candidate_comparison import CandidateComparison
from graphopt.verification.case import Case, Cases
from graphopt.verification.numeric_traits import NumericTraits
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.output_comparison import Deviation
from graphopt.verification.random_outputs import find_unsteady_outputs
from graphopt.verification.verdict import Row, Verdict
from tests.ort.build import parse, parse_proto

NOTHING = {"a": np.zeros((2, 0), np.float32), "b": np.zeros((0, 2), np.float32)}
CASE = Case("K=0", "normal", NOTHING, [np.zeros((2, 2), np.float32)], None, [[0.0]], empty=True)
PRODUCT = "g (float[2, K] a, float[K, 2] b) => (float[2, 2] y) { y = MatMul(a, b) }"
SHIFTED = (
    "g (float[2, K] a, float[K, 2] b) => (float[2, 2] y) "
    "{ m = MatMul(a, b) one = Constant<value = float {1.0}>() y = Add(m, one) }"
)


class Gives:
    """A runner that returns ``value``, like a kernel that leaves its output uninitialized."""

    seconds: float | None = None

    def __init__(self, value: Any) -> None:
        self._value = value

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        return [self._value]


def judged(candidate: str, value: Any, case: Case = CASE, numerics: Numerics = Numerics.REASSOCIATES) -> bool:
    models: list[ir.Model] = [parse(PRODUCT), parse(candidate)]
    original, rewritten = (Reference(lambda model=model: model) for model in models)
    comparison = CandidateComparison(
        ["y"],
        Gives(value),
        numerics,
        [NumericTraits()],
        [0.0],
        None,
        (original, rewritten),
    )
    (row,) = comparison.rows([case])
    return row.ok


@pytest.mark.parametrize(
    ("candidate", "value", "ok"),
    [
        (PRODUCT, np.full((2, 2), np.nan, np.float32), True),  # onnxruntime's MatMul, now and then
        (SHIFTED, np.full((2, 2), np.nan, np.float32), False),
        (SHIFTED, np.ones((2, 2), np.float32), False),
        (PRODUCT, np.zeros((2, 3), np.float32), False),
        (PRODUCT, np.zeros((2, 2), np.float64), False),
    ],
)
def test_the_specification_decides_about_differences_on_empty_tensors(
    candidate: str, value: Any, ok: bool
) -> None:
    assert judged(candidate, value) is ok


def test_shapes_wrong_in_the_original_are_not_compared() -> None:
    strays = replace(CASE, off=[np.zeros((2, 3), np.float32)])
    assert judged(PRODUCT, np.zeros((3, 2), np.float32), strays)
    assert not judged(SHIFTED, np.zeros((3, 2), np.float32), strays)


def test_the_specification_decides_about_nan_unless_bits_count() -> None:
    there = np.array([[0, np.nan], [0, 0]], np.float32)
    special = replace(CASE, distribution="special", empty=False, off=[there])
    moved = np.array([[np.nan, 0], [0, 0]], np.float32)
    assert judged(PRODUCT, moved, special)
    assert not judged(SHIFTED, moved, special)
    assert not judged(PRODUCT, moved, special, Numerics.EXACT)
    assert not judged(PRODUCT, moved, replace(CASE, empty=False))
    assert not judged(
        PRODUCT, moved, replace(CASE, distribution="special", empty=False)
    )  # it does not stray itself


@pytest.mark.parametrize("halves", [True, False])
def test_only_half_precision_is_excused_where_every_bit_counts(halves: bool) -> None:
    case = Case(
        "", "normal", {}, [np.ones(2, np.float32)], None, [[0.0]], input_sensitivity=[[Deviation(0.5, 1.0)]]
    )
    off = np.full(2, 1.5, np.float32)
    numeric_traits = NumericTraits("float16" if halves else "float32")
    comparison = CandidateComparison(["y"], Gives(off), Numerics.EXACT, [numeric_traits], [0.0], Gives(off))
    (row,) = comparison.rows([case])
    assert row.ok is halves


def test_the_reference_reads_external_data(tmp_path: Path) -> None:
    text = "g (float[2, 2] a) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = MatMul(a, w) }"
    onnx.save(
        parse_proto(text),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        size_threshold=0,
        location="m.data",
    )
    reference = Reference(lambda: ir.load(tmp_path / "m.onnx"))
    assert reference.output("y", {"a": np.eye(2, dtype=np.float32)}).tolist() == [[1, 2], [3, 4]]


def test_no_excuse_is_sought_for_an_output_after_a_difference_without_one() -> None:
    there, moved = np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)
    there[0, 1] = moved[0, 0] = np.nan
    right, wrong = np.zeros(1, np.float32), np.ones(1, np.float32)
    excusable = replace(CASE, distribution="special", empty=False, off=[right, there], noise=[[0.0], [0.0]])
    without_excuse = replace(excusable, distribution="normal", off=[right, np.ones((2, 2), np.float32)])
    other_output = replace(excusable, distribution="normal", off=[wrong, moved])

    class GivesBoth(Gives):
        def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
            return [right, moved]

    text = PRODUCT.replace("=> (", "=> (float[1] x, ").replace(
        "}", "x = Constant<value = float[1] {0.0}>() }"
    )
    product = Reference(lambda: parse(text))
    output_traits = [NumericTraits(), NumericTraits()]
    comparison = CandidateComparison(
        ["x", "y"],
        GivesBoth(None),
        Numerics.REASSOCIATES,
        output_traits,
        [0.0, 0.0],
        None,
        (product, product),
    )
    for cases, allowed in (
        ([excusable, without_excuse], [True, False]),
        ([without_excuse, excusable], [False, False]),
        ([other_output, excusable], [False, True]),
    ):
        assert [row.ok for row in comparison.rows(cases)] == allowed


def test_the_largest_difference_excludes_excused_ones_and_special_numbers() -> None:
    row = Row("N=1", "normal", "off", 0.25, "y", True)
    excused = replace(row, delta=2.0, reason="'y' is ill-conditioned")
    special = replace(row, delta=3.0, distribution="special")
    assert Verdict((row, excused, special)).delta == 0.25
    assert Verdict((row, excused, replace(row, delta=1.0, ok=False))).delta == 1.0


class Changes(Gives):
    """A runner whose result depends on the number of the run."""

    def __init__(self, result: Callable[[int], Any]) -> None:
        self._result, self._runs, self.spent = result, 0, 0.0

    def load(self, level: str) -> None:
        pass

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        self._runs += 1
        return [self._result(self._runs)]


def compared(
    original: Callable[[int], Any], candidate: Any, *, bits: bool = False, default: Any = None
) -> list[bool]:
    runner = Changes(original)
    (off,) = runner.run("off", {})
    cases = Cases([Case("", "normal", {}, [off], [off if default is None else default], [[0.0]])])
    comparison = CandidateComparison(
        ["y"],
        Gives(candidate),
        Numerics.EXACT,
        [NumericTraits()],
        [0.0],
        runner,
        bits=bits,
        draws_random=False,
        unsteady=lambda case: find_unsteady_outputs(case, cases, runner),
    )
    return [row.ok for row in comparison.rows(cases.found)]


VALUES = np.exp(np.arange(4, dtype=np.float32))


@pytest.mark.parametrize(
    ("candidate", "ok"),
    [(VALUES * np.float32(3), False), (VALUES * np.float32(1 + 1e-4), False), (VALUES, True)],
)
@pytest.mark.parametrize("noise", [1.2e-7, 0.0])
def test_rounding_noise_of_the_original_excuses_no_larger_difference(
    noise: float, candidate: Any, ok: bool
) -> None:
    assert compared(lambda run: VALUES * np.float32(1 + run % 2 * noise), candidate) == [ok, ok]


def test_noise_of_the_original_is_allowed_in_the_candidate() -> None:
    def noisy(run: int) -> Any:
        return VALUES * np.float32(1 + run % 2 * 1e-4)

    assert compared(noisy, VALUES * np.float32(1 + 2e-4)) == [True, True]
    assert compared(noisy, VALUES * np.float32(1 + 2e-3)) == [False, False]
    assert compared(noisy, noisy(2), bits=True) == [True, True]


ZEROS = np.array([0.0, 0.0, 1.0], np.float32)
OTHER_ZEROS = np.array([-0.0, 0.0, 1.0], np.float32)


def test_signs_of_zeros_count_without_optimizations_unless_they_change_in_the_original() -> None:
    def steady(run: int) -> Any:
        return ZEROS

    def noisy(run: int) -> Any:
        return OTHER_ZEROS if run % 2 else ZEROS

    assert compared(steady, OTHER_ZEROS) == [False, True]
    assert compared(noisy, ZEROS) == compared(noisy, OTHER_ZEROS) == [True, True]
    assert compared(noisy, ZEROS, bits=True) == [True, True]
    assert compared(noisy, ZEROS + np.float32(1e-3)) == [False, False]


def test_the_signs_of_zeros_of_a_default_session_do_not_affect_the_comparison_without_optimizations() -> None:
    assert compared(lambda run: ZEROS, ZEROS, default=OTHER_ZEROS) == [True, True]
    assert compared(lambda run: ZEROS, OTHER_ZEROS, default=OTHER_ZEROS) == [False, True]


def test_bits_of_nan_that_change_in_the_original_may_change() -> None:
    first, second = (np.array([bits, 0], np.uint32).view(np.float32) for bits in (0x7FC00000, 0xFFC00000))
    assert compared(lambda run: first, second, bits=True) == [False, True]
    assert compared(lambda run: second if run % 2 else first, first, bits=True) == [True, True]


def test_an_original_that_changes_by_more_than_the_tolerance_is_random() -> None:
    def random(run: int) -> Any:
        return np.random.default_rng(run).uniform(-1, 1, 4).astype(np.float32)

    assert compared(random, random(100) * np.float32(100)) == [True, True]
    assert compared(random, np.zeros(5, np.float32)) == [False, False]
    assert compared(lambda run: np.full(4, run), np.full(4, 77)) == [True, True]


def test_a_verdict_without_comparisons_does_not_report_equality() -> None:
    assert Verdict().summary() == "nothing was compared"
    assert Verdict(unverifiable="the original fails").summary() == "not verified: the original fails"
