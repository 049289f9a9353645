"""Executors and feeds for tests, and hooks into the middle of a run or a compilation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphopt import api, ir
from graphopt.executor.compile_log import CompileLog
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.plan_cache import ModelSource
from graphopt.executor.plan_factory import PlanRequest
from graphopt.profile import Guard
from tests.model_testing import parse
from tests.specialization.models import positions

#: y = x + n * z for any shapes that broadcast; n is the number of elements of x.
ANY = """g (float[A, B, C] x, float[D, E] z) => (float[F, G, H] y) {
    s = Shape(x) n = Size(x) f = Cast<to = 1>(n) w = Mul(z, f) y = Add(x, w)
}"""


class Clock:
    """A clock that tests set, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """An optimizer that changes nothing, and blocks specializations until the gate is opened."""

    def __init__(self) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        self.passed = 0

    def __call__(self, model: ir.Model, original: ir.Model, guard: Guard | None) -> ir.Model:
        if guard is not None:
            self.reached.set()
            assert self.opened.wait(30)
            self.passed += 1
        return model


class Interrupted(dict[str, Any]):
    """Feeds that call a function in the middle of their run."""

    def __init__(self, feeds: dict[str, np.ndarray], meanwhile: Callable[[], object]) -> None:
        super().__init__(feeds)
        self._meanwhile = meanwhile

    def items(self) -> Any:
        self._meanwhile()
        return super().items()


def compiled(model: ir.Model | Path | None = None, **options: Any) -> Executor:
    """An executor; by default, runs wait for specializations without a limit."""
    options = {"wait": None, **options}
    return api.compile(model or positions(), ExecutorOptions(**options), pipeline="O2", verify=False)


#: Optimizes a model, given the original and the guard.
Optimizer = Callable[[ir.Model, ir.Model, Guard | None], ir.Model]


def with_optimizer(optimize: Optimizer, clock: Callable[[], float] = lambda: 0.0, **options: Any) -> Executor:
    """An executor of :data:`ANY` with this optimizer."""

    def optimized(request: PlanRequest) -> ir.Model:
        return optimize(request.model, request.original, request.guard)

    log = CompileLog(options.get("compile_log"))
    factory = replace(compiled(parse(ANY))._factory, optimize=optimized, log=log)
    options = {"wait": None, **options}
    return Executor(ModelSource(parse(ANY)), factory, ExecutorOptions(**options), clock=clock)


def any_feeds(shape: tuple[int, int, int], z: tuple[int, int]) -> dict[str, np.ndarray]:
    """Inputs of :data:`ANY`."""
    return {"x": np.full(shape, 2, np.float32), "z": np.ones(z, np.float32)}


def rows(length: int) -> dict[str, np.ndarray]:
    """Inputs of :data:`ANY` with one size ``length``."""
    return any_feeds((1, 2, length), (2, length))


def run_any(executor: Executor, runs: Iterable[dict[str, np.ndarray]], times: int = 3) -> None:
    """Run an executor of :data:`ANY`, and check the outputs."""
    for feeds in runs:
        for _ in range(times):
            expected = feeds["x"] + np.float32(feeds["x"].size) * feeds["z"]
            np.testing.assert_array_equal(executor.run(feeds)["y"], expected)
