"""Values of unknown rank, as exporters write them after branches."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.losses import Loss
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import parse

RANDOM = np.random.default_rng(0)
DIMS = {
    "Conv(x, w, b)": ((2, 3, 6), {"w": (4, 3, 2), "b": (4,)}),
    "MaxPool<kernel_shape=[2]>(x)": ((2, 3, 6), {}),
    "Slice(x, one, two, one)": ((3, 4), {}),
    "Slice(x, one, two, one, two)": ((3, 4), {}),
    "LSTM<hidden_size=2>(x, w, r)": ((3, 2, 2), {"w": (1, 8, 2), "r": (1, 8, 2)}),
    "MatMul(x, w)": ((2, 3, 4), {"w": (4, 2)}),
    "Softmax<axis=-1>(x)": ((3, 4), {}),
    "Concat<axis=0>(x, x)": ((3, 4), {}),
    "Tanh(x)": ((3, 4), {}),
    "ReduceMean(x)": ((3, 4), {}),
    "Flatten<axis=1>(x)": ((3, 2, 2), {}),
    "Transpose(x)": ((3, 4), {}),
}


@pytest.mark.parametrize("operator", DIMS)
def test_gradients_of_values_of_unknown_rank(operator: str) -> None:
    shape, others = DIMS[operator]
    given = "".join(f", float[{','.join(map(str, dims))}] {name}" for name, dims in others.items())
    text = f"""m (float[N] v, int64[K] s{given}) => (float y) {{
        one = Constant<value = int64[1] {{1}}>() two = Constant<value = int64[1] {{3}}>()
        x = Reshape(v, s) z = {operator} y = Mul(z, z) }}"""
    feeds = {"v": RANDOM.standard_normal(int(np.prod(shape))), "s": np.array(shape)}
    feeds |= {name: RANDOM.standard_normal(dims) for name, dims in others.items()}
    single = {
        name: value.astype(np.float32) if value.dtype == float else value for name, value in feeds.items()
    }
    check(text, single, tolerance=5e-3)


@pytest.mark.parametrize("declared", ["float[2]", "float[a,b]", "float[3,1]", "float[a,b,c]", "float"])
def test_wrong_declared_shape_of_an_output_is_not_used(declared: str) -> None:
    """onnxruntime trusts the declaration if it can't infer the shape, and plans memory with it."""
    model = parse(f"""m (float[N,4,1] x, float[4,K] w) => ({declared} y) {{
        s = Mul(x, x) q = Squeeze(s) y = MatMul(q, w) }}""")
    joint = differentiate(model, Loss("mse", "y", "target"), ["w"])
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 4, 1), (4, 2)))
    found = run(joint.model, {"x": x, "w": w, "target": np.zeros((3, 2), np.float32)})
    squared = x[..., 0] ** 2
    assert np.allclose(found["y"], squared @ w, atol=1e-5)
    assert np.allclose(found["grad.w"], squared.T @ (squared @ w) / 3, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "u = MatMul(v, w) e = Elu(u) y = Neg(e)",
            "the element type of 'a', the result of d::Foo, is unknown",
        ),
        ("y = MatMul(w, v)", "the rank of 'a', the result of d::Foo, is unknown"),
    ],
)
def test_refusals_name_the_unknown_operator(body: str, reason: str) -> None:
    text = f"m (float[4] x, float[4] w) => (float[p] y) {{ a = d.Foo(x) v = Concat<axis = 0>(a, a) {body} }}"
    with pytest.raises(NoGradient) as caught:
        differentiate(parse(text, domains=', "d" : 1'), ["y"], ["w"])
    assert caught.value.reason == reason
