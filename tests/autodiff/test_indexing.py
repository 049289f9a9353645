"""Gradients of operators that select and scatter elements, against finite differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.ort import session
from tests.autodiff.models import check, run
from tests.model_testing import ops, parse

RANDOM = np.random.default_rng(0)
CLASSICAL = '<ir_version: 8, opset_import: ["ai.onnx.ml" : 3]> '
KINDS = {"float64": "double", "float32": "float", "int64": "int64", "int32": "int32", "bool": "bool"}


def numbers(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def model(body: str, feeds: Mapping[str, np.ndarray], known: bool) -> str:
    """A model of ``body``, which computes z, and its square; dims are static or symbolic."""
    inputs, letters = [], iter("ABCDEFGHIJKLMNOP")
    for name, value in feeds.items():
        dims = ",".join(str(size) if known else next(letters) for size in value.shape)
        inputs.append(f"{KINDS[value.dtype.name]}{f'[{dims}]' if value.ndim else ''} {name}")
    kind = KINDS[feeds["x"].dtype.name]
    return f"m ({', '.join(inputs)}) => ({kind} y) {{ {body} y = Mul(z, z) }}"


def check_forms(body: str, feeds: Mapping[str, np.ndarray], *, opset: int = 18, twice: bool = True) -> None:
    """Check with symbolic and with static dims."""
    check(model(body, feeds, False), feeds, opset=opset)
    check(model(body, feeds, True), feeds, opset=opset, twice=twice)


@pytest.mark.parametrize(
    ("shape", "axis", "picks"),
    [
        ((5, 3), 0, [4, 0, -1, 4]), ((5, 3), 1, [[2, 0], [-1, 2]]), ((2, 5, 3), -2, [3, 3, -2]),
        ((5,), 0, [1, 1, -1]), ((5, 3), 0, 2), ((2, 5, 3), 1, -1), ((5, 3), 0, []), ((2, 5), 1, [[], []]),
        ((5, 0), 0, [1, 2]), ((70, 3), 0, [69, -70, 0, -1]), ((70, 3, 2), 0, [[69, -70], [0, 69]]),
        ((70, 2), 0, [69, -1]), ((70, 2), 0, -1),
    ],
)  # fmt: skip
def test_gather(shape: tuple[int, ...], axis: int, picks: Any) -> None:
    feeds = {"x": numbers(*shape), "i": np.array(picks, np.int64)}
    check_forms(f"z = Gather<axis={axis}>(x, i)", feeds)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    "picks", ["int64 {0}", "int64 {-1}", "int64[2] {1, 2}", "int64[2] {-3, -2}", "int64[2] {-1, 0}"]
)
def test_constant_indices(axis: int, picks: str) -> None:
    body = f"i = Constant<value = {picks}>() z = Gather<axis={axis}>(x, i)"
    feeds = {"x": numbers(4, 3, 5)}
    check_forms(body, feeds)
    joint = check(model(body, feeds, False), feeds)
    assert ("Pad" in ops(joint)) != ("{-1, 0}" in picks)
    feeds = {"x": numbers(4)}
    check_forms(f"i = Constant<value = {picks}>() z = Gather(x, i)", feeds)


@pytest.mark.parametrize("rows", [5, 70])
def test_int32_indices(rows: int) -> None:
    feeds = {"x": numbers(rows, 3), "i": np.array([4, 0, -1, 4], np.int32)}
    check_forms("z = Gather(x, i)", feeds)


@pytest.mark.parametrize(
    ("shape", "axis", "picks"),
    [((3, 4), 0, [[0, 1, 2, 2], [0, -1, 2, 2]]), ((3, 4), -1, [[3, 3, -1, 0, 0]]), ((3, 4), 1, [[0], [0], [1]])],
)  # fmt: skip
def test_gather_elements(shape: tuple[int, ...], axis: int, picks: Any) -> None:
    check_forms(f"z = GatherElements<axis={axis}>(x, i)", {"x": numbers(*shape), "i": np.array(picks)})


@pytest.mark.parametrize(
    ("shape", "batch", "picks"),
    [
        ((3, 4, 2), 0, [[0, 1], [-1, 3], [0, 1]]), ((3, 4, 2), 0, [[2], [-3], [2]]), ((3, 4), 0, [2, -1]),
        ((3, 4, 2), 1, [[1], [1], [-1]]), ((2, 3, 4), 2, [[[0], [1], [-1]], [[3], [3], [3]]]),
        ((2, 3, 4), 1, [[[0, 1], [0, 1]], [[-1, 1], [2, 0]]]),
    ],
)  # fmt: skip
def test_gather_nd(shape: tuple[int, ...], batch: int, picks: Any) -> None:
    check_forms(f"z = GatherND<batch_dims={batch}>(x, i)", {"x": numbers(*shape), "i": np.array(picks)})


#: Duplicates, negative ones, fewer than the data has, more than it has along the axis.
ELEMENTS = [
    (0, [[0, 1, 2, 0]]), (0, [[0, -1, 2], [0, 2, 1], [2, 2, 1], [1, 1, 1]]), (-1, [[3, 3], [0, -4]]), (1, [[], []])
]  # fmt: skip
REDUCTIONS = ["none", "add", "mul", "max", "min"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("axis", "picks"), ELEMENTS)
def test_scatter_elements(axis: int, picks: Any, reduction: str) -> None:
    picks = np.array(picks, np.int64)
    feeds = {"x": numbers(3, 4), "i": picks, "u": numbers(*picks.shape)}
    check_forms(f'z = ScatterElements<axis={axis}, reduction="{reduction}">(x, i, u)', feeds)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("picks", [[[0], [2], [-1]], [[0, 1], [-1, 3], [0, -3]], [[[2, 0]], [[2, 0]]]])
def test_scatter_nd(picks: Any, reduction: str) -> None:
    picks = np.array(picks)
    feeds = {
        "x": numbers(3, 4, 2),
        "i": picks,
        "u": numbers(*picks.shape[:-1], *(4, 2)[picks.shape[-1] - 1 :]),
    }
    check_forms(f'z = ScatterND<reduction="{reduction}">(x, i, u)', feeds)


def test_products_of_updates_are_exact_for_zeros() -> None:
    feeds = {
        "x": np.array([2.0, 0, 3, 5]),
        "i": np.array([0, 0, 1, 2, 2, 2]),
        "u": np.array([0.0, 7, 3, 0, 0, 2]),
    }
    joint = differentiate(
        parse(model('z = ScatterElements<reduction="mul">(x, i, u)', feeds, True)), ["z"], ["x", "u"]
    )
    found = run(joint.model, {**feeds, "cotangent.z": np.ones(4)})
    assert found["grad.x"].tolist() == [0, 3, 0, 1] and found["grad.u"].tolist() == [14, 0, 0, 0, 0, 0]


def test_distinct_constant_indices_need_no_mask() -> None:
    def selects(picks: str) -> bool:
        constant = f"i = Constant<value=int64[2,1] {{{picks}}}>()"
        text = f"m (double[4,2] x, double[2,2] u) => (double[4,2] y) {{ {constant} y = ScatterND(x, i, u) }}"
        return "Where" in ops(check(text, {"x": numbers(4, 2), "u": numbers(2, 2)}))

    assert not selects("0, 3") and selects("3, 3")
    assert selects("3, -1"), "the same row twice"


@pytest.mark.parametrize("picks", [[True, False, True, True], [False, True], [False, False]])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis: int | None, picks: list[bool]) -> None:
    feeds = {"x": numbers(4, 4), "c": np.array(picks)}
    check_forms(f"z = Compress{'' if axis is None else f'<axis={axis}>'}(x, c)", feeds)


@pytest.mark.parametrize("attributes", ["axis=0", "axis=-1, largest=0", "axis=1, sorted=0"])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_top_k(attributes: str, k: int) -> None:
    check_forms(f"z, i = TopK<{attributes}>(x, k)", {"x": numbers(4, 3), "k": np.array([k])})


def test_unique() -> None:
    for attributes in ("", "<sorted=0>", "<axis=1>", "<axis=0, sorted=0>"):
        check_forms(f"z, n = Unique{attributes}(x)", {"x": numbers(3, 4)})
    joint = differentiate(parse("m (double[N] x) => (double[M] y) { y = Unique(x) }"), ["y"], ["x"])
    found = run(joint.model, {"x": np.array([3.0, 1, 3, 1]), "cotangent.y": np.array([5.0, 7.0])})
    assert found["grad.x"].tolist() == [7, 5, 0, 0]


def test_reverse_sequence_and_trilu() -> None:
    lengths = {"x": numbers(4, 3, 2), "s": np.array([1, 4, 2])}
    check_forms("z = ReverseSequence(x, s)", lengths)
    lengths = {"x": numbers(4, 3, 2), "s": np.array([1, 3, 2, 2])}
    check_forms("z = ReverseSequence<batch_axis=0, time_axis=1>(x, s)", lengths)
    for upper in (0, 1):
        check_forms(f"z = Trilu<upper={upper}>(x)", {"x": numbers(2, 3, 4)})
        check_forms(f"z = Trilu<upper={upper}>(x, k)", {"x": numbers(3, 4), "k": np.array(-1)})


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_gradient_of_depth_to_space(mode: str) -> None:
    """By onnx's reference evaluator: onnxruntime does not support the mode."""
    text = f"""m (float[A,B,C,D] x) => (float[A,E,F,G] y) {{ y = SpaceToDepth<blocksize=2, mode="{mode}">(x) }}"""
    model = parse(text, ir_version=13, opset=28)
    joint = differentiate(model, ["y"], ["x"])
    x = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
    (y,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    found = ReferenceEvaluator(ir.to_proto(joint.model)).run(["grad.x"], {"x": x, "cotangent.y": y})
    assert np.array_equal(found[0], x)


@pytest.mark.parametrize("attributes", ["", "<reverse=1>", "<exclusive=1>", "<reverse=1, exclusive=1>"])
def test_cum_prod(attributes: str) -> None:
    axis = {"a": np.array(-1)}
    check_forms(f"z = CumProd{attributes}(x, a)", {"x": numbers(3, 4), **axis}, opset=26)
    check_forms(f"z = CumProd{attributes}(x, a)", {"x": numbers(4, 0), **axis}, opset=26)
    zeros = np.array([[2.0, 0, 3, 5], [0, 2, 0, 3], [2, 3, 5, 0], [0, 0, 0, 0]])
    check_forms(f"z = CumProd{attributes}(x, a)", {"x": zeros, **axis}, opset=26, twice=False)
    body = f"z = CumProd{attributes}(x, a)"  # the square hides cotangents of products that are zero
    check(
        model(body, {"x": zeros, **axis}, False).replace("y = Mul(z, z)", "y = Neg(z)"),
        {"x": zeros, **axis},
        opset=26,
    )


@pytest.mark.parametrize("attributes", ["", 'axis=1, mode="circular"', "axis=-1"])
@pytest.mark.parametrize("starts", [None, [1, 0]])
def test_tensor_scatter(attributes: str, starts: list[int] | None) -> None:
    axis = 1 if "axis=1" in attributes else 3 if "axis=-1" in attributes else 2
    shape = [2, 3, 3, 3]
    shape[axis] = 2
    feeds = {"x": numbers(2, 3, 3, 3), "u": numbers(*shape)}
    if starts is not None:
        feeds["s"] = np.array([2, 0] if "circular" in attributes else starts)
    body = f"z = TensorScatter{f'<{attributes}>' if attributes else ''}(x, u{', s' if 's' in feeds else ''})"
    check_forms(body, feeds, opset=24)


def test_values_of_one_hot_in_float32() -> None:
    for kind in (np.int64, np.int32):
        feeds = {"x": np.array([2, 5], np.float32), "i": np.array([[1, -1], [0, 1]], kind)}
        text = model("d = Constant<value=int32[1] {3}>() z = OneHot<axis=1>(i, d, x)", feeds, False)
        given = np.asarray(numbers(2, 3, 2), np.float32)
        found = run(differentiate(parse(text), ["z"], ["x"]).model, {**feeds, "cotangent.z": given})
        bits = np.moveaxis(np.eye(3)[feeds["i"]], -1, 1)
        assert np.allclose(found["grad.x"], [np.sum(given * (1 - bits)), np.sum(given * bits)], atol=1e-5)


@pytest.mark.parametrize(
    "operator",
    ["Scaler<scale=[2.0, 3.0, 4.0], offset=[1.0, 0.0, 2.0]>(x)", "Scaler<scale=[2.0], offset=[1.0]>(x)",
     "LinearRegressor<coefficients=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], targets=2, intercepts=[1.0, 2.0]>(x)",
     'Normalizer<norm="L1">(x)', 'Normalizer<norm="L2">(x)', 'Normalizer<norm="MAX">(x)',
     "ArrayFeatureExtractor(x, i)"],
)  # fmt: skip
def test_ai_onnx_ml_operators(operator: str) -> None:
    text = f"m (float[N,3] x, int64[2] i) => (float[N,M] y) {{ y = ai.onnx.ml.{operator} }}"
    x = np.array([[1.5, -2, 0.5], [-0.25, -3, 1], [0.5, 1, -4]], np.float32)
    check(CLASSICAL + text, {"x": x, "i": np.array([1, 1])}, tolerance=5e-3)


def test_imputed_elements_have_zero_gradient() -> None:
    text = """m (float[N,3] x) => (float[N,3] y)
        { y = ai.onnx.ml.Imputer<imputed_value_floats=[5.0], replaced_value_float=1.5>(x) }"""
    feeds = {"x": np.array([[1.5, 2, 3]], np.float32), "cotangent.y": np.array([[7, 8, 9]], np.float32)}
    for kind, x in (("1.5", 1.5), ("nan", np.nan)):
        feeds["x"][0, 0] = x
        joint = differentiate(parse(CLASSICAL + text.replace("float=1.5", f"float={kind}")), ["y"], ["x"])
        assert run(joint.model, feeds)["grad.x"].tolist() == [[0, 8, 9]]


def test_post_transform_of_a_regressor_is_refused() -> None:
    text = """m (float[N,2] x) => (float[N,1] y)
        { y = ai.onnx.ml.LinearRegressor<coefficients=[1.0, 2.0], post_transform="PROBIT">(x) }"""
    with pytest.raises(NoGradient, match="PROBIT"):
        differentiate(parse(CLASSICAL + text), ["y"], ["x"])


# Sums with several threads ---------------------------------------------------------------------


@pytest.mark.parametrize("rows", [8, 500])
def test_sums_do_not_depend_on_the_number_of_threads(rows: int) -> None:
    feeds = {"x": np.zeros((rows, 64)), "i": np.asarray(RANDOM.integers(0, rows, 3000))}
    joint = differentiate(parse(model("z = Gather(x, i)", feeds, False)), ["z"], ["x"])
    given = numbers(3000, 64)
    truth = np.zeros((rows, 64))
    np.add.at(truth, feeds["i"], given)
    running = session.create(ir.to_bytes(joint.model), threads=4)
    for _ in range(5):
        (found,) = session.run(running, {**feeds, "cotangent.z": given}, ["grad.x"])
        assert np.allclose(found, truth, atol=1e-9)
