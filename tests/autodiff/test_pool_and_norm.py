"""Pooling and normalization beyond torch's functions: asymmetric pads, ties, empty batches."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.autodiff.joint_graph import COTANGENT, differentiate
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import parse

RANDOM = np.random.default_rng(0)


def apart(*shape: int, dtype: type = np.float64) -> np.ndarray:
    """Numbers far from 0 and from each other, so that no step changes the maximum."""
    count = int(np.prod(shape))
    return ((RANDOM.permutation(count).reshape(shape) - count / 2 + 0.25) / 4).astype(dtype)


def pool(operator: str, attributes: str, dims: str = "A,B,C,D", precision: str = "float") -> str:
    out = ",".join("EFGHI"[: dims.count(",") + 1])
    return f"m ({precision}[{dims}] x) => ({precision}[{out}] y) {{ y = {operator}<{attributes}>(x) }}"


@pytest.mark.parametrize("dims", ["A,B,C,D", "A,3,C,D", "2,3,7,6"])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1]",
        "kernel_shape=[2, 2], strides=[2, 3], storage_order=1",
        "kernel_shape=[3, 2], strides=[2, 2], dilations=[2, 3], pads=[1, 1, 0, 0], ceil_mode=1, storage_order=1",
        'kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"',
    ],
)
def test_max_pool(attributes: str, dims: str) -> None:
    check(
        pool("MaxPool", attributes, dims, "double"),
        {"x": apart(2, 3, 7, 6)},
        opset=13,
        twice=dims == "A,B,C,D",
    )


def test_max_pool_of_one_and_three_dims() -> None:
    one = pool("MaxPool", "kernel_shape=[3], strides=[2], dilations=[2], pads=[2, 1]", "A,B,C", "double")
    check(one, {"x": apart(2, 3, 9)}, opset=22)
    three = "kernel_shape=[2, 2, 2], strides=[2, 1, 2], pads=[1, 0, 0, 0, 1, 0], storage_order=1"
    check(pool("MaxPool", three, "A,B,C,D,E", "double"), {"x": apart(2, 2, 4, 3, 5)}, opset=22)


def test_disjoint_windows_need_no_sums() -> None:
    joint = check(pool("MaxPool", "kernel_shape=[2, 2], strides=[2, 3]", "A,B,C,D", "double"), {"x": apart(1, 2, 5, 6)}, opset=13)  # fmt: skip
    (scatter,) = [node for node in joint.graph if node.op_type == "ScatterElements"]
    assert scatter.attributes.get("reduction") is None
    assert joint.graph.opset_imports[""] == 14


def test_empty_windows_have_zero_gradient() -> None:
    text = pool("MaxPool", "kernel_shape=[2], strides=[1], dilations=[3], pads=[1, 1]", "A,B,C", "double")
    model = parse(text, opset=18)
    joint = differentiate(model, ["y"], ["x"])
    found = run(joint.model, {"x": apart(2, 2, 2), COTANGENT + "y": np.ones((2, 2, 1))})
    assert not found["grad.x"].any()


@pytest.mark.parametrize("stride", [1, 2])
def test_half_precision(stride: int) -> None:
    text = pool("MaxPool", f"kernel_shape=[2], strides=[{stride}]", "A,B,C", "float16")
    joint = differentiate(parse(text, opset=18), ["y"], ["x"])
    x = np.array([[[1, 5, 2, 4]]], np.float16)
    given = np.arange(1, 4 if stride == 1 else 3, dtype=np.float16).reshape(1, 1, -1)
    found = run(joint.model, {"x": x, COTANGENT + "y": given})["grad.x"]
    assert found.tolist() == [[[0, 3, 0, 3]]] if stride == 1 else [[[0, 1, 0, 2]]]


AVERAGES = [
    "kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 2, 1]",
    "kernel_shape=[3, 2], strides=[1, 1], pads=[2, 0, 1, 1]",
    "kernel_shape=[2, 2], strides=[3, 2], ceil_mode=1, pads=[1, 1, 0, 1]",
    "kernel_shape=[2, 3], strides=[1, 2], dilations=[3, 2], pads=[1, 1, 0, 2], ceil_mode=1",
    'kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"',
    'kernel_shape=[4, 3], strides=[2, 2], auto_pad="SAME_LOWER"',
    'kernel_shape=[4, 3], strides=[2, 2], auto_pad="SAME_UPPER"',
    'kernel_shape=[3, 2], strides=[1, 1], auto_pad="SAME_LOWER"',
    'kernel_shape=[2, 2], strides=[1, 1], auto_pad="SAME_UPPER"',
    'kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID"',
]


@pytest.mark.parametrize("dims", ["A,B,C,D", "A,3,7,6"])
@pytest.mark.parametrize("attributes", AVERAGES)
def test_average_pool(attributes: str, dims: str) -> None:
    opset = 19 if "dilations" in attributes else 13
    x = RANDOM.standard_normal((2, 3, 7, 6)).astype(np.float32)
    for whole in ("", ", count_include_pad=1"):
        check(
            pool("AveragePool", attributes + whole, dims),
            {"x": x},
            opset=opset,
            twice=dims == "A,B,C,D" and not whole,
        )


@pytest.mark.parametrize("attributes", AVERAGES[2:7])
def test_lp_pool(attributes: str) -> None:
    x = apart(2, 3, 7, 6, dtype=np.float32)
    x[0, 0] = 0  # no norm, and no gradient, is infinite there
    for p in (1, 2, 3):
        model = parse(pool("LpPool", f"{attributes}, p={p}"), opset=18)
        joint = differentiate(model, ["y"], ["x"])
        y = run(model, {"x": x})["y"]
        assert np.isfinite(run(joint.model, {"x": x, COTANGENT + "y": np.ones_like(y)})["grad.x"]).all()
        x = apart(2, 3, 7, 6, dtype=np.float32)
        check(pool("LpPool", f"{attributes}, p={p}"), {"x": x}, tolerance=2e-2, twice=True)


def test_gradient_of_average_pool_with_stride_1_is_a_pool() -> None:
    text = pool("AveragePool", "kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1", "A,B,C,D")
    joint = check(text, {"x": apart(1, 2, 5, 4, dtype=np.float32)}, opset=13)
    assert [node.op_type for node in joint.graph] == ["AveragePool", "AveragePool"]


@pytest.mark.parametrize(
    "attributes",
    ['kernel_shape=[2, 2], dilations=[2, 2], auto_pad="SAME_UPPER"', 'kernel_shape=[1, 1], strides=[3, 3], auto_pad="SAME_UPPER"'],
)  # fmt: skip
def test_ambiguous_windows_are_refused(attributes: str) -> None:
    with pytest.raises(NoGradient, match="disagree"):
        differentiate(parse(pool("AveragePool", attributes), opset=19), ["y"], ["x"])


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_empty_batches(operator: str, stride: int) -> None:
    text = pool(operator, f"kernel_shape=[3, 3], strides=[{stride}, {stride}], pads=[1, 1, 1, 1]")
    joint = differentiate(parse(text, opset=18), ["y"], ["x"])
    x = np.zeros((0, 3, 6, 6), np.float32)
    given = np.zeros((0, 3, *[(6 - 1) // stride + 1] * 2), np.float32)
    assert run(joint.model, {"x": x, COTANGENT + "y": given})["grad.x"].shape == x.shape


@pytest.mark.parametrize("dims", ["A,B,C,D", "A,2,3,4"])
def test_global_pools(dims: str) -> None:
    x = apart(2, 2, 3, 4, dtype=np.float32)
    for operator in ("GlobalAveragePool", "GlobalMaxPool"):
        check(f"m (float[{dims}] x) => (float[A,B,E,F] y) {{ y = {operator}(x) }}", {"x": x}, twice=True)
    for p in (1, 2, 3):
        check(pool("GlobalLpPool", f"p={p}", dims), {"x": x}, tolerance=1e-2, twice=True)


def test_ties_of_global_pools_share_the_gradient() -> None:
    model = parse("m (float[A,B,C] x) => (float[A,B,D] y) { y = GlobalMaxPool(x) }", opset=18)
    joint = differentiate(model, ["y"], ["x"])
    x = np.array([[[1, 3, 3], [2, 2, 2]]], np.float32)
    found = run(joint.model, {"x": x, COTANGENT + "y": np.full((1, 2, 1), 6, np.float32)})
    assert found["grad.x"].tolist() == [[[0, 3, 3], [2, 2, 2]]]


UNPOOL = """m (float[A,B,C] x, int64[A,B,C] i) => (float[A,B,D] y)
    { y = MaxUnpool<kernel_shape=[2], strides=[STRIDE]>(x, i) }"""


def test_max_unpool() -> None:
    feeds = {"x": apart(1, 2, 3, dtype=np.float32), "i": np.array([[[0, 3, 4], [6, 9, 10]]])}
    check(UNPOOL.replace("STRIDE", "2"), feeds, twice=True)
    feeds["i"] = np.array([[[0, 2, 2], [5, 5, 7]]])  # two of them are overwritten
    check(UNPOOL.replace("STRIDE", "1"), feeds)
    shaped = UNPOOL.replace("STRIDE", "2").replace("int64[A,B,C] i", "int64[A,B,C] i, int64[3] s").replace("i)", "i, s)")  # fmt: skip
    feeds["i"] = np.array([[[0, 3, 4], [7, 10, 11]]])
    check(shaped, {**feeds, "s": np.array([1, 2, 7])})


@pytest.mark.parametrize("system", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode: str, ratio: int, system: str) -> None:
    text = f"""m (double[A,B,C,D] x, double[R,4] rois, int64[R] i) => (double[R,B,E,F] y)
        {{ y = RoiAlign<mode="{mode}", output_height=3, output_width=2, sampling_ratio={ratio},
            spatial_scale=0.75, coordinate_transformation_mode="{system}">(x, rois, i) }}"""
    rois = np.array(
        [[0.37, 1.2, 5.1, 6.3], [-3.1, -2.2, 4.3, 5.1], [2.1, 2.2, 2.4, 2.7], [5.2, 3.3, 14.1, 12.4]]
    )
    feeds = {"x": apart(2, 3, 7, 9), "rois": rois, "i": np.array([0, 1, 1, 0])}
    joint = check(text, feeds, twice=ratio == 2 and system == "half_pixel", tolerance=1e-5)
    nothing = {"x": apart(2, 3, 7, 9), "rois": np.zeros((0, 4)), "i": np.zeros(0, np.int64)}
    found = run(joint, {**nothing, COTANGENT + "y": np.zeros((0, 3, 3, 2))})
    assert not found["grad.x"].any()
    assert found["grad.x"].shape == (2, 3, 7, 9)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size: int) -> None:
    attributes = f"size={size}, alpha=0.5, beta=0.75, bias=0.5"
    for dims in ("A,B,C,D", "A,4,3,2"):
        check(
            pool("LRN", attributes, dims),
            {"x": apart(2, 4, 3, 2, dtype=np.float32) / 8},
            opset=13,
            tolerance=1e-2,
            twice=True,
        )


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(axis: int, p: int) -> None:
    text = pool("LpNormalization", f"p={p}, axis={axis}", "A,B,C", "double")
    check(text, {"x": apart(2, 3, 4)}, twice=True)
    joint = differentiate(parse(text, opset=22), ["y"], ["x"])
    nothing = {"x": np.zeros((2, 3, 4)), COTANGENT + "y": np.ones((2, 3, 4))}
    assert not run(joint.model, nothing)["grad.x"].any()


@pytest.mark.parametrize("opset", [13, 18])
def test_mean_variance_normalization(opset: int) -> None:
    x = apart(2, 3, 4, 5, dtype=np.float32)
    for axes in ("axes=[1]", "axes=[0, 2, 3]"):
        check(pool("MeanVarianceNormalization", axes), {"x": x}, opset=opset, tolerance=1e-2, twice=True)


MAX_ROI_POOL = """m (float[A,B,C,D] x, float[R,5] rois) => (float[R,B,E,F] y)
    { y = MaxRoiPool<pooled_shape=[3, 2], spatial_scale=0.5>(x, rois) }"""


def test_max_roi_pool() -> None:
    rois = np.array(
        [
            [0, 0.37, 1.2, 5.1, 6.3],
            [1, -3.1, -2.2, 4.3, 5.1],
            [1, 2.1, 2.2, 2.4, 2.7],
            [0, 5.2, 3.3, 34.1, 12.4],
        ],
        np.float32,
    )
    joint = check(MAX_ROI_POOL, {"x": apart(2, 3, 7, 9, dtype=np.float32), "rois": rois}, wrt=["x"])
    nothing = {"x": apart(2, 3, 7, 9, dtype=np.float32), "rois": rois[:0]}
    found = run(joint, {**nothing, COTANGENT + "y": np.zeros((0, 3, 3, 2), np.float32)})
    assert not found["grad.x"].any()


@pytest.mark.parametrize("operator", ["AveragePool", "LpPool"])
def test_ceil_mode_window_that_starts_after_the_end(operator: str) -> None:
    text = f"""m (float[2,2,4] x) => (float[2,2,2] y) {{
        p = {operator}<ceil_mode = 1, kernel_shape = [2], strides = [3], pads = [1, 1]>(x) y = Mul(p, p) }}"""
    check(text, {"x": apart(2, 2, 4, dtype=np.float32)})


def test_second_derivatives_with_ceil_mode_window_that_starts_after_the_end() -> None:
    text = """m (double[2,2,2] x) => (double[2,2,1] y) {
        p = MaxPool<ceil_mode = 1, kernel_shape = [1], strides = [2]>(x) e = Exp(p) y = Mul(e, p) }"""
    check(text, {"x": apart(2, 2, 2)}, twice=True)
