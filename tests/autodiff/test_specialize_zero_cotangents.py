"""Backward models specialized for zero cotangents."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.specialize_zero_cotangents import specialize_zero_cotangents
from tests.autodiff.models import run
from tests.model_testing import ops, parse

MODEL = """m (float[N,3] x, float[3,2] w, float[3] b) => (float[N,2] y, float[N,3] z, float v) {
    h = Exp(x) y = MatMul(h, w) s = Sub(b, h) z = Mul(s, x) v = ReduceSum<keepdims=0>(z) }"""


@pytest.mark.parametrize("absent", [["y"], ["z"], ["v"], ["y", "v"], ["z", "v"], ["y", "z"]])
def test_values_of_zero_cotangents_are_not_computed(absent: list[str]) -> None:
    joint = differentiate(parse(MODEL), ["y", "z", "v"], ["x", "w", "b"])
    random = np.random.default_rng(0)
    feeds = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in (("x", (4, 3)), ("w", (3, 2)), ("b", (3,)))
    }
    given = {"y": random.standard_normal((4, 2)), "z": random.standard_normal((4, 3)), "v": np.array(2.0)}
    zeros = {
        f"cotangent.{name}": np.asarray(value * (name not in absent), np.float32)
        for name, value in given.items()
    }
    expected = run(joint.model, feeds | zeros)
    less = specialize_zero_cotangents(
        joint.model, joint.cotangents.values(), [joint.cotangents[name] for name in absent]
    )
    spared = len(ops(joint.model)) - len(ops(less))
    assert spared >= (absent != ["z"])  # the gradient of v is broadcast by the sum with that of z
    left = [value.name for value in less.graph.inputs]
    found = run(less, {name: value for name, value in (feeds | zeros).items() if name in left})
    for name, value in expected.items():
        if name in found:
            assert np.allclose(found[name], value, atol=1e-6), name
        else:
            assert not value.any(), name
    assert ("grad.w" in found) == ("y" not in absent) and ("grad.b" in found) == (
        not {"z", "v"} <= set(absent)
    )


def test_gradient_broadcast_by_a_zero_keeps_its_shape() -> None:
    text = "m (float[N,3] x) => (float[N,3] z, float v) { z = Neg(x) v = ReduceSum<keepdims=0>(z) }"
    joint = differentiate(parse(text), ["z", "v"], ["x"])
    less = specialize_zero_cotangents(joint.model, joint.cotangents.values(), [joint.cotangents["z"]])
    feeds = {"x": np.ones((2, 3)), "cotangent.z": np.zeros((2, 3)), "cotangent.v": np.array(2.0)}
    taken = [value.name for value in less.graph.inputs]
    found = run(less, {name: value.astype(np.float32) for name, value in feeds.items() if name in taken})
    assert found["grad.x"].tolist() == [[-2] * 3] * 2
