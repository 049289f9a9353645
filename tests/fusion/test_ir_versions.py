"""Native groups in models of IR versions without functions, and of old opsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt import ir
from graphopt.fusion.group_functions import groups_of
from tests.fusion.backends.c.runtime.samples import compiled

_X = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)


def model(ir_version: int, opset: int, *, fused: bool = True) -> ir.Model:
    """A chain with constants of several elements and a reshape; weights are inputs if the version requires it.

    Args:
        fused: whether the model has a group, instead of a product with a constant matrix only.
    """
    weights = {"w": _X[0] + 1, "m": _X[0] @ _X[0].T, "rows": np.array([0, -1], np.int64)}
    if fused:
        nodes = [
            helper.make_node("MatMul", ["m", "x"], ["p"]),
            helper.make_node("Tanh", ["p"], ["t"]),
            helper.make_node("Mul", ["t", "w"], ["u"]),
            helper.make_node("Reshape", ["u", "rows"], ["v"]),
            helper.make_node("Exp", ["v"], ["y"]),
        ]
    else:
        weights["m"] = _X[0].T @ _X[0]
        nodes = [helper.make_node("MatMul", ["x", "m"], ["y"])]
    fed = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8])
    listed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in weights.items()
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 24] if fused else ["N", 3, 8])
    graph = helper.make_graph(
        nodes,
        "g",
        [listed[0], fed, *listed[1:]] if ir_version < 4 else [fed],
        [out],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return ir.from_proto(helper.make_model(graph, ir_version=ir_version, opset_imports=imports))


def session(path: Path, library: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def interface(made: ort.InferenceSession) -> list[list[tuple[str, str, list[int | str]]]]:
    """The inputs, the inputs with defaults, and the outputs of a session."""
    groups = (made.get_inputs(), made.get_overridable_initializers(), made.get_outputs())
    return [[(value.name, value.type, value.shape) for value in group] for group in groups]


def check(source: ir.Model, result: ir.Model, folder: Path, library: Path | None = None) -> None:
    """Compare interfaces and outputs in onnxruntime, whose weights callers can't feed."""
    before, after = folder / "before.onnx", folder / "after.onnx"
    graphopt.save(source, before)
    graphopt.save(result, after)
    original, optimized = session(before), session(after, library)
    assert interface(original) == interface(optimized)
    for made in (original, optimized):
        with pytest.raises(Exception, match="Invalid input name"):
            made.run(None, {"x": _X, "w": _X[0]})
    (expected,) = original.run(None, {"x": _X})
    np.testing.assert_allclose(optimized.run(None, {"x": _X})[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("ir_version", "opset"), [(3, 7), (3, 8), (3, 9), (4, 9), (5, 10), (6, 11), (7, 12), (3, 12)]
)
def test_the_ir_version_is_raised_for_groups(ir_version: int, opset: int, tmp_path: Path) -> None:
    source = model(ir_version, opset)
    result, report = graphopt.optimize(source, fuser="native", verify=False)
    assert source.ir_version == ir_version and result.ir_version == 8
    assert f"IR version {ir_version} → 8, for functions" in report.notes()
    (group,) = groups_of(result)
    assert group.kernel is not None
    assert result.opset_imports[""] == group.function.opset_imports[""] == opset
    check(source, result, tmp_path)


@compiled
def test_kernels_run_in_a_model_of_opset_7(tmp_path: Path) -> None:
    source, library = model(3, 7), tmp_path / "kernels.so"
    result, report = graphopt.optimize(source, fuser="native")
    assert len(report.kernels) == 1
    graphopt.build_kernels(result, library)
    check(source, result, tmp_path, library)


def test_the_ir_version_of_a_model_without_groups_is_kept() -> None:
    result, report = graphopt.optimize(model(3, 9, fused=False), fuser="native")
    assert result.ir_version == 3 and not report.kernels
    assert [value.name for value in result.graph.inputs] == ["x", "m"]


def test_a_result_of_a_raised_ir_version_is_optimized_to_itself() -> None:
    result, _ = graphopt.optimize(model(3, 9), fuser="native", verify=False)
    again, _ = graphopt.optimize(result, fuser="native", verify=False)
    assert ir.to_proto(again).SerializeToString() == ir.to_proto(result).SerializeToString()


def test_other_fusers_keep_the_ir_version() -> None:
    result, _ = graphopt.optimize(model(3, 9), fuser="builtin", verify=False)
    assert result.ir_version == 3
