"""Executors that profile intermediate values."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import graphopt
from graphopt import ir
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.executor import watched_values
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.specialization.instrumented_runs import InstrumentedRun
from graphopt.specialization.ort_values import BoundValue, arrays_of
from tests.model_testing import parse
from tests.specialization.recording_passes import Look

#: The size of found depends on data.
TEXT = """g (float[N] x) => (float[N] y, int64[1, M] found) {
    z = Relu(x)
    y = Exp(z)
    found = NonZero(x)
}"""


def _x(rows: int, zeros: int = 1) -> dict[str, np.ndarray]:
    x = np.ones(rows, np.float32)
    x[:zeros] = 0
    return {"x": x}


@pytest.mark.parametrize(("watch", "noted"), [("inputs", "x"), ("shapes", "found,x"), ("all", "found,x,y,z")])
@pytest.mark.parametrize("runs", [0, 2])
def test_plans_have_annotations_of_watched_values(tmp_path: Path, watch: str, noted: str, runs: int) -> None:
    file = tmp_path / "seen.txt"
    executor = graphopt.compile(
        parse(TEXT),
        ExecutorOptions(watch=watch, profiled_runs=runs, wait=None, strategy="static:1"),  # type: ignore[arg-type]
        pipeline="profiling",
        pre_passes=[Look(str(file))],
    )
    for _ in range(4):
        outputs = executor(_x(5))
        np.testing.assert_array_equal(outputs["found"], [[1, 2, 3, 4]])
        np.testing.assert_allclose(outputs["y"], np.exp(_x(5)["x"]), rtol=1e-6)
    assert executor.last_plan == "static-1"
    assert file.read_text().splitlines()[-1] == f"{noted} [N]"
    state = executor.debug_state()
    count = noted.count(",")
    assert (state.watched, state.left_out, state.watch_runs) == (count, 0, max(runs, 1) * (count > 0))
    assert (f"{count} intermediate value" in str(state)) == (count > 0)
    assert state.to_dict()["watched"] == count


def _sequence(*arrays: np.ndarray) -> onnxruntime.OrtValue:
    """A sequence as a value of onnxruntime, which is always a result of a session."""
    names = [f"x{number}" for number in range(len(arrays))]
    inputs = ", ".join(f"float[?] {name}" for name in names)
    model = parse(f"g ({inputs}) => (seq(float[?]) s) {{ s = SequenceConstruct({', '.join(names)}) }}")
    values = map(onnxruntime.OrtValue.ortvalue_from_numpy, arrays)
    session = onnxruntime.InferenceSession(ir.to_bytes(model))
    return session.run_with_ort_values(["s"], dict(zip(names, values, strict=True)))[0]


def test_bound_sequences_are_watched() -> None:
    model = parse("""g (seq(float[?]) s, float[N] x) => (int64[1, M] found) {
        a = ConcatFromSequence <axis = 0>(s)
        b = Concat <axis = 0>(a, x)
        found = NonZero(b)
    }""")
    executor = graphopt.compile(model, ExecutorOptions(watch="all", profiled_runs=2), verify=False)
    x = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))
    values = {"s": _sequence(np.ones(3, np.float32), np.zeros(2, np.float32)), "x": x}
    for _ in range(2):
        found = executor.run_bound(values)["found"].numpy()
        np.testing.assert_array_equal(found, [[0, 1, 2, 5, 6]])
    state = executor.debug_state()
    assert (state.watched, state.watch_runs) == (3, 2) and not state.remarks


def test_contents_of_bound_values() -> None:
    arrays = [np.ones(3, np.float32), np.zeros(2, np.float32)]
    found = arrays_of({"s": BoundValue(_sequence(*arrays)), "n": arrays[0]})
    assert found["n"] is arrays[0] and len(found["s"]) == 2
    for one, other in zip(found["s"], arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_limit_is_reported() -> None:
    executor = graphopt.compile(
        parse(TEXT), ExecutorOptions(watch="all", watch_limit=1, wait=None), verify=False
    )
    executor(_x(3))
    assert "1 intermediate value watched, 2 left out: 1 additional run in" in str(executor.debug_state())


def test_failing_additional_run_does_not_affect_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no process")

    monkeypatch.setattr(watched_values, "InstrumentedRuns", fail)
    executor = graphopt.compile(parse(TEXT), ExecutorOptions(watch="all", wait=None), verify=False)
    for _ in range(3):
        assert executor(_x(3))["found"].shape == (1, 2)
    state = executor.debug_state()
    assert state.remarks == ("intermediate values are not watched: no process",) and state.watch_runs == 1
    assert executor.last_plan == "static-1"


def test_values_are_watched_after_inputs_that_the_model_rejects() -> None:
    model = parse("g (float[N] x, float[M] z) => (int64[1, L] found) { y = Add(x, z) found = NonZero(y) }")
    options = ExecutorOptions(watch="shapes", profiled_runs=0, wait=None, strategy="static:1")
    executor = graphopt.compile(model, options, verify=False)
    two, three = np.ones(2, np.float32), np.ones(3, np.float32)
    with pytest.raises(RuntimeFailure):
        executor({"x": two, "z": three})
    assert "intermediate values are not watched" in executor.debug_state().remarks[0]
    executor({"x": three, "z": three})
    state = executor.debug_state()
    assert (state.watch_runs, state.compiled, state.remarks) == (2, 1, ())


def test_one_thread_at_a_time_makes_an_additional_run(monkeypatch: pytest.MonkeyPatch) -> None:
    active, most = [0], [0]

    class Counted(watched_values.InstrumentedRuns):
        def run(self, feeds: Mapping[str, Any]) -> InstrumentedRun:
            active[0] += 1
            most[0] = max(most[0], active[0])
            time.sleep(0.1)  # other threads run meanwhile
            try:
                return super().run(feeds)
            finally:
                active[0] -= 1

    monkeypatch.setattr(watched_values, "InstrumentedRuns", Counted)
    options = ExecutorOptions(watch="all", wait=None, profiled_runs=1, strategy="static:1")
    executor = graphopt.compile(parse(TEXT), options, verify=False)
    failures: list[str] = []

    def run(number: int) -> None:
        for _ in range(5):
            if executor(_x(4, number % 3))["found"].shape != (1, 4 - number % 3):
                failures.append(str(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(thread.is_alive() for thread in threads)
    assert most == [1] and executor.debug_state().watch_runs >= 1


def test_profiles_of_concurrent_runs_have_intermediate_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(watched_values.InstrumentedRuns):
        def run(self, feeds: Mapping[str, Any]) -> InstrumentedRun:
            observing.set()
            assert others_done.wait(60)
            return super().run(feeds)

    observing, others_done, file = threading.Event(), threading.Event(), tmp_path / "seen.txt"
    monkeypatch.setattr(watched_values, "InstrumentedRuns", Slow)
    options = ExecutorOptions(watch="all", wait=None, strategy="static:1")
    executor = graphopt.compile(parse(TEXT), options, pipeline="profiling", pre_passes=[Look(str(file))])
    thread = threading.Thread(target=executor, args=(_x(5),))
    thread.start()
    assert observing.wait(60)
    for _ in range(3):
        executor(_x(4))
    assert executor.debug_state().profiled == 0
    others_done.set()
    thread.join(60)
    executor(_x(5))
    assert executor.last_plan == "static-1" and executor.debug_state().watch_runs == 1
    assert file.read_text().splitlines()[-1] == "found,x,y,z [N]"


def test_bound_values_are_observed() -> None:
    import onnxruntime

    executor = graphopt.compile(parse(TEXT), ExecutorOptions(watch="shapes", wait=None), verify=False)
    executor.run_bound({"x": onnxruntime.OrtValue.ortvalue_from_numpy(_x(3)["x"])})
    state = executor.debug_state()
    assert (state.watch_runs, state.remarks) == (1, ())


def test_unknown_values_of_options() -> None:
    with pytest.raises(UsageError, match="watch must be inputs, shapes or all, not 'everything'"):
        ExecutorOptions(watch="everything")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="watch_limit must be an integer of at least 0, not None"):
        ExecutorOptions(watch_limit=None)  # type: ignore[arg-type]
