"""freeze: parameters become constants, and operators that train get their inference form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UsageError
from graphopt.passes.base import Pass
from graphopt.specialization.build_variants import Specialization
from tests.model_testing import ops, parse, run_pipeline

X = np.array([[1, -2, 3, 0.5], [0, 4, -1, 2]], np.float32)
SCALE, SHIFT = np.array([1, 2, -1, 0.5], np.float32), np.array([0, 1, 2, -1], np.float32)
MEAN, VARIANCE = np.array([1, 0, -1, 2], np.float32), np.array([1, 4, 0.25, 2], np.float32)
#: BatchNormalization of X by running statistics, with epsilon 1e-5.
NORMALIZED = (X - MEAN) / np.sqrt(VARIANCE + 1e-5) * SCALE + SHIFT


def text_of(array: np.ndarray) -> str:
    return "{" + ", ".join(map(str, array.reshape(-1))) + "}"


STATISTICS = (
    f"float[4] s = {text_of(SCALE)}, float[4] b = {text_of(SHIFT)}, "
    f"float[4] m = {text_of(MEAN)}, float[4] v = {text_of(VARIANCE)}"
)


def frozen(model: ir.Model, text: str = "freeze") -> ir.Model:
    run_pipeline(model, text)
    assert ir.find_fault(model) is None
    return model


def outputs(model: ir.Model, **feeds: Any) -> dict[str, Any]:
    return graphopt.run(model, feeds, device="cpu")


def notes(model: ir.Model, pipeline: str = "freeze", **options: Any) -> list[str]:
    return list(graphopt.optimize(model, pipeline=pipeline, device="cpu", **options).report.notes())


# Dropout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [12, 13, 22])
def test_dropout_in_training_mode_returns_its_input_and_a_full_mask(opset: int) -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,4] y, bool[N,4] mask) <float ratio = {0.5}, bool train = {1}> {
            y, mask = Dropout(x, ratio, train)
        }""",
        opset=opset,
    )
    found = outputs(frozen(model), x=X)
    assert np.array_equal(found["y"], X) and found["mask"].all() and found["mask"].shape == X.shape
    assert "Dropout" not in ops(model)
    assert [value.name for value in model.graph.outputs] == ["y", "mask"]


def test_training_mode_of_callers_is_ignored() -> None:
    model = parse("""g (float[N,4] x, bool train) => (float[N,4] y) <float ratio = {0.5}> {
        d = Dropout(x, ratio, train)
        y = Neg(d)
    }""")
    assert ops(frozen(model)) == ["Neg"]
    assert np.array_equal(outputs(model, x=X, train=np.array(True))["y"], -X)


def test_dropout_in_inference_mode_is_unchanged() -> None:
    model = parse("g (float[N,4] x) => (float[N,4] y) <float r = {0.5}> { y = Dropout(x, r) }")
    assert ops(frozen(model)) == ["Dropout"]


def test_old_operators_train_without_is_test() -> None:
    model = parse(
        f"""g (float[N,4] x) => (float[N,4] y, float[N,4] z) <{STATISTICS}> {{
            d = Dropout <ratio = 0.5> (x)
            y = BatchNormalization(d, s, b, m, v)
            z = Dropout <is_test = 1> (x)
        }}""",
        opset=6,
    )
    frozen(model)
    nodes = {node.outputs[0].name: node for node in model.graph}
    assert ops(model) == ["BatchNormalization", "Dropout"]
    assert nodes["y"].attributes["is_test"].as_int() == 1
    assert nodes["y"].inputs[0] is model.graph.inputs[0]


@pytest.mark.parametrize("where", ["function", "body"])
def test_operators_in_functions_and_bodies_are_frozen(where: str) -> None:
    drop = "r = Constant <value = float {0.5}>() t = Constant <value = bool {1}>() z = Dropout(i, r, t)"
    if where == "function":
        text = f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
            g (float[N,4] x, bool c) => (float[N,4] y) {{ y = own.drop(x) }}
            <opset_import: ["" : 17], domain: "own"> drop (i) => (z) {{ {drop} }}"""
    else:
        text = f"""g (float[N,4] x, bool c) => (float[N,4] y) {{
            i = Abs(x)
            y = If (c) <then_branch = a () => (float[N,4] z) {{ {drop} }},
                        else_branch = b () => (float[N,4] e) {{ e = Neg(i) }}>
        }}"""
    model = frozen(parse(text))
    assert not any(node.op_type == "Dropout" for graph in ir.graphs_of(model) for node in graph)
    expected = X if where == "function" else np.abs(X)
    assert np.array_equal(outputs(model, x=X, c=np.array(True))["y"], expected)


# BatchNormalization -------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [14, 15, 17])
def test_batch_normalization_uses_running_statistics_and_returns_them(opset: int) -> None:
    model = parse(
        f"""g (float[N,4] x) => (float[N,4] y, float[4] mean, float[4] variance) <{STATISTICS}> {{
            y, mean, variance = BatchNormalization <training_mode = 1> (x, s, b, m, v)
        }}""",
        opset=opset,
    )
    trained = outputs(model, x=X)
    assert not np.allclose(trained["y"], NORMALIZED, atol=0.1)
    found = outputs(frozen(model), x=X)
    np.testing.assert_allclose(found["y"], NORMALIZED, rtol=1e-5)
    assert np.array_equal(found["mean"], MEAN) and np.array_equal(found["variance"], VARIANCE)


@pytest.mark.parametrize("opset", [7, 9])
def test_further_outputs_select_training_in_old_opsets(opset: int) -> None:
    model = parse(
        f"""g (float[N,4] x) => (float[N,4] y, float[4] mean) <{STATISTICS}> {{
            y, mean, variance, a, c = BatchNormalization <epsilon = 0.00001> (x, s, b, m, v)
        }}""",
        opset=opset,
    )
    found = outputs(frozen(model), x=X)
    np.testing.assert_allclose(found["y"], NORMALIZED, rtol=1e-5)
    assert np.array_equal(found["mean"], MEAN)


def test_a_mode_that_a_call_passes_is_ignored() -> None:
    model = parse(
        f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[N,4] x) => (float[N,4] y) <{STATISTICS}> {{ y = own.norm <mode = 1> (x, s, b, m, v) }}
        <opset_import: ["" : 17], domain: "own"> norm <mode> (x, s, b, m, v) => (y) {{
            y = BatchNormalization <training_mode : int = @mode> (x, s, b, m, v)
        }}"""
    )
    np.testing.assert_allclose(outputs(frozen(model), x=X)["y"], NORMALIZED, rtol=1e-5)


def test_read_statistics_of_the_batch_have_no_inference_form() -> None:
    model = parse(
        f"""g (float[N,4] x) => (float[N,4] y, float[4] saved) <{STATISTICS}> {{
            y, mean, variance, saved, c = BatchNormalization(x, s, b, m, v)
        }}""",
        opset=9,
    )
    (note,) = notes(model, verify=False)
    assert note.startswith("not frozen: BatchNormalization") and "'saved' is read" in note
    assert len(next(iter(frozen(model).graph)).outputs) == 5


# Operators of onnxruntime -------------------------------------------------------------------------


def contrib(op_type: str, inputs: dict[str, np.ndarray], outputs: list[str], **attributes: Any) -> ir.Model:
    """A model of one operator of com.microsoft: the first input is x, all others are initializers."""
    names = [*inputs]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, outputs, domain=ir.MICROSOFT, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(array, name) for name, array in inputs.items() if name != "x"],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ir.MICROSOFT, 1)]
    return ir.from_proto(helper.make_model(graph, ir_version=8, opset_imports=imports))


RESIDUAL = np.full((2, 4), 3, np.float32)
MODES = {"ratio": np.array(0.5, np.float32), "train": np.array(True)}


@pytest.mark.parametrize("op_type", ["BiasDropout", "BitmaskBiasDropout"])
@pytest.mark.parametrize("residual", [False, True])
def test_bias_dropout_becomes_a_sum(op_type: str, residual: bool) -> None:
    more = {"residual": RESIDUAL} if residual else {}
    inputs = {"x": X, "bias": SHIFT, **more}
    model = contrib(op_type, inputs if not residual else {**inputs, **MODES}, ["y", "mask"])
    assert ops(frozen(model)) == ["Add"] * (1 + residual)
    assert np.array_equal(outputs(model, x=X)["y"], X + SHIFT + (RESIDUAL if residual else 0))


def test_bitmask_dropout_returns_its_input() -> None:
    model = contrib("BitmaskDropout", {"x": X, **MODES}, ["y", "mask"])
    assert np.array_equal(outputs(frozen(model), x=X)["y"], X)


def test_internal_batch_normalization_becomes_the_standard_operator() -> None:
    inputs = {"x": X, "s": SCALE, "b": SHIFT, "m": MEAN, "v": VARIANCE}
    model = contrib("BatchNormInternal", inputs, ["y", "mean", "var", "saved", "inverse"], training_mode=1)
    frozen(model)
    assert ops(model) == ["BatchNormalization"]
    np.testing.assert_allclose(outputs(model, x=X)["y"], NORMALIZED, rtol=1e-5)


def test_products_of_4_bit_weights_lose_their_training_mode() -> None:
    packed = {"w": np.zeros(8, np.uint8), "absmax": np.ones(1, np.float32)}
    model = contrib(
        "MatMulBnb4", {"x": X, **packed}, ["y"], K=4, N=4, block_size=16, quant_type=1, training_mode=1
    )
    node = next(iter(frozen(model).graph))
    assert node.op_type == "MatMulBnb4" and "training_mode" not in node.attributes


@pytest.mark.parametrize("op_type", ["DropoutGrad", "BiasSoftmaxDropout"])
def test_operators_without_an_inference_form_are_named(op_type: str) -> None:
    (note,) = notes(contrib(op_type, {"x": X, "bias": X}, ["y"]), verify=False)
    assert op_type in note and note.endswith("still trains: it exists only for training")


# Parameters ---------------------------------------------------------------------------------------

OVERRIDABLE = """g (float[N,4] x, float[4] w, float[4] u) => (float[N,4] y, float[4] n)
    <float[4] w = {1,2,3,4}, float[4] u = {0,1,0,1}> {
    n = Neg(w)
    p = Mul(x, n)
    y = Add(p, u)
}"""


def test_overridable_initializers_become_constants_and_are_folded() -> None:
    result, report = graphopt.optimize(
        parse(OVERRIDABLE), pipeline="freeze", strict=True, require_verified=True
    )
    assert [value.name for value in result.graph.inputs] == ["x"]
    assert ops(result) == ["Constant", "Mul", "Add"]
    assert "frozen: 2 overridable initializers became constant (w, u)" in list(report.notes())
    assert report.verdict is not None and report.verdict.ok and not report.interface.ports("overridable")
    assert "1 input, 2 outputs, dynamic N" in "\n".join(report.lines())


def test_initializers_may_remain_overridable() -> None:
    result, _ = graphopt.optimize(parse(OVERRIDABLE), pipeline="freeze{keep=u}", strict=True)
    assert [value.name for value in result.graph.inputs] == ["x", "u"]
    fed = {"x": X, "u": np.zeros(4, np.float32)}
    assert np.array_equal(outputs(result, **fed)["y"], X * -np.array([1, 2, 3, 4], np.float32))
    with pytest.raises(UsageError, match="no overridable initializer is called 'v'; graphopt inspect"):
        graphopt.optimize(parse(OVERRIDABLE), pipeline="freeze{keep=v}")


def test_without_freeze_they_remain_inputs() -> None:
    result, _ = graphopt.optimize(parse(OVERRIDABLE), pipeline="inference", device="cpu", strict=True)
    assert [value.name for value in result.graph.inputs] == ["x", "w", "u"]


def test_initializers_below_ir_version_4_are_constant_already() -> None:
    result, report = graphopt.optimize(
        parse(OVERRIDABLE, ir_version=3, opset=9), pipeline="freeze", strict=True
    )
    assert result.graph.inputs[0].name == "x" and "Neg" not in ops(result)
    assert not [note for note in report.notes() if "overridable" in note]


def test_training_info_is_removed() -> None:
    proto = ir.to_proto(parse(OVERRIDABLE.replace(", float[4] w, float[4] u)", ")")))
    info = proto.training_info.add()
    info.algorithm.node.add(op_type="Neg", input=["w"], output=["w.next"])
    info.update_binding.add(key="w", value="w.next")
    kept, _ = graphopt.optimize(proto, pipeline="O2", verify=False)
    assert "Neg" in ops(kept)
    result, report = graphopt.optimize(proto, pipeline="freeze", strict=True)
    assert not ir.to_proto(result).training_info and "Neg" not in ops(result)
    assert "frozen: removed training info" in list(report.notes())


def test_old_contents_of_frozen_parameters_can_not_be_replaced() -> None:
    result, _ = graphopt.optimize(parse(OVERRIDABLE), pipeline="freezing", device="cpu")
    with pytest.raises(UsageError, match="constants folded from old contents"):
        graphopt.unlift_parameters(result, {"w": np.zeros(4, np.float32)})


def test_a_frozen_model_is_unchanged() -> None:
    model = frozen(parse(OVERRIDABLE))
    data = ir.to_bytes(model)
    assert ir.to_bytes(frozen(model)) == data


# The reference of the comparison ------------------------------------------------------------------

TRAINING = f"""g (float[N,4] x) => (float[N,4] y) <float r = {{0.5}}, bool t = {{1}}, {STATISTICS}> {{
    d = Dropout(x, r, t)
    n, mean, variance = BatchNormalization <training_mode = 1> (d, s, b, m, v)
    y = Mul(n, s)
}}"""


@pytest.mark.parametrize("options", [{}, {"verify_each": True}, {"validate_each": True}, {"stop_after": 0}])
def test_results_are_compared_with_the_model_in_inference_form(options: dict[str, Any]) -> None:
    result, report = graphopt.optimize(
        parse(TRAINING), pipeline="freezing", device="cpu", strict=True, require_verified=True, **options
    )
    assert report.verdict is not None and report.verdict.ok and not report.dropped
    np.testing.assert_allclose(outputs(result, x=X)["y"], NORMALIZED * SCALE, rtol=1e-5)
    assert "frozen: 1 BatchNormalization, 1 Dropout in inference form" in list(report.notes())


@dataclass(frozen=True)
class MulToAdd(Pass):
    """Replaces a product by a sum, which is wrong."""

    name: ClassVar[str] = "mul-to-add"

    def run(self, model: ir.Model, cx: Context) -> None:
        for node in [node for node in model.graph if node.op_type == "Mul"]:
            if action := cx.begin_rewrite(self.name, node):
                made = cx.edit.make_node("Add", node.inputs, name="wrong")
                cx.edit.insert_before(node, [made])
                cx.edit.replace(node.outputs[0], made.outputs[0])
                cx.edit.remove(node)
                cx.end_rewrite(action, node, [made])


def test_a_wrong_rewrite_of_a_frozen_model_is_dropped() -> None:
    model = parse(TRAINING.replace("Mul(n, s)", "Mul(n, f)").replace("float r", "float f = {2}, float r"))
    result, report = graphopt.optimize(model, pipeline=["freeze", MulToAdd()], device="cpu")
    assert [drop.owner for drop in report.dropped] == ["mul-to-add"]
    np.testing.assert_allclose(outputs(result, x=X)["y"], NORMALIZED * 2, rtol=1e-5)


def test_skipped_freeze_keeps_the_training_form() -> None:
    result, report = graphopt.optimize(parse(TRAINING), pipeline="freezing", skip=["freeze"], device="cpu")
    assert "Dropout" in ops(result) and report.skipped == ["freeze"]


def test_the_original_is_not_changed() -> None:
    model = parse(TRAINING)
    before = ir.to_bytes(model)
    graphopt.optimize(model, pipeline="freezing", device="cpu")
    assert ir.to_bytes(model) == before


def test_a_file_is_frozen(tmp_path: Any) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(ir.to_proto(parse(TRAINING)), path)
    result, report = graphopt.optimize(path, pipeline="freezing", device="cpu", strict=True)
    assert report.verdict is not None and report.verdict.ok
    assert "Dropout" not in ops(result)


@pytest.mark.parametrize("bundle", [False, True])
@pytest.mark.parametrize("text", [TRAINING, OVERRIDABLE])
def test_a_frozen_model_is_specialized(text: str, bundle: bool) -> None:
    model = parse(text)
    feeds = {"x": X} if text is TRAINING else {"x": X, "w": X[0]}
    profile = graphopt.record_profile(model, [{"x": X}, feeds])
    found = graphopt.api.specialize(
        model, Specialization(profile), bundle=bundle, pipeline="freezing", device="cpu", strict=True
    )
    assert found.report.verdict is not None and found.report.verdict.ok
    assert [value.name for value in found.general.graph.inputs] == ["x"]
    assert [note for note in found.report.notes() if note.startswith("frozen: ")]
