"""Devices: parsing, and a silent probe of CUDA."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graphopt.errors import RuntimeFailure, UsageError
from graphopt.ort import cuda_probe, devices
from graphopt.ort.cuda_probe import CudaStatus
from graphopt.ort.devices import CPU, Device, choose, parse_device


@pytest.mark.parametrize(
    ("text", "device"),
    [("auto", None), ("cpu", CPU), ("CPU", CPU), ("cuda", Device("cuda", 0)), ("cuda:3", Device("cuda", 3))],
)
def test_device_names_are_parsed(text, device):
    assert parse_device(text) == device


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:1", ""])
def test_unknown_device_names_are_refused(text):
    with pytest.raises(
        UsageError, match=rf"no device is called {text!r}; .*devices: auto, cpu, cuda, cuda:N"
    ):
        parse_device(text)


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: CudaStatus(False, "no NVIDIA driver"))


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: CudaStatus(True, ""))


def test_the_cpu_needs_no_probe(monkeypatch):
    monkeypatch.setattr(devices, "probe_cuda", None)
    assert choose("cpu") == (CPU, None)


def test_auto_falls_back_with_a_note(no_cuda):
    device, note = choose("auto")
    assert device == CPU
    assert note == "CUDA can't be used (no NVIDIA driver); running on the CPU"


def test_unusable_cuda_is_an_error(no_cuda):
    with pytest.raises(RuntimeFailure, match=r"^CUDA can't be used: no NVIDIA driver$") as caught:
        choose("cuda:1")
    assert caught.value.status == 6
    assert "--device auto" in caught.value.hint and "graphopt doctor" in caught.value.hint


def test_unusable_cuda_may_fall_back(no_cuda):
    device, note = choose("cuda", allow_fallback=True)
    assert device == CPU
    assert "no NVIDIA driver" in note


def test_usable_cuda_is_chosen(cuda):
    assert choose("auto") == (Device("cuda", 0), None)
    assert choose("cuda:2") == (Device("cuda", 2), None)


def test_providers():
    assert CPU.providers() == ["CPUExecutionProvider"]
    (name, options), fallback = Device("cuda", 1).providers()
    assert (name, fallback) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options == {"device_id": "1", "use_tf32": "0"}
    assert Device("cuda").having({"use_tf32": 1}).providers()[0][1]["use_tf32"] == "1"
    assert Device("cuda").providers({"use_tf32": "1"})[0][1]["use_tf32"] == "1"


def test_the_probe_prints_nothing():
    program = "from graphopt.ort.cuda_probe import probe_cuda; status = probe_cuda(); assert status.reason"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"],
        capture_output=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_missing_device(monkeypatch):
    class Driver:
        def cuInit(self, flags):
            return 0

        def cuDeviceGetCount(self, count):
            count._obj.value = 1
            return 0

        def cuDriverGetVersion(self, version):
            version._obj.value = 13000
            return 0

    class Runtime:
        cuda_version = "13.0"

    monkeypatch.setattr(cuda_probe.ctypes, "CDLL", lambda name: Driver())
    assert cuda_probe._unfit_driver(Runtime, 0) is None
    found = cuda_probe._unfit_driver(Runtime, 2)
    assert found.reason == "there is no cuda:2, the NVIDIA driver reports 1 GPU(s)"
    assert found.remedy == "--device cuda:0"
    Runtime.cuda_version = "14.1"
    assert "needs 14" in cuda_probe._unfit_driver(Runtime, 0).reason
