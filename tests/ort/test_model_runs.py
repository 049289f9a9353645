"""Models that run in a child."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.ort.model_runs import RemoteRuns, Runs, SessionMemory
from graphopt.process.child import Child, ProcessCrashed
from tests.ort.build import data

#: onnxruntime 1.31 dies of an equation without terms.
MALFORMED = 'g (float x) => (float[N, M] y) { y = Einsum<equation = "->ij">(x) }'
#: A loop of one body that computes long.
LONG = """g (int64 n, float[400, 400] x) => (float[400, 400] y) {
    t = Constant<value = bool {1}>()
    y = Loop(n, t, x)<body = b (int64 i, bool c, float[400, 400] v) => (bool d, float[400, 400] u) {
        d = Identity(c) a = MatMul(v, v) u = Sin(a) }>
}"""


class Counted:
    """Starts processes, and counts them."""

    def __init__(self, **settings) -> None:
        self.started: list[Child] = []
        self.settings = settings

    def __call__(self) -> Child:
        self.started.append(Child(**self.settings))
        return self.started[-1]

    def close(self) -> None:
        for child in self.started:
            child.close()


@pytest.fixture
def start():
    counted = Counted()
    yield counted
    counted.close()


def test_each_session_is_created_once(start) -> None:
    runs = RemoteRuns(start, data("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    for level in ("off", "default", "off"):
        assert runs.run(level, {"x": np.float32([1, -2]), "other": np.zeros(1)})[0].tolist() == [-1, 2]
    assert len(start.started) == start.started[0].made == 1
    runs.rest()
    assert not start.started[0].alive
    assert runs.run("off", {"x": np.float32([1, -2])})[0].tolist() == [-1, 2]
    assert len(start.started) == 2


def test_one_session_at_a_time() -> None:
    runs = Runs(data("g (float[2] x) => (float[2] y) { y = Neg(x) }"), memory=SessionMemory(is_single=True))
    runs.load("off")
    runs.load("default")
    assert list(runs._sessions) == ["default"]
    assert runs.run("off", {"x": np.float32([1, -2])})[0].tolist() == [-1, 2]


def test_a_crash_while_loading_is_named_and_not_tried_again(start) -> None:
    runs = RemoteRuns(start, data(MALFORMED))
    for _ in range(2):
        with pytest.raises(
            ProcessCrashed, match=r"crashed \(SIG\w+\) loading the model without optimizations"
        ):
            runs.run("off", {"x": np.zeros((), np.float32)})
    assert start.started[0].made == 1


def test_a_stopped_run_keeps_its_session(start) -> None:
    runs = RemoteRuns(start, data(LONG), threads=1)
    x = np.ones((400, 400), np.float32)
    runs.run("off", {"n": np.array(1), "x": x})
    child = start.started[0]
    runs.seconds = 0.3
    with pytest.raises(ResourceLimit, match=r"more than 0\.3 s of CPU time"):
        runs.run("off", {"n": np.array(10**12), "x": x})
    assert child.alive and child.made == 1
    runs.seconds = 60
    runs.run("off", {"n": np.array(1), "x": x})
    assert child.made == 1


def test_memory_is_limited() -> None:
    start = Counted(memory=64 << 20)
    runs = RemoteRuns(start, data("g (int64[1] n) => (float[N] y) { y = ConstantOfShape(n) }"))
    assert runs.run("off", {"n": np.int64([3])})[0].tolist() == [0, 0, 0]
    with pytest.raises((ResourceLimit, RuntimeFailure), match="memory"):
        runs.run("off", {"n": np.int64([1 << 28])})
    start.close()
