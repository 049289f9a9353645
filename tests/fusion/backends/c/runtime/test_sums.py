"""Accuracy of blocked sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphopt import ir
from graphopt.fusion.backends.c import BACKEND
from graphopt.fusion.group_functions import kernels_of
from graphopt.util.disk_store import Store
from tests.fusion.backends.c.runtime import samples
from tests.model_testing import run_pipeline

pytestmark = samples.compiled

#: Shapes and reduced axes: a matrix over its columns and over its rows, then batches and several axes.
_MATRICES = [((8192, 24), [0]), ((2, 300_000), [1])]
_TENSORS = [((3, 4096, 40), [1]), ((2, 96, 4096), [1, 2])]


def _model(shape: Sequence[int], axes: Sequence[int]) -> ir.Model:
    kept = [size for axis, size in enumerate(shape) if axis not in axes]
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float{list(shape)} x) => (float{kept} y) <int64[{len(axes)}] a = {{{", ".join(map(str, axes))}}}> {{
        t = Tanh(x)
        s = Sigmoid(t)
        y = ReduceMean<keepdims = 0>(s, a)
    }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    run_pipeline(model, "fuse-groups")
    return model


@pytest.mark.parametrize("cases", [_MATRICES, pytest.param(_TENSORS, marks=pytest.mark.slow)])
def test_means_of_equal_numbers_are_accurate(cases, tmp_path):
    """With one accumulator per lane, errors would be 1e-5. One library has the kernels of all cases."""
    models = [_model(*case) for case in cases]
    kernels = [kernel for model in models for kernel in kernels_of(model)]
    assert len(kernels) == len(cases)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(BACKEND.build(kernels, Store(tmp_path))))
    wanted = 1 / (1 + np.exp(-np.tanh(np.float64(np.float32(0.1)))))
    for model, (shape, _) in zip(models, cases, strict=True):
        session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
        (found,) = session.run(None, {"x": np.full(shape, 0.1, np.float32)})
        np.testing.assert_allclose(found, np.full(found.shape, wanted), rtol=4e-6)
