"""With a full disk, all commands exit with status 5 and one sentence, and keep existing files."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from .conftest import Invoke

resource = pytest.importorskip("resource")

#: Commands that write 64 KiB or more, and their outputs.
COMMANDS = {
    "optimize IN -o out.onnx --no-verify": ["out.onnx"],
    "optimize IN -o out.onnx --no-verify --weights beside": ["out.onnx", "out.onnx.data"],
    "convert IN out.json": ["out.json", "out.json.bin"],
    "convert IN out.onnxtxt": ["out.onnxtxt"],
    "lift-parameters IN -o out.onnx --parameters out.npz": ["out.npz", "out.onnx"],
    "lift-parameters IN -o out.onnx --parameters out.safetensors": ["out.onnx", "out.safetensors"],
    "grad IN --loss-fn mse:y,t -o out.onnx": ["out.onnx"],
    "grad IN --loss-fn mse:y,t --split -o out": ["out"],
    "train-step IN --loss-fn mse:y,t --optimizer sgd -o out.onnx --state out.safetensors": [
        "out.onnx",
        "out.safetensors",
        "out.training.json",
    ],
    "run IN --input-shape x:300,128 -o out.npz": ["out.npz"],
    "optimize IN -o out --no-verify --profile PROFILE --emit bundle": ["out"],
    "compile IN -o out --no-verify": ["out"],
    "compile IN -o out --no-verify --zip": ["out"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``in.onnx``, a model with a weight of 64 KiB, and ``profile.json``."""
    from graphopt import record_profile

    found = tmp_path_factory.mktemp("models")
    weight = numpy_helper.from_array(np.ones((128, 128), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Exp", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 128])],
        [helper.make_tensor_value_info("y", 1, ["N", 128])],
        [weight],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, found / "in.onnx")
    record_profile(found / "in.onnx", [{"x": np.zeros((1, 128), np.float32)}] * 2).write(
        found / "profile.json"
    )
    return found


def _words(command: str, folder: Path) -> list[str]:
    names = {"IN": "in.onnx", "PROFILE": "profile.json"}
    return [str(folder / names[word]) if word in names else word for word in command.split()]


@contextlib.contextmanager
def _largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_are_too_large(invoke: Invoke, folder: Path, command: str) -> None:
    words, is_folder = _words(command, folder), COMMANDS[command] == ["out"]
    if not is_folder:
        for name in COMMANDS[command]:
            Path(name).write_text("old")
    with _largest_file(30_000):
        done = invoke(*words)
    assert done.status == 5, done.err
    lines = [line for line in done.err.splitlines() if not line.startswith((" ", "graphopt: warning"))]
    first, *rest = lines
    assert first.startswith("graphopt: can't write out") and "File too large" in first
    assert len(rest) == 1 and rest[0].startswith("hint: ")
    left = sorted(path.name for path in Path().iterdir())
    assert left == ([] if is_folder else COMMANDS[command])
    assert is_folder or {Path(name).read_text() for name in left} == {"old"}


#: Runs commands in a file system of 150 KiB, and prints the outcome of each.
_ON_A_SMALL_DISK = """
import contextlib, io, json, os, shutil, sys
from graphopt.cli.main import main
os.chdir(sys.argv[1])
found = []
for words in json.loads(sys.argv[2]):
    with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()):
        status = main(words, {"XDG_CACHE_HOME": sys.argv[3]})
    found.append([int(status), stderr.getvalue(), sorted(os.listdir())])
    for name in os.listdir():
        shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
print(json.dumps(found))
"""


def _has_mounts() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    script = "mount -t tmpfs tmpfs /mnt"
    return (
        subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, check=False).returncode
        == 0
    )


def test_a_full_disk(folder: Path, tmp_path: Path) -> None:
    if not _has_mounts():
        pytest.skip("no file system can be mounted here")
    (tmp_path / "disk").mkdir()
    commands = [
        # the model fits, its further files do not
        "lift-parameters IN -o out.onnx --parameters out.safetensors --weights beside",
        "train-step IN --loss-fn mse:y,t --optimizer adam -o out.onnx --state out.safetensors --weights beside",
        "optimize IN -o out --no-verify --profile PROFILE --emit bundle",
    ]
    words = json.dumps([_words(command, folder) for command in commands])
    mount = 'mount -t tmpfs -o size=60k tmpfs "$1" && exec "$2" -c "$3" "$1" "$4" "$5"'
    arguments = [str(tmp_path / "disk"), sys.executable, _ON_A_SMALL_DISK, words, str(tmp_path / "cache")]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    for command, (status, error, left) in zip(commands, json.loads(done.stdout), strict=True):
        assert status == 5 and left == [], (command, error, left)
        lines = [line for line in error.splitlines() if not line.startswith("graphopt: warning")]
        assert "No space left on device" in lines[0] and len(lines) == 2
