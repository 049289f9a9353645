"""Sessions that are created after a child has survived the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import graphopt
from graphopt.ort import preflight
from graphopt.process import memory
from graphopt.process.child import Child, ProcessCrashed
from graphopt.util.disk_store import Store
from tests.ort.build import data, parse

GOOD = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
#: onnxruntime 1.31 dies of an equation without terms.
CRASHES = 'g (float x) => (float[N, M] y) { y = Einsum<equation = "->ij">(x) }'


def test_a_crash_is_an_error() -> None:
    with pytest.raises(
        ProcessCrashed, match=r"\(SIG\w+\) loading the model with its optimizations \(level all\)"
    ):
        preflight.create(data(CRASHES))


def test_a_loaded_model_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, store = tmp_path / "m.onnx", Store(tmp_path / "store")
    path.write_bytes(data(GOOD))
    assert preflight.create(path, store=store).run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [
        -1,
        -1,
    ]
    monkeypatch.setattr(Child, "__init__", None)  # none may be started
    preflight.create(path, store=store)
    path.write_bytes(data(GOOD.replace("Neg", "Abs")))
    with pytest.raises(TypeError):
        preflight.create(path, store=store)
    with pytest.raises(TypeError):
        preflight.create(path, optimizations="off", store=store)


def test_a_model_that_crashes_is_not_recorded(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ProcessCrashed):
            preflight.create(data(CRASHES), store=Store(tmp_path))


def test_memory_is_required_for_two_sessions_of_the_model_and_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[64] x) => (float[64] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(64, np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    needed = 2 * 3 * (path.stat().st_size + (tmp_path / "m.data").stat().st_size)
    (tmp_path / "other.onnx").touch()
    os.truncate(tmp_path / "other.onnx", 1 << 40)
    monkeypatch.setattr(Child, "__init__", None)  # none may be started
    monkeypatch.setattr(memory, "available", lambda: needed - 1)
    preflight.try_load(path)
    monkeypatch.setattr(memory, "available", lambda: needed)
    with pytest.raises(TypeError):
        preflight.try_load(path)


def test_a_child_starts_no_other() -> None:
    with Child() as child:
        parents = child.call(try_here, data(GOOD))
    assert parents == 0


def try_here(model: bytes) -> int:
    from graphopt.process import fork_server

    preflight.create(model)
    return fork_server._server_of.cache_info().currsize


def test_programs_survive() -> None:
    """Programs with threads run in separate processes, whose crashes are detected."""
    code = "from tests.ort.test_preflight import survive; survive()"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.split()) == (0, ["compile", "run", "optimize", "gradient"]), (
        done.stderr
    )


def survive() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    feeds = {"x": np.zeros((), np.float32)}
    summed = CRASHES.replace("(float[N, M] y)", "(float z)").replace(
        " }", " z = ReduceSum<keepdims = 0>(y) }"
    )
    for name, work in {
        "compile": lambda: graphopt.compile(parse(CRASHES), verify=False)(feeds),
        "run": lambda: graphopt.run(parse(CRASHES), feeds),
        "optimize": lambda: graphopt.optimize(parse(CRASHES)),
        "gradient": lambda: graphopt.value_and_grad(parse(summed), "z", wrt=["x"])(feeds),
    }.items():
        with pytest.raises(ProcessCrashed):
            work()
        print(name)
