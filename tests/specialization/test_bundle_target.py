"""The target of a bundle: device, machine, CPU level and version of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import config
from graphopt.errors import GraphoptError, RuntimeFailure, UnsupportedModel
from graphopt.ort.devices import CPU
from graphopt.specialization.bundle import check_target
from graphopt.specialization.bundle.loaded_bundle import Bundle
from graphopt.specialization.bundle.manifest import BundleTarget

from ..model_testing import parse
from .bundle_files import edited

MODEL = "g (float[N] x) => (float[N] y) { y = Neg(x) }"
FEEDS = {"x": np.ones(2, np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    graphopt.aot_compile(parse(MODEL), tmp_path / "m.gopt", verify=False, device="cpu")
    return tmp_path / "m.gopt"


def _with_target(folder: Path, **changes: Any) -> Path:
    return edited(folder, lambda manifest: manifest["target"].update(changes))


def test_target_is_that_of_the_options(folder: Path) -> None:
    target = Bundle(folder).manifest.target
    assert target is not None
    assert (target.device, target.provider) == ("cpu", "CPUExecutionProvider")
    assert (target.system, target.machine, target.cpu_level) == (None, None, None)


@pytest.mark.parametrize("device", [None, "auto", "cpu", CPU])
def test_bundle_runs_on_its_device(folder: Path, device: Any) -> None:
    bundle = Bundle(folder, device=device)
    assert bundle.device == CPU and bundle.run(FEEDS)["y"].tolist() == [-1, -1]


@pytest.mark.parametrize("by", ["argument", "setting"])
def test_another_device_is_refused(folder: Path, by: str) -> None:
    with (
        config.patch(device="cuda" if by == "setting" else "auto"),
        pytest.raises(UnsupportedModel) as failure,
    ):
        Bundle(folder, device="cuda:1" if by == "argument" else None)
    assert failure.value.message == "the bundle is compiled for the device cpu, not for cuda"
    assert "graphopt compile MODEL --device cuda" in str(failure.value.hint)


def test_absent_device_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(text: str, *, allow_fallback: bool = False) -> Any:
        if allow_fallback:
            return CPU, "CUDA can't be used; running on the CPU"
        raise RuntimeFailure("CUDA can't be used: there is no GPU")

    monkeypatch.setattr(check_target, "choose", absent)
    _with_target(folder, device="cuda", provider="CUDAExecutionProvider")
    with pytest.raises(RuntimeFailure) as failure:
        Bundle(folder)
    assert failure.value.message == "the bundle is compiled for cuda: CUDA can't be used: there is no GPU"
    assert "--device cpu" in str(failure.value.hint)
    with config.patch(allow_fallback=True):
        bundle = Bundle(folder)
    assert bundle.device == CPU and bundle.remarks == ["CUDA can't be used; running on the CPU"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "npu"}, "the bundle is compiled for the device npu with CPUExecutionProvider"),
        ({"provider": "OtherProvider"}, "the bundle is compiled for the device cpu with OtherProvider"),
    ],
)
def test_unknown_devices_and_providers_are_refused(folder: Path, changes: dict[str, str], words: str) -> None:
    with pytest.raises(UnsupportedModel) as failure:
        Bundle(_with_target(folder, **changes))
    assert failure.value.message.startswith(words) and failure.value.hint


TARGET = BundleTarget("cpu", "CPUExecutionProvider", "1.20", check_target.system(), check_target.machine())


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"system": "plan9"}, 4, "kernels for plan9 on "),
        ({"machine": "riscv64"}, 4, "on riscv64, and this machine is "),
        ({"cpu_level": 4}, 3, "kernels for x86-64-v4 and higher, and this CPU is x86-64-v3"),
        ({"cpu_level": 2}, 1, "kernels for x86-64-v2 and higher, and this CPU is x86-64-v1"),
    ],
)
def test_kernels_of_other_machines_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], level: int, words: str
) -> None:
    monkeypatch.setattr(check_target, "x86_level", lambda: level)
    fields = {"system": TARGET.system, "machine": TARGET.machine} | change
    with pytest.raises(UnsupportedModel) as failure:
        Bundle(_with_target(folder, **fields))
    assert words in failure.value.message and "compile" in str(failure.value.hint)
    assert Bundle(folder, check_target=False).names == ["general"]


@pytest.mark.parametrize("level", [3, 4, None])
def test_kernels_of_lower_levels_are_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, level: int | None
) -> None:
    monkeypatch.setattr(check_target, "x86_level", lambda: level)
    _with_target(folder, system=TARGET.system, machine=TARGET.machine, cpu_level=3)
    assert Bundle(folder).run(FEEDS)["y"].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("named", "installed", "older"),
    [("1.31", "1.31.0", False), ("1.31", "1.30.9", True), ("1.9", "1.10.0", False), ("2.0", "1.99", True)],
)
def test_versions_are_compared_by_numbers(named: str, installed: str, older: bool) -> None:
    assert check_target.is_older_runtime(BundleTarget("cpu", "", named), installed) == older


def test_older_runtime_that_loads_the_model_is_accepted(folder: Path) -> None:
    assert Bundle(_with_target(folder, onnxruntime="99.9")).run(FEEDS)["y"].tolist() == [-1, -1]


def test_older_runtime_that_fails_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.ort import preflight

    def failing(*arguments: Any, **options: Any) -> Any:
        raise RuntimeFailure("onnxruntime can't load the model: Opset 99 is under development")

    monkeypatch.setattr(preflight, "create", failing)
    assert Bundle(folder).names == ["general"]  # the same version: sessions are created on demand
    with pytest.raises(GraphoptError) as failure:
        Bundle(_with_target(folder, onnxruntime="99.9"))
    assert "the bundle is compiled for onnxruntime 99.9, and " in failure.value.message
    assert "pip install 'onnxruntime>=99.9'" in str(failure.value.hint)


def _flags(*names: str) -> Callable[[], str]:
    return lambda: " ".join(names)


V2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
V3 = (*V2, "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe")
V4 = (*V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@pytest.mark.parametrize(
    ("flags", "machine", "level"),
    [
        (V4, "x86_64", 4),
        (V4[:-1], "AMD64", 3),
        (V3[:-1], "x86_64", 2),
        (("fpu",), "x86_64", 1),
        ((), "x86_64", None),
        (V4, "aarch64", None),
    ],
)
def test_level_follows_from_the_flags_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], machine: str, level: int | None
) -> None:
    from graphopt.util import cpu_features

    monkeypatch.setattr(cpu_features, "features", _flags(*flags))
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert cpu_features.x86_level() == level
