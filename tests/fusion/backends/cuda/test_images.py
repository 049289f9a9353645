"""NVRTC: its search, images for all architectures, and the log of ptxas."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from graphopt.errors import NoCompiler, RuntimeFailure
from graphopt.fusion.backends.cuda import build_library, nvrtc
from graphopt.fusion.backends.cuda.nvrtc import ARCHITECTURES, TARGETS, Resources, Target, find_nvrtc
from graphopt.util.disk_store import Store


def _lacks_nvrtc() -> str:
    try:
        find_nvrtc()
    except NoCompiler as error:
        return f"{error} ({error.hint})"
    return ""


#: Marks tests that compile for CUDA.
compiled = pytest.mark.skipif(bool(_lacks_nvrtc()), reason=_lacks_nvrtc() or "there is one")

TEXT = """
extern "C" __global__ void __launch_bounds__(128) sums(const float *x, float *y, long long n) {
  __shared__ float parts[128];
  float sum = 0;
  for (long long i = threadIdx.x; i < n; i += 128) sum += x[n * blockIdx.x + i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 128; i++) sum += parts[i];
    y[blockIdx.x] = sum;
  }
}
"""


@compiled
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_architecture_has_an_image(target: Target) -> None:
    image = find_nvrtc().compile(TEXT, target)
    if target.ptx:
        assert b".target sm_120" in image.code and image.resources == {}
    else:
        assert image.code.startswith(b"\x7fELF")
        resources = image.resources["sums"]
        assert 0 < resources.registers <= 64 and resources.spill_stores == resources.spill_loads == 0
        assert 512 <= resources.shared < 2048  # from sm_90 on, the system has a share


@compiled
def test_equal_texts_have_equal_images() -> None:
    for target in (TARGETS[0], TARGETS[-1]):
        assert find_nvrtc().compile(TEXT, target) == find_nvrtc().compile(TEXT, target)


@compiled
def test_products_are_not_contracted() -> None:
    text = 'extern "C" __global__ void f(float *x) { x[0] = x[1] * x[2] + x[3]; }'
    code = find_nvrtc().compile(text, TARGETS[-1]).code
    assert b"fma" not in code and b"mul.rn.f32" in code.replace(b"mul.f32", b"mul.rn.f32")


@compiled
def test_error_names_the_line() -> None:
    with pytest.raises(
        RuntimeFailure, match=r"NVRTC \d+\.\d+ can't compile kernels for sm_75: kernels.cu\(1\): error"
    ):
        find_nvrtc().compile("__global__ void f(float *x) { x[0] = y; }", TARGETS[0])


@compiled
def test_images_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, progress = Store(tmp_path), []
    first = build_library.compile_images(
        [TEXT, TEXT], find_nvrtc(), store, lambda done, text: progress.append((done, text))
    )
    assert [len(row) for row in first] == [2] * len(TARGETS)
    assert progress[-1] == (1.0, f"compiled {len(TARGETS)} of {len(TARGETS)} images")
    monkeypatch.setattr(nvrtc.Nvrtc, "compile", None)
    assert build_library.compile_images([TEXT], find_nvrtc(), store) == [row[:1] for row in first]


def test_missing_nvrtc_error_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_SYSTEM", ("libno_such_nvrtc.so",))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoCompiler, match="NVRTC, which compiles kernels for CUDA, was not found") as error:
        find_nvrtc.__wrapped__()
    assert error.value.hint == "pip install 'graphopt[cuda-kernels]'"


def test_damaged_nvrtc_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "libnvrtc.so.13"
    file.write_bytes(b"no library")
    monkeypatch.setattr(nvrtc, "_SYSTEM", ())
    monkeypatch.setattr(nvrtc, "_packaged", lambda: iter([str(file)]))
    with pytest.raises(NoCompiler, match=f"NVRTC can't be loaded from {file}: .*file too short"):
        find_nvrtc.__wrapped__()


@compiled
def test_old_nvrtc_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc.Nvrtc, "architectures", ARCHITECTURES[:5])
    with pytest.raises(NoCompiler, match=r"NVRTC \d+\.\d+ does not compile for sm_100, sm_120"):
        find_nvrtc.__wrapped__()


def test_log_has_resources_by_function() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_75'
ptxas info    : Function properties for f
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 2048 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'g' for 'sm_75'
ptxas info    : Function properties for g
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""
    assert nvrtc.resources_of(log) == {"f": Resources(10, 16, 8, 12, 2048), "g": Resources(12, 0, 0, 0, 0)}
