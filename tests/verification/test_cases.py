"""Cases of an original with intermittent failures and timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.inputs.binding_search import ValidBinding
from graphopt.inputs.feeds import Inputs
from graphopt.process.child import ProcessCrashed
from graphopt.verification.case import Cases
from graphopt.verification.case_gatherer import DISTRIBUTIONS, CaseGatherer
from graphopt.verification.comparison_plan import ComparisonPlan
from graphopt.verification.empty_cases import empty_cases
from graphopt.verification.random_outputs import find_unsteady_outputs
from graphopt.verification.verifier import Verifier, verify
from tests.ort.build import data, parse

NEG = "g (float[N] x) => (float[N] y) { y = Neg(x) }"


def gathered(inputs: Inputs, original: Any, **options: Any) -> Cases:
    """The cases of all distributions."""
    gatherer = CaseGatherer(inputs, original, **options)
    gatherer.add_ordinary()
    gatherer.add_further()
    return gatherer.cases


class Flaky:
    """Runs a number of times, then crashes."""

    seconds: float | None = None

    def __init__(self, runs: int) -> None:
        self._left = runs

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            raise ProcessCrashed("onnxruntime crashed (SIGSEGV)")
        return [np.zeros((0,), np.float32)]


@pytest.mark.parametrize(("runs", "found"), [(0, 0), (2, 0), (100, 1)])
def test_inputs_with_intermittent_failures_are_skipped(runs: int, found: int) -> None:
    inputs = Inputs(parse(NEG))
    cases = empty_cases(inputs, Flaky(runs), Cases(valid=[ValidBinding({"N": 2}, 0)]), random=True)
    assert len(cases.found) == found
    assert bool(cases.skipped) is not bool(found)


def test_a_difference_of_an_original_that_fails_in_repetitions_is_skipped() -> None:
    cases = empty_cases(Inputs(parse(NEG)), Flaky(2), Cases(valid=[ValidBinding({"N": 2}, 0)]), random=False)
    (case,) = cases.found
    assert not cases.skipped
    assert find_unsteady_outputs(case, cases, Flaky(1)) is False
    assert case.flaky
    assert [skipped.cause for skipped in cases.skipped] == ["the original fails"]


class Unsteady:
    """Returns another number in each run."""

    def __init__(self) -> None:
        self.seconds, self.spent, self.runs = None, 0.0, 0

    def load(self, level: str) -> None:
        pass

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        self.runs += 1
        return [np.full((100,), self.runs, np.float32)]


def test_outputs_that_change_from_run_to_run_are_found_after_a_difference() -> None:
    original = Unsteady()
    cases = gathered(Inputs(parse(NEG)), original, random=False, seconds=100)
    runs = original.runs
    assert runs == 2 * len(cases.found), "one run at each level"
    assert find_unsteady_outputs(cases.found[0], cases, original)
    assert all(case.random == {0} for case in cases.found)
    runs = original.runs
    assert find_unsteady_outputs(cases.found[0], cases, original) and original.runs == runs


@pytest.mark.parametrize("seconds", [0.001, 0.02, 1.0])
def test_estimated_time_limits_comparisons_independently_of_speed(seconds: float) -> None:
    def count(original: Any) -> list[tuple[str, str, bool]]:
        cases = gathered(
            Inputs(parse(NEG)),
            original,
            random=False,
            seconds=1e6,
            cost=lambda sizes: seconds * sizes["N"],
            work=0.5,
        )
        assert len(cases.found) + len(cases.skipped) > 2
        return [(case.binding, case.distribution, case.default is None) for case in cases.found]

    found = count(Slow())
    assert found == count(Unsteady())
    assert len({binding for binding, distribution, _ in found if distribution == "normal"}) >= 2
    least = {"normal", "zero", "special"}
    kinds = {distribution for _, distribution, _ in found}
    assert kinds == least if seconds == 1 else kinds >= least
    others = [binding for binding, distribution, _ in found if distribution != "normal"]
    assert len(others) == len(kinds) - 1 or seconds < 1


class FailsOnce(Unsteady):
    """Fails on the first inputs with NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        if np.isnan(feeds["x"]).any() and not self.failed:
            self.failed = True
            raise RuntimeFailure("no NaN at this size")
        return super().run(level, feeds)


def test_special_values_on_which_the_original_fails_are_compared_at_another_binding() -> None:
    original = FailsOnce()
    cases = gathered(
        Inputs(parse(NEG)), original, random=False, seconds=1e6, cost=lambda sizes: sizes["N"], work=0.5
    )
    assert original.failed
    kinds = [case.distribution for case in cases.found if case.distribution != "normal"]
    assert sorted(kinds) == ["special", "zero"]


def test_long_runs_are_compared_at_one_level_for_each_size() -> None:
    cases = gathered(Inputs(parse(NEG)), Slow(), random=False, seconds=1e6, cost=lambda sizes: 1.0, work=0.5)
    ordinary = [case for case in cases.found if case.distribution == "normal"]
    assert [(case.compares_off, case.default is not None) for case in ordinary] == [
        (True, False),
        (False, True),
    ]
    assert len({case.binding for case in ordinary}) == 2


@pytest.mark.parametrize("size", [1, 2])
def test_faults_at_each_size_are_found_even_if_runs_are_long(size: int) -> None:
    """The wrong model returns x at a length of 1, or at any other length, instead of -x."""
    text = f"""g (float[N] x) => (float[N] y) <int64[1] one = {{1}}>
        {{ s = Shape(x) e = {"Equal" if size == 1 else "Less"}({"s, one" if size == 1 else "one, s"})
           n = Neg(x) y = Where(e, x, n) }}"""
    with Verifier(parse(NEG), work=1e-9) as verifier:
        verdict = verifier.verify(parse(text))
    assert not verdict.ok
    assert {row.level for row in verdict.failures} == {"off" if size == 1 else "default"}
    assert {"normal", "zero", "special"} == {row.distribution for row in verdict.rows}


def test_a_query_of_the_plan_admits_nothing() -> None:
    plan = ComparisonPlan(lambda sizes: 1.0, 0.5)
    assert [plan.affordable({}, "special") for _ in range(2)] == [1, 1]
    plan.charge({}, "special", 1)
    assert plan.affordable({}, "special") == 0
    assert plan.spent == 2


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (ProcessCrashed("onnxruntime crashed (SIGSEGV)"), "a crash of the original"),
        (ResourceLimit("onnxruntime exceeded the memory limit"), "a limit on time or memory"),
    ],
)
def test_empty_cases_stop_at_a_failure_and_give_its_reason(failure: Exception, cause: str) -> None:
    class Failing(Flaky):
        def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
            raise failure

    inputs = Inputs(parse(NEG))
    last = empty_cases(inputs, Failing(0), Cases(valid=[ValidBinding({"N": 2}, 0)]), random=False).skipped[-1]
    assert (last.cause, last.detail) == (cause, str(failure))


class Endless:
    """Exceeds the time limit if no element is positive; otherwise each run takes a second of CPU time."""

    seconds: float | None = None

    def __init__(self) -> None:
        self.spent = 0.0
        self.stopped = 0

    def load(self, level: str) -> None:
        pass

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        self.spent += 1
        with np.errstate(invalid="ignore"):
            if (feeds["x"] > 0).any():
                return [feeds["x"]]
        self.stopped += 1
        raise ResourceLimit("it took more than 1 s of CPU time")


def test_timed_out_runs_do_not_count_towards_the_time_limit() -> None:
    inputs = Inputs(parse(NEG))
    original = Endless()
    cases = gathered(inputs, original, random=False, seconds=5, quick=1)
    assert {case.distribution for case in cases.found} >= {"normal", "large"}
    assert not [skipped for skipped in cases.skipped if skipped.cause == "time"]
    assert original.stopped < len(DISTRIBUTIONS), "inputs of one kind are stopped at one size"


class Slow:
    """Takes a second of CPU time for each run."""

    seconds: float | None = None

    def __init__(self) -> None:
        self.spent = 0.0

    def load(self, level: str) -> None:
        pass

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        self.spent += 1
        return [feeds["x"]]


@pytest.mark.parametrize("seconds", [17, 21, 25, 27, 1000])
def test_each_distribution_is_tried_before_further_sizes(seconds: int) -> None:
    inputs = Inputs(parse(NEG))
    cases = gathered(inputs, Slow(), random=False, seconds=seconds)
    kinds = [distribution for distribution in DISTRIBUTIONS[1:] if distribution != "overridden"]
    sizes = [sum(case.distribution == kind for case in cases.found) for kind in kinds]
    assert min(sizes) == 1 or max(sizes) <= 1, sizes
    assert {skipped.cause for skipped in cases.skipped} == (set() if seconds == 1000 else {"time"})


def test_sizes_above_the_smallest_valid_one_are_tried() -> None:
    """At the smallest length, the convolution returns one frame, and the wrong model selects the first."""
    weights = ", ".join(map(str, range(1, 41)))
    text = f"""g (float[N, 1, L] x) => (float[N, 1] y) <float[1, 1, 40] w = {{{weights}}},
        int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] last = {{2}}>
        {{ c = Conv(x, w)  BODY  y = ReduceSum<keepdims = 0>(f, last) }}"""
    right, wrong = (
        data(text.replace("BODY", body), opset=17)
        for body in ("f = Identity(c)", "f = Slice(c, zero, one, last)")
    )
    assert {row.binding for row in verify(right, right).rows} >= {"N=1 L=40", "N=1 L=120"}
    assert not verify(right, wrong).ok
