"""Several processes save different models to one path: no model has the weights of another."""

from __future__ import annotations

import filecmp
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphopt import ir, publish
from graphopt.ir.io import data_file_replacement
from tests.ir.models import floats, model


def _numbered(number: int) -> ir.Model:
    """A model with a number in its graph; its weight contains that number, and has as many additional columns."""
    weight = numpy_helper.from_array(np.full((4, 400 + number), number, np.float32), f"w{number}")
    proto = model([helper.make_node("MatMul", ["x", f"w{number}"], ["y"])], [weight])
    proto.graph.name = f"g{number}"
    proto.graph.output[0].CopyFrom(floats("y", "N", 400 + number))
    return ir.from_proto(proto)


def _number(path: Path) -> int:
    """The number of the model at ``path``; raises AssertionError if its weight contains another number."""
    proto = onnx.load(path)
    number = int(proto.graph.name[1:])
    assert (numpy_helper.to_array(proto.graph.initializer[0]) == number).all()
    return number


def _save_often(number: int, folder: str, rounds: int, barrier: Any) -> None:
    found = _numbered(number)
    for _ in range(rounds):
        barrier.wait()
        ir.save(found, Path(folder) / "out.onnx", weights="beside")
        barrier.wait()


@pytest.mark.parametrize("rounds", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_writers_of_different_models(tmp_path: Path, rounds: int) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4, timeout=120)
    writers = [
        context.Process(target=_save_often, args=(number, str(tmp_path), rounds, barrier))
        for number in (1, 2, 3)
    ]
    for writer in writers:
        writer.start()
    winners: list[int] = []
    for _ in range(rounds):
        barrier.wait()
        for _ in range(3 if winners else 0):  # beside the writers
            loaded = ir.load(tmp_path / "out.onnx")
            (value,) = loaded.graph.initializers.values()
            assert value.const_value is not None
            assert (value.const_value.numpy() == int((loaded.graph.name or "")[1:])).all()
        barrier.wait()
        winners.append(_number(tmp_path / "out.onnx"))
        assert len(os.listdir(tmp_path)) == 2
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert set(winners) <= {1, 2, 3}


def test_data_name_claimed_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, really = tmp_path / "out.onnx", publish.locked

    def late(folder: Path) -> Any:
        monkeypatch.setattr(publish, "locked", really)
        ir.save(_numbered(2), path, weights="beside")
        return really(folder)

    monkeypatch.setattr(publish, "locked", late)
    _, data = ir.save(_numbered(1), path, weights="beside")
    assert _number(path) == 1 and sorted(os.listdir(tmp_path)) == ["out.onnx", data.name]


def test_equal_data_that_another_process_removes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really = tmp_path / "out.onnx", publish.locked
    _, plain = ir.save(_numbered(1), path, weights="beside")
    assert plain.name == "out.onnx.data"

    def late(folder: Path) -> Any:
        monkeypatch.setattr(publish, "locked", really)
        ir.save(_numbered(2), path, weights="beside")
        assert not plain.exists()
        return really(folder)

    monkeypatch.setattr(publish, "locked", late)
    _, data = ir.save(_numbered(1), path, weights="beside")
    assert _number(path) == 1 and sorted(os.listdir(tmp_path)) == ["out.onnx", data.name]


def test_equal_data_that_disappears_while_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.onnx"
    _, plain = ir.save(_numbered(1), path, weights="beside")
    really = filecmp.cmp

    def late(one: Path, other: Path, shallow: bool) -> bool:
        one.unlink()
        return really(one, other, shallow)

    monkeypatch.setattr(filecmp, "cmp", late)
    _, data = ir.save(_numbered(1), path, weights="beside")
    assert data != plain and _number(path) == 1 and sorted(os.listdir(tmp_path)) == ["out.onnx", data.name]


#: Saves the second model, and ends when a function is called.
_KILLED = """
import os, sys
from pathlib import Path
from graphopt import ir
from graphopt.ir.io import save_with_data as io
from tests.ir.test_concurrent_writers import _numbered
model = _numbered(2)
owner, name = {"replace": (os, "replace"), "remove_unread": (io, "remove_unread")}[sys.argv[2]]
really = getattr(owner, name)
def killed(*arguments):
    if name == "replace" and Path(arguments[1]).name != "out.onnx":
        return really(*arguments)
    os._exit(9)
setattr(owner, name, killed)
ir.save(model, sys.argv[1], weights="beside")
"""


@pytest.mark.parametrize("when", ["replace", "remove_unread"])
def test_data_that_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path, when: str) -> None:
    path = tmp_path / "out.onnx"
    ir.save(_numbered(1), path, weights="beside")
    _, other = ir.save(_numbered(3), tmp_path / "other.onnx", weights="beside")
    other.rename(tmp_path / "stays.bin")  # as of a model that is elsewhere
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path), when], cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 9
    assert _number(path) == {"replace": 1, "remove_unread": 2}[when]
    assert len(os.listdir(tmp_path)) == 7  # with another file of data, and two temporary folders
    publish.write(tmp_path / "report.json", "")
    _, data = ir.save(_numbered(3), path, weights="beside")
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["other.onnx", "out.onnx", data.name, "report.json", "stays.bin"]
    )


def test_no_data_is_shared_or_removed_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.publish.locks.try_lock", lambda descriptor: None)
    path = tmp_path / "out.onnx"
    names = [ir.save(_numbered(number), path, weights="beside")[1].name for number in (1, 2, 2)]
    assert names[0] == "out.onnx.data" and len(set(names)) == 3
    assert _number(path) == 2 and sorted(os.listdir(tmp_path)) == sorted(["out.onnx", *names])


def test_old_data_is_removed_although_another_file_disappears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really = tmp_path / "out.onnx", data_file_replacement.mentions
    _, old = ir.save(_numbered(1), path, weights="beside")
    (tmp_path / "other").touch()

    def late(item: Path, name: str) -> bool:
        if item.name == "other":
            item.unlink()
        return really(item, name)

    monkeypatch.setattr(data_file_replacement, "mentions", late)
    _, new = ir.save(_numbered(2), path, weights="beside")
    assert new != old and sorted(tmp_path.iterdir()) == sorted([path, new])
