"""Models in memory for onnxruntime: large ones refer to the data files that they were read from."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from graphopt import ir
from graphopt.ort import loadable_model, preflight, session
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.model_runs import RemoteRuns
from graphopt.ort.session import ModelInFolder
from graphopt.process.child import Child
from tests.ir.models import external, run

_X = {"x": np.ones((500, 4), np.float32)}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loadable_model, "MAPPED_BYTES", 8100)
    path = tmp_path / "m.onnx"
    a = np.arange(2000, dtype=np.float32).reshape(500, 4)
    external(path, {"a": a, "b": a * 2})
    return path


def test_data_is_read_where_it_is(path: Path) -> None:
    artifact, expected = Artifact(ir.load(path)), run(path, **_X)
    source = artifact.source
    assert isinstance(source, ModelInFolder) and len(source) < 1000 and artifact.folder is None
    np.testing.assert_array_equal(session.run(session.create(source), _X), expected)
    np.testing.assert_array_equal(session.run(preflight.create(source), _X), expected)
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source and (copy.folder, copy.data_bytes) == (str(path.parent), 16000)
    with Child() as child:
        np.testing.assert_array_equal(RemoteRuns(lambda: child, source).run("default", _X), expected)
    assert {tensor.name for tensor in ir.to_proto(Artifact(source).model()).graph.initializer} == {"a", "b"}
    assert isinstance(artifact.model().graph.initializers["a"].const_value, ir.ExternalTensor)  # unchanged


def test_new_tensors_are_in_the_serialized_model(path: Path) -> None:
    model, expected = ir.load(path), run(path, **_X)
    value = model.graph.initializers["b"]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() + 1, name="b")
    source = Artifact(model).source
    assert isinstance(source, ModelInFolder) and 8000 < len(source) < 9000 and source.data_bytes == 8000
    np.testing.assert_array_equal(session.run(session.create(source), _X)[0], expected[0] + 1)


def test_many_new_tensors_are_in_a_temporary_file(path: Path) -> None:
    model = ir.load(path)
    for name, value in model.graph.initializers.items():
        value.const_value = ir.tensor(np.ones((500, 4), np.float32), name=name)
    artifact = Artifact(model)
    assert isinstance(artifact.source, Path) and artifact.folder is not None
    np.testing.assert_array_equal(session.run(session.create(artifact.source), _X)[0], _X["x"] + 2)
    artifact.close()


def test_data_that_is_replaced_afterwards(path: Path) -> None:
    artifact, expected = Artifact(ir.load(path)), run(path, **_X)
    assert isinstance(artifact.source, ModelInFolder)
    (path.parent / "w.bin").unlink()
    (path.parent / "w.bin").write_bytes(bytes(16000))
    assert isinstance(artifact.source, Path)
    np.testing.assert_array_equal(session.run(session.create(artifact.source), _X), expected)
    artifact.close()


def test_models_with_other_data_differ(path: Path) -> None:
    """A record that a model loads does not apply to other data, which may have invalid indices."""
    source = Artifact(ir.load(path)).source
    assert isinstance(source, ModelInFolder)
    again, serialized = Artifact(ir.load(path)).source, bytes(source)
    assert again == source and hash(again) == hash(source) and source not in (serialized,)
    assert preflight._key(again, "default", None) == preflight._key(source, "default", None)
    moved = ModelInFolder(serialized, "/elsewhere", source.data_bytes, source.state)
    (path.parent / "w.bin").write_bytes(bytes(16000))
    os.utime(path.parent / "w.bin", (1, 1))
    other = Artifact(ir.load(path)).source
    assert isinstance(other, ModelInFolder) and bytes(other) == serialized
    for model in (moved, other):
        assert model != source and hash(model) != hash(source)
        assert preflight._key(model, "default", None) != preflight._key(source, "default", None)


def test_models_for_other_processes_are_written_to_one_file_sooner(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadable_model, "MAPPED_BYTES", 100_000)
    monkeypatch.setattr(loadable_model, "_SENT", 8100)
    model, expected = ir.load(path), run(path, **_X)
    assert isinstance(Artifact(model, is_sent=True).source, ModelInFolder)
    for name, value in model.graph.initializers.items():
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy(), name=name)
    assert isinstance(Artifact(model).source, bytes)
    artifact = Artifact(model, is_sent=True)
    source = artifact.source
    assert isinstance(source, Path) and artifact.folder is not None
    assert os.listdir(artifact.folder.path) == [source.name]
    np.testing.assert_array_equal(session.run(session.create(source), _X), expected)
    artifact.close()
    assert not source.exists()
