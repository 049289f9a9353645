"""Gradients by group equal those of the whole model, and operators between groups are lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.gradients import by_group_of, cases
from graphopt import ir
from graphopt.autodiff import differentiate_by_group, joint_graph, split_joint
from graphopt.autodiff.differentiate_by_group import ByGroup
from graphopt.autodiff.losses import Loss
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.errors import UsageError
from graphopt.ops import graphopt_operators
from graphopt.ort import session
from graphopt.parameters.lifting import lift
from tests.model_testing import parse, run_pipeline

Feeds = dict[str, np.ndarray]

#: Two groups, and an operator between them that onnxruntime does not run in functions.
TWO = """g (float[N,4,2,2] x) => (float[N,3,2,2] y, float[1] total)
    <float[4,4,1,1] w = {WEIGHT16}, float[3,4,1,1] v = {WEIGHT12}, int64[1] one = {1}> {
    a = Conv(x, w)
    h = Tanh(a)
    m = MeanVarianceNormalization(h)
    q = Mul(h, m)
    b = Conv(q, v)
    y = Sigmoid(b)
    s = ReduceSum<keepdims = 0>(y)
    total = Reshape(s, one)
}"""
#: A trunk with two branches; the second one has an operator whose gradient is refused.
BRANCHES = """g (float[N,4] x, int64[K] axes) => (float[1] loss, float[A,B] top)
    <float[4,8] trunk = {WEIGHT32}, float[8,3] good = {WEIGHT24}, float[8,3] bad = {WEIGHT24}> {
    a = MatMul(x, trunk)
    h = Tanh(a)
    b = MatMul(h, good)
    y = Sigmoid(b)
    c = MatMul(h, bad)
    d = Sin(c)
    top = ReduceMax<noop_with_empty_axes = 1>(d, axes)
    p = ReduceSum<keepdims = 0>(y)
    q = ReduceSum<keepdims = 0>(top)
    r = Add(p, q)
    one = Constant<value_ints = [1]>()
    loss = Reshape(r, one)
}"""


def model_of(text: str, opset: int = 18) -> ir.Model:
    """The model, with numbers of both signs as weights."""
    for size in (12, 16, 24, 32, 36, 48):
        numbers = ", ".join(f"{np.sin(1.7 * index):.3f}" for index in range(size))
        text = text.replace(f"{{WEIGHT{size}}}", f"{{{numbers}}}")
    return parse(text, opset=opset)


def run(model: ir.Model, feeds: Feeds) -> Feeds:
    names = [value.name or "" for value in model.graph.outputs]
    own = {value.name for value in model.graph.inputs}
    fed = {name: value for name, value in feeds.items() if name in own}
    return dict(
        zip(names, session.run(session.create(ir.to_bytes(model), threads=1), fed, names), strict=True)
    )


def run_split(found: split_joint.Split, feeds: Feeds) -> Feeds:
    forward = run(found.forward, feeds)
    return {**forward, **run(found.backward, {**feeds, **forward})}


def random_feeds(**shapes: tuple[int, ...]) -> Feeds:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check(
    text: str | ir.Model, wrt: str | list[str], feeds: Feeds, loss: str | list[str] | Loss = "loss"
) -> ByGroup:
    """Compare joint graphs and splits with those of the whole model; returns the groups."""
    model = model_of(text) if isinstance(text, str) else text
    by = ByGroup()
    joints = [joint_graph.differentiate(model, loss, wrt, by=by) for by in (None, by)]
    assert joints[0].gradients == joints[1].gradients
    domains = {node.domain for graph in ir.graphs_of(joints[1].model) for node in graph}
    assert graphopt_operators.AD_DOMAIN not in domains
    expected, found = (run(joint.model, feeds) for joint in joints)
    found |= run_split(differentiate_by_group.split(model, loss, wrt), feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    return by


def count(model: ir.Model, domain: str) -> Counter[str]:
    """The operators of ``domain`` in the main graph and its bodies."""
    return Counter(node.op_type for node in ir.walk_nodes(model.graph) if node.domain == domain)


X = random_feeds(x=(5, 4, 2, 2))


@pytest.mark.parametrize("wrt", ["params", "inputs", "all", ["v"], ["h", "w"], ["q", "x"]])
def test_two_groups(wrt: str | list[str]) -> None:
    by = check(TWO, wrt, X, "total")
    assert len(by.groups) == (1 if wrt in (["v"], ["h", "w"]) else 2)  # h ends a group


def test_cotangents_of_several_outputs() -> None:
    given = {"cotangent.y": (5, 3, 2, 2), "cotangent.h": (5, 4, 2, 2)}
    by = check(TWO, "all", X | random_feeds(**given), ["y", "h"])
    assert len(by.groups) == 2


def test_loss_function() -> None:
    by = check(TWO, "all", X | random_feeds(target=(5, 3, 2, 2)), Loss.parse("mse:y,target"))
    assert len(by.groups) == 2


def test_budget_applies_to_groups() -> None:
    model = model_of(TWO)
    saved = [
        differentiate_by_group.split(model, "total", "all", memory_budget=budget).report for budget in (1, 0)
    ]
    everything = differentiate_by_group.split(model, "total", "all", save_all=True, dims={"N": 64}).report
    assert everything.saved == everything.everything and everything.dims == {"N": 64}
    assert 4 * saved[0].everything == everything.everything == 4 * saved[1].everything
    assert saved[1].saved <= saved[0].saved < saved[0].everything
    assert sum(saved[1].recomputed.values()) > sum(everything.recomputed.values()) == 0
    whole = split_joint.split(model, "total", "all").report
    assert saved[0].flops == whole.flops


# Operators of graphopt.ad between groups ----------------------------------------------------


def explicit(text: str, loss: str | list[str], wrt: str | list[str]) -> ir.Model:
    """The joint graph before operators of ``graphopt.ad`` are lowered."""
    return joint_graph.differentiate(model_of(text), loss, wrt, by=ByGroup(lower=False)).model


def test_gradients_between_groups_are_regions_and_sums() -> None:
    model = explicit(TWO, ["y", "h"], "all")
    found = count(model, graphopt_operators.AD_DOMAIN)
    # two groups, and the operator between them, whose gradient has a sum; h is read by two and has a cotangent
    assert found == {"GradOf": 3, "AutogradAdd": 2}
    lowered = model.clone()
    run_pipeline(lowered, "lower-grad-of,dce")
    ir.validate(lowered)
    assert not count(lowered, graphopt_operators.AD_DOMAIN) and count(lowered, "")["Add"] == 3
    expected = joint_graph.differentiate(model_of(TWO), ["y", "h"], "all").model
    feeds = X | random_feeds(**{"cotangent.y": (5, 3, 2, 2), "cotangent.h": (5, 4, 2, 2)})
    for name, value in run(expected, feeds).items():
        np.testing.assert_allclose(run(lowered, feeds)[name], value, rtol=1e-5, atol=1e-6)


def test_regions_of_absent_cotangents_are_removed() -> None:
    """Without a cotangent of y, only the first group has gradients."""
    model = explicit(TWO, ["y", "h"], "all")
    general = model.clone()
    for changed in (model, general):
        (cotangent,) = [value for value in changed.graph.inputs if value.name == "cotangent.y"]
        cotangent.metadata_props[graphopt_operators.UNDEFINED] = "true"
    run_pipeline(model, "specialize-autograd-zero,dce")
    assert count(model, graphopt_operators.AD_DOMAIN) == {"GradOf": 1, "Zero": 1}  # v has no gradient
    run_pipeline(model, "lower-grad-of,dce")
    ir.validate(model)
    feeds = X | random_feeds(**{"cotangent.h": (5, 4, 2, 2)})
    expected = run(joint_graph.differentiate(model_of(TWO), ["h"], "all").model, feeds)
    feeds["cotangent.y"] = np.zeros((5, 3, 2, 2), np.float32)
    found = run(model, feeds)
    for name in ("grad.w", "grad.x"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    assert not found["grad.v"].any()
    run_pipeline(general, "clear-undefinedness,specialize-autograd-zero,dce")
    assert count(general, graphopt_operators.AD_DOMAIN) == {"GradOf": 3, "AutogradAdd": 2}


def test_no_operator_of_a_private_domain_remains() -> None:
    """onnxruntime runs the result of each pipeline for plans."""
    model = explicit(TWO, ["y", "h"], "all")
    for pipeline in ("fallback", "noopt", "plan-general", "pre-autodiff"):
        lowered = model.clone()
        run_pipeline(lowered, pipeline)
        assert not count(lowered, graphopt_operators.AD_DOMAIN)
        session.create(ir.to_bytes(lowered))


# Operators without a gradient ---------------------------------------------------------------

AXES = {"axes": np.array([1], np.int64)}


def test_a_branch_without_gradient_leaves_the_rest_trainable() -> None:
    model, feeds = model_of(BRANCHES), random_feeds(x=(5, 4)) | AXES
    with pytest.raises(NoGradient, match="its axes may be empty"):
        joint_graph.differentiate(model, "loss", "params")
    joint = differentiate_by_group.differentiate(model, "loss", "params")
    assert list(joint.gradients) == ["good"] and list(joint.excluded) == ["trunk", "bad"]
    assert all("ReduceMax" in reason for reason in joint.excluded.values())
    assert joint.groups == 0 and list(joint.inlined) == ["group_0"]
    expected = run(joint_graph.differentiate(model, "loss", ["good"]).model, feeds)
    np.testing.assert_allclose(run(joint.model, feeds)["grad.good"], expected["grad.good"], rtol=1e-5)
    found = differentiate_by_group.split(model, "loss", "params")
    np.testing.assert_allclose(run_split(found, feeds)["grad.good"], expected["grad.good"], rtol=1e-5)


def test_named_parameters_need_a_gradient() -> None:
    model = model_of(BRANCHES)
    with pytest.raises(NoGradient, match="its axes may be empty"):
        differentiate_by_group.differentiate(model, "loss", ["good", "bad"])
    with pytest.raises(NoGradient, match="its axes may be empty"):
        differentiate_by_group.differentiate(model, ["top"], "params")
    joint = differentiate_by_group.differentiate(model, "loss", ["good"])
    assert list(joint.gradients) == ["good"] and not joint.inlined and joint.groups == 1


def test_outputs_that_only_comparisons_read_have_no_cotangent() -> None:
    """A cotangent of zeros would be multiplied by the slope of the Sqrt, which is NaN."""
    text = """g (float[N,1,2,2] x) => (float loss) <float zero = {0}, float five = {5}> {
        n = Neg(x) y = Exp(n) r = Sqrt(n) s = ReduceMax<keepdims = 0>(r) m = MeanVarianceNormalization(y)
        c = Greater(s, zero) z = Where(c, five, m) e = Exp(z) loss = ReduceSum<keepdims = 0>(e)
    }"""
    by = ByGroup()
    joint = joint_graph.differentiate(model_of(text), "loss", ["x"], by=by)
    assert [(group.outputs, len(group.cotangents)) for group in by.groups.values()] == [(2, 1), (1, 1)]
    feeds = {"x": np.abs(random_feeds(x=(2, 1, 2, 2))["x"])}
    expected = run(joint_graph.differentiate(model_of(text), "loss", ["x"]).model, feeds)["grad.x"]
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(run(joint.model, feeds)["grad.x"], expected, rtol=1e-6)


def test_zero_gradients_need_not_pass_an_operator_without_a_gradient() -> None:
    """Only a piecewise constant operator connects ``v`` with the operator without a gradient."""
    text = """g (float[N,4] x, int64[K] axes) => (float loss)
        <float[4,4] w = {WEIGHT16}, float[4,4] v = {WEIGHT16}, float[4] b = {1, 2, 3, 4}> {
        a = MatMul(x, w) c = MatMul(x, v) d = Hardmax(c) e = Add(a, d) f = Sin(e)
        g = ReduceMax<noop_with_empty_axes = 1>(f, axes) h = ReduceSum<keepdims = 0>(g)
        i = Mul(x, b) j = Exp(i) k = ReduceSum<keepdims = 0>(j) loss = Add(h, k)
    }"""
    with pytest.raises(NoGradient, match="its axes may be empty"):
        joint_graph.differentiate(model_of(text), "loss", ["v", "params"])
    joint = differentiate_by_group.differentiate(model_of(text), "loss", ["v", "params"])
    assert list(joint.gradients) == ["v", "b"] and joint.unrelated == ["v"] and list(joint.excluded) == ["w"]
    assert not run(joint.model, random_feeds(x=(3, 4)) | AXES)["grad.v"].any()


def test_a_loop_without_gradient_is_left_unchanged() -> None:
    """Its rule refuses after it has changed the body."""
    text = """g (float[N] x, int64 n) => (float[1] loss, float[M] grown)
        <float v = {2}, float w = {3}, int64[1] one = {1}> {
        a = Mul(x, v) b = Exp(a)
        c = Mul(x, w) d = Sin(c)
        grown = Loop(n, , d) <body = g (int64 i, bool ci, float[P] hi) => (bool co, float[Q] ho) {
            r = RandomUniformLike(x) p = Mul(hi, hi) ho = Concat<axis = 0>(p, r) co = Identity(ci) }>
        e = ReduceSum<keepdims = 0>(b) f = ReduceMin<keepdims = 0>(grown) s = Add(e, f)
        loss = Reshape(s, one)
    }"""
    model = model_of(text)
    with pytest.raises(NoGradient, match="a carried value may change its shape"):
        differentiate_by_group.differentiate(model, "loss", "inputs")
    joint = differentiate_by_group.differentiate(model, "loss", ["v"])
    feeds = random_feeds(x=(3,)) | {"n": np.array(2, np.int64)}
    found = run(joint.model, feeds)
    assert found["grown"].shape == (9,)
    np.testing.assert_allclose(found["grad.v"], np.sum(feeds["x"] * np.exp(2 * feeds["x"])), rtol=1e-5)
    joint = differentiate_by_group.differentiate(lifted(model), "loss", "inputs")
    assert list(joint.gradients) == ["v"] and list(joint.excluded) == ["x", "w"]
    (loop,) = [node for node in joint.model.graph if node.op_type == "Loop"]
    kinds = {node.op_type for node in ir.bodies(loop)[0]}
    assert kinds <= {"RandomUniformLike", "Mul", "Concat", "Identity", "Constant"}
    np.testing.assert_allclose(
        run(joint.model, feeds | {"v": np.float32(2), "w": np.float32(3)})["grad.v"], found["grad.v"]
    )


def lifted(model: ir.Model) -> ir.Model:
    """The model with scalars as inputs."""
    changed = model.clone()
    lift(changed, ["v", "w"])
    return changed


def test_other_groups_stay_differentiated() -> None:
    """The group of the operator without a gradient is separate, and its zeros are removed."""
    text = BRANCHES.replace("c = MatMul(h, bad)", "i = RandomNormalLike(h) j = Mul(h, i) c = MatMul(j, bad)")
    by = ByGroup(lower=False)
    joint = joint_graph.differentiate(model_of(text), "loss", "params", by=by)
    assert list(joint.gradients) == ["good"] and list(joint.excluded) == ["trunk", "bad"]
    assert len(by.groups) == 1


# Models -------------------------------------------------------------------------------------


def test_recurrent_layer_between_dense_layers() -> None:
    text = """g (float[T,B,4] x) => (float[T,1,B,3] y, float[1] loss)
        <float[4,4] u = {WEIGHT16}, float[1,12,4] w = {WEIGHT48}, float[1,12,3] r = {WEIGHT36}, int64[1] one = {1}> {
        a = MatMul(x, u)
        b = Tanh(a)
        y, h, c = LSTM<hidden_size = 3>(b, w, r)
        d = Sin(h)
        s = ReduceSum<keepdims = 0>(d)
        loss = Reshape(s, one)
    }"""
    assert check(text, "all", random_feeds(x=(3, 2, 4))).groups


@pytest.mark.parametrize("taken", [True, False])
def test_branches_and_loops(taken: bool) -> None:
    """Their bodies draw random numbers, or read sequences: they are outside of groups."""
    text = """g (float[N,4] x, bool c) => (float[N,4] y, float[1] loss)
        <float[4,4] w = {WEIGHT16}, int64[1] one = {1}, int64 trips = {3}> {
        a = MatMul(x, w)
        h = Tanh(a)
        i = If (c) <
            then_branch = t () => (float[N,4] p) {
                n = RandomNormalLike<scale = 1e-30>(h) o = Add(h, n) k = Sin(o) p = Mul(k, h)
            },
            else_branch = e () => (float[N,4] q) { l = Exp(h) q = Neg(l) }
        >
        yes = Constant<value = bool {1}>()
        j = Loop (trips, yes, i) <
            body = b (int64 step, bool go, float[N,4] before) => (bool again, float[N,4] after) {
                again = Identity(go)
                m = RandomNormalLike<scale = 1e-30>(before) u = Add(m, before) v = MatMul(u, w) after = Tanh(v)
            }
        >
        y = Mul(j, h)
        z = Cos(y)
        s = ReduceSum<keepdims = 0>(z)
        loss = Reshape(s, one)
    }"""
    by = check(text, "all", {**random_feeds(x=(5, 4)), "c": np.array(taken)})
    assert len(by.groups) == 2


def test_function_that_is_called_repeatedly() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
    g (float[N,4] x) => (float[N,4] y, float[1] loss) <float[4,4] w = {WEIGHT16}, int64[1] one = {1}> {
        a = local.layer(x, w)
        b = local.layer(a, w)
        y = local.layer(b, w)
        s = ReduceSum<keepdims = 0>(y)
        loss = Reshape(s, one)
    }
    <opset_import: ["" : 18], domain: "local"> layer (p, q) => (r) { m = MatMul(p, q) t = Tanh(m) r = Add(t, p) }
    """
    assert check(text, "all", random_feeds(x=(5, 4))).groups


def test_gradients_of_gradients() -> None:
    feeds = X | {"zero": np.zeros((5, 4, 2, 2), np.float32)}
    found = []
    for differentiate in (joint_graph.differentiate, differentiate_by_group.differentiate):
        first = differentiate(model_of(TWO), "total", "all").model
        second = differentiate(first, Loss.parse("mse:grad.x,zero"), ["w", "v"])
        assert second.gradients == {"w": "grad2.w", "v": "grad2.v"}
        found.append(run(second.model, feeds))
    for name in ("grad2.w", "grad2.v"):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrt", ["w", "params"])
def test_second_gradient_past_a_folded_parameter_is_refused(wrt: str) -> None:
    """The first joint graph, by x alone, contains a transposed copy of w."""
    text = """g (float[2,4,4] x) => (float loss) <float[4,4] w = {WEIGHT16}>
    { h = MatMul(x, w) t = Tanh(h) loss = ReduceSum<keepdims = 0>(t) }"""
    squared = Loss.parse("mse:grad.x,zero")
    first = joint_graph.differentiate(model_of(text), "loss", ["x"]).model
    with pytest.raises(UsageError, match="the gradient of 'w' would be incomplete"):
        joint_graph.differentiate(first, squared, wrt)
    assert joint_graph.differentiate(first, "loss", "w").gradients == {"w": "grad2.w"}
    both = joint_graph.differentiate(model_of(text), "loss", ["x", "w"]).model
    feeds = random_feeds(x=(2, 4, 4), zero=(2, 4, 4))
    whole = joint_graph.differentiate(both, squared, "w").model
    grouped = differentiate_by_group.differentiate(
        differentiate_by_group.differentiate(model_of(text), "loss", ["x"]).model, squared, "w"
    )
    expected = run(whole, feeds)["grad2.w"]
    np.testing.assert_allclose(run(grouped.model, feeds)["grad2.w"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("differentiate", [joint_graph.differentiate, differentiate_by_group.differentiate])
def test_gradient_by_a_merged_parameter_is_refused(differentiate: Callable[..., joint_graph.Joint]) -> None:
    text = """g (float[4,2] x) => (float loss) <float[2,2] w = {1, 2, 3, 4}, float[2,2] v = {1, 2, 3, 4}>
    { h = MatMul(x, w) t = Tanh(h) k = MatMul(t, v) loss = ReduceSum<keepdims = 0>(k) }"""
    merged = model_of(text)
    run_pipeline(merged, "constant-pooling")
    assert list(merged.graph.initializers) == ["w"]
    for wrt in ("w", "params"):
        with pytest.raises(UsageError, match="the gradient of 'w' would include that of 'v'"):
            differentiate(merged, "loss", wrt)
    assert differentiate(merged, "loss", "x").gradients == {"x": "grad.x"}


def test_merged_running_statistics_are_refused() -> None:
    text = """g (float[4,2] x) => (float loss) <float[2] scale = {1, 2}, float[2] bias = {3, 4},
        float[2] mean = {0, 0}, float[2] var = {1, 1}, float[2] mean2 = {0, 0}, float[2] var2 = {5, 5}> {
        a, m, v = BatchNormalization<training_mode = 1>(x, scale, bias, mean, var)
        b = Exp(a) c, n, w = BatchNormalization<training_mode = 1>(b, scale, bias, mean2, var2)
        loss = ReduceSum<keepdims = 0>(c) }"""
    model = model_of(text)
    assert list(joint_graph.differentiate(model, "loss", "params").state) == ["mean", "var", "mean2", "var2"]
    run_pipeline(model, "constant-pooling")
    with pytest.raises(UsageError, match="the running statistic 'mean' was merged with 'mean2'"):
        joint_graph.differentiate(model, "loss", "params")


def test_other_parameters_stay_initializers() -> None:
    joint = differentiate_by_group.differentiate(model_of(TWO), "total", ["x"])
    assert {"w", "v"} <= set(joint.model.graph.initializers) and joint.groups == 2
    assert not any(key[1] == "Constant" and value.nbytes > 16 for key, value in _constants(joint.model))


def _constants(model: ir.Model) -> list[tuple[tuple[str, str], ir.TensorProtocol]]:
    """The constants of functions."""
    found = []
    for function in model.functions.values():
        for node in function.graph:
            tensor = ir.constant_of(node.outputs[0])
            if tensor is not None:
                found.append(((function.name, node.op_type), tensor))
    return found


def test_wrongly_declared_outputs_are_not_read_by_gradients() -> None:
    """onnxruntime would compute shapes from the declaration of y, whose rank is unknown."""
    text = "g (float[N] v, int64[K] s) => (float y) { x = Reshape(v, s) z = Tanh(x) y = Mul(z, z) }"
    feeds = random_feeds(v=(12,), **{"cotangent.y": (3, 4)}) | {"s": np.array([3, 4])}
    assert check(text, ["v"], feeds, ["y"]).groups


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="'nothing'"):
        differentiate_by_group.differentiate(model_of(TWO), "total", ["nothing"])
    with pytest.raises(UsageError, match="'nothing'"):
        differentiate_by_group.differentiate(model_of(TWO), "nothing", "all")


def test_batch_normalization_in_training_mode() -> None:
    """It updates state, between two groups."""
    text = """g (float[N,4] x) => (float[N,4] y, float[1] loss) <float[4,4] w = {WEIGHT16}, float[4] s = {1, 1, 1, 1},
        float[4] bias = {0, 0, 0, 0}, float[4] mean = {0, 0, 0, 0}, float[4] var = {1, 1, 1, 1}, int64[1] one = {1}> {
        a = MatMul(x, w)
        t = Tanh(a)
        n, m, v = BatchNormalization<training_mode = 1>(t, s, bias, mean, var)
        b = MatMul(n, w)
        y = Sin(b)
        q = ReduceSum<keepdims = 0>(y)
        loss = Reshape(q, one)
    }"""
    assert len(check(text, "params", random_feeds(x=(6, 4))).groups) == 2


def test_model_without_groups() -> None:
    text = """g (float[1] x) => (float[1] loss) { loss = Sin(x) }"""
    assert not check(text, "all", random_feeds(x=(1,))).groups


def test_older_ir_versions_and_opsets() -> None:
    proto = ir.to_proto(model_of(TWO))
    proto.ir_version = 7
    assert len(check(ir.from_proto(proto), "all", X, "total").groups) == 2
    text = TWO.replace(
        "s = ReduceSum<keepdims = 0>(y)", "t = Shape(x) u = Reshape(y, t) s = ReduceSum<keepdims = 0>(u)"
    )
    model = model_of(
        text.replace("[3,4,1,1] v = {WEIGHT12}", "[4,4,1,1] v = {WEIGHT16}").replace(
            "[N,3,2,2] y", "[N,4,2,2] y"
        ),
        opset=13,
    )
    check(model, "all", X, "total")


# Node tests ---------------------------------------------------------------------------------

#: A few families; ``python -m benchmarks.gradients --by-group`` compares all.
FAMILIES = (
    r"^test_(add_bcast|gemm_all_attributes|basic_conv_with_padding|softmax_axis_1|lstm_with_peepholes|scan9_sum"
    r"|layer_normalization_2d_axis1|gather_0|reduce_max_keepdims_random|maxpool_2d_dilations|top_k|einsum_batch_matmul)$"
)


def test_node_tests() -> None:
    found = {case.name: by_group_of(case) for case in cases(FAMILIES)}
    assert len(found) > 10 and set(found.values()) == {("equal", "")}, found


@pytest.mark.slow
def test_all_node_tests() -> None:
    counts = Counter(by_group_of(case)[0] for case in cases(None))
    assert counts["equal"] > 1000 and set(counts) <= {"equal", "refused", "random", "unfit"}, counts
