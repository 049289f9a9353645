"""Reverse mode: visited nodes, sums of cotangents, omitted work and refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.reverse_mode import backward
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.context import context_for
from graphopt.errors import UsageError
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

X = np.random.default_rng(0).standard_normal((2, 3))


def test_cotangents_of_several_readers_are_summed() -> None:
    check(
        "m (double[A,B] x) => (double[A,B] y) { a = Exp(x) b = Mul(a, x) c = Mul(a, a) y = Add(b, c) }",
        {"x": X},
    )


def test_value_read_twice_by_one_node() -> None:
    check("m (double[A,B] x) => (double[A,B] y) { y = Mul(x, x) }", {"x": X})


def test_several_outputs_with_one_read_inside() -> None:
    check("m (double[A,B] x) => (double[A,B] y, double[A,B] z) { y = Exp(x) z = Sin(y) }", {"x": X})


def test_unknown_broadcasts_are_summed_at_run_time() -> None:
    text = "m (double[A,B] x, double[C,D] z) => (double[E,F] y) { y = Mul(x, z) }"
    for shape in [(2, 3), (1, 3), (2, 1), (1, 1)]:
        joint = check(text, {"x": X, "z": np.random.default_rng(1).standard_normal(shape)})
    assert "NonZero" in ops(joint)


def test_broadcasts_of_unknown_rank_are_summed() -> None:
    text = """m (double[A,B] x, double[D] z, int64[R] s) => (double y)
        { w = Reshape(z, s) p = Mul(x, w) y = Mul(p, p) }"""
    for shape in [(3,), (1, 3), (2, 1), (1, 1, 1)]:
        z = np.random.default_rng(1).standard_normal(int(np.prod(shape)))
        check(text, {"x": X, "z": z, "s": np.array(shape)})


def test_known_shapes_need_no_computed_axes() -> None:
    same = differentiate(
        parse("m (float[A,B] x, float[A,B] z) => (float[A,B] y) { y = Add(x, z) }"), ["y"], "inputs"
    )
    assert set(ops(same.model)) <= {"Add", "Identity"}
    row = differentiate(
        parse("m (float[A,3] x, float[3] z) => (float[A,3] y) { y = Add(x, z) }"), ["y"], ["z"]
    )
    assert ops(row.model) == ["Add", "ReduceSum"]


def test_unused_branches_add_no_nodes() -> None:
    text = """m (float[4,4] x, float[4,4] w, float[4,4] v) => (float loss, float[4,4] z)
        { a = MatMul(x, w) z = MatMul(x, v) s = Sin(z) loss = ReduceSum<keepdims=0>(a) }"""
    joint = graphopt.differentiate(parse(text), "loss", ["w"])
    assert sorted(ops(joint.model)) == ["Gemm", "MatMul", "MatMul", "ReduceSum"], (
        "one product for the gradient"
    )
    assert joint.unrelated == []
    assert graphopt.differentiate(parse(text), "loss", "inputs").unrelated == ["v"]


def test_explicitly_requested_zero_gradient_is_an_output() -> None:
    text = "m (float[2] x, float[2] w) => (float loss) { f = Floor(w) p = Mul(x, f) loss = ReduceSum<keepdims=0>(p) }"
    joint = graphopt.differentiate(parse(text), "loss", ["w"])
    assert joint.unrelated == ["w"]
    assert [(item.op, item.reason) for item in joint.stopped] == [("Floor", "it is piecewise constant")]
    feeds = {"x": np.ones(2, np.float32), "w": np.ones(2, np.float32)}
    assert run(joint.model, feeds)["grad.w"].tolist() == [0, 0]


def test_quiet_operators_are_not_reported_as_stopped() -> None:
    text = """m (float[N,3] x, float[M] w) => (float y, float[N,3] z)
        { e = Exp(x) s = Shape(e) y = Reshape(w, s) f = Floor(e) z = Mul(f, x) }"""
    joint = differentiate(parse(text), ["y", "z"], ["x", "w"], optimize=False)
    assert [item.op for item in joint.stopped] == ["Floor"]


def test_operator_without_gradient_is_named() -> None:
    text = "m (float[2,2] x) => (float[2,2] y) { e = Exp(x) y = other.Thing(e) }"
    model = parse(text, domains=', "other" : 1')
    with pytest.raises(NoGradient, match=r"no gradient through other::Thing") as caught:
        differentiate(model, ["y"], ["x"])
    assert (caught.value.op, caught.value.reason) == (
        "other::Thing",
        "its domain other is not a standard one",
    )
    assert graphopt.differentiate(
        parse("m (float[2] x, float[2] c) => (float loss) { k = Exp(c) loss = ReduceSum<keepdims=0>(x) }"),
        "loss",
        ["x"],
    ).gradients == {"x": "grad.x"}


def test_losses_have_one_element_and_names_must_exist() -> None:
    model = parse("m (float[2,2] x, int64[2] i) => (float[2,2] y) { y = Exp(x) }")
    with pytest.raises(UsageError, match="'y' is no loss: it has 2x2 elements"):
        graphopt.differentiate(model, "y", ["x"])
    with pytest.raises(UsageError, match="'z'"):
        graphopt.differentiate(model, "z", ["x"])
    with pytest.raises(UsageError, match="'i' holds no floating-point numbers"):
        graphopt.differentiate(model, "mse:y,t", ["i"])


def test_losses_with_possibly_several_elements_are_refused() -> None:
    text = "m (float[N,1] x, int64[R] s) => (float[N,1] y, float[R] z) { y = Exp(x) z = Reshape(x, s) }"
    with pytest.raises(UsageError, match="'y' is no loss: it may have Nx1 elements") as caught:
        graphopt.differentiate(parse(text), "y", ["x"])
    assert "a mean or sum" in (caught.value.hint or "")
    model = parse(text)
    model.graph.outputs[1].shape = None
    with pytest.raises(UsageError, match="'z' is of unknown shape, and a loss has one element"):
        graphopt.differentiate(model, "z", ["x"])
    assert graphopt.differentiate(parse(text.replace("N", "1")), "y", ["x"]).loss == "y"
    declared = parse(text.replace("float[R] z", "float z"))
    assert graphopt.differentiate(declared, "z", ["x"]).loss == "z"  # declarations of the model are trusted


def test_outputs_declare_known_dims() -> None:
    model = parse("""m (float["batch size",3] x, float[3,M] w) => (float["batch size",M] y) {
        a = MatMul(x, w) y = Relu(a) s = Concat<axis=0>(a, y) q = Mul(s, s) l = ReduceMean<keepdims=0>(q) }""")
    proto = ir.to_proto(graphopt.differentiate(model, "l", ["x", "w", "s"]).model)
    onnx.checker.check_model(proto, full_check=True)
    dims = {
        item.name: [dim.dim_param or dim.dim_value for dim in item.type.tensor_type.shape.dim]
        for item in proto.graph.output
    }
    assert dims["l"] == [] and dims["grad.x"] == ["batch size", 3] and dims["grad.s"] == [0, "M"]


def test_intermediate_values_and_unmodified_source() -> None:
    model = parse(
        "m (float[2] x) => (float loss) { a = Exp(x) b = Mul(a, a) loss = ReduceSum<keepdims=0>(b) }"
    )
    before = ir.to_bytes(model)
    joint = graphopt.differentiate(model, "loss", ["a", "x"], outputs="loss")
    assert ir.to_bytes(model) == before
    found = run(joint.model, {"x": np.zeros(2, np.float32)})
    assert list(found) == ["loss", "grad.a", "grad.x"]
    assert found["grad.a"].tolist() == [2, 2] and found["grad.x"].tolist() == [2, 2]


def test_second_derivatives_of_a_joint_graph() -> None:
    model = parse(
        "m (double[N] x) => (double loss) { a = Mul(x, x) b = Mul(a, x) loss = ReduceSum<keepdims=0>(b) }"
    )
    first = graphopt.differentiate(model, "loss", ["x"])
    # the gradient of the sum of the gradient's elements is 6x
    second = differentiate(first.model, ["grad.x"], ["x"])
    found = run(second.model, {"x": np.array([1.0, 2.0]), "cotangent.grad.x": np.ones(2)})
    assert second.gradients == {"x": "grad2.x"}
    assert np.allclose(found["grad.x"], [3, 12]) and np.allclose(found["grad2.x"], [6, 12])


def test_older_models_and_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 11, "local" : 1]>
        m (float[2,3] x) => (float loss) { a = local.twice(x) s = ReduceSum<axes=[0,1], keepdims=0>(a) loss = Identity(s) }
        <domain: "local", opset_import: ["" : 11]> twice (x) => (y) { y = Add(x, x) }"""
    joint = graphopt.differentiate(parse(text), "loss", ["x"])
    assert joint.opset == 13
    found = run(joint.model, {"x": np.ones((2, 3), np.float32)})
    assert found["grad.x"].tolist() == [[2, 2, 2]] * 2


def test_newer_opset_if_a_gradient_requires_it() -> None:
    text = "m (double[5] x, int64[2] p) => (double[B] y) { y = Pad<mode='reflect'>(x, p) }".replace("'", '"')
    joint = check(text, {"x": np.arange(5.0) ** 2, "p": np.array([2, 3])}, opset=13)
    assert joint.graph.opset_imports[""] == 16


def test_long_chain() -> None:
    lines = ["v0 = Sin(x)", *(f"v{i} = Sin(v{i - 1})" for i in range(1, 3000)), "loss = Identity(v2999)"]
    model = parse(f"m (float[1] x) => (float[1] loss) {{ {' '.join(lines)} }}")
    joint = differentiate(model, "loss", ["x"], optimize=False)
    assert len(ops(joint.model)) < 4 * 3000


def test_the_same_model_gives_the_same_bytes() -> None:
    text = "m (float[A,B] x, float[C,B] z) => (float loss) { p = Mul(x, z) loss = ReduceSum<keepdims=0>(p) }"
    once, again = (ir.to_bytes(graphopt.differentiate(parse(text), "loss", "inputs").model) for _ in range(2))
    assert once == again


def test_body_is_differentiated_in_place() -> None:
    model = parse("""m (float[N] x, bool c) => (float[N] y) { y = If(c) <
        then_branch = t () => (float[N] a) { b = Exp(x) a = Mul(b, x) },
        else_branch = e () => (float[N] d) { d = Identity(x) }> }""")
    cx = context_for(model)
    (holder,) = list(model.graph)
    body, x = ir.bodies(holder)[0], model.graph.inputs[0]
    walk = backward(GraphBuilder(cx, body), body, {body.outputs[0]: x}, [x])
    assert [node.op_type for node in body] == ["Exp", "Mul", "Mul", "Mul", "Mul", "Add"]
    cx.edit.set_outputs(body, [walk.gradients[x]])
    ir.validate(model)
    value = np.array([1.0, 2.0], np.float32)
    assert np.allclose(
        run(model, {"x": value, "c": np.array(True)})["y"], value * np.exp(value) * (1 + value)
    )


def test_model_is_simplified_except_for_named_values() -> None:
    model = parse("""m (float[N,4] x) => (float[N,3] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] dead = {1,2,3}> {
        t = Transpose<perm = [1, 0]>(w) a = Identity(x) h = Identity(a) y = MatMul(h, t) z = Identity(y) }""")
    joint = graphopt.differentiate(model, "mse:z,target", ["w", "h", "dead"])
    assert list(joint.gradients) == ["w", "h", "dead"] and joint.unrelated == ["dead"]
    held = joint.model.graph.initializers
    large = [
        name for name, value in held.items() if value.const_value is not None and value.const_value.size > 3
    ]
    assert large == ["w"], "a parameter is no constant"
    x, target = np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32)
    w = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    found = run(joint.model, {"x": x, "target": target})
    dy = 2 * (x @ w.T) / 6
    assert np.allclose(found["grad.w"], dy.T @ x) and np.allclose(found["grad.h"], dy @ w)
    assert not found["grad.dead"].any()
    whole = graphopt.differentiate(model, "mse:z,target", ["w"], optimize=False)
    assert ops(whole.model).count("Identity") > ops(joint.model).count("Identity")


def test_constants_created_by_simplification_are_not_parameters() -> None:
    model = parse("""m (float[2,2] x) => (float y) <int64[2] sizes = {2, 2}, float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {
        c = ConstantOfShape <value = float[1] {3.0}> (sizes)
        h = MatMul(x, w)
        d = Mul(h, c)
        y = ReduceMean <keepdims = 0> (d)
    }""")
    assert list(differentiate(model, "y", "params").gradients) == ["w"]


def test_two_cotangents_for_one_value() -> None:
    model = parse("m (float[N] x) => (float[N] y) { y = Exp(x) }")
    first = differentiate(model, ["y"], ["x"])
    second = differentiate(first.model, ["y"], ["x"])
    assert first.cotangents == {"y": "cotangent.y"} and second.cotangents == {"y": "cotangent2.y"}
    x = np.zeros(1, np.float32)
    found = run(second.model, {"x": x, "cotangent.y": x + 2, "cotangent2.y": x + 3})
    assert found["grad.x"] == 2 and found["grad2.x"] == 3
