"""Outputs written over inputs: bound runs of executors and bundles, and loops with a state."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime import OrtValue

import graphopt
from graphopt import api, ir
from graphopt.errors import GraphoptError, RuntimeFailure, UsageError, VerificationFailed
from graphopt.executor.executor import Executor
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.profile import FusionStrategy
from graphopt.specialization.build_variants import Specialization
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.save import save_bundle
from graphopt.specialization.ort_values import bound_values, kept_contents, owning_value
from graphopt.specialization.shared_buffer_checks import Spans, check_memory
from tests.model_testing import parse

#: A cache of fixed size: row `at` is replaced, and y is computed from the new cache.
FIXED = """g (float[R, 4] past, float[1, 4] x, int64[1, 1] at) => (float[1, 4] y, float[R, 4] present) {
    present = ScatterND(past, at, x) t = Transpose<perm = [1, 0]>(present) s = MatMul(x, t)
    p = Softmax<axis = 1>(s) y = MatMul(p, present)
}"""
#: The same, but the old cache is read after the new one may be written.
LATE = """g (float[R, 4] past, float[1, 4] x, int64[1, 1] at) => (float[1, 4] y, float[R, 4] present) {
    present = ScatterND(past, at, x) t = Transpose<perm = [1, 0]>(past) s = MatMul(x, t)
    p = Softmax<axis = 1>(s) y = MatMul(p, present)
}"""
GROWING = """g (float[R, 4] past, float[1, 4] x) => (float[1, 4] y, float[N, 4] present) {
    present = Concat<axis = 0>(past, x) t = Transpose<perm = [1, 0]>(present) s = MatMul(x, t)
    p = Softmax<axis = 1>(s) y = MatMul(p, present)
}"""
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order_of_tests() -> None:
    RANDOM.bit_generator.state = np.random.default_rng(0).bit_generator.state


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def value(array: np.ndarray) -> OrtValue:
    return OrtValue.ortvalue_from_numpy(array)


def executor(text: str, **options: Any) -> Executor:
    return api.compile(
        parse(text), ExecutorOptions(wait=None, **options), pipeline="O2", threads=1, verify=False
    )


def fixed_feeds(at: int = 2, rows: int = 6) -> dict[str, np.ndarray]:
    return {"past": numbers(rows, 4), "x": numbers(1, 4), "at": np.array([[at]])}


def expected(text: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(ir.to_bytes(parse(text)))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def test_output_is_written_over_its_input_by_each_plan() -> None:
    made = executor(FIXED)
    for at in (2, 0, 5, 1):
        feeds = fixed_feeds(at)
        values, wanted = {name: value(array) for name, array in feeds.items()}, expected(FIXED, feeds)
        found = made.run_bound(values, share={"present": "past"})
        assert found["present"] is values["past"] and np.array_equal(feeds["past"], wanted["present"])
        np.testing.assert_allclose(found["y"].numpy(), wanted["y"], rtol=1e-6)
    assert made.debug_state().hits("static-1") == 3


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ({"other": "past"}, "no output is called 'other'"),
        ({"present": "other"}, "no input is called 'other'"),
        ({"present": "x", "y": "x"}, "'x' can't share its buffer twice"),
    ],
)
def test_names_of_shared_buffers_are_checked(share: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        executor(FIXED).run_bound({n: value(a) for n, a in fixed_feeds().items()}, share=share)


def test_unsafe_sharing_is_refused_before_the_run() -> None:
    feeds = fixed_feeds()
    past = feeds["past"].copy()
    with pytest.raises(VerificationFailed, match="reads it, and may run after"):
        executor(LATE).run_bound({n: value(a) for n, a in feeds.items()}, share={"present": "past"})
    assert np.array_equal(feeds["past"], past)


def test_operators_fused_by_onnxruntime_are_checked() -> None:
    # onnxruntime fuses both to QuickGelu, which reads its input again after it has written its output
    text = "g (float[N, 8] past, float[N, 8] z) => (float[N, 8] present) { s = Sigmoid(past) present = Mul(past, s) }"
    made = api.compile(parse(text), pipeline="O1", verify=False)
    values = {"past": value(numbers(2, 8)), "z": value(numbers(2, 8))}
    api.optimize(parse(text), pipeline="check-aliasing", share_buffers=(("past", "present"),), verify=False)
    with pytest.raises(VerificationFailed, match="QuickGelu"):
        made.run_bound(values, share={"present": "past"})
    assert made.run_bound(values)["present"].shape() == [2, 8]


def test_sizes_and_types_are_compared_before_anything_is_overwritten() -> None:
    text = """g (float[A, 4] p, float[B, 4] q, float[C, 4] x) => (float[A, 4] r, float[D, 4] s) {
        r = Neg(p) s = Add(q, x)
    }"""
    made = executor(text)
    p, q = numbers(2, 4), numbers(1, 4)
    before = p.copy(), q.copy()
    values = {"p": value(p), "q": value(q), "x": value(numbers(3, 4))}
    share = {"r": "p", "s": "q"}
    for _ in range(3):
        with pytest.raises(VerificationFailed, match=r"'q' and output 's' .* in another shape"):
            made.run_bound(values, share=share)
        assert np.array_equal(p, before[0]) and np.array_equal(q, before[1])
    same = {**values, "x": value(np.ones((1, 4), np.float32))}
    made.run_bound(same, share={"r": "p"})
    assert np.array_equal(p, -before[0])


def test_sizes_of_an_output_and_of_an_input_that_is_not_read_are_compared() -> None:
    made = executor("g (float[A, 4] p, float[C, 4] z) => (float[A, 4] r) { r = Neg(p) }")
    p, z = numbers(2, 4), np.zeros((3, 4), np.float32)
    for _ in range(3):
        with pytest.raises(UsageError, match=r"it is tensor\(float\) \[2, 4\], and the input .* \[3, 4\]"):
            made.run_bound({"p": value(p), "z": value(z)}, share={"r": "z"})
        assert not z.any()
    z = np.zeros((2, 4), np.float32)
    made.run_bound({"p": value(p), "z": value(z)}, share={"r": "z"})
    assert np.array_equal(z, -p)


def test_overlapping_and_read_only_values_are_refused() -> None:
    made, feeds = executor(FIXED), fixed_feeds()
    past = feeds["past"]
    values = {n: value(a) for n, a in feeds.items()}
    with pytest.raises(UsageError, match="same memory"):
        made.run_bound({**values, "x": value(past[1:2])}, share={"present": "past"})
    past.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        made.run_bound({**values, "past": value(past)}, share={"present": "past"})


def test_specialization_in_which_sharing_is_unsafe_is_not_used() -> None:
    # the specialization folds n, and then y may be computed after the new cache
    text = """g (float[R, 4] past, float[1, 4] x) => (float[R, 4] y, float[R, 4] present) {
        y = Relu(past) n = Shape(y) z = Expand(x, n) present = Add(past, z)
    }"""
    options = ExecutorOptions(wait=None)
    made = api.compile(parse(text), options, pipeline="constant-propagation", threads=1, verify=False)
    past, x = numbers(6, 4), numbers(1, 4)
    for _ in range(2):
        made.run_bound({"past": value(past.copy()), "x": value(x)})
    assert made.last_plan == "static-1"
    values = {"past": value(past.copy()), "x": value(x)}
    found = made.run_bound(values, share={"present": "past"})
    assert made.last_plan == "general" and found["present"] is values["past"]
    assert np.array_equal(found["y"].numpy(), np.maximum(past, 0))
    assert np.array_equal(found["present"].numpy(), past + x)


def test_bundle_writes_an_output_over_its_input(tmp_path: Path) -> None:
    model = parse(FIXED)
    how = Specialization(graphopt.record_profile(model, [fixed_feeds()] * 3), FusionStrategy.of("static:1"))
    save_bundle(api.specialize(model, how, bundle=True, verify=False, pipeline="O1"), tmp_path / "m.bundle")
    bundle = Bundle(tmp_path / "m.bundle", threads=1)
    for rows in (6, 7):
        feeds = fixed_feeds(rows=rows)
        values, wanted = {name: value(array) for name, array in feeds.items()}, expected(FIXED, feeds)
        found = bundle.run_bound(values, share={"present": "past"})
        assert found["present"] is values["past"] and np.array_equal(feeds["past"], wanted["present"])
        np.testing.assert_allclose(found["y"].numpy(), wanted["y"], rtol=1e-6)
    with pytest.raises(UsageError, match="no output is called"):
        bundle.run_bound(values, share={"presnt": "past"})


def _states(text: str, steps: int = 50) -> tuple[list[int], Executor]:
    """The addresses of the state after each step of a loop, whose outputs are those of a plain loop."""
    made, plain = executor(text), executor(text)
    loop, addresses, past, first = made.loop([("past", "present")]), [], numbers(6, 4), True
    given = past.copy()
    for step in range(steps):
        new = {"x": numbers(1, 4)} | ({"at": np.array([[step % 6]])} if " at)" in text else {})
        result = loop(new | ({"past": given} if first else {}))
        found = plain.run({**new, "past": past})
        assert list(result) == ["y"] and np.array_equal(result["y"], found["y"])
        past, first = found["present"], False
        assert np.array_equal(loop.state["past"].numpy(), past)
        addresses.append(loop.state["past"].data_ptr())
    assert loop.state["past"].data_ptr() != given.ctypes.data
    return addresses, made


def test_fixed_cache_stays_in_one_buffer() -> None:
    addresses, made = _states(FIXED)
    assert len(set(addresses)) == 1 and made.debug_state().hits("static-1") > 40


def test_state_alternates_between_two_buffers_if_it_is_read_late() -> None:
    addresses, _ = _states(LATE)
    assert len(set(addresses)) == 2 and addresses[0::2] == addresses[:1] * 25


def test_growing_cache_is_bound_as_the_next_input(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.executor.state_loop import StateLoop
    from graphopt.specialization.variant_session import BoundRuns

    read, written = [], []
    run = StateLoop._found

    def watched(self: StateLoop, step: Any) -> Any:
        found = run(self, step)
        read.append(step.values["past"].ctypes.data)
        written.append(found["present"].ctypes.data)
        return found

    monkeypatch.setattr(StateLoop, "_found", watched)
    monkeypatch.delattr(BoundRuns, "run")  # runs on values of onnxruntime have more overhead
    _states(GROWING)
    assert len(read) == 50 and read[1:] == written[:-1]


def test_states_of_growing_caches_may_be_kept_and_given() -> None:
    loop, past = executor(GROWING).loop([("past", "present")]), numbers(6, 4)
    expected, views = past, []
    for step in range(4):
        x = numbers(1, 4)
        loop({"x": x} | ({"past": value(past)} if step == 0 else {}))
        expected = np.concatenate([expected, x])
        views.append((loop.state["past"].numpy(), expected))  # the view alone keeps the memory alive
    loop({"x": numbers(1, 4), "past": loop.state["past"]})
    del loop
    gc.collect()
    filler = [np.full((10, 4), 7, np.float32) for _ in range(100)]
    assert all(np.array_equal(view, wanted) for view, wanted in views) and filler


def test_growing_states_of_booleans_have_values_of_onnxruntime() -> None:
    model = parse("g (bool[T] past, bool[1] x) => (bool[U] present) { present = Concat<axis = 0>(past, x) }")
    loop = graphopt.compile(model, verify=False).loop([("past", "present")])
    loop({"past": np.array([True]), "x": np.array([False])})
    assert isinstance(loop._state.values["past"], np.ndarray)
    assert loop.state["past"].numpy().tolist() == [True, False]
    loop({"x": value(np.array([True]))})
    assert loop.state["past"].numpy().tolist() == [True, False, True]


@pytest.mark.parametrize("array", [np.ones((2, 3), np.float32).T, np.zeros((0, 2), bool), np.array(True)])
def test_arrays_of_all_layouts_have_values_of_onnxruntime(array: np.ndarray) -> None:
    found = owning_value(array).numpy()
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


def test_state_of_the_caller_is_not_overwritten_and_can_be_replaced() -> None:
    made = executor(FIXED)
    loop, feeds = made.loop([("past", "present")]), fixed_feeds()
    kept = feeds["past"].copy()
    for _ in range(3):
        loop(feeds)
        loop({"x": feeds["x"], "at": np.array([[4]])})
        assert np.array_equal(feeds["past"], kept)
    own = value(feeds["past"])
    loop({**feeds, "past": own})
    assert np.array_equal(feeds["past"], kept)


def test_errors_of_loops() -> None:
    made, feeds = executor(FIXED), fixed_feeds()
    loop = made.loop([("past", "present")])
    with pytest.raises(UsageError, match="no state 'past' yet"):
        loop({"x": feeds["x"], "at": feeds["at"]})
    with pytest.raises(UsageError, match="no input is called 'pst'"):
        made.loop([("pst", "present")])
    with pytest.raises(UsageError, match="no input matches"):
        made.loop([("q.*", "present.*")])
    with pytest.raises(UsageError, match="output 'present' can't share its buffer twice"):
        made.loop([("past", "present"), ("x", "present")])
    with pytest.raises(UsageError, match="needs a value for input 'x'"):
        loop({"past": feeds["past"], "at": feeds["at"]})
    loop(feeds)
    with pytest.raises(UsageError, match="no input is called 'z'"):
        loop({**feeds, "z": feeds["x"]})
    loop({"x": feeds["x"], "at": feeds["at"]})
    with pytest.raises(RuntimeFailure):  # index 9 of 6 rows, found when the cache is being overwritten
        loop({"x": feeds["x"], "at": np.array([[9]])})
    with pytest.raises(UsageError, match="no state 'past' yet"):
        loop({"x": feeds["x"], "at": feeds["at"]})
    assert loop(feeds)["y"].shape == (1, 4)


def test_calls_of_several_threads_run_one_after_another() -> None:
    text = "g (float[N] past, float[N] x) => (float[N] present) { present = Add(past, x) }"
    loop = executor(text).loop([("past", "present")])
    loop({"past": np.zeros(64, np.float32), "x": np.zeros(64, np.float32)})
    one = np.ones(64, np.float32)
    threads = [threading.Thread(target=lambda: [loop({"x": one}) for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (loop.state["past"].numpy() == 100).all()


def test_array_of_the_caller_that_becomes_the_state_is_not_overwritten() -> None:
    text = "g (float[N] past, float[N] x) => (float[N] y, float[N] x) { y = Add(past, x) }"
    loop, arrays = executor(text).loop([("past", "x")]), [numbers(4) for _ in range(6)]
    kept = [array.copy() for array in arrays]
    last = np.zeros(4, np.float32)
    for array in arrays:
        state = {"past": last} if array is arrays[0] else {}
        assert np.array_equal(loop({"x": array, **state})["y"], last + array)
        last = array.copy()
    assert all(map(np.array_equal, arrays, kept))


def test_inputs_in_the_memory_of_the_state_are_refused() -> None:
    loop, feeds = executor(FIXED).loop([("past", "present")]), fixed_feeds()
    for _ in range(4):
        loop(feeds if _ == 0 else {"x": feeds["x"], "at": feeds["at"]})
    with pytest.raises(UsageError, match="same memory"):
        loop({"x": loop.state["past"].numpy()[0:1], "at": feeds["at"]})
    assert loop({"x": feeds["x"], "at": feeds["at"]})["y"].shape == (1, 4)


def test_states_that_are_shifted_through_do_not_overwrite_each_other() -> None:
    text = """g (float[N] a, float[N] b, float[N] x) => (float[N] y, float[N] p, float[N] a) {
        s = Add(a, b) y = Add(s, x) p = Sub(x, a)
    }"""
    made, arrays = executor(text), [numbers(4) for _ in range(8)]
    loop, a, b = made.loop([("a", "p"), ("b", "a")]), numbers(4), numbers(4)
    state = {"a": a, "b": b}
    for x in arrays:
        found = loop({"x": x, **state})
        assert np.array_equal(found["y"], a + b + x)
        a, b, state = x - a, a, {}
        assert all(map(np.array_equal, (loop.state["a"].numpy(), loop.state["b"].numpy()), (a, b)))


#: A position that is the index of the last element of x in the first run, and outside of x in the next one.
POSITION = """g (int64[N] x, int64[1] at) => (int64[1] y, int64[1] next) {
    y = Gather(x, at) next = Add(at, y)
}"""


def test_overwritten_inputs_are_profiled_with_their_contents_before_the_run() -> None:
    made = executor(POSITION, watch="all", profiled_runs=2)
    x = np.ones(4, np.int64)
    for _ in range(3):
        at = np.array([3])
        found = made.run_bound({"x": value(x), "at": value(at)}, share={"next": "at"})
        assert at == [4] and found["y"].numpy() == [1]
    state = made.debug_state()
    assert state.remarks == () and state.watched > 0 and state.hits("static-1") == 1


def test_profile_of_a_loop_has_the_contents_before_the_run() -> None:
    made = executor(POSITION, watch="all", profiled_runs=8)
    loop = made.loop([("at", "next")])
    for step in range(4):
        loop({"x": np.ones(4, np.int64)} | ({} if step else {"at": np.array([0])}))
    assert loop.state["at"].numpy() == [4] and made.debug_state().remarks == ()


def test_contents_of_overwritten_values_are_kept() -> None:
    at, large = value(np.array([3])), value(np.arange(64))
    feeds = bound_values({"at": at, "large": large})
    kept = kept_contents(feeds, {"at", "large"})
    at.update_inplace(np.array([4]))
    assert np.ravel(kept["at"]) == [3] and np.ravel(feeds["at"]) == [4]
    assert kept["large"] is feeds["large"] and kept_contents(feeds, ())["at"] is feeds["at"]


def test_loop_follows_a_model_that_was_read_again(tmp_path: Path) -> None:
    path, feeds = tmp_path / "m.onnx", fixed_feeds()
    api.save(parse(FIXED), path)
    made = api.compile(path, ExecutorOptions(wait=None), pipeline="O1", verify=False)
    loop = made.loop([("past", "present")])
    first = loop(feeds)
    assert list(first) == ["y"]
    api.save(parse(FIXED.replace("(float[1, 4] y, ", "(float[1, 4] y, float[1, R] p, ")), path)
    made._specializer.cache.original.release()
    made.flush()
    again = loop({"x": feeds["x"], "at": feeds["at"]})  # the state is kept
    assert list(again) == ["y", "p"] and np.allclose(again["y"], first["y"])
    api.save(parse(FIXED.replace("present", "next")), path)
    made._specializer.cache.original.release()
    made.flush()
    with pytest.raises(UsageError, match="no output is called 'present'"):
        loop(feeds)


SEQUENCE = (
    "g (seq(float[N]) s, float[N] x) => (seq(float[N]) t, float[N] y) { t = SequenceInsert(s, x) y = Neg(x) }"
)


def test_sequences_are_no_states_of_a_loop() -> None:
    with pytest.raises(UsageError, match=r"input 's' is of type seq\(tensor\(float\)\)"):
        executor(SEQUENCE).loop([("s", "t")])


def test_bound_values_may_be_sequences() -> None:
    made, x = executor(SEQUENCE), numbers(3)
    empty = onnxruntime.InferenceSession(
        ir.to_bytes(parse("g () => (seq(float[N]) s) { s = SequenceEmpty() }"))
    ).run_with_ort_values(["s"], {})[0]
    found = made.run_bound({"s": empty, "x": value(x)})
    assert np.array_equal(found["y"].numpy(), -x) and not found["t"].is_tensor()
    with pytest.raises(GraphoptError):
        made.run_bound({"s": empty, "x": value(x)}, share={"t": "s"})


def test_empty_tensors_overlap_with_nothing() -> None:
    past = numbers(6, 4)
    whole, empty = value(past), value(past[2:2])
    check_memory({"past": whole}, {"past": whole, "none": empty})
    assert not Spans.of({"past": whole}).overlaps(empty) and Spans.of({"past": whole}).overlaps(
        value(past[2:3])
    )


def test_facts_about_buffers_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.specialization import shared_buffer_checks

    created, original = [], shared_buffer_checks.OutputShapes

    def slow(*arguments: Any) -> Any:
        created.append(original(*arguments))
        time.sleep(0.1)
        return created[-1]

    checks = executor(FIXED)._specializer.cache.general().prepare().buffers
    values = {name: value(array) for name, array in fixed_feeds().items()}
    monkeypatch.setattr(shared_buffer_checks, "OutputShapes", slow)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: checks.shapes(values), range(4)))
    assert len(created) == 1 and found == [{"y": (1, 4), "present": (6, 4)}] * 4


def test_refused_inputs_of_a_loop_leave_its_state() -> None:
    loop, feeds = executor(FIXED).loop([("past", "present")]), fixed_feeds()
    loop(feeds)
    for _ in range(3):
        for wrong in ({"at": feeds["at"]}, {"x": feeds["x"], "at": feeds["at"], "other": feeds["x"]}):
            with pytest.raises(UsageError):
                loop(wrong)
        assert list(loop.state) == ["past"]
        loop({"x": feeds["x"], "at": np.array([[4]])})


@pytest.mark.parametrize("share", [[("present", "past")], "present", {"present"}])
def test_share_is_a_mapping(share: Any) -> None:
    made = executor(FIXED)
    with pytest.raises(UsageError, match="share maps each output"):
        made.run_bound({name: value(array) for name, array in fixed_feeds().items()}, share=share)
    with pytest.raises(UsageError, match=r"not a (pair|list of pairs)"):
        made.loop("past")  # type: ignore[arg-type]
