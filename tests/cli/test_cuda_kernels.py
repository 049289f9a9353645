"""Native kernels for CUDA in commands, on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from graphopt import config, ir
from graphopt.fusion.backends.cuda import nvrtc
from graphopt.ort import devices
from graphopt.specialization.bundle.loaded_bundle import Bundle
from tests.cli.conftest import Invoke
from tests.fusion.backends.c.runtime.samples import compiled as has_c
from tests.fusion.backends.cuda.test_images import compiled as has_nvrtc
from tests.fusion.models import TWO
from tests.model_testing import parse

PROVIDERS = "providers=['CUDAExecutionProvider', 'CPUExecutionProvider']"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    ir.save(parse(TWO), path)
    return path


@pytest.fixture
def without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nvrtc, "_packaged", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "_SYSTEM", ())
    nvrtc.find_nvrtc.cache_clear()
    yield
    nvrtc.find_nvrtc.cache_clear()


def test_source_is_that_of_the_device(invoke: Invoke, path: Path) -> None:
    source = invoke("kernels", path, "--device", "cuda", "--source").out
    assert "__global__" in source and "go_launch(call, " in source
    assert "__global__" not in invoke("kernels", path, "--device", "cpu", "--source").out


def test_a_race_needs_the_device(invoke: Invoke, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    done = invoke("kernels", path, "--device", "cuda", "--candidates")
    assert done.status == 6 and "CUDA can't be used: no driver" in done.err
    assert "lists them on any machine" in done.err and "--allow-fallback" not in done.err


def test_proposed_kernels_name_the_options_that_create_them(invoke: Invoke, path: Path) -> None:
    shown = invoke("kernels", path, "--device", "cuda").out
    assert "graphopt optimize --fuser native --device cuda would create these" in shown
    assert json.loads(invoke("kernels", path, "--device", "cuda", "--json").out)["device"] == "cuda"


@has_c
@has_nvrtc
def test_library_is_built_without_a_gpu(invoke: Invoke, path: Path) -> None:
    out = path.with_name("out.onnx")
    options = ("--device", "cuda", "--allow-fallback", "--fuser", "native")
    ran = invoke("optimize", path, "-o", out, *options)
    assert ran.status == 0 and path.with_name("out.kernels.so").is_file()
    assert "CUDA can't be used" in ran.out and PROVIDERS in ran.out
    assert "CUDA kernels are off" not in ran.err
    kernels = invoke("kernels", out, "--device", "cuda")
    assert "2 kernels; the library is in the store, and runs its kernels for CUDA" in kernels.out
    library = path.with_name("more.so")
    built = json.loads(invoke("kernels", out, "--device", "cuda", "-o", library, "--json").out)
    assert built["built"] is True and PROVIDERS in built["session"][-1]
    assert library.read_bytes() == path.with_name("out.kernels.so").read_bytes()
    bundle = json.loads(invoke("compile", path, "-o", path.with_name("bundle"), *options, "--json").out)
    assert [name for name in bundle["files"] if name.startswith("kernels-cuda-")]
    with config.patch(allow_fallback=True):
        loaded = Bundle(bundle["target"], trusted=True)
        (library,) = loaded.libraries("general").paths
    assert Path(library).name.startswith("kernels-cuda-")
    feeds = {"x": np.ones((2, 64)), "w": np.ones((64, 64)), "b": np.ones(64)}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    result = loaded.run(feeds)["y"]
    np.testing.assert_allclose(result, np.sin(np.full((2, 64), 64 / (1 + np.exp(-1)))), rtol=1e-4)


@has_c
def test_missing_nvrtc_is_named(invoke: Invoke, path: Path, without_nvrtc: None) -> None:
    out = path.with_name("out.onnx")
    options = ("--device", "cuda", "--allow-fallback", "--fuser", "native")
    ran = invoke("optimize", path, "-o", out, *options)
    assert ran.status == 0 and not list(path.parent.glob("*.so"))
    assert "2 kernels not built" in ran.out and "pip install 'graphopt[cuda-kernels]'" in ran.out
    ran = invoke("kernels", out, "--device", "cuda", "-o", path.with_name("k.so"))
    assert ran.status == 6 and "NVRTC, which compiles kernels for CUDA, was not found" in ran.err
    assert "hint: pip install 'graphopt[cuda-kernels]'" in ran.err
    assert not list(path.parent.glob("*.so"))
