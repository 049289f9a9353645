"""Cases of an original that does not run each time it is asked to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from graphopt.runtime.child import ProcessCrashed
from graphopt.runtime.inputs.feeds import Inputs
from graphopt.runtime.inputs.search import Legal
from graphopt.runtime.oracle.cases import empty_cases
from tests.runtime.build import parse


class Flaky:
    """Runs so often, and crashes then."""

    seconds: float | None = None

    def __init__(self, runs: int) -> None:
        self._left = runs

    def run(self, level: str, feeds: Mapping[str, Any]) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            raise ProcessCrashed("onnxruntime crashed (SIGSEGV)")
        return [np.zeros((0,), np.float32)]


@pytest.mark.parametrize(("runs", "found"), [(0, 0), (2, 0), (100, 1)])
def test_what_runs_now_and_then_is_no_case(runs: int, found: int) -> None:
    inputs = Inputs(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    cases = empty_cases(inputs, Flaky(runs), [Legal({"N": 2}, 0)], random=False)
    assert len(cases.found) == found
    assert bool(cases.skipped) is not bool(found)
