"""Splits: forward and backward models are equivalent to the joint graph."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from benchmarks.split_models import Training, cnn, transformer
from benchmarks.split_step import difference
from graphopt import api, ir
from graphopt.autodiff.rejoin_split import rejoin
from graphopt.autodiff.split_joint import Split
from graphopt.errors import UsageError
from tests.model_testing import parse

MLP = """m (float[N,8] x, float[N,4] t) => (float[N,4] y) <float[8,64] w, float[64,4] v> {
    h = MatMul(x, w)
    s = Sigmoid(h)
    g = Mul(h, s)
    y = MatMul(g, v) }"""


def mlp() -> ir.Model:
    text = MLP.replace("float[8,64] w", f"float[8,64] w = {numbers(512)}")
    return parse(text.replace("float[64,4] v", f"float[64,4] v = {numbers(256)}"))


def numbers(count: int) -> str:
    random = np.random.default_rng(count)
    return "{" + ", ".join(f"{x:.3f}" for x in random.standard_normal(count)) + "}"


def feeds(**shapes: Iterable[int]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(tuple(shape)).astype(np.float32) for name, shape in shapes.items()}


def names(values: Iterable[ir.Value]) -> list[str]:
    return [value.name or "" for value in values]


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def is_right(found: Split, fed: dict[str, Any]) -> bool:
    verdict, reason = difference(found, fed)
    assert verdict in ("equal", "rounding"), reason
    return verdict == "equal"


def test_residuals_are_the_first_inputs_and_cheap_values_are_recomputed() -> None:
    found = graphopt.split(mlp(), "mse:y,t", outputs="loss", dims={"N": 1000})
    assert names(found.forward.graph.outputs)[0] == "loss"
    assert "saved.h" in found.handed and not {"saved.s", "saved.g"} & set(found.handed)
    count = len(found.handed)
    inputs = names(found.backward.graph.inputs)
    assert inputs[:count] == found.handed == names(found.forward.graph.outputs)[1:]
    assert inputs[count:] == ["x", "cotangent.loss"] and found.static == inputs[:-1]
    assert names(found.backward.graph.outputs) == ["grad.w", "grad.v"]
    assert found.report.recomputed == {"Mul": 1, "Sigmoid": 1}
    assert found.report.saved == sum(item.bytes for item in found.saved) < found.report.everything
    assert is_right(found, feeds(x=(5, 8), t=(5, 4)))


def test_cotangent_of_the_loss_can_be_fed() -> None:
    found = graphopt.split(mlp(), "mse:y,t")
    fed = feeds(x=(5, 8), t=(5, 4))
    out = graphopt.run(found.forward, fed)
    taken = {
        name: {**fed, **out}[name] for name in names(found.backward.graph.inputs) if name in {**fed, **out}
    }
    once = graphopt.run(found.backward, taken)["grad.w"]
    scaled = graphopt.run(found.backward, {**taken, "cotangent.loss": np.asarray(8, np.float32)})["grad.w"]
    assert np.array_equal(once * 8, scaled)


def test_without_a_loss_cotangents_of_outputs_are_inputs() -> None:
    found = graphopt.split(mlp(), ["y"], ["x", "w"], save_everything=True)
    assert names(found.backward.graph.inputs) == [*found.static, "cotangent.y"]
    assert found.static[: len(found.handed)] == found.handed
    assert found.report.recomputed_flops == 0 and found.report.ratio == 1
    assert is_right(found, feeds(**{"x": (5, 8), "t": (5, 4), "cotangent.y": (5, 4)}))


@pytest.mark.parametrize("by_group", [False, True])
def test_inputs_and_outputs_of_both_models(by_group: bool) -> None:
    """Cotangents come last; users see the original outputs of the forward model, and gradients."""
    model = mlp()
    found = graphopt.split(model, ["y"], "params", by_group=by_group)
    cotangents = list(found.joint.cotangents.values())
    assert names(found.backward.graph.inputs)[-len(cotangents) :] == cotangents == ["cotangent.y"]
    saved = [item.name for item in found.saved]
    assert names(found.forward.graph.outputs) == [*names(model.graph.outputs), *saved]
    assert names(found.backward.graph.outputs) == [*found.joint.gradients.values()]
    assert found.static[: len(saved)] == saved
    assert not set(found.static) - {*names(found.forward.graph.outputs), *names(found.forward.graph.inputs)}


def test_smaller_budgets_save_less_and_recompute_more() -> None:
    reports = []
    for budget in (1, 0.8, 0.5, 0.3, 0.1, 0):
        found = graphopt.split(mlp(), "mse:y,t", outputs="loss", memory_budget=budget, dims={"N": 1000})
        assert is_right(found, feeds(x=(5, 8), t=(5, 4)))
        assert budget == 0 or found.report.ratio <= budget
        reports.append(found.report)
    for more, less in pairwise(reports):
        assert less.saved <= more.saved and less.recomputed_flops >= more.recomputed_flops
    assert reports[-1].saved == 0 and "MatMul" in reports[-1].recomputed
    with pytest.raises(UsageError, match="between 0 and 1"):
        graphopt.split(mlp(), "mse:y,t", memory_budget=1.5)


def test_dims_are_given_or_assumed() -> None:
    assumed = graphopt.split(mlp(), "mse:y,t").report
    given = graphopt.split(mlp(), "mse:y,t", dims={"N": 160}).report
    assert assumed.assumed == {"N": 16} and given.assumed == {} and given.dims == {"N": 160}
    assert given.everything > 9 * assumed.everything
    with pytest.raises(UsageError, match="dynamic dims: N"):
        graphopt.split(mlp(), "mse:y,t", dims={"M": 1})


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_random_numbers_are_drawn_once(budget: float) -> None:
    model = parse(
        """m (float[N,64] x) => (float[N,64] y) <float[64] w = NUMBERS, bool train = {1}, float ratio = {0.5}> {
        a = Mul(x, w)
        d, mask = Dropout<seed=3>(a, ratio, train)
        e = Exp(d)
        y = Sin(e) }""".replace("NUMBERS", numbers(64))
    )
    found = graphopt.split(model, ["y"], ["x", "w"], memory_budget=budget, dims={"N": 1000})
    assert ops(found.forward).count("Dropout") == 1 and "Dropout" not in ops(found.backward)
    assert "Dropout" not in found.report.recomputed and len(found.saved) > 0
    fed = feeds(x=(6, 64)) | {"cotangent.y": np.ones((6, 64), np.float32)}
    out = graphopt.run(found.forward, {"x": fed["x"]})
    known = {**fed, **out}
    gradient = graphopt.run(
        found.backward, {name: known[name] for name in names(found.backward.graph.inputs)}
    )
    kept = ~np.isclose(out["y"], np.sin(1), atol=1e-6)  # the result for elements replaced by 0 is that of 0
    assert np.array_equal(gradient["grad.x"] != 0, kept) and 0.3 < kept.mean() < 0.7


def test_recomputed_batch_normalization_updates_statistics_once() -> None:
    training = cnn(batch=4, size=8, widths=(4, 4))
    found = split_of(training, outputs="loss", memory_budget=0.5)
    assert found.report.recomputed["BatchNormalization"] == 2
    before = {
        name: value.const_value.numpy().copy() for name, value in found.backward.graph.initializers.items()
    }
    assert is_right(found, training.feeds)
    assert all(
        np.array_equal(before[name], value.const_value.numpy())
        for name, value in found.backward.graph.initializers.items()
    )
    assert not any("mean" in name or "var" in name for name in before)
    assert list(found.joint.state) == ["bn0.mean", "bn0.var", "bn1.mean", "bn1.var"]
    assert set(found.joint.state.values()) < set(names(found.forward.graph.outputs))


def split_of(training: Training, **how: Any) -> Split:
    batch = next(iter(training.feeds.values())).shape[0]
    return graphopt.split(training.model, training.loss, training.parameters, dims={"N": batch}, **how)


@pytest.mark.parametrize(
    "training",
    [
        cnn(batch=16, widths=(8, 8)),
        transformer(causal=True, blocks=1, width=64, heads=2, length=32, batch=8),
        transformer(causal=False, blocks=2, width=64, heads=2, length=32, batch=8),
    ],
    ids=["cnn", "gpt", "encoder"],
)
def test_default_saves_at_most_three_fifths(training: Training) -> None:
    found = split_of(training, outputs="loss")
    assert found.report.ratio <= 0.6 and found.report.recomputed_flops < 0.05 * found.report.flops
    is_right(found, training.feeds)
    lifted, _ = graphopt.lift_parameters(training.model, training.parameters)
    inputs = graphopt.split(
        lifted, training.loss, training.parameters, outputs="loss", dims=found.report.dims
    )
    assert inputs.report.saved == found.report.saved


def test_two_runs_give_the_same_bytes() -> None:
    training = transformer(causal=True, blocks=1, width=32, heads=2, length=8, batch=2)
    one, other = (split_of(training, memory_budget=0.4) for _ in range(2))
    assert ir.to_bytes(one.forward) == ir.to_bytes(other.forward)
    assert ir.to_bytes(one.backward) == ir.to_bytes(other.backward)


def test_constant_gradients_are_outputs_of_the_backward_model() -> None:
    model = parse("m (float[2] x, float[2] z) => (float[2] y) { y = Exp(x) }")
    found = graphopt.split(model, ["y"], ["x", "z"])
    assert names(found.backward.graph.outputs) == ["grad.x", "grad.z"]
    assert is_right(found, feeds(**{"x": (2,), "z": (2,), "cotangent.y": (2,)}))


def test_control_flow_is_not_recomputed() -> None:
    model = parse("""m (float[3] x, bool c) => (float[3] y) {
        s = Sigmoid(x)
        i = If(c) <then_branch = t () => (float[3] a) { a = Mul(s, s) },
                   else_branch = e () => (float[3] b) { b = Exp(s) }>
        y = Sin(i) }""")
    for budget in (1.0, 0.0):
        found = graphopt.split(model, ["y"], ["x"], memory_budget=budget)
        assert "If" not in found.report.recomputed
        for c in (True, False):
            is_right(found, feeds(**{"x": (3,), "cotangent.y": (3,)}) | {"c": np.asarray(c)})


def test_rejoined_split_has_the_signature_of_the_joint_graph() -> None:
    found = graphopt.split(mlp(), "mse:y,t", memory_budget=0)
    model, joint = rejoin(found), found.joint.model
    assert ir.find_fault(model) is None
    assert names(model.graph.inputs) == names(joint.graph.inputs)
    assert names(model.graph.outputs) == names(joint.graph.outputs)


#: Nodes of random graphs: templates over values of the shape [N, 4].
UNARY = ("Sigmoid", "Tanh", "Sin", "Exp", "Relu", "Identity", "Neg")


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """A model of values x0, x1, … of one shape that returns the last one, and sometimes others."""
    lines = []
    count = draw(st.integers(1, 12))
    for index in range(1, count + 1):
        a, b = (draw(st.integers(max(0, index - 4), index - 1)) for _ in range(2))
        kind = draw(st.sampled_from(("unary", "unary", "add", "mul", "matmul", "norm", "softmax", "split")))
        lines.append(
            {
                "unary": f"x{index} = {draw(st.sampled_from(UNARY))}(x{a})",
                "add": f"x{index} = Add(x{a}, x{b})",
                "mul": f"m{index} = Mul(x{a}, x{b}) x{index} = Tanh(m{index})",
                "matmul": f"x{index} = MatMul(x{a}, w)",
                "norm": f"x{index} = LayerNormalization(x{a}, s)",
                "softmax": f"x{index} = Softmax(x{a})",
                "split": f"l{index}, r{index} = Split<axis=1, num_outputs=2>(x{a}) "
                f"x{index} = Concat<axis=1>(r{index}, l{index})",
            }[kind]
        )
    others = draw(st.sets(st.integers(1, count), max_size=2)) | {count}
    returned = ", ".join(f"float[N,4] x{index}" for index in sorted(others))
    return (
        f"m (float[N,4] x0) => ({returned}) <float[4,4] w = {numbers(16)}, float[4] s = {{1, 2, 0.5, 1}}>"
        f" {{ {' '.join(lines)} }}"
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(text=graphs(), budget=st.sampled_from((1.0, 0.7, 0.4, 0.0)), size=st.sampled_from((1, 10_000)))
def test_random_graphs_split_at_each_budget(text: str, budget: float, size: int) -> None:
    model = parse(text, opset=18)
    outputs = names(model.graph.outputs)
    found = graphopt.split(model, outputs, ["x0", "w", "s"], memory_budget=budget, dims={"N": size})
    shapes = {"x0": (3, 4), **{name: (3, 4) for name in found.joint.cotangents.values()}}
    is_right(found, feeds(**shapes))


def _unranked(opset: int) -> ir.Model:
    """A model with intermediate values of a data-dependent rank."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        m (float[N, M] v, float[K] w, int64[2] s, bool c) => (float y) {{
        a = If(c)<then_branch = t () => (float p) {{ k = Exp(v) p = Squeeze(k) }},
                  else_branch = e () => (float q) {{ q = Reshape(v, s) }}>
        b = Sin(a) d = Mul(b, w) f = Tanh(d) y0 = ReduceMean<keepdims=0>(f) y = Identity(y0) }}""")
    for attribute in proto.graph.node[0].attribute:
        attribute.g.output[0].type.tensor_type.ClearField("shape")
    onnx.checker.check_model(proto, full_check=True)
    return ir.from_proto(proto)


@pytest.mark.parametrize("options", [{}, {"memory_budget": 0.0}, {"save_everything": True}])
def test_residuals_of_unknown_rank_are_saved_as_elements_and_shape(options: dict[str, Any]) -> None:
    """The checker requires a rank of each input and output."""
    found = api.split(_unranked(17), "y", ["v", "w"], **options)
    for half in (found.forward, found.backward):
        onnx.checker.check_model(ir.to_proto(half), full_check=True)
    saved = [item.value for item in found.saved]
    assert any("elements" in name for name in saved) and any("shape" in name for name in saved)
    assert api.verify_split(found).ok
