"""Cases of an original with intermittent failures and timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from graphopt.errors import ResourceLimit
from graphopt.inputs.binding_search import ValidBinding
from graphopt.inputs.feeds import Inputs
from graphopt.process.child import ProcessCrashed
from graphopt.verification.cases import DISTRIBUTIONS, Cases, empty_cases, gather_cases
from graphopt.verification.verifier import verify
from tests.ort.build import data, parse


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
    inputs = Inputs(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    cases = empty_cases(inputs, Flaky(runs), Cases(valid=[ValidBinding({"N": 2}, 0)]), random=False)
    assert len(cases.found) == found
    assert bool(cases.skipped) is not bool(found)


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

    inputs = Inputs(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
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
    inputs = Inputs(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    original = Endless()
    cases = gather_cases(inputs, original, random=False, seconds=5, quick=1)
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


@pytest.mark.parametrize("seconds", [18, 22, 26, 30, 1000])
def test_each_distribution_is_tried_before_further_sizes(seconds: int) -> None:
    inputs = Inputs(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    cases = gather_cases(inputs, Slow(), random=False, seconds=seconds)
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
