"""Hints about bfloat16, and models that the device does not support."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.device_hints.bf16 import bf16_unsupported, has_bf16, operators_without_kernels
from graphopt.errors import RuntimeFailure
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.ort.devices import CPU, Device
from graphopt.ort.gpu_properties import GpuProperties
from tests.cli.conftest import Invoke, invoke, small  # noqa: F401
from tests.model_testing import parse

_PRODUCT = "g (bfloat16[N,4] x, bfloat16[4,4] w) => (bfloat16[N,4] y) { a = MatMul(x, w)\n y = Relu(a) }"
_INNER = "g (float[N,4] x) => (float[N,4] y) { a = Cast <to = 16> (x)\n b = Exp(a)\n y = Cast <to = 1> (b) }"
_MOVES = "g (bfloat16[N,4] x) => (bfloat16[4,N] y) { y = Transpose(x) }"
_FLOAT = "g (float[N,4] x) => (float[N,4] y) { y = Exp(x) }"
_NEW, _OLD = GpuProperties("H200", (9, 0)), GpuProperties("T4", (7, 5))
_CUDA = Device("cuda")
_REASON = "the model computes in bfloat16, and onnxruntime has no kernels for MatMul, Relu in bfloat16 on CPU"


def _all(*key: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("text", "found"), [(_PRODUCT, True), (_INNER, True), (_MOVES, True), (_FLOAT, False)]
)
def test_models_in_bfloat16(text: str, found: bool) -> None:
    assert has_bf16(parse(text)) is found


@pytest.mark.parametrize(
    ("text", "missing"),
    [(_PRODUCT, ["MatMul", "Relu"]), (_INNER, ["Exp"]), (_MOVES, []), (_FLOAT, [])],
)
def test_operators_without_kernels_on_the_cpu(text: str, missing: list[str]) -> None:
    from graphopt.ort.target import Target

    assert operators_without_kernels(parse(text), Target().has_kernel) == missing


def test_kernels_of_the_cpu_agree_with_onnxruntime() -> None:
    """The hint and the session refuse the same models."""
    for text in (_PRODUCT, _INNER, _MOVES):
        model = parse(text)
        feeds = {
            port.name: np.ones((4, 4), ml_dtypes.bfloat16 if "bfloat16" in port.type else np.float32)
            for port in ir.signature.Signature.of(model).inputs
        }
        if bf16_unsupported(model, CPU, None) is None:
            graphopt.run(model, feeds, optimizations="off")
        else:
            with pytest.raises(RuntimeFailure):
                graphopt.run(model, feeds, optimizations="off")


def test_capability_of_the_gpu() -> None:
    model = parse(_PRODUCT)
    assert bf16_unsupported(model, _CUDA, _NEW, _all) is None
    found = bf16_unsupported(model, _CUDA, _OLD, _all)
    assert found is not None
    assert (
        found.message
        == "the model computes in bfloat16, which T4 (compute capability 7.5) does not support natively"
    )
    assert bf16_unsupported(parse(_FLOAT), _CUDA, _OLD) is None
    found = bf16_unsupported(model, _CUDA, _NEW, lambda op, *rest: op != "Relu")
    assert found is not None and "no kernels for Relu in bfloat16 on CUDA" in found.message


def test_optimize_reports_the_reason() -> None:
    _, report = graphopt.optimize(parse(_PRODUCT))
    assert [(hint.code, hint.message) for hint in report.hints] == [("bf16-unsupported", _REASON)]
    assert f"  hint      {_REASON} [bf16-unsupported]" in list(report.lines())
    assert report.to_dict()["hints"][0]["code"] == "bf16-unsupported"
    _, silent = graphopt.optimize(parse(_FLOAT))
    assert silent.hints == [] and not any("hint" in line for line in silent.lines())


def test_errors_of_runs_have_the_reason() -> None:
    feeds = {"x": np.ones((1, 4), ml_dtypes.bfloat16), "w": np.ones((4, 4), ml_dtypes.bfloat16)}
    with pytest.raises(RuntimeFailure) as raised:
        graphopt.run(parse(_PRODUCT), feeds)
    assert raised.value.hint is not None and raised.value.hint.startswith(_REASON)


def test_an_executor_runs_unsupported_models_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = "g (bfloat16[N,4] x) => (bfloat16[4,N] y) { a = Identity(x)\n y = Transpose(a) }"
    monkeypatch.setattr("graphopt.executor.executor.gpu_properties", lambda device: _OLD)
    with pytest.warns(UserWarning, match="does not support natively: the model runs without optimizations"):
        executor = graphopt.compile(parse(model), ExecutorOptions(wait=None))
    for _ in range(3):
        executor({"x": np.ones((2, 4), ml_dtypes.bfloat16)})
    state = executor.debug_state()
    assert [plan.name for plan in state.plans] == ["general"] and state.depth == 0
    assert state.plans[0].nodes == 2  # the Identity remains
    assert [hint.code for hint in state.hints] == ["bf16-unsupported"]
    assert state.to_dict()["hints"][0]["code"] == "bf16-unsupported"


def test_commands(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    path, other = tmp_path / "bf16.onnx", tmp_path / "float.onnx"
    onnx.save(ir.to_proto(parse(_PRODUCT)), path)
    onnx.save(ir.to_proto(parse(_FLOAT)), other)
    for command in ("run", "bench"):
        outcome = invoke(command, path)
        assert outcome.status == 6 and f"hint: {_REASON}: convert the model to float32" in outcome.err
    outcome = invoke("optimize", path, "-o", "out.onnx", "--json")
    assert [hint["code"] for hint in json.loads(outcome.out)["hints"]] == ["bf16-unsupported"]
    outcome = invoke("run", other, "--json")
    assert json.loads(outcome.out)["hints"] == [] and "hint" not in outcome.err


def test_counters_are_details(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "float.onnx"
    onnx.save(ir.to_proto(parse(_FLOAT)), path)
    assert "counters" not in invoke("run", path).err
    outcome = invoke("run", path, "-v")
    assert "  counters  calls of child processes " in outcome.err
    assert json.loads(invoke("run", path, "--json").out)["counters"]["calls of child processes"] > 0


def test_doctor(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "bf16.onnx"
    onnx.save(ir.to_proto(parse(_PRODUCT)), path)
    outcome = invoke("doctor", "--hints", path, "--json")
    assert json.loads(outcome.out) == {
        "device": "CPU",
        "hints": [
            {
                "code": "bf16-unsupported",
                "message": _REASON,
                "remedy": "convert the model to float32, or run it on a GPU of compute capability 8.0 or higher",
            }
        ],
    }
    assert "cuda-graph-off" in invoke("doctor", "--hints").out
    assert invoke("doctor", path).status == 2


def test_doctor_without_a_gpu(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("graphopt.ort.gpu_properties.gpu_properties", lambda device: None)
    path = tmp_path / "bf16.onnx"
    onnx.save(ir.to_proto(parse(_PRODUCT)), path)
    words = ("doctor", "--hints", path, "--device", "cuda")
    assert "properties of the GPU are not listed" in invoke(*words).out
    assert json.loads(invoke(*words, "--json").out)["device"] == "CUDA, no GPU found"
