"""LSTM, GRU and RNN: gradients against differences of onnxruntime's results, which are float32."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.autodiff.joint_graph import COTANGENT, differentiate
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import run
from tests.autodiff.recurrent_models import BATCH, GATES, INPUTS, STEPS, H, check, feeds
from tests.model_testing import ops, parse


def model(
    op: str, given: str, attributes: str = "", *, outputs: str = "yhc", sizes: str = "T,B,I"
) -> ir.Model:
    """A model with one operator with the named inputs and outputs."""
    ranks = {"b": 2, "p": 2, "y": 4}
    order = ["x", "w", "r", "b", "lens", "h0", "c0", "p"]
    names = [name for name in order if name in given.split()]
    read = [name for name in ("yhc" if op == "LSTM" else "yh") if name in outputs]
    inputs = ", ".join(
        f"float[{'?,' * (ranks.get(name, 3) - 1)}?] {name}" for name in names if name not in ("x", "lens")
    )
    lens = ", int32[B] lens" if "lens" in names else ""
    results = ", ".join(f"float[{'?,' * (ranks.get(name, 3) - 1)}?] {name}" for name in read)
    operands = ", ".join(name if name in names else "" for name in order[: order.index(names[-1]) + 1])
    left = ", ".join(name if name in read else "" for name in "yhc"[: "yhc".index(read[-1]) + 1])
    return parse(f"""m (float[{sizes}] x, {inputs}{lens}) => ({results})
        {{ {left} = {op}<hidden_size={H}{attributes}>({operands}) }}""")


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    ("direction", "given"),
    [("forward", "x w r"), ("forward", "x w r b lens h0 c0 p"), ("reverse", "x w r b h0"),
     ("reverse", "x w r b lens h0 c0"), ("bidirectional", "x w r b lens h0 c0 p")],
)  # fmt: skip
def test_directions_and_inputs(op: str, direction: str, given: str) -> None:
    given = given if op == "LSTM" else given.replace(" c0", "").replace(" p", "")
    count = 2 if direction == "bidirectional" else 1
    check(model(op, given, f', direction="{direction}"'), feeds(op, given, count))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("LSTM", ", input_forget=1, clip=1.5"), ("GRU", ", linear_before_reset=1, clip=2.0"), ("RNN", ", clip=2.5"),
     ("LSTM", ', activations=["Softsign","Affine","ScaledTanh"], activation_alpha=[0.5,0.75], activation_beta=[0.25,0.5]'),
     ("LSTM", ', activations=["Softplus","Tanh","Sigmoid"]'),
     ("GRU", ', activations=["Sigmoid","Elu"], activation_alpha=[0.75]'),
     ("GRU", ', linear_before_reset=1, activations=["HardSigmoid","Softplus"], activation_alpha=[0.375]'),
     ("RNN", ', activations=["Affine"], activation_alpha=[0.5], activation_beta=[0.25]'),
     ("RNN", ', activations=["ThresholdedRelu"], activation_alpha=[-4.0]')],
)  # fmt: skip
def test_attributes(op: str, attributes: str) -> None:
    given = "x w r b h0 c0 p" if op == "LSTM" else "x w r b h0"
    check(model(op, given, attributes), feeds(op, given))


@pytest.mark.parametrize(
    ("op", "outputs"), [("LSTM", "y"), ("LSTM", "h"), ("LSTM", "c"), ("GRU", "h"), ("RNN", "h")]
)
def test_omitted_outputs(op: str, outputs: str) -> None:
    joint = check(model(op, "x w r b", outputs=outputs), feeds(op, "x w r b"))
    assert ops(joint.model).count(op) == 1


@pytest.mark.parametrize("sizes", [f"{STEPS},{BATCH},{INPUTS}", "?,?,?", f"{STEPS},?,{INPUTS}"])
def test_known_and_unknown_sizes(sizes: str) -> None:
    for op in GATES:
        check(model(op, "x w r lens", sizes=sizes), feeds(op, "x w r lens"))


def test_empty_sequence_returns_zeros() -> None:
    given = "x w r lens h0"
    point = feeds("RNN", given) | {"lens": np.array([0, 4, 2], np.int32)}
    joint = check(model("RNN", given, outputs="h"), point)
    ones = {COTANGENT + "h": np.ones((1, BATCH, H), np.float32)}
    found = run(joint.model, {**point, **ones})["grad.h0"]
    assert not found[0, 0].any() and found[0, 1:].all()


@pytest.mark.parametrize(
    ("op", "given"), [("LSTM", "x w r lens p"), ("LSTM", "x w r c0"), ("GRU", "x w r"), ("RNN", "x w r h0")]
)
def test_second_derivatives(op: str, given: str) -> None:
    point = feeds(op, given)
    joint = differentiate(model(op, given, outputs="y"), ["y"], [name for name in point if name != "lens"])
    check(
        joint.model,
        {**point, COTANGENT + "y": np.ones((STEPS, 1, BATCH, H), np.float32)},
        joint.gradients.values(),
    )


def test_unneeded_gradients_are_not_computed() -> None:
    lstm = model("LSTM", "x w r b", outputs="y")
    only_x, all_of_them = (differentiate(lstm, ["y"], wrt).model for wrt in (["x"], "inputs"))
    for op_type in ("Gemm", "ReduceSum", "Concat"):
        assert ops(only_x).count(op_type) < ops(all_of_them).count(op_type)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (", layout=1", "onnxruntime runs it with layout=0 only"),
        (', activations=["Affine"], activation_alpha=[1.0]', "its Affine has no beta"),
        (', activations=["Sine"]', "its activation function Sine is unknown"),
    ],
)
def test_refusals(attributes: str, reason: str) -> None:
    with pytest.raises(NoGradient) as caught:
        differentiate(model("RNN", "x w r", attributes), ["y"], ["x"])
    assert caught.value.reason == reason
