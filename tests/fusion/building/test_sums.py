"""Sums of many numbers: blocks of them are added up, then the sums of the blocks."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from graphopt import ir
from graphopt.fusion.building.build import build
from graphopt.fusion.functions import kernels_of
from graphopt.store import Store
from tests.fusion.building import samples
from tests.support import run_pipeline

pytestmark = samples.compiled


@pytest.mark.parametrize(
    "shape, axes", [((8192, 24), [0]), ((3, 4096, 40), [1]), ((2, 300_000), [1]), ((2, 96, 4096), [1, 2])]
)
def test_mean_of_equal_numbers_is_near_them(shape, axes, tmp_path):
    """With one accumulator a lane, errors are 1e-5."""
    kept = [size for axis, size in enumerate(shape) if axis not in axes]
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float{list(shape)} x) => (float{kept} y) <int64[{len(axes)}] a = {{{", ".join(map(str, axes))}}}> {{
        t = Tanh(x)
        s = Sigmoid(t)
        y = ReduceMean<keepdims = 0>(s, a)
    }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    run_pipeline(model, "fuse-groups")
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(build(kernels_of(model), Store(tmp_path))))
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    (found,) = session.run(None, {"x": np.full(shape, 0.1, np.float32)})
    wanted = 1 / (1 + np.exp(-np.tanh(np.float64(np.float32(0.1)))))
    np.testing.assert_allclose(found, np.full(kept, wanted), rtol=4e-6)
