"""Libraries with kernels for CUDA in sessions of onnxruntime on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from graphopt import ir
from graphopt.fusion.backends.cuda.host_printer import HostedKernel
from graphopt.fusion.backends.cuda.launch import DeviceKernel
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.loops.ir import Kernel
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.cuda.runtime.fakes import Fakes, library
from tests.fusion.models import grouped

pytestmark = samples.compiled

#: Creates two sessions of plain onnxruntime with a library, and prints the providers of the nodes.
_SCRIPT = """
import json, sys
import numpy as np, onnxruntime
model, library, feeds, target = json.loads(sys.argv[1])
for _ in range(2):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
np.save(target, session.run(None, dict(np.load(feeds)))[0])
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "model.onnx"
    found.write_bytes(ir.to_proto(grouped()).SerializeToString())
    return found


def hosted() -> list[HostedKernel]:
    """The kernels of the model, whose device code has no launches."""
    return [
        HostedKernel(kernel, DeviceKernel("", ()), "")
        for kernel in kernels_of(grouped())
        if isinstance(kernel, Kernel)
    ]


def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    shapes = {"x": (3, 64), "w": (64, 64), "b": (64,)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def run(file: Path, path: Path) -> tuple[np.ndarray, str]:
    """The result in a fresh process, and the lines on stderr."""
    inputs, target = file.with_name("feeds.npz"), file.with_name("y.npy")
    np.savez(inputs, **feeds())
    words: Sequence[str] = [str(file), str(path), str(inputs), str(target)]
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(words)], check=False, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return np.load(target), found.stderr


def expected(file: Path) -> np.ndarray:
    return session.run(session.create(file.read_bytes(), optimizations="off"), feeds())[0]


def test_missing_driver_is_stated_once(file: Path, tmp_path: Path) -> None:
    path = library(hosted(), tmp_path, "libno_such_driver.so.1")
    result, lines = run(file, path)
    np.testing.assert_allclose(result, expected(file), rtol=1e-5, atol=1e-5)
    reason = "there is no NVIDIA driver (libno_such_driver.so.1)"
    assert lines == f"graphopt's CUDA kernels are off, onnxruntime runs their nodes: {reason}\n"


@pytest.mark.parametrize("on_cpu", [2, 1])
def test_session_on_the_cpu_has_kernels_of_the_cpu_or_nodes(file: Path, tmp_path: Path, on_cpu: int) -> None:
    fakes = Fakes(tmp_path / "fakes")  # its GPU runs nothing
    path = library(hosted(), tmp_path / "library", fakes.path, on_cpu=on_cpu)
    result, lines = run(file, path)
    np.testing.assert_allclose(result, expected(file), rtol=1e-5, atol=1e-5)
    assert lines == ""


def test_graphopt_opens_no_driver_for_the_cpu(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = library(hosted(), tmp_path, "libno_such_driver.so.1")
    made = session.create(file.read_bytes(), choice=SessionChoice(libraries=(str(path),)))
    np.testing.assert_allclose(session.run(made, feeds())[0], expected(file), rtol=1e-5, atol=1e-5)
    assert capfd.readouterr().err == ""
