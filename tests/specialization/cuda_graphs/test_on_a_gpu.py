"""Captured and replayed runs on a GPU, compared with the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.ort.cuda_probe import probe_cuda
from tests.model_testing import parse

pytestmark = pytest.mark.skipif(not probe_cuda().available, reason=probe_cuda().reason)

_MODEL = "g (float[N,4] x, float[4,4] w) => (float[N,4] y) { a = MatMul(x, w)\n b = Relu(a)\n y = Exp(b) }"


def _feeds(rows: int, factor: float) -> dict[str, Any]:
    x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4) * np.float32(factor)
    return {"x": x, "w": np.eye(4, dtype=np.float32) * np.float32(0.5)}


def test_replays_equal_the_cpu() -> None:
    executor = graphopt.compile(parse(_MODEL), ExecutorOptions(cuda_graph=True, depth=0), device="cuda")
    for rows, factor in ((3, 1), (3, 2), (5, 1), (3, -1), (5, 2), (5, 3)):
        feeds = _feeds(rows, factor)
        expected = graphopt.run(parse(_MODEL), feeds, device="cpu")["y"]
        np.testing.assert_allclose(executor(feeds)["y"], expected, rtol=1e-5)
    assert executor.debug_state().counters == {"cuda-graph captures": 2, "cuda-graph replays": 2}
