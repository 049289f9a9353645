"""Gradients in float64 beyond onnx's node tests: dynamic dims, empty dims and special values."""

from __future__ import annotations

import math

import numpy as np
import pytest

import graphopt
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((4, 2, 3), (3, 2)), ((4, 2, 3), (3,)), ((3,), (4, 3, 2)),
     ((2, 3), (4, 3, 2)), ((5, 1, 2, 3), (4, 3, 2)), ((1, 2, 3), (4, 3, 2)), ((4, 2, 3), (1, 3, 2))],
)  # fmt: skip
def test_matrix_products(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    dims = ["ABCD"[-len(a) :], "EFGH"[-len(b) :]]
    left, right = (",".join(name) for name in dims)
    text = f"m (double[{left}] a, double[{right}] b) => (double y) {{ y = MatMul(a, b) }}"
    check(text, {"a": numbers(*a), "b": numbers(*b)})
    static = text.replace(left, ",".join(map(str, a)), 1).replace(right, ",".join(map(str, b)), 1)
    check(static, {"a": numbers(*a), "b": numbers(*b)})


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)])
def test_product_with_a_matrix_of_unknown_rank(shape: tuple[int, ...]) -> None:
    text = "m (double[A] x, int64[N] s, double[3,2] b) => (double y) { a = Reshape(x, s) y = MatMul(a, b) }"
    feeds = {"x": numbers(int(np.prod(shape))), "s": np.array(shape), "b": numbers(3, 2)}
    check(text, feeds)


@pytest.mark.parametrize("c", [(), (3,), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm(c: tuple[int, ...], transposed: tuple[int, int]) -> None:
    ta, tb = transposed
    a, b = numbers(2, 4), numbers(4, 3)
    dims = ",".join("UV"[: len(c)])
    text = f"""m (double[A,B] a, double[C,D] b, double{f"[{dims}]" if c else ""} c) => (double[E,F] y)
        {{ y = Gemm<alpha=0.5, beta=2.0, transA={ta}, transB={tb}>(a, b, c) }}"""
    check(text, {"a": a.T if ta else a, "b": b.T if tb else b, "c": numbers(*c)})


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [((1,), (3,), (0,), (1,)), ((-2,), (99,), (1,), (1,)), ((-99, 1), (2, -1), (0, 1), (1, 1)),
     ((3,), (0,), (1,), (-1,)), ((0, -1), (4, -99), (0, 1), (2, -2)), ((5,), (9,), (0,), (1,))],
)  # fmt: skip
def test_slices(
    starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    text = """m (double[A,B] x, int64[N] s, int64[N] e, int64[N] a, int64[N] t) => (double[C,D] y)
        { y = Slice(x, s, e, a, t) }"""
    given = [ints(*values) for values in (starts, ends, axes, steps)]
    feeds = {"x": numbers(4, 5), **dict(zip("seat", given, strict=True))}
    check(text, feeds)
    known = "".join(
        f"{name} = Constant<value = int64[{len(values)}] {{{', '.join(map(str, values.tolist()))}}}>() "
        for name, values in zip("seat", given, strict=True)
    )
    for dims in ("A,B", "4,5"):
        check(
            f"m (double[{dims}] x) => (double[C,D] y) {{ {known} y = Slice(x, s, e, a, t) }}",
            {"x": feeds["x"]},
        )


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads(mode: str) -> None:
    text = f"""m (double[A,B] x, int64[4] p) => (double[C,D] y) {{ y = Pad<mode="{mode}">(x, p) }}"""
    for pads in [(1, 2, 0, 3), (0, 0, 0, 0), *([(-1, 2, 1, -2)] if mode == "constant" else [])]:
        check(text, {"x": numbers(4, 5), "p": ints(*pads)}, opset=19)


def test_gradient_of_the_pad_value() -> None:
    text = "m (double[A,B] x, int64[4] p, double v) => (double[C,D] y) { y = Pad(x, p, v) }"
    check(text, {"x": numbers(4, 5), "p": ints(1, 2, -1, 3), "v": numbers()})


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("y = Reshape(x, i)", (3, 4)), ("y = Expand(x, i)", (4, 1)), ("y = Tile(x, i)", (3, 4)),
        ("y = Flatten<axis=-1>(x)", (3, 4)), ("y = Transpose(x)", (3, 4)),
        ("z = Sin(x) y = Concat<axis=-1>(x, z, x)", (3, 4)),
        ("a, b = Split<axis=1>(x, i) c = Exp(b) y = Sin(b)", (3, 8)),
        ("y = Unsqueeze(x, i)", (3, 4)), ("z = Unsqueeze(x, i) y = Squeeze(z, i)", (3, 4)),
        ("y = CumSum<reverse=1, exclusive=1>(x, j)", (3, 4)),
        ("y = ReduceProd<keepdims=0>(x)", (3, 4)), ("y = ReduceLogSumExp<keepdims=0>(x, j)", (3, 4)),
        ("y = ReduceMean<keepdims=0>(x, j)", (3, 4)), ("y = ReduceMax<keepdims=0>(x, j)", (3, 4)),
        ("y = ReduceSum<noop_with_empty_axes=1>(x)", (3, 4)), ("y = ReduceL2<keepdims=0>(x, j)", (3, 4)),
        ("y = LogSoftmax<axis=0>(x)", (3, 4)),
    ],
)  # fmt: skip
def test_dynamic_dims(text: str, shape: tuple[int, ...]) -> None:
    i = {"Expand": (2, 4, 3), "Tile": (2, 3), "Split": (3, 5), "Reshape": (2, -1), "Unsqueeze": (0, 2)}
    found = next((values for name, values in i.items() if f"{name}(" in text or f"{name}<" in text), (0,))
    model = f"m (double[A,B] x, int64[K] i, int64[1] j) => (double y) {{ {text} }}"
    check(model, {"x": numbers(*shape), "i": ints(*found), "j": ints(1)})


def test_products_are_exact_for_zeros() -> None:
    x = np.array([[2.0, 0, 3], [0, 0, 5], [1, 2, 3]])
    model = parse("m (double[A,B] x) => (double[A] y) { y = ReduceProd<keepdims=0, axes=[1]>(x) }", opset=17)
    joint = differentiate(model, ["y"], ["x"])
    found = run(joint.model, {"x": x, "cotangent.y": np.ones(3)})["grad.x"]
    assert found.tolist() == [[0, 6, 0], [0, 0, 0], [6, 3, 2]]


def test_ties_share_the_gradient_evenly() -> None:
    model = parse(
        "m (double[N] x, double[N] z) => (double[N] y, double v) { y = Max(x, z) v = ReduceMin<keepdims=0>(x) }"
    )
    joint = differentiate(model, ["y", "v"], ["x", "z"])
    feeds = {"x": np.array([1.0, 1, 3]), "z": np.array([1.0, 2, 2])}
    found = run(joint.model, feeds | {"cotangent.y": np.ones(3), "cotangent.v": np.array(0.0)})
    assert found["grad.x"].tolist() == [0.5, 0, 1] and found["grad.z"].tolist() == [0.5, 1, 0]
    found = run(joint.model, feeds | {"cotangent.y": np.zeros(3), "cotangent.v": np.array(1.0)})
    assert found["grad.x"].tolist() == [0.5, 0.5, 0]


def test_powers_of_zero_and_negative_numbers() -> None:
    model = parse("m (double[N] x, double[N] p) => (double[N] y) { y = Pow(x, p) }")
    joint = differentiate(model, ["y"], ["x", "p"])
    feeds = {
        "x": np.array([0.0, 0, 0, -2, 2, 0]),
        "p": np.array([0.0, 1, 2, 2, 0.5, -1]),
        "cotangent.y": np.ones(6),
    }
    found = run(joint.model, feeds)
    assert np.allclose(found["grad.x"], [0, 1, 0, -4, 0.5 / math.sqrt(2), -np.inf])
    assert np.allclose(found["grad.p"][[0, 1, 2, 4, 5]], [0, 0, 0, math.sqrt(2) * math.log(2), -np.inf])


def test_remainders_of_negative_numbers() -> None:
    a = np.arange(-30, 30) / 10 + 0.03
    for b in (0.7, -0.7):
        check(
            "m (double[N] a, double[1] b) => (double[N] y) { y = Mod<fmod=1>(a, b) }",
            {"a": a, "b": np.array([b])},
        )


def test_clip_with_low_bound_above_the_high_bound() -> None:
    model = parse("m (double[N] x, double low, double high) => (double[N] y) { y = Clip(x, low, high) }")
    joint = differentiate(model, ["y"], "inputs")
    feeds = {"x": np.array([0.5, 1.5, 2.5]), "low": np.array(2.0), "high": np.array(1.0)}
    found = run(joint.model, {**feeds, "cotangent.y": np.array([1.0, 2, 4])})
    assert found["y"].tolist() == [1, 1, 1]
    assert found["grad.x"].tolist() == [0, 0, 0] and (found["grad.low"], found["grad.high"]) == (0, 7)


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("operator", ["LeakyRelu", "Elu", "ThresholdedRelu"])
def test_positive_and_negative_slopes(operator: str, alpha: float) -> None:
    x = np.array([-2, -0.8, -0.3, 0.3, 0.8, 2], np.float32)
    check(
        f"m (float[N] x) => (float[N] y) {{ y = {operator}<alpha={alpha}>(x) }}",
        {"x": x},
        opset=16,
        tolerance=5e-3,
    )


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("ReduceMean<noop_with_empty_axes=1>(x, j)", "its axes may be empty"),
        ("ReduceSum<noop_with_empty_axes=1, keepdims=0>(x, j)", "its axes may be empty"),
        *((f"Reduce{kind}<noop_with_empty_axes=1>(x)", "disagree") for kind in ("L1", "L2", "LogSumExp")),
    ],
)
def test_reductions_with_possibly_empty_axes_are_refused(call: str, reason: str) -> None:
    with pytest.raises(NoGradient, match=reason):
        differentiate(parse(f"m (float[A,B] x, int64[K] j) => (float y) {{ y = {call} }}"), ["y"], ["x"])
    text = "m (double[A,B] x, int64[K] j) => (double y) { y = ReduceSum<noop_with_empty_axes=1>(x, j) }"
    for axes in (ints(), ints(1)):
        check(text, {"x": numbers(2, 3), "j": axes})


def test_empty_means() -> None:
    text = "m (double[A,B] x, int64[K] j) => (double y) { y = ReduceMean(x, j) }"
    check(text, {"x": numbers(0, 3), "j": ints(1)})


def test_norm_of_zero_has_zero_gradient() -> None:
    text = "m (double[A,B] x, int64[K] j) => (double[A,1] y) { y = ReduceL2(x, j) }"
    joint = differentiate(parse(text, opset=18), ["y"], ["x"])
    feeds = {"x": np.array([[0.0, 0], [3, 4]]), "j": ints(1), "cotangent.y": np.full((2, 1), 5.0)}
    assert np.allclose(run(joint.model, feeds)["grad.x"], [[0, 0], [3, 4]])


def test_unselected_branches_do_not_overflow() -> None:
    for text in (
        "Elu(x)",
        "Celu(x)",
        "Selu(x)",
        "Softplus(x)",
        "Sigmoid(x)",
        "Mish(x)",
        "Softsign(x)",
        "Tanh(x)",
    ):
        model = parse(f"m (float[N] x) => (float[N] y) {{ y = {text} }}", opset=18)
        joint = differentiate(model, ["y"], ["x"])
        feeds = {"x": np.array([-1e3, 1e3], np.float32), "cotangent.y": np.ones(2, np.float32)}
        assert np.isfinite(run(joint.model, feeds)["grad.x"]).all(), text


def test_erf_and_gelu() -> None:
    x = np.linspace(-3, 3, 13)
    phi = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    cdf = np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in x])
    for text, truth in [("Erf(x)", 2 / math.sqrt(math.pi) * np.exp(-x * x)), ("Gelu(x)", cdf + x * phi)]:
        joint = differentiate(
            parse(f"m (float[N] x) => (float[N] y) {{ y = {text} }}", opset=20), ["y"], ["x"]
        )
        feeds = {"x": x.astype(np.float32), "cotangent.y": np.ones(13, np.float32)}
        assert np.allclose(run(joint.model, feeds)["grad.x"], truth, atol=1e-6)


@pytest.mark.parametrize("seed", ["", "<seed=3>"])
@pytest.mark.parametrize("ratio", [None, 0.25])
@pytest.mark.parametrize("mode", [True, False, None])
def test_dropout_keeps_its_mask(mode: bool | None, ratio: float | None, seed: str) -> None:
    """Two equal nodes, with the mode as a constant, or as an input for ``None``."""
    inputs = f"float[N] x{', bool t' if mode is None else ''}{'' if ratio is None else ', float r'}"
    known = "" if mode is None else f"t = Constant<value = bool {{{int(mode)}}}>()"
    call = f"Dropout{seed}(x, {'' if ratio is None else 'r'}, t)"
    text = f"m ({inputs}) => (float[N] y, float[N] z) {{ {known} y = {call} z = {call} }}"
    feeds: dict[str, np.ndarray] = {"x": np.ones(64, np.float32)}
    feeds |= {} if ratio is None else {"r": np.array(ratio, np.float32)}
    given = {"cotangent.y": np.full(64, 3, np.float32), "cotangent.z": np.full(64, 5, np.float32)}
    joint = differentiate(parse(text), ["y", "z"], ["x"])
    assert ops(joint.model).count("Dropout") == (0 if mode is False else 2)
    for training in (True, False) if mode is None else (mode,):
        more = {} if mode is not None else {"t": np.array(training)}
        found = run(joint.model, feeds | given | more)
        assert np.allclose(found["grad.x"], 3 * found["y"] + 5 * found["z"])
        kept = np.count_nonzero(found["y"])
        assert 0 < kept < 64 if training else kept == 64
        if training and not seed:
            assert found["y"].tolist() != found["z"].tolist()


def test_dropout_mask_with_other_readers() -> None:
    text = """m (float[N] x) => (float[N] y, bool[N] mask) {
        r = Constant<value = float {0.5}>() t = Constant<value = bool {1}>() y, mask = Dropout(x, r, t) }"""
    joint = differentiate(parse(text), ["y"], ["x"])
    found = run(joint.model, {"x": np.ones(64, np.float32), "cotangent.y": np.ones(64, np.float32)})
    assert np.array_equal(found["grad.x"], 2 * found["mask"])


@pytest.mark.parametrize("between", ["Identity", "Cast<to=11>"])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_fully_masked_rows_have_zero_gradient(operator: str, between: str) -> None:
    kind = "double" if "Cast" in between else "float"
    model = parse(f"""m (float[2,2] x, bool[2,2] mask, bool[2,1] none) => ({kind}[2,2] y) {{
        low = Constant<value = float {{-inf}}>() off = Constant<value = float {{0}}>()
        zero = Constant<value = {kind} {{0}}>()
        b = Where(mask, off, low) s = Add(x, b) p = {operator}(s) q = {between}(p) y = Where(none, zero, q) }}""")
    joint = differentiate(model, ["y"], ["x"])
    mask = np.array([[True, True], [False, False]])
    feeds = {"x": np.eye(2, dtype=np.float32), "mask": mask, "none": ~mask[:, :1]}
    given = np.array([[1, 0], [1, 0]], np.float64 if kind == "double" else np.float32)
    found = run(joint.model, feeds | {"cotangent.y": given})["grad.x"]
    assert np.isfinite(found).all() and found[0, 0] > 0 and found[1].tolist() == [0, 0]


def test_empty_dims() -> None:
    model = parse(
        "m (float[A,3] x, float[3,2] w) => (float loss) { y = MatMul(x, w) loss = ReduceSum<keepdims=0>(y) }"
    )
    joint = graphopt.differentiate(model, "loss", ["x", "w"])
    found = run(joint.model, {"x": np.zeros((0, 3), np.float32), "w": np.ones((3, 2), np.float32)})
    assert found["grad.x"].shape == (0, 3) and found["grad.w"].tolist() == [[0, 0]] * 3
