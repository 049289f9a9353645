"""Empty tensors, for which onnxruntime needs workarounds."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from tests.autodiff.models import run
from tests.model_testing import parse


def gradients(
    text: str,
    feeds: dict[str, np.ndarray],
    shape: tuple[int, ...],
    *,
    opset: int = 18,
    warm: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """The gradients for cotangents of ones, without and with onnxruntime's optimizations."""
    model = parse(text, opset=opset)
    wrt = [
        value.name or ""
        for value in model.graph.inputs
        if value.dtype is not None and value.dtype.is_floating_point()
    ]
    joint = differentiate(model, ["y"], wrt)
    found = {}
    for optimizations in ("off", "default"):
        for _ in range(3):  # memory that was used holds other numbers than zeros
            np.full(1000, 7.5, np.float32).copy()
            found = run(joint.model, {**feeds, "cotangent.y": np.ones(shape, np.float32)}, optimizations)
        for name, output in joint.gradients.items():
            assert found[output].shape == feeds[name].shape, (name, optimizations)
    return {name: found[output] for name, output in joint.gradients.items()}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("text", "a", "b", "y"),
    [
        ("m (float[B,T,3] a, float[B,3,4] b) => (float[B,T,4] y) { y = MatMul(a, b) }", (7, 0, 3), (7, 3, 4), (7, 0, 4)),
        ("m (float[M,K] a, float[B,K,N] b) => (float[B,M,N] y) { y = MatMul(a, b) }", (2, 2), (7, 2, 0), (7, 2, 0)),
        ("m (float[B,T,3] a, float[B,3,4] b) => (float[B,T,4] y) { y = Einsum<equation=\"btk,bkn->btn\">(a, b) }", (7, 0, 3), (7, 3, 4), (7, 0, 4)),
    ],
)  # fmt: skip
def test_empty_sums_are_zero(text: str, a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...]) -> None:
    found = gradients(text, {"a": ones(*a), "b": ones(*b)}, y)
    assert not found["a"].any() and not found["b"].any()


@pytest.mark.parametrize(
    ("text", "x", "y"),
    [
        ("y = Flatten<axis=0>(x)", (0, 0), (1, 0)), ("y = Flatten<axis=2>(x)", (2, 3, 0), (6, 0)),
        ("y = Squeeze(x)", (1, 0), (0,)), ("y = Tile(x, i)", (2, 3), (4, 0)), ("y = Compress(x, c)", (2, 0), (0,)),
    ],
)  # fmt: skip
def test_shapes_with_zeros_require_opset_14(text: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    dims = ",".join("ABC"[: len(x)])
    feeds = {"x": ones(*x), "i": np.array([2, 0]), "c": np.zeros(0, bool)}
    gradients(f"m (float[{dims}] x, int64[2] i, bool[N] c) => (float y) {{ {text} }}", feeds, y, opset=13)


def test_squeeze_without_axes() -> None:
    text = "m (float[2,1,3] x) => (float[2,3] y) { a = Constant<value = int64[0] {}>() y = Squeeze(x, a) }"
    assert gradients(text, {"x": ones(2, 1, 3)}, (2, 3))["x"].all()


def test_gather_from_an_empty_table() -> None:
    text = """m (float[2,3] x, int64[N] e) => (float y) { k = Constant<value = int64[1] {0}>()
        a, b = TopK(x, k) y = Gather<axis=0>(a, e) }"""
    assert not gradients(text, {"x": ones(2, 3), "e": np.zeros(0, np.int64)}, (0, 0))["x"].any()


def test_second_derivative_of_an_empty_expand() -> None:
    model = parse(
        "m (float[3,2] x) => (float[3,0] y) { r = Constant<value = int64[2] {1, 0}>() z = Mul(x, x) y = Tile(z, r) }"
    )
    first = differentiate(model, ["y"], ["x"])
    second = differentiate(first.model, ["grad.x"], ["x", "cotangent.y"])
    feeds = {"x": ones(3, 2), "cotangent.y": ones(3, 0), "cotangent.grad.x": ones(3, 2)}
    for optimizations in ("off", "default"):
        found = run(second.model, feeds, optimizations)
        assert not found["grad2.x"].any() and found["grad2.cotangent.y"].shape == (3, 0)


@pytest.mark.parametrize("size", ["of 0", "that may be 0"])
def test_possibly_empty_sums_are_masked(size: str) -> None:
    """Uninitialized memory is often zero, so that values prove nothing."""
    given = "x, e, e, o" if size == "of 0" else "x, s, e, o"
    text = f"""m (float[7,2,3] x, float[7,3,4] b, int64[1] s) => (float y) <int64[1] e = {{2}}, int64[1] o = {{1}}> {{
        a = Slice({given}) y = MatMul(a, b) }}"""
    joint = differentiate(parse(text, opset=18), ["y"], ["b"], optimize=False)
    (choice,) = [node for node in joint.model.graph if node.op_type == "Where"]
    assert any(value is not None and _makes(value) == "MatMul" for value in choice.inputs)


def _makes(value: ir.Value) -> str | None:
    maker = value.producer()
    return None if maker is None else maker.op_type


PITFALLS = {
    # reused memory of the size of the result is not zero
    "MatMul": """m (float[M,K] a, float[B,K,N] b, float[B,M,N] c) => (float s, float[B,M,N] y) {
        d = Exp(c) e = Exp(d) s = ReduceSum(e) p = MatMul(a, b) y = Neg(p) }""",
    "Expand": "m (float[3,1] c) => (float[M,N] y) <int64[2] s = {3, 0}> { d = Exp(c) p = Expand(d, s) y = Neg(p) }",
}


@pytest.mark.parametrize("operator", PITFALLS)
def test_onnxruntime_still_needs_the_workaround(operator: str) -> None:
    """Skips once onnxruntime is correct: then the workaround in empty_tensor_workarounds.py can be removed."""
    shapes = {"a": (3, 0), "b": (7, 0, 4), "c": (7, 3, 4)} if operator == "MatMul" else {"c": (3, 1)}
    feeds = {name: ones(*shape) for name, shape in shapes.items()}
    if not run(parse(PITFALLS[operator], opset=18), feeds)["y"].any():
        pytest.skip(
            f"onnxruntime computes empty {operator} correctly: empty_tensor_workarounds.py is no longer needed"
        )
