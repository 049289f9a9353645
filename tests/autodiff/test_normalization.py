"""Normalization: gradients against finite differences, or against equivalent elementary operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import graphopt
from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)
MICROSOFT = ', "com.microsoft" : 1'


def numbers(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def gradients(text: str, feeds: dict[str, np.ndarray], order: int, opset: int) -> dict[str, Any]:
    """The gradients of y by all inputs, or of these by inputs and cotangents, for fixed cotangents."""
    joint = differentiate(parse(text, opset=opset, domains=MICROSOFT), ["y"], list(feeds))
    shape = feeds["x"].shape
    given = feeds | {"cotangent.y": np.cos(np.arange(feeds["x"].size)).reshape(shape)}
    if order == 2:
        joint = differentiate(joint.model, ["grad.x"], [*feeds, "cotangent.y"])
        given["cotangent.grad.x"] = np.sin(np.arange(feeds["x"].size)).reshape(shape)
    found = run(joint.model, {name: value.astype(np.float32) for name, value in given.items()})
    return {name: found[gradient] for name, gradient in joint.gradients.items()}


def same(text: str, plain: str, feeds: dict[str, np.ndarray], opset: int = 20) -> None:
    """Whether two models have the same first and second derivatives in float32."""
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    for order in (1, 2):
        one, other = gradients(text, feeds, order, opset), gradients(plain, feeds, order, opset)
        for name, value in other.items():
            assert np.allclose(one[name], value, rtol=1e-3, atol=1e-3), (order, name)


#: z = ({x} - mean) / σ, in elementary operators of opset 18.
STEPS = """axes = Constant<value_ints = [{axes}]>() eps = Constant<value = float {{0.01}}>()
    mean = ReduceMean({x}, axes) d = Sub({x}, mean) sq = Mul(d, d) v = ReduceMean(sq, axes)
    e = Add(v, eps) r = Sqrt(e) z = Div(d, r)"""
#: z = {x} / √mean({x}²).
ROOT_STEPS = """axes = Constant<value_ints = [-1]>() eps = Constant<value = float {{0.01}}>()
    sq = Mul({x}, {x}) v = ReduceMean(sq, axes) e = Add(v, eps) r = Sqrt(e) z = Div({x}, r)"""


# In batches -----------------------------------------------------------------------------------

BATCH = "double[N,C,H] x, double[C] s, double[C] b, double[C] m, double[C] v"


def batch(*shape: int) -> dict[str, np.ndarray]:
    channels = shape[1] if len(shape) > 1 else 1
    return {
        "x": numbers(*shape),
        **{name: numbers(channels) for name in "sbm"},
        "v": np.exp(numbers(channels)),
    }


@pytest.mark.parametrize("shape", [(4, 3, 2), (4, 3), (5,), (2, 3, 2, 2)])
def test_running_statistics_in_inference(shape: tuple[int, ...]) -> None:
    dims = ",".join("NCHW"[: len(shape)])
    vector = "1" if len(shape) == 1 else "C"
    text = BATCH.replace("N,C,H", dims).replace("[C]", f"[{vector}]")
    check(
        f"m ({text}) => (double[{dims}] y) {{ y = BatchNormalization<epsilon=0.1>(x, s, b, m, v) }}",
        batch(*shape),
    )


@pytest.mark.parametrize("results", ["y", "y n w", "n", "w", "n w"])
def test_statistics_of_the_batch(results: str) -> None:
    declared = ", ".join(f"double[{'N,C,H' if name == 'y' else 'C'}] {name}" for name in results.split())
    text = f"""m ({BATCH}) => ({declared}) {{
        y, n, w = BatchNormalization<epsilon=0.1, momentum=0.25, training_mode=1>(x, s, b, m, v) }}"""
    check(text, batch(4, 3, 2), opset=14)
    check(text.replace("N,C,H", "4,3,2").replace("[C]", "[3]"), batch(4, 3, 2))


def test_second_derivatives_of_batch_normalization() -> None:
    text = f"""m ({BATCH}) => (double[N,C,H] y) {{
        y, n, w = BatchNormalization<epsilon=0.1, training_mode=1>(x, s, b, m, v) }}"""
    first = differentiate(parse(text), ["y"], ["x"]).model
    second = differentiate(first, ["grad.x"], ["x", "s", "cotangent.y"])
    feeds = batch(4, 3, 2) | {"cotangent.y": numbers(4, 3, 2)}
    given = numbers(4, 3, 2)
    found = run(second.model, feeds | {"cotangent.grad.x": given})
    for name, gradient in second.gradients.items():
        direction, step = numbers(*feeds[name].shape), 1e-6
        up, down = (run(first, feeds | {name: feeds[name] + h * direction})["grad.x"] for h in (step, -step))
        truth = np.sum(given * (up - down)) / (2 * step)
        assert np.isclose(np.sum(found[gradient] * direction), truth, rtol=1e-5, atol=1e-5), name


TRAINED = """m (float[B,3,H,W] x, int64[B] labels, float[4,3,3,3] k, float[4] s, float[4] b, float[4] mean,
        float[4] var, float[4,2] w) => (float loss, float[4] mean1, float[4] var1) {
    c = Conv<pads=[1,1,1,1]>(x, k) n, mean1, var1 = BatchNormalization<training_mode=1>(c, s, b, mean, var)
    r = Relu(n) g = ReduceMean<axes=[2,3], keepdims=0>(r) y = Gemm(g, w)
    loss = SoftmaxCrossEntropyLoss(y, labels) }"""


def trained() -> ir.Model:
    """A network exported for training: parameters and running statistics are initializers."""
    proto = ir.to_proto(parse(TRAINED))
    shapes = {"s": (4,), "b": (4,), "mean": (4,), "var": (4,), "w": (4, 2)}
    for name, shape in shapes.items():
        value = np.abs(numbers(*shape)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    kept = [item for item in proto.graph.input if item.name not in shapes]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    return ir.from_proto(proto)


def test_running_statistics_are_returned_as_state() -> None:
    model = trained()
    joint = graphopt.differentiate(model, "loss")
    assert list(joint.gradients) == ["s", "b", "w"]
    assert [item.name for item in joint.model.graph.outputs][:3] == ["loss", "mean1", "var1"]
    feeds = {
        name: numbers(*shape).astype(np.float32) for name, shape in (("x", (3, 3, 5, 5)), ("k", (4, 3, 3, 3)))
    }
    feeds["labels"] = np.array([0, 1, 1])
    plain, found = run(model, feeds), run(joint.model, feeds)
    assert all(np.allclose(found[name], plain[name], atol=1e-6) for name in plain)
    alone = graphopt.differentiate(model, "loss", outputs="loss")
    only = run(alone.model, feeds)
    assert list(only) == ["loss", "grad.s", "grad.b", "grad.w", "state.mean", "state.var"]
    assert joint.state == {"mean": "mean1", "var": "var1"}
    for name, value in only.items():
        assert np.allclose(
            value, found[{"state.mean": "mean1", "state.var": "var1"}.get(name, name)], atol=1e-6
        )


def test_unnamed_running_statistics_outputs() -> None:
    vector = [4]
    node = helper.make_node("BatchNormalization", list("xsbmv"), ["y", "", ""], training_mode=1)
    inputs = [("x", ["B", 4]), *((name, vector) for name in "sbmv")]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name, dims in inputs]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["B", 4])
    graph = helper.make_graph([node], "g", values, [output])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    joint = differentiate(model, ["y"], ["x"])
    feeds = {name: value.astype(np.float32) for name, value in batch(5, 4).items()}
    dx = run(joint.model, feeds | {"cotangent.y": np.ones((5, 4), np.float32)})["grad.x"]
    assert np.allclose(dx, 0, atol=1e-5)  # the common part of all elements is subtracted


def test_running_statistics_before_opset_14_are_refused() -> None:
    text = f"m ({BATCH}) => (double[N,C,H] y) {{ y, n, w, o, p = BatchNormalization(x, s, b, m, v) }}"
    with pytest.raises(NoGradient, match="it updates running statistics"):
        differentiate(parse(text, opset=13), ["y"], ["x"])


# Along the last axes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "scale"),
    [(-1, (4,)), (2, (1,)), (1, (3, 4)), (-2, (3, 1)), (0, (2, 3, 4)), (0, (4,)), (-1, (2, 1, 4))],
)
@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization"])
def test_layer_normalization_over_the_last_axes(operator: str, axis: int, scale: tuple[int, ...]) -> None:
    names = "sb" if operator.startswith("Layer") else "s"
    dims = ",".join("UVW"[: len(scale)])
    declared = ", ".join(f"double[{dims}] {name}" for name in names)
    text = f"""m (double[A,B,C] x, {declared}) => (double[A,B,C] y)
        {{ y = {operator}<axis={axis}, epsilon=0.01>(x, {", ".join(names)}) }}"""
    check(text, {"x": numbers(2, 3, 4), **{name: numbers(*scale) for name in names}}, opset=23)


def test_layer_normalization_of_unknown_rank() -> None:
    text = """m (double[A,B] z, int64[R] r, double[4] s) => (double y)
        { x = Reshape(z, r) q = LayerNormalization(x, s) y = Mul(q, q) }"""
    check(text, {"z": numbers(3, 8), "r": np.array([3, 2, 4]), "s": numbers(4)})


@pytest.mark.parametrize("read", ["Mul(h, h)", "Mul(h, mean)", "Mul(x, mean)", "Mul(x, inverse)"])
def test_outputs_mean_and_inverse_deviation(read: str) -> None:
    inputs = "m (float[A,B] x, float[B] s) => (float[A,B] y)"
    fused = f"{inputs} {{ h, mean, inverse = LayerNormalization<epsilon=0.01>(x, s) y = {read} }}"
    plain = (
        f"{inputs} {{ {STEPS.format(x='x', axes='-1')} h = Mul(z, s) inverse = Reciprocal(r) y = {read} }}"
    )
    same(fused, plain, {"x": numbers(3, 4), "s": numbers(4)})


def test_simplified_layer_normalization() -> None:
    inputs = "m (float[A,B,C] x, float[C] s) => (float[A,B,C] y)"
    fused = (
        f"{inputs} {{ h, i = SimplifiedLayerNormalization<epsilon=0.01>(x, s) a = Mul(h, h) y = Mul(a, i) }}"
    )
    plain = f"""{inputs} {{ {ROOT_STEPS.format(x="x")} h = Mul(z, s) i = Reciprocal(r) a = Mul(h, h) y = Mul(a, i) }}"""
    same(fused, plain, {"x": numbers(2, 3, 4), "s": numbers(4)})


@pytest.mark.parametrize("skip", ["N,S,4", "1,S,4", "S,4"])
@pytest.mark.parametrize("read", ["Mul(h, h)", "Mul(h, t)", "Mul(t, t)"])
def test_skip_layer_normalization(skip: str, read: str) -> None:
    feeds = {
        "x": numbers(2, 3, 4),
        "k": numbers(*{"N,S,4": (2, 3, 4), "1,S,4": (1, 3, 4), "S,4": (3, 4)}[skip]),
    }
    feeds |= {"g": numbers(4), "b": numbers(4), "c": numbers(4)}
    inputs = f"m (float[N,S,4] x, float[{skip}] k, float[4] g, float[4] b, float[4] c) => (float[N,S,4] y)"
    fused = f"{inputs} {{ h, , , t = com.microsoft.SkipLayerNormalization<epsilon=0.01>(x, k, g, b, c) y = {read} }}"
    total = "u = Add(x, k) t = Add(u, c)"
    steps = STEPS.format(x="t", axes="-1")
    same(fused, f"{inputs} {{ {total} {steps} f = Mul(z, g) h = Add(f, b) y = {read} }}", feeds)
    del feeds["b"]
    inputs = inputs.replace("float[4] b, ", "")
    fused = fused.replace("float[4] b, ", "").replace("SkipLayer", "SkipSimplifiedLayer").replace(", b,", ",")
    same(fused, f"{inputs} {{ {total} {ROOT_STEPS.format(x='t')} h = Mul(z, g) y = {read} }}", feeds)


def test_skip_layer_normalization_under_onnxruntime_optimizations() -> None:
    text = """m (float[N,S,8] x, float[N,S,8] k, float[8] s, float[8] b) => (float[N,S,8] y) {
        t = Add(x, k) h = LayerNormalization(t, s, b) y = Mul(h, t) }"""
    joint = differentiate(parse(text), ["y"], ["x", "s"])
    feeds = {"x": numbers(2, 3, 8), "k": numbers(2, 3, 8), "s": numbers(8), "b": numbers(8)}
    feeds["cotangent.y"] = numbers(2, 3, 8)
    single = {name: value.astype(np.float32) for name, value in feeds.items()}
    off, on = run(joint.model, single, "off"), run(joint.model, single)
    assert all(np.allclose(off[name], on[name], atol=1e-5) for name in off)


# By instance and by group ---------------------------------------------------------------------


@pytest.mark.parametrize("opset", [13, 20])
def test_instance_normalization(opset: int) -> None:
    inputs = "m (float[N,C,H,W] x, float[C] s, float[C] b) => (float[N,C,H,W] y)"
    fused = f"{inputs} {{ y = InstanceNormalization<epsilon=0.01>(x, s, b) }}"
    steps = STEPS.format(x="x", axes="2, 3")
    columns = "k = Constant<value_ints = [1, 2]>() p = Unsqueeze(s, k) q = Unsqueeze(b, k)"
    plain = f"{inputs} {{ {steps} {columns} f = Mul(z, p) y = Add(f, q) }}"
    if opset < 18:
        plain = plain.replace("ReduceMean(x, axes)", "ReduceMean<axes = [2, 3]>(x)")
        plain = plain.replace("ReduceMean(sq, axes)", "ReduceMean<axes = [2, 3]>(sq)")
    same(fused, plain, {"x": numbers(2, 3, 4, 2), "s": numbers(3), "b": numbers(3)}, opset=opset)


@pytest.mark.parametrize("dims", ["N,C,H,W", "N,6,H,W", "2,6,3,2"])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization(groups: int, dims: str) -> None:
    channels = dims.split(",")[1]
    for opset, size in ((18, groups), (21, 6)):
        vector = f"double[{'S' if channels == 'C' else size}]"
        stash = ", stash_type=11" if opset >= 21 else ""
        text = f"""m (double[{dims}] x, {vector} s, {vector} b) => (double[{dims}] y)
            {{ y = GroupNormalization<num_groups={groups}, epsilon=0.01{stash}>(x, s, b) }}"""
        check(text, {"x": numbers(2, 6, 3, 2), "s": numbers(size), "b": numbers(size)}, opset=opset)


# Other types, and how many nodes --------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    ["LayerNormalization(x, s, b)", "GroupNormalization<num_groups=2>(x, s, b)", "RMSNormalization(x, s)",
     "InstanceNormalization(x, s, b)", "BatchNormalization(x, s, b, s, s)"],
)  # fmt: skip
def test_float16_is_computed_in_float32(call: str) -> None:
    text = f"m (float16[N,4,4] x, float16[4] s, float16[4] b) => (float16[N,4,4] y) {{ y = {call} }}"
    half = differentiate(parse(text, opset=23), ["y"], ["x", "s"])
    single = differentiate(parse(text.replace("float16", "float"), opset=23), ["y"], ["x", "s"])
    feeds = {"x": numbers(3, 4, 4), "s": np.exp(numbers(4)), "b": numbers(4), "cotangent.y": numbers(3, 4, 4)}
    one, other = (
        run(model, {name: value.astype(dtype) for name, value in feeds.items()})
        for model, dtype in ((half.model, np.float16), (single.model, np.float32))
    )
    for name in ("grad.x", "grad.s"):
        assert one[name].dtype == np.float16 and np.allclose(one[name], other[name], rtol=2e-2, atol=2e-2)


def test_layer_normalization_has_few_nodes() -> None:
    text = """m (float[N,8] x, float[8] s, float[8] b) => (float[N,8] y)
        { y = LayerNormalization(x, s, b) }"""
    joint = differentiate(parse(text), ["y"], "inputs")
    assert len(ops(joint.model)) - 1 <= 13
    joint = differentiate(parse(text), ["y"], ["x"])
    assert len(ops(joint.model)) - 1 <= 10
