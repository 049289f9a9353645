"""Convolutions: static and dynamic dims and pads, and second derivatives.

onnxruntime has most in single precision only.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.losses import Loss
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import parse

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def dims(shape: tuple[int, ...], name: str, known: bool) -> str:
    return ",".join(str(size) if known else f"{name}{axis}" for axis, size in enumerate(shape))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 9), (4, 3, 3), "<strides=[2], pads=[2, 0]>"),
        ((2, 4, 12), (4, 1, 5), "<group=4, dilations=[2], pads=[4, 4]>"),
        ((2, 3, 6, 7), (4, 3, 3, 3), "<pads=[1, 0, 2, 1]>"),
        ((2, 3, 6, 7), (4, 3, 1, 1), ""),
        ((2, 3, 6, 7), (4, 3, 1, 1), "<strides=[3, 2]>"),
        ((2, 3, 4, 5), (4, 3, 2, 2), "<strides=[2, 3], pads=[3, 2, 4, 3]>"),
        ((2, 4, 8, 7), (6, 2, 3, 2), "<group=2, strides=[3, 2], pads=[1, 1, 1, 0]>"),
        ((2, 3, 8, 9), (2, 3, 4, 4), "<strides=[3, 3], dilations=[2, 1], pads=[0, 1, 0, 1]>"),
        ((2, 3, 8, 9), (2, 3, 3, 2), '<auto_pad="SAME_UPPER", strides=[3, 2]>'),
        ((2, 3, 8, 9), (2, 3, 5, 2), '<auto_pad="SAME_LOWER", strides=[2, 3]>'),
        ((2, 3, 8, 9), (2, 3, 3, 2), '<auto_pad="SAME_LOWER">'),
        ((1, 2, 5, 4, 6), (2, 2, 2, 1, 3), "<strides=[2, 1, 1], pads=[0, 0, 1, 1, 0, 0]>"),
    ],
)
def test_conv(x: tuple[int, ...], w: tuple[int, ...], attributes: str, known: bool) -> None:
    text = f"""m (float[{dims(x, "X", known)}] x, float[{dims(w, "W", known)}] w, float[B] b)
        => (float[{dims(x, "Y", False)}] y) {{ y = Conv{attributes}(x, w, b) }}"""
    check(text, {"x": numbers(*x), "w": numbers(*w), "b": numbers(w[0])}, twice=not known)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 5), (3, 2, 4), "<strides=[3], pads=[2, 0], output_padding=[2]>"),
        ((2, 4, 5, 4), (4, 1, 3, 3), "<group=4, strides=[2, 1], pads=[1, 0, 0, 2]>"),
        ((2, 4, 4, 3), (4, 3, 2, 2), "<group=2, dilations=[2, 1]>"),
        ((2, 3, 4, 3), (3, 2, 4, 3), '<auto_pad="SAME_UPPER", strides=[2, 2]>'),
        ((2, 3, 4, 3), (3, 2, 4, 3), '<auto_pad="SAME_LOWER", strides=[3, 2], output_padding=[1, 1]>'),
        ((2, 3, 4, 3), (3, 2, 3, 4), "<strides=[2, 3], output_shape=[8, 9]>"),
        ((2, 3, 4, 3), (3, 2, 3, 4), "<strides=[2, 3], output_shape=[10, 11]>"),
        ((1, 2, 3, 2, 4), (2, 2, 2, 1, 3), "<strides=[2, 1, 1], pads=[0, 0, 1, 1, 0, 0]>"),
    ],
)
def test_conv_transpose(x: tuple[int, ...], w: tuple[int, ...], attributes: str, known: bool) -> None:
    text = f"""m (float[{dims(x, "X", known)}] x, float[{dims(w, "W", known)}] w, float[B] b)
        => (float[{dims(x, "Y", False)}] y) {{ y = ConvTranspose{attributes}(x, w, b) }}"""
    bias = w[1] * (int(attributes[7]) if "group" in attributes else 1)
    check(text, {"x": numbers(*x), "w": numbers(*w), "b": numbers(bias)}, twice=not known)


def test_col2im() -> None:
    attributes = "<dilations=[2, 1], pads=[1, 0, 2, 1], strides=[2, 3]>"
    blocks = "k = Constant<value = int64[2] {2, 3}>()"
    feeds = {"x": numbers(2, 18, 12), "i": np.array([7, 9])}
    text = (
        f"m (float[N,C,L] x, int64[2] i) => (float[N,D,H,W] y) {{ {blocks} y = Col2Im{attributes}(x, i, k) }}"
    )
    check(text, feeds, twice=True)
    text = f"m (float[N,C,L] x, int64[2] i, int64[2] k) => (float[N,D,H,W] y) {{ y = Col2Im{attributes}(x, i, k) }}"
    check(text, {**feeds, "k": np.array([2, 3])}, twice=True)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("w", "offset", "attributes"),
    [
        ((4, 4, 3, 2), (2, 12, 4, 6), ""),
        ((2, 4, 2, 3), (2, 12, 4, 5), "<pads=[1, 0, 1, 2], strides=[2, 1], dilations=[1, 2]>"),
        ((4, 2, 2, 2), (2, 16, 5, 6), "<group=2, offset_group=2>"),
        ((4, 1, 2, 2), (2, 8, 6, 7), "<group=4, pads=[1, 0, 0, 1]>"),
    ],
)
def test_deform_conv(w: tuple[int, ...], offset: tuple[int, ...], attributes: str, known: bool) -> None:
    x, mask = (2, 4, 6, 7), (2, offset[1] // 2, *offset[2:])
    text = f"""m (double[{dims(x, "X", known)}] x, double[{dims(w, "W", True)}] w,
        double[{dims(offset, "O", known)}] o, double[B] b, double[{dims(mask, "M", known)}] m)
        => (double[{dims(x, "Y", False)}] y) {{ y = DeformConv{attributes}(x, w, o, b, m) }}"""
    shapes = {"x": x, "w": w, "o": offset, "b": (w[0],), "m": mask}
    feeds = {name: RANDOM.standard_normal(shape) for name, shape in shapes.items()}
    check(text, feeds, opset=19, twice=known and not attributes)


def test_deform_conv_with_unknown_kernel_size_is_refused() -> None:
    text = "m (float[N,C,H,W] x, float[A,B,D,E] w, float[N,F,G,I] o) => (float[N,A,G,I] y) { y = DeformConv(x, w, o) }"
    with pytest.raises(NoGradient, match="the size of its kernels is unknown"):
        differentiate(parse(text, opset=19), ["y"], ["x"])


@pytest.mark.parametrize("w", [(4, 4, 3, 3), (4, 4, 5, 5), (4, 1, 3, 3), (4, 2, 1, 1), (4, 4, 1, 1)])
def test_empty_batch(w: tuple[int, ...]) -> None:
    text = f"""m (float[N,4,H,W] x, float[{dims(w, "", True)}] w) => (float[A,B,C,D] y)
        {{ y = Conv<group={4 // w[1]}>(x, w) }}"""
    joint = differentiate(parse(text), ["y"], ["x", "w"])
    feeds = {"x": numbers(0, 4, 6, 6), "w": numbers(*w)}
    sizes = [7 - size for size in w[2:]]
    found = run(joint.model, {**feeds, "cotangent.y": numbers(0, 4, *sizes)})
    assert found["grad.x"].shape == (0, 4, 6, 6)
    assert found["grad.w"].shape == w and not found["grad.w"].any()


def test_nodes_of_the_gradient() -> None:
    def nodes(x: str, w: str, attributes: str, wrt: str) -> dict[str, int]:
        text = f"m (float[{x}] x, float[{w}] w) => (float[A,B,C,D] y) {{ y = Conv{attributes}(x, w) }}"
        joint = differentiate(parse(text), ["y"], [wrt], outputs="loss")
        found = Counter(node.op_type for node in joint.model.graph)
        return dict(found - Counter(["Conv"]))  # the forward one

    assert nodes("N,8,H,W", "4,8,3,3", "<pads=[1,1,1,1]>", "x") == {"ConvTranspose": 1}
    assert nodes("N,8,9,9", "4,8,3,3", "<strides=[2,2]>", "x") == {"ConvTranspose": 1}
    assert nodes("N,8,H,W", "4,8,3,3", "<strides=[2,2]>", "x") == {"ConvTranspose": 1, "Shape": 1, "Slice": 1}
    assert nodes("N,8,H,W", "4,8,1,1", "", "x") == {"Transpose": 1, "Conv": 1}
    assert nodes("4,3,H,W", "4,3,7,7", "<strides=[2,2]>", "w") == {"Transpose": 3, "Conv": 1, "Slice": 1}
    folded = {"Transpose": 2, "Flatten": 2, "Gemm": 1, "Reshape": 1}
    assert nodes("N,8,H,W", "4,8,1,1", "", "w") == folded
    assert nodes("N,8,H,W", "4,8,1,1", "<strides=[2,2]>", "w") == {**folded, "Slice": 1}
    apart = {"Reshape": 3, "Transpose": 1, "MatMul": 1, "ReduceSum": 1}
    assert nodes("N,8,9,9", "4,8,1,1", "", "w") == apart
    assert sum(nodes("N,8,H,W", "4,8,3,3", "<pads=[1,1,1,1]>", "w").values()) == 20


def test_small_network() -> None:
    w1, w2, w3 = numbers(4, 3, 3, 3), numbers(4, 1, 3, 3), numbers(6, 4, 1, 1)
    text = """m (float[N,3,H,W] x, float[4,3,3,3] w1, float[4] b1, float[4,1,3,3] w2, float[6,4,1,1] w3, int64[N] t)
        => (float[N,K] logits) {
            a = Conv<pads=[1,1,1,1]>(x, w1, b1)
            b = Softplus(a)
            c = Conv<group=4, pads=[1,1,1,1], strides=[2,2]>(b, w2)
            d = Conv(c, w3)
            k = Constant<value = int64[2] {2, 3}>()
            logits = ReduceMean<keepdims=0>(d, k)
        }"""
    model = parse(text, opset=18)
    joint = differentiate(model, Loss.parse("cross_entropy:logits,t"), ["w1", "b1", "w2", "w3"])
    feeds = {"x": numbers(2, 3, 6, 5), "w1": w1, "b1": numbers(4), "w2": w2, "w3": w3, "t": np.array([1, 4])}
    found = run(joint.model, feeds)
    for name in ("w1", "b1", "w2", "w3"):
        direction = numbers(*feeds[name].shape)
        up, down = (
            run(joint.model, {**feeds, name: feeds[name] + step * direction})["loss"]
            for step in (0.01, -0.01)
        )
        assert np.isclose(np.sum(found[f"grad.{name}"] * direction), (up - down) / 0.02, rtol=5e-3, atol=2e-3)
    assert joint.model.graph.num_nodes() < 75


def test_sums_over_a_possibly_empty_batch_are_zero() -> None:
    text = "m (float[A,3,C,D] x, float[E,3,F,G] w) => (float[A,E,H,I] y) { y = Conv(x, w) }"
    joint = differentiate(parse(text, opset=18), ["y"], ["w"])
    # memory is often zero, so that values prove nothing
    (choice,) = [node for node in joint.model.graph if node.op_type == "Where"]
    convs = [node for node in joint.model.graph if node.op_type == "Conv"]
    assert any(value is not None and value.producer() in convs for value in choice.inputs)
    feeds = {"x": numbers(0, 3, 5, 6), "w": numbers(4, 3, 2, 2), "cotangent.y": numbers(0, 4, 4, 5)}
    assert run(joint.model, feeds)["grad.w"].tolist() == np.zeros((4, 3, 2, 2)).tolist()
