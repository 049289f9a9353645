"""Weights that stay in the data files of the original (``weights="keep"``), and the safety of these files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt import ir, publish
from graphopt.errors import UsageError
from tests.ir.models import external, run

_X = np.ones((500, 4), np.float32)


def _original(folder: Path, name: str = "m", factor: float = 1.0) -> Path:
    """A model with two large tensors in ``<name>.onnx.data``."""
    path = folder / f"{name}.onnx"
    a = np.arange(2000, dtype=np.float32).reshape(500, 4) * np.float32(factor)
    external(path, {"a": a, "b": a * 2}, location=f"{name}.onnx.data")
    return path


def _changed(path: Path, name: str = "b") -> ir.Model:
    """The model at ``path`` with a new tensor for the initializer ``name``."""
    model = ir.load(path)
    value = model.graph.initializers[name]
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() + 1, name=name)
    return model


def _locations(path: Path) -> dict[str, str]:
    proto = onnx.load(path, load_external_data=False)
    return {tensor.name: tensor.external_data[0].value for tensor in proto.graph.initializer}


@pytest.mark.parametrize("weights", ["auto", "keep"])
def test_only_new_tensors_are_written(tmp_path: Path, weights: Any) -> None:
    source, target = _original(tmp_path), tmp_path / "out.onnx"
    expected = run(source, x=_X)[0] + 1
    written = ir.save(_changed(source), target, weights=weights)
    assert written == [target, tmp_path / "out.onnx.data"]
    assert written.kept == {"m.onnx.data": 8000} and written[1].stat().st_size == 8000
    assert _locations(target) == {"a": "m.onnx.data", "b": "out.onnx.data"}
    onnx.checker.check_model(str(target))
    np.testing.assert_array_equal(run(target, x=_X)[0], expected)
    again = ir.save(_changed(source), target, weights=weights)  # two runs, the same bytes
    assert again == written and sorted(os.listdir(tmp_path)) == [
        "m.onnx", "m.onnx.data", "out.onnx", "out.onnx.data",
    ]  # fmt: skip


def test_a_model_without_new_tensors_has_no_data_of_its_own(tmp_path: Path) -> None:
    source, target = _original(tmp_path), tmp_path / "out.onnx"
    assert ir.save(ir.load(source), target, weights="auto") == [target]
    np.testing.assert_array_equal(run(target, x=_X)[0], run(source, x=_X)[0])


def test_tied_tensors_count_once(tmp_path: Path) -> None:
    source = _original(tmp_path)
    proto = onnx.load(source, load_external_data=False)
    proto.graph.initializer[1].external_data[1].value = "0"
    onnx.save(proto, source)
    assert ir.save(ir.load(source), tmp_path / "out.onnx", weights="keep").kept == {"m.onnx.data": 8000}


def test_models_of_other_folders_are_copied_or_refused(tmp_path: Path) -> None:
    source = _original(tmp_path)
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "out.onnx"
    with pytest.raises(UsageError, match="requires OUT in the folder of IN's data files") as caught:
        ir.save(ir.load(source), target, weights="keep")
    assert caught.value.hint == f"write into {tmp_path}, or --weights copy"
    assert os.listdir(target.parent) == []
    assert ir.save(ir.load(source), target, weights="auto") == [target, target.with_name("out.onnx.data")]
    assert _locations(target) == {"a": "out.onnx.data", "b": "out.onnx.data"}
    # the folder above is not the model's own, although ONNX permits data below a model
    above = tmp_path / "above.onnx"
    assert len(ir.save(ir.load(target), above, weights="auto")) == 2


def test_data_in_subfolders_is_copied_or_refused(tmp_path: Path) -> None:
    """Writers search only their own folder for models that read its data."""
    (tmp_path / "sub").mkdir()
    below, source, target = _original(tmp_path / "sub"), tmp_path / "m.onnx", tmp_path / "out.onnx"
    proto = onnx.load(below, load_external_data=False)
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = "sub/m.onnx.data"
    onnx.save(proto, source)
    expected = run(source, x=_X)[0]
    with pytest.raises(UsageError, match="only data files in the same folder can be kept") as caught:
        ir.save(ir.load(source), target, weights="keep")
    assert caught.value.hint == "--weights copy" and not target.exists()
    assert ir.save(ir.load(source), target, weights="auto").kept == {}
    ir.save(_changed(below), below, weights="copy")
    np.testing.assert_array_equal(run(target, x=_X)[0], expected)


def test_formats_without_data_files_can_keep_nothing(tmp_path: Path) -> None:
    source = _original(tmp_path)
    with pytest.raises(UsageError, match="files of ONNX text contain all tensors"):
        ir.save(ir.load(source), tmp_path / "out.onnxtxt", weights="keep")
    assert len(ir.save(ir.load(source), tmp_path / "out.onnxtxt", weights="auto")) == 1


def test_the_json_ir_keeps_data_of_onnx(tmp_path: Path) -> None:
    source, target = _original(tmp_path), tmp_path / "out.json"
    assert ir.save(ir.load(source), target, weights="auto") == [target]
    back = tmp_path / "back.onnx"
    ir.save(ir.load(target), back, weights="inside")
    np.testing.assert_array_equal(run(back, x=_X)[0], run(source, x=_X)[0])


def test_in_place(tmp_path: Path) -> None:
    source = _original(tmp_path)
    expected = run(source, x=_X)[0] + 2
    written = ir.save(_changed(source), source, weights="auto")
    assert written.kept == {"m.onnx.data": 8000} and written[1].name != "m.onnx.data"
    second = ir.save(_changed(source, "b"), source, weights="auto")
    np.testing.assert_array_equal(run(source, x=_X)[0], expected)
    # the data of the first run is no longer used
    assert sorted(os.listdir(tmp_path)) == sorted(["m.onnx", "m.onnx.data", second[1].name])
    copied = ir.save(ir.load(source), source, weights="copy")
    assert sorted(os.listdir(tmp_path)) == sorted(["m.onnx", copied[1].name])
    np.testing.assert_array_equal(run(source, x=_X)[0], expected)


def test_unread_data_is_removed_with_the_old_model(tmp_path: Path) -> None:
    source, target = _original(tmp_path), tmp_path / "out.onnx"
    expected = run(source, x=_X)[0] + 1
    ir.save(ir.load(source), target, weights="copy")
    ir.save(_changed(source), target, weights="keep")
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 1
    assert ir.save(_changed(source), target, weights="inside") == [target]
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data", "out.onnx"]
    np.testing.assert_array_equal(run(target, x=_X)[0], expected)


@pytest.mark.parametrize("weights", ["copy", "beside", "inside", "auto"])
def test_data_that_another_model_keeps_is_neither_removed_nor_changed(tmp_path: Path, weights: Any) -> None:
    source, target = _original(tmp_path), tmp_path / "out.onnx"
    ir.save(_changed(source), target, weights="keep")
    expected = run(target, x=_X)[0]
    model = ir.load(source)
    for name, value in model.graph.initializers.items():
        value.const_value = ir.tensor(np.full((500, 4), 7, np.float32), name=name)
    ir.save(model, source, weights=weights)
    ir.save(_changed(source), source, weights=weights)
    np.testing.assert_array_equal(run(target, x=_X)[0], expected)


def _when_locked(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Call ``action`` immediately before the next lock of a folder."""
    really = publish.locked

    def late(folder: Path) -> Any:
        monkeypatch.setattr(publish, "locked", really)
        action()
        return really(folder)

    monkeypatch.setattr(publish, "locked", late)


@pytest.mark.parametrize("weights", ["auto", "keep"])
def test_data_that_is_removed_after_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Any
) -> None:
    source, target = _original(tmp_path), tmp_path / "out.onnx"
    expected = run(source, x=_X)[0] + 1
    model = _changed(source)

    def removes() -> None:
        ir.save(_changed(source), source, weights="copy")
        assert not (tmp_path / "m.onnx.data").exists()

    _when_locked(monkeypatch, removes)
    if weights == "keep":
        with pytest.raises(UsageError, match="changed in the meantime"):
            ir.save(model, target, weights=weights)
        assert not any(name.startswith((".", "out")) for name in os.listdir(tmp_path))
        return
    written = ir.save(model, target, weights=weights)
    assert written.kept == {} and written[1].stat().st_size >= 16000
    np.testing.assert_array_equal(run(target, x=_X)[0], expected)


def test_data_that_another_program_replaces_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = _original(tmp_path), tmp_path / "out.onnx"
    expected, model = run(source, x=_X)[0], ir.load(source)
    _when_locked(monkeypatch, lambda: publish.write(tmp_path / "m.onnx.data", bytes(16000)))
    assert ir.save(model, target, weights="auto").kept == {}
    np.testing.assert_array_equal(run(target, x=_X)[0], expected)


def test_auto_keeps_nothing_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.publish.locks.try_lock", lambda descriptor: None)
    source = _original(tmp_path)
    assert ir.save(ir.load(source), tmp_path / "a.onnx", weights="auto").kept == {}
    assert ir.save(ir.load(source), tmp_path / "b.onnx", weights="keep").kept == {"m.onnx.data": 16000}


def test_a_model_that_is_replaced_while_it_is_loaded_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data file has the name that the old model refers to, but the contents of the new model."""
    from graphopt.ir.io import load as module

    source, really = _original(tmp_path), module._parse

    def late(path: Path) -> Any:
        monkeypatch.setattr(module, "_parse", really)
        old = really(path)
        path.unlink()
        _original(tmp_path, factor=3)
        return old

    monkeypatch.setattr(module, "_parse", late)
    proto_of_old = ir.load(source)
    value = proto_of_old.graph.initializers["a"].const_value
    assert value is not None and value.numpy()[0, 1] == 3


def test_a_file_that_is_modified_in_place_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, data = _original(tmp_path), tmp_path / "m.onnx.data"
    model = _changed(source)

    def modifies() -> None:
        with data.open("r+b") as file:
            file.seek(4096)
            file.write(bytes(8))
        os.utime(data, (1, 1))

    _when_locked(monkeypatch, modifies)
    with pytest.raises(UsageError, match="changed in the meantime"):
        ir.save(model, tmp_path / "out.onnx", weights="keep")


@pytest.mark.parametrize("weights", ["inside", "beside", "copy"])
@pytest.mark.parametrize("name", ["m.onnx_data", "weights.bin"])
def test_data_of_another_name_is_removed_in_place(tmp_path: Path, weights: Any, name: str) -> None:
    source = tmp_path / "m.onnx"
    external(source, {"a": np.ones((500, 4), np.float32)}, location=name)
    expected = run(source, x=_X)[0]
    written = ir.save(ir.load(source), source, weights=weights)
    assert sorted(tmp_path.iterdir()) == sorted(written)
    np.testing.assert_array_equal(run(source, x=_X)[0], expected)


@pytest.mark.parametrize("weights", ["inside", "beside"])
@pytest.mark.parametrize(
    "reason", ["other model", "other contents", "beginning", "a model's suffix", "subfolder", "link"]
)
def test_data_of_another_name_that_is_not_only_of_the_old_model_stays(
    tmp_path: Path, weights: Any, reason: str
) -> None:
    source = tmp_path / "m.onnx"
    name = {"a model's suffix": "w.onnx", "subfolder": "sub/w.bin"}.get(reason, "w.bin")
    data = tmp_path / name
    data.parent.mkdir(exist_ok=True)
    external(source, {"a": np.ones((500, 4), np.float32)}, location=name)
    match reason:
        case "other model":
            shutil.copy(source, tmp_path / "backup")
        case "other contents":
            data.write_bytes(data.read_bytes() + b"more")
        case "beginning":
            proto = onnx.load(source, load_external_data=False)
            offset = next(
                entry for entry in proto.graph.initializer[0].external_data if entry.key == "offset"
            )
            offset.value = str(1 << 17)
            source.write_bytes(proto.SerializeToString())
            data.write_bytes(bytes(1 << 17) + data.read_bytes())
        case "link":
            data.rename(tmp_path / "elsewhere")
            data.symlink_to("elsewhere")
    ir.save(ir.load(source), source, weights=weights)
    assert data.exists()
