"""Libraries of kernels in a C program without Python."""

import numpy as np
import pytest

from tests.fusion.backends.c.runtime import samples
from tests.fusion.backends.c.runtime.samples import MARKED, NAME, RIGHT, affine, fresh, library, model

pytestmark = samples.compiled
X = np.linspace(-2, 2, 10_001, dtype=np.float32)
FEEDS = {"x": X, "c": np.array(True)}


@pytest.mark.parametrize("optimized", [False, True])
def test_c_and_python_hosts_agree(tmp_path, optimized):
    runtime = samples.shared_runtime()
    if runtime is None:
        pytest.skip("this onnxruntime has no C library of its own")
    host, file = samples.make_host(tmp_path), tmp_path / "model.onnx"
    file.write_bytes(model().SerializeToString())
    outputs = dict.fromkeys(affine(X), np.dtype(np.float32))
    right = library(tmp_path / "right", {NAME: RIGHT})
    _, python = fresh(file, FEEDS, right, optimized=optimized)
    for path in (None, right):
        found = samples.in_host(host, runtime, file, FEEDS, outputs, path, optimized=optimized)
        for name, array in python.items():
            np.testing.assert_array_equal(found[name], array)
    marked = library(tmp_path / "marked", {NAME: MARKED})
    environ = {"GRAPHOPT_CPU_LEVEL": "2"}
    found = samples.in_host(host, runtime, file, FEEDS, outputs, marked, environ=environ)
    assert found["branch"][0] - affine(X)["branch"][0] in (1000, 3000)  # the level is 0 or 2
