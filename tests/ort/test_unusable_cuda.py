"""Commands on a GPU that can't be used: one line, the remedy, and no output; with a fake driver and runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from graphopt.ort import cuda_probe, gpu_properties
from tests.cli.conftest import Invoke, invoke, small  # noqa: F401
from tests.recorded_cuda_sessions import cuda_sessions  # noqa: F401

_PROVIDERS = ["CUDAExecutionProvider", "CPUExecutionProvider"]


class _Driver:
    """The functions of libcuda for ``gpus`` GPUs and a version of CUDA."""

    def __init__(self, version: int = 13000, gpus: int = 1, status: int = 0) -> None:
        self.version, self.gpus, self.status = version, gpus, status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        return 0 if index < self.gpus else 101

    def cuDeviceGetName(self, name: Any, size: int, handle: Any) -> int:
        name.value = b"a GPU"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:
        value._obj.value = 9
        return 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Describes the machine: the driver, the providers of onnxruntime, and installed distributions."""

    def describe(
        driver: _Driver | None, *, providers: list[str] = _PROVIDERS, wheels: tuple[str, ...] = ()
    ) -> None:
        def load(name: str) -> _Driver:
            if driver is None or ("cuda.so" not in name and name != "nvcuda.dll"):
                raise OSError(f"{name}: cannot open shared object file")
            return driver

        def version(name: str) -> str:
            if name not in wheels:
                raise metadata.PackageNotFoundError(name)
            return "1.31.1"

        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
        monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
        monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(cuda_probe.metadata, "version", version)
        cuda_probe.probe_cuda.cache_clear()
        gpu_properties.gpu_properties.cache_clear()

    yield describe
    cuda_probe.probe_cuda.cache_clear()
    gpu_properties.gpu_properties.cache_clear()


_CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "no driver",
        {"driver": None},
        "cuda",
        "no NVIDIA driver (",
        "install the NVIDIA driver, version 580 or newer; --device auto runs on the CPU",
    ),
    (
        "an old driver",
        {"driver": _Driver(version=12040)},
        "cuda",
        "the driver supports CUDA 12.4, this onnxruntime needs 13",
        "update the NVIDIA driver to version 580 or newer, or pip install 'onnxruntime-gpu<1.27'",
    ),
    (
        "a driver that fails",
        {"driver": _Driver(status=999)},
        "cuda",
        "the NVIDIA driver can't be initialized (cuInit returned 999)",
        "nvidia-smi",
    ),
    ("no GPU", {"driver": _Driver(gpus=0)}, "cuda", "reports no GPU", "CUDA_VISIBLE_DEVICES"),
    (
        "another number",
        {"driver": _Driver(gpus=2)},
        "cuda:7",
        "there is no cuda:7, the NVIDIA driver reports 2 GPU(s)",
        "--device cuda:0 to cuda:1; ",
    ),
    (
        "a build for CPUs",
        {"driver": _Driver(), "providers": ["CPUExecutionProvider"], "wheels": ("onnxruntime",)},
        "cuda",
        "is built without CUDA",
        "pip uninstall -y onnxruntime, then pip install onnxruntime-gpu",
    ),
    (
        "two wheels",
        {
            "driver": _Driver(),
            "providers": ["CPUExecutionProvider"],
            "wheels": ("onnxruntime", "onnxruntime-gpu"),
        },
        "cuda",
        "onnxruntime and onnxruntime-gpu are installed and overwrite each other's files",
        "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install onnxruntime-gpu",
    ),
]


@pytest.mark.parametrize(
    ("facts", "device", "reason", "remedy"), [case[1:] for case in _CASES], ids=[case[0] for case in _CASES]
)
def test_one_line_and_the_remedy(
    invoke: Invoke,  # noqa: F811
    small: Path,  # noqa: F811
    machine: Callable[..., None],
    facts: dict[str, Any],
    device: str,
    reason: str,
    remedy: str,
) -> None:
    machine(**facts)
    done = invoke("optimize", small, "-o", "out.onnx", "--device", device)
    assert done.status == 6 and done.out == "" and not Path("out.onnx").exists()
    error, hint = done.err.strip().splitlines()
    assert error.startswith("graphopt: CUDA can't be used: ") and reason in error
    assert hint.startswith("hint: ") and remedy in hint


def test_missing_libraries(machine: Callable[..., None]) -> None:
    if not cuda_probe.sys.platform.startswith("linux"):
        pytest.skip("libraries are loaded by name on Linux only")
    machine(_Driver())
    found = cuda_probe.probe_cuda()
    assert not found.available and "libcublas.so.13" in found.reason and "missing" in found.reason
    assert found.remedy == f"pip install 'onnxruntime-gpu[cuda,cudnn]=={onnxruntime.__version__}'"


def test_a_gpu_without_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise RuntimeError("CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; file=a.cc ; line=1 ; ")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    found = cuda_probe._failing_session(onnxruntime, 0)
    assert found is not None and found.reason == "cuda:0 has no free memory" and "nvidia-smi" in found.remedy


_MESSAGES = [
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node."
    " Name:'m' Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void*"
    " onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory"
    " for requested buffer of size 8388608000",
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization:"
    " /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:358 void*"
    " onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Available memory of 1024 is smaller than"
    " requested bytes of 8388608000",
    "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0 ; hostname=h ;"
    " file=/onnxruntime_src/cuda_allocator.cc ; line=47 ; expr=cudaMalloc((void**)&p, size);",
    "[ONNXRuntimeError] : 1 : FAIL : CUDNN_STATUS_ALLOC_FAILED",
    "[ONNXRuntimeError] : 1 : FAIL : CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
]


@pytest.mark.parametrize("message", _MESSAGES)
@pytest.mark.parametrize("command", [["run"], ["optimize", "-o", "out.onnx"]], ids=lambda words: words[0])
def test_a_lack_of_memory_on_the_gpu(
    invoke: Invoke,  # noqa: F811
    small: Path,  # noqa: F811
    cuda_sessions: list[dict[str, str]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    message: str,
    command: list[str],
) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    done = invoke(command[0], small, *command[1:], "--device", "cuda")
    assert done.status == 5 and done.out == "" and not Path("out.onnx").exists()
    error, hint = done.err.strip().splitlines()
    if "Available memory" in message:
        assert "the memory limit of the session on the GPU is too low: " in error
        assert "gpu_mem_limit" in hint
    else:
        assert "the GPU does not have enough memory: " in error and "nvidia-smi" in hint
    assert "hostname" not in error and "bfc_arena" not in error and len(error) < 300


def test_memory_of_the_cpu_is_another_error() -> None:
    from graphopt.errors import SystemExhausted
    from graphopt.ort.error_text import as_failure

    found = as_failure(RuntimeError(_MESSAGES[0]), "onnxruntime failed", on_gpu=False)
    assert not isinstance(found, SystemExhausted)
    assert found.message == (
        "onnxruntime failed: MatMul 'm': Failed to allocate memory for requested buffer of size 8388608000"
    )
