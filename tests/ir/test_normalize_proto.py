"""Models that onnxruntime loads are loaded, repaired where onnx-ir can't represent them, and equivalent."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt import ir
from graphopt.errors import InvalidModel
from tests.ir.models import floats, model, run, weight

NODE = helper.make_node
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def _constant(name: str, number: float) -> onnx.NodeProto:
    return NODE("Constant", [], [name], value=numpy_helper.from_array(np.full(4, number, np.float32)))


def _scale(name: str, number: float) -> TensorProto:
    return numpy_helper.from_array(np.full(4, number, np.float32), name)


def _same(proto: onnx.ModelProto) -> ir.Model:
    expected = run(proto, x=X)
    loaded = ir.from_proto(proto)
    ir.validate(loaded)
    for got, want in zip(run(ir.to_proto(loaded), x=X), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    return loaded


def test_equal_constants_with_one_name_become_one() -> None:
    read = NODE("Mul", ["x", "w"], ["y"])
    in_numbers = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], float_data=[2.0] * 4)
    for nodes, initializers in (
        ([_constant("w", 2), read, _constant("w", 2)], []),
        ([read], [_scale("w", 2), _scale("w", 2)]),
        ([read], [_scale("w", 2), in_numbers]),
        ([_constant("w", 2), read], [_scale("w", 2)]),
    ):
        loaded = _same(model(nodes, initializers))
        assert (
            "the model defines 'w' more than once"
            in graphopt.optimize(loaded, verify=False).report.remarks[0]
        )


def test_last_of_several_constants_with_one_name_is_used() -> None:
    """As for onnxruntime; onnx's checker refuses them."""
    read = NODE("Mul", ["x", "w"], ["y"])
    default = model([read], [_scale("w", 1), _scale("w", 2)], inputs=[floats("x", "N", 4), floats("w", 4)])
    for proto in (
        model([_constant("w", 1), read, _constant("w", 2)]),
        model([read], [_scale("w", 1), _scale("w", 2)]),
        model([_constant("w", 1), read], [_scale("w", 2)]),
        default,
    ):
        loaded = _same(proto)
        [remark] = graphopt.optimize(loaded, verify=False).report.remarks
        assert (
            remark
            == "warning: the model defines 'w' more than once, with different contents: the last is used"
        )


def test_a_constant_with_the_name_of_an_input_is_refused() -> None:
    read = NODE("Mul", ["x", "w"], ["y"])
    with pytest.raises(InvalidModel, match="'w' is defined 2 times"):
        ir.from_proto(model([_constant("w", 2), read], inputs=[floats("x", "N", 4), floats("w", 4)]))


@pytest.mark.parametrize("versions", [(17, 13), (13, 17)])
def test_last_of_several_imports_of_a_domain_is_used(versions: tuple[int, int]) -> None:
    """As for onnxruntime."""
    proto = model([NODE("Neg", ["x"], ["y"])])
    del proto.opset_import[:]
    for version in versions:
        proto.opset_import.add(domain="", version=version)
    loaded = _same(proto)
    assert loaded.opset_imports == {"": versions[1]}
    [remark] = graphopt.optimize(loaded, verify=False).report.remarks
    assert f"ai.onnx in versions {versions[0]}, {versions[1]}: {versions[1]} is used" in remark


def test_many_constants_with_one_name_are_one_remark() -> None:
    nodes = [NODE("Sum", ["x", *(f"w{i}" for i in range(5))], ["y"])]
    twice = [_scale(f"w{i}", k) for i in range(5) for k in (1, 2)]
    [remark] = graphopt.optimize(_same(model(nodes, twice)), verify=False).report.remarks
    assert "defines 'w0', 'w1', 'w2' and 2 other constants more than once, with different" in remark


def test_unnamed_initializers_are_removed() -> None:
    loaded = _same(model([NODE("Mul", ["x", "w"], ["y"])], [_scale("", 1), _scale("w", 2), _scale("", 3)]))
    assert list(loaded.graph.initializers) == ["w"]


def test_unsorted_graphs_are_sorted_with_their_bodies() -> None:
    body = helper.make_graph([NODE("Exp", ["x"], ["z"])], "b", [], [floats("z", "N", 4)])
    other = helper.make_graph([NODE("Neg", ["outer"], ["z"])], "b", [], [floats("z", "N", 4)])
    nodes = [NODE("If", ["c"], ["y"], then_branch=body, else_branch=other), NODE("Abs", ["x"], ["outer"])]
    no = numpy_helper.from_array(np.array(False), "c")
    loaded = _same(model(nodes, [no]))
    assert [node.op_type for node in loaded.graph] == ["Abs", "If"]
    # onnxruntime refuses this in a body
    late = [NODE("Mul", ["late", "x"], ["z"]), NODE("Neg", ["outer"], ["late"])]
    nodes[0].attribute[0].g.CopyFrom(helper.make_graph(late, "b", [], [floats("z", "N", 4)]))
    loaded = ir.from_proto(model(nodes, [no]))
    np.testing.assert_array_equal(run(ir.to_proto(loaded), x=X)[0], -X * X)


def test_the_standard_domain_may_be_spelled_out() -> None:
    proto = model([NODE("Neg", ["x"], ["y"], domain="ai.onnx")])
    proto.opset_import[0].domain = "ai.onnx"
    loaded = _same(proto)
    assert ir.to_proto(loaded).opset_import[0].domain == "ai.onnx"
    assert ir.Editor(loaded).scopes.version(next(iter(loaded.graph))) == 17


def test_branch_that_returns_an_outer_value_has_an_identity() -> None:
    """onnxruntime rejects such models, but exporters write them."""
    then = helper.make_graph([], "then", [], [floats("t", "N", 4)])
    otherwise = helper.make_graph([], "else", [], [floats("x", "N", 4), floats("x", "N", 4)][:1])
    proto = model(
        [NODE("Neg", ["x"], ["t"]), NODE("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
        [numpy_helper.from_array(np.array(True), "c")],
    )
    loaded = ir.from_proto(proto)
    ir.validate(loaded)
    np.testing.assert_array_equal(run(ir.to_proto(loaded), x=X)[0], -X)
    neg = next(iter(loaded.graph)).outputs[0]
    assert len(neg.uses()) == 1  # the body reads it, so that it is not dead


@pytest.mark.parametrize("taken", ["t", "c"])
def test_names_of_a_body_that_shadow_outer_ones_change(taken: str) -> None:
    then = helper.make_graph(
        [NODE("Add", ["x", taken], ["z"])], "then", [], [floats("z", "N", 4)], [_scale(taken, 5)]
    )
    otherwise = helper.make_graph([NODE("Neg", ["x"], ["z"])], "else", [], [floats("z", "N", 4)])
    proto = model(
        [NODE("Abs", ["x"], ["t"]), NODE("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
        [numpy_helper.from_array(np.array(True), "c")],
    )
    loaded = _same(proto)
    body = list(loaded.graph)[-1].attributes["then_branch"].as_graph()
    assert list(body.initializers) == [f"{taken}_1"]


def test_bodies_of_vendor_operators_keep_their_names() -> None:
    body = helper.make_graph([NODE("Neg", ["x"], ["t"])], "decoder", [floats("x", 4)], [floats("t", 4)])
    proto = model(
        [NODE("Abs", ["x"], ["t"]), NODE("Search", ["t"], ["y"], domain="vendor", decoder=body)],
        domains=("vendor",),
    )
    loaded = ir.from_proto(proto)
    ir.validate(loaded)
    held = ir.bodies(list(loaded.graph)[-1])[0]
    assert [value.name for value in (*held.inputs, *held.outputs)] == ["x", "t"]


def test_untyped_inputs_that_have_a_default_pass() -> None:
    proto = model(
        [NODE("MatMul", ["x", "w"], ["y"])],
        [weight("w", 4, 4)],
        inputs=[floats("x", "N", 4), onnx.ValueInfoProto(name="w")],
    )
    _same(proto)
