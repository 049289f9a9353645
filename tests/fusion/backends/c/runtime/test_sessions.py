"""Registration of libraries in sessions: options, child processes, the verifier, executors."""

import json
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from graphopt import ir
from graphopt.errors import RuntimeFailure
from graphopt.executor.compile_log import Compilation
from graphopt.executor.kept_model import KeptModel
from graphopt.executor.plan import Host, Plan
from graphopt.fusion.kernel_library import Libraries
from graphopt.inputs import run_once
from graphopt.ort import model_runs, session
from graphopt.ort.devices import CPU
from graphopt.ort.session_options import SessionChoice, recommend, recommended
from graphopt.process.child import Child
from graphopt.verification.verifier import verify
from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.c.runtime.samples import NAME, RIGHT, affine, library, model

X = np.arange(5, dtype=np.float32)
FEEDS = {"x": X, "c": np.array(True)}


def test_libraries_are_not_stored_in_metadata():
    choice = SessionChoice(threads=2, libraries=("a.so",), cpu_level=3)
    assert str(choice) == "2 threads, operators of a.so" and not choice.plain
    assert "options.register_custom_ops_library('./a.so')" in list(choice.python())
    assert choice.to_dict() == {"threads": 2}
    assert SessionChoice.from_dict({"threads": 2, "libraries": ["a.so"], "cpu_level": 2}) == SessionChoice(2)
    both = choice | SessionChoice(libraries=("b.so", "a.so"))
    assert both.libraries == ("a.so", "b.so") and both.cpu_level == 3

    found = ir.from_proto(model())
    recommend(found, SessionChoice(libraries=("a.so",)), CPU)
    assert not any("session" in key for key in found.metadata_props)
    recommend(found, choice, CPU)
    assert "a.so" not in json.dumps(dict(found.metadata_props))
    assert recommended(found, CPU) == SessionChoice(2)


def test_invalid_library_is_reported(tmp_path):
    file = tmp_path / "none.so"
    data = model().SerializeToString()
    with pytest.raises(RuntimeFailure, match=r"can't load the library none.so: .*No such file"):
        session.create(data, choice=SessionChoice(libraries=(str(file),)))
    file.write_text("text")
    with pytest.raises(RuntimeFailure, match=r"can't load the library none.so"):
        session.create(data, choice=SessionChoice(libraries=(str(file),)))
    import _ctypes

    with pytest.raises(RuntimeFailure, match=r"onnxruntime rejects the library _ctypes.*RegisterCustomOps"):
        session.create(data, choice=SessionChoice(libraries=(_ctypes.__file__,)))


def _given(choice: SessionChoice) -> Callable[[ir.Model], Libraries]:
    return lambda model: Libraries(choice.libraries)


@samples.compiled
def test_children_plans_and_single_runs_use_libraries(tmp_path):
    choice = SessionChoice(libraries=(library(tmp_path, {NAME: RIGHT + " + 5.0f"}),))
    expected = affine(X, 5)
    proto = model()
    source = proto.SerializeToString()
    with Child() as child:
        found = model_runs.RemoteRuns(lambda: child, source, choice=choice).run("default", FEEDS)
        for array, wanted in zip(found, expected.values(), strict=True):
            np.testing.assert_array_equal(array, wanted)
    with Child() as child:
        plain = model_runs.RemoteRuns(lambda: child, source)
        np.testing.assert_array_equal(plain.run("off", FEEDS)[0], affine(X)["main"])
    kept = KeptModel(ir.from_proto(proto))
    compilation = Compilation(1, "general", "test", "O3")
    plan = Plan("p", "general", kept, Host(CPU, None, "default", _given(choice)), compilation)
    np.testing.assert_array_equal(plan.run(FEEDS)["main"], expected["main"])
    found = run_once.run_once(ir.from_proto(proto), FEEDS, choice=choice)
    np.testing.assert_array_equal(found["nested"], expected["nested"])


def _original() -> onnx.ModelProto:
    """The model with inlined functions."""
    import onnx.inliner

    return onnx.inliner.inline_local_functions(model())


@samples.compiled
@pytest.mark.parametrize("isolate", [False, True])
def test_verifier_compares_with_and_without_library(tmp_path, isolate):
    original, candidate = _original().SerializeToString(), model().SerializeToString()
    right = library(tmp_path / "right", {NAME: RIGHT})
    wrong = library(tmp_path / "wrong", {NAME: RIGHT + " + 0.01f"})
    assert verify(original, candidate, isolate=isolate).ok
    verdict = verify(original, candidate, libraries=(right,), isolate=isolate)
    assert verdict.ok, verdict.summary()
    assert {(row.level, row.libraries) for row in verdict.rows} == {
        (level, native) for level in ("off", "default") for native in (False, True)
    }
    verdict = verify(original, candidate, libraries=(wrong,), isolate=isolate)
    assert not verdict.ok and "with its library" in verdict.summary()
    assert {row.libraries for row in verdict.failures} == {True}
    assert {row.level for row in verdict.failures} == {"off", "default"}


@samples.compiled
def test_verifier_finds_a_wrong_function_body(tmp_path):
    original = _original()
    for node in original.graph.node:
        if node.op_type == "Add" or node.op_type == "Abs":
            node.op_type = "Mul" if node.op_type == "Add" else "Neg"
    right = library(tmp_path, {NAME: RIGHT})
    verdict = verify(original.SerializeToString(), model().SerializeToString(), libraries=(right,))
    assert {row.libraries for row in verdict.failures} == {False, True}
