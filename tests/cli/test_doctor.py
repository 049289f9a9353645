"""graphopt doctor: its output, and the conditions for an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from graphopt import config
from graphopt.errors import NoCompiler
from graphopt.fusion.backends.cuda import CudaBackend
from graphopt.ort import installation
from graphopt.ort.devices import CudaStatus
from graphopt.ort.installation import Folder, Health, Runtime
from tests.cli.conftest import Invoke

SOUND = Health(
    versions={
        "graphopt": "0.2.0",
        "python": "3.11.7",
        "onnx": "1.23.2",
        "onnx-ir": "1.1.0",
        "numpy": "2.4.0",
    },
    runtime=Runtime(
        "1.31.1", ("onnxruntime-gpu",), ("CUDAExecutionProvider", "CPUExecutionProvider"), 26, 13
    ),
    cuda=CudaStatus(True, "CUDA can be used"),
    opset=28,
    ir_version=14,
    compilers={"gcc": "/usr/bin/gcc"},
    store=Folder("/home/me/.cache/graphopt", 3, 2048),
    settings=("/home/me/graphopt.toml", "GRAPHOPT_SEED"),
)
CLASH = replace(SOUND, runtime=replace(SOUND.runtime, packages=("onnxruntime", "onnxruntime-gpu")))
NO_CUDA = replace(SOUND, cuda=CudaStatus(False, "no NVIDIA driver"))
NO_RUNTIME = replace(
    SOUND, runtime=Runtime("", (), error="No module named 'onnxruntime'"), cuda=CudaStatus(False, "")
)
NO_STORE = replace(SOUND, store=Folder("/dev/null", error="/dev/null is not a folder"))


def test_the_compiler_of_kernels_for_cuda(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaBackend, "describe_compiler", lambda self, compiler=None: "NVRTC 13.0, gcc 13")
    assert ["CUDA", "kernels", "NVRTC", "13.0,", "gcc", "13"] in [
        line.split() for line in invoke("doctor").out.splitlines()
    ]

    def fail(self: CudaBackend, compiler: str | None = None) -> str:
        raise NoCompiler("NVRTC was not found", hint="pip install nvrtc")

    monkeypatch.setattr(CudaBackend, "describe_compiler", fail)
    done = invoke("doctor", "--json")
    assert json.loads(done.out)["cuda_compiler"] == "none: NVRTC was not found (pip install nvrtc)"


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (SOUND, 0, ["no problems found", "1.31.1 (onnxruntime-gpu)", "3 entries, 2.05 kB", "opset up to 26"]),
        (NO_CUDA, 0, ["note: CUDA is off: no NVIDIA driver", "--device cpu"]),
        (NO_STORE, 0, ["note: the store can't be used: /dev/null is not a folder", "cache-dir"]),
        (
            CLASH,
            6,
            ["broken: onnxruntime and onnxruntime-gpu overwrite", "then pip install onnxruntime-gpu"],
        ),
        (NO_RUNTIME, 6, ["broken: onnxruntime can't be used: No module named", "pip install"]),
    ],
)
def test_problems_and_advice(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, found: Health, status: int, words: list[str]
) -> None:
    monkeypatch.setattr(installation, "examine", lambda settings, environ, fault: found)
    outcome = invoke("doctor")
    assert outcome.status == status
    for word in words:
        assert word in outcome.out
    told = invoke("doctor", "--json")
    assert told.status == status
    problems = json.loads(told.out)["problems"]
    assert [problem["broken"] for problem in problems].count(True) == (status == 6)
    assert all(problem["what"] and problem["advice"] for problem in problems)


def test_this_machine(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "probe_cuda", lambda: CudaStatus(False, "not looked for"))
    Path("graphopt.toml").write_text("seed = 1\n")
    outcome = invoke("doctor", "--json", environ={"GRAPHOPT_CACHE_DIR": str(tmp_path), "CC": "sh -c"})
    told = json.loads(outcome.out)
    import onnx

    assert told["versions"]["onnx"] == onnx.__version__
    assert told["runtime"]["opset"] >= 21 and told["runtime"]["ir_version"] >= 10
    assert "CPUExecutionProvider" in told["runtime"]["providers"]
    assert told["compilers"]["sh -c"].endswith("sh")
    assert told["store"] == {"path": str(tmp_path), "entries": 0, "bytes": 0, "error": ""}
    assert told["settings"][0].endswith("graphopt.toml") and "GRAPHOPT_CACHE_DIR" in told["settings"]
    assert "CUDA is off: not looked for" in [problem["what"] for problem in told["problems"]]


def test_store_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "probe_cuda", lambda: CudaStatus(True, ""))
    file = tmp_path / "file"
    file.write_text("")
    found = installation.examine(replace(config.Settings(), cache_dir=file), {})
    assert "is not a folder" in found.store.error


def test_a_store_in_a_folder_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "probe_cuda", lambda: CudaStatus(True, ""))
    # permissions do not bind root
    monkeypatch.setattr(installation.os, "access", lambda folder, mode: Path(folder) != tmp_path)
    found = installation.examine(replace(config.Settings(), cache_dir=tmp_path / "new" / "store"), {})
    assert found.store.error == f"{tmp_path} can't be written"


def test_a_runtime_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"{name} is torn\nin two")

    monkeypatch.setattr(installation.importlib, "import_module", fail)
    found = installation.examine(config.Settings(), {})
    assert found.runtime.error == "onnxruntime is torn in two"
    assert [problem.broken for problem in found.problems()] == [True]


def test_two_packages_of_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"onnxruntime": ["onnxruntime-gpu", "onnxruntime", "onnxruntime-gpu"]}
    monkeypatch.setattr(installation.metadata, "packages_distributions", lambda: owners)
    monkeypatch.setattr(installation, "probe_cuda", lambda: CudaStatus(True, ""))
    assert installation.examine(config.Settings(), {}).runtime.packages == ("onnxruntime", "onnxruntime-gpu")


@pytest.mark.parametrize("text", ["pipeline = 3", "[[", "nosuch = 1", "seed = -1"])
def test_settings_that_can_not_be_read_are_a_problem(invoke: Invoke, text: str) -> None:
    Path("graphopt.toml").write_text(text)
    outcome = invoke("doctor")
    assert outcome.status == 6 and "broken: settings: " in outcome.out and "onnxruntime" in outcome.out
    assert invoke("passes").status == 2
