"""views-to-reshape writes every view that it can as one Reshape to a constant shape."""

from __future__ import annotations

import copy

import pytest

import graphopt
from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline


def rewritten(text: str, opset: int = 17) -> ir.Model:
    """The model after the pass, which is equivalent and not changed by a second run."""
    original, model = parse(text, opset=opset), parse(text, opset=opset)
    run_pipeline(model, "views-to-reshape")
    verdict = graphopt.verify(original, model, bits=True)
    assert verdict.ok, verdict
    _, cx = run_pipeline(copy.deepcopy(model), "views-to-reshape")
    assert cx.actions == 0
    return model


def shapes(model: ir.Model) -> list[list[int]]:
    """The constant shapes of the Reshapes of the main graph."""
    told = [ir.constant_of(node.inputs[1]) for node in model.graph if node.op_type == "Reshape"]
    return [tensor.numpy().tolist() for tensor in told if tensor is not None]


@pytest.mark.parametrize(
    ("view", "shape"),
    [
        ("y = Unsqueeze(x, first)", [1, -1, 3, 4]),
        ("y = Flatten<axis = 2>(x)", [-1, 4]),
        ("y = Reshape(x, copied)", [0, 12]),
        ("t = Unsqueeze(x, first)  u = Flatten<axis = 2>(t)  y = Reshape(u, copied)", [0, 12]),
    ],
)
def test_a_view_becomes_a_reshape_to_a_constant(view: str, shape: list[int]) -> None:
    dims = ",".join("ABCD"[: len(shape)])
    model = rewritten(
        f"""g (float[N,3,4] x) => (float[{dims}] y) <int64[1] first = {{0}}, int64[2] copied = {{0, -1}}> {{
            {view}
        }}"""
    )
    assert ops(model) == ["Reshape"]
    assert shapes(model) == [shape]


@pytest.mark.parametrize(("opset", "squeeze"), [(11, "Squeeze<axes = [0]>(x)"), (13, "Squeeze(x, first)")])
def test_squeeze_at_each_opset(opset: int, squeeze: str) -> None:
    text = f"g (float[1,N,4] x) => (float[N,4] y) <int64[1] first = {{0}}> {{ y = {squeeze} }}"
    assert shapes(rewritten(text, opset)) == [[-1, 4]]


def test_inverse_mutations_are_removed() -> None:
    model = rewritten(
        """g (float[N,M] x) => (float[N,M] y) <int64[1] first = {0}> {
            t = Unsqueeze(x, first)
            u = Squeeze(t, first)
            y = Relu(u)
        }"""
    )
    assert ops(model) == ["Relu"]


def test_two_unknown_dims_that_move_stay() -> None:
    text = "g (float[N,M] x) => (float[1,N,M] y) <int64[1] first = {0}> { y = Unsqueeze(x, first) }"
    assert ops(rewritten(text)) == ["Unsqueeze"]


def test_view_with_other_readers_is_kept() -> None:
    model = rewritten(
        """g (float[2,3] x) => (float[6] y, float[1,6] z) <int64[1] flat = {-1}, int64[1] first = {0}> {
            y = Reshape(x, flat)
            z = Unsqueeze(y, first)
        }"""
    )
    assert shapes(model) == [[6], [1, 6]]
    assert [node.inputs[0].name for node in model.graph if node.inputs[0] is not None] == ["x", "x"]


def test_a_long_chain_is_one_reshape() -> None:
    steps = ["v0 = Reshape(x, flat)"]
    steps += [f"v{i + 1} = {'Squeeze' if i % 2 else 'Unsqueeze'}(v{i}, first)" for i in range(2001)]
    model = parse(
        f"""g (float[2,3] x) => (float[1,6] y) <int64[1] flat = {{-1}}, int64[1] first = {{0}}> {{
            {" ".join(steps)} y = Relu(v2001)
        }}"""
    )
    run_pipeline(model, "views-to-reshape")
    assert ops(model) == ["Reshape", "Relu"]
