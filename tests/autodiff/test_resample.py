"""Gradients of interpolation, Einsum, determinants and Fourier transforms."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import NoGradient
from tests.autodiff.models import check, run
from tests.model_testing import parse

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape))


def single(*shape: int) -> np.ndarray:
    return np.asarray(RANDOM.standard_normal(shape), np.float32)


# Resize ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "shape", "scales"),
    [
        ('mode="nearest"', (2, 3), (2.5, 0.5)),
        ('mode="nearest", nearest_mode="ceil"', (3, 2, 4), (2, 1.5, 3)),
        ('mode="nearest", coordinate_transformation_mode="asymmetric"', (1, 2, 3, 4), (1, 1, 3, 3)),
        ('mode="linear"', (2, 3, 4), (1, 2, 2.5)),
        ('mode="linear", coordinate_transformation_mode="align_corners"', (1, 3, 4, 2), (1, 1.5, 2, 1)),
        ('mode="linear"', (1, 2, 3, 2, 4), (1, 1, 2.5, 2, 0.5)),
        ('mode="linear"', (2, 2, 3, 4), (1, 1, 3, 2)),
        ('mode="linear"', (1, 2, 1, 5), (1, 1, 2, 2)),
        ('mode="linear"', (2, 3, 4), (1, 1, 2)),
        ('mode="linear"', (2, 3, 4), (2, 2, 2)),
        ('mode="linear", coordinate_transformation_mode="pytorch_half_pixel"', (1, 3, 4, 2), (1, 2, 2, 1)),
        (
            'mode="linear", coordinate_transformation_mode="half_pixel_symmetric"',
            (1, 2, 3, 2, 4),
            (1, 1, 2, 2, 2),
        ),
        ('mode="linear", antialias=1', (1, 2, 6, 5), (1, 1, 0.5, 0.7)),
        ('mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1', (1, 2, 4, 5), (1, 1, 2.5, 0.7)),
    ],
)
def test_scales(method: str, shape: tuple[int, ...], scales: tuple[float, ...]) -> None:
    feeds = {"x": single(*shape)}
    result = ",".join("FGHIJ"[: len(shape)])
    written = f"s = Constant<value = float[{len(shape)}] {{{', '.join(map(str, scales))}}}>()"
    for dims in (",".join("ABCDE"[: len(shape)]), ",".join(map(str, shape))):
        check(
            f"m (float[{dims}] x) => (float[{result}] y) {{ {written} y = Resize<{method}>(x, , s) }}", feeds
        )
    text = f"m (float[{dims}] x, float[{len(shape)}] s) => (float[{result}] y) {{ y = Resize<{method}>(x, , s) }}"
    check(text, feeds | {"s": np.array(scales, np.float32)}, wrt=["x"])


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes_of_some_axes(policy: str, mode: str) -> None:
    text = f"""m (float[N,C,H,W] x, int64[2] s) => (float[A,B,D,E] y)
        {{ y = Resize<mode="{mode}", keep_aspect_ratio_policy="{policy}", axes=[3,2]>(x, , , s) }}"""
    check(text, {"x": single(2, 3, 4, 5), "s": np.array([7, 6])})


def test_resize_that_keeps_some_dims() -> None:
    text = """m (float[N,C,H,W] x, int64[2] s) => (float[N,C,D,E] y) {
        n = Shape<end=2>(x) t = Concat<axis=0>(n, s) y = Resize<mode="linear">(x, , , t) }"""
    joint = check(text, {"x": single(2, 3, 4, 5), "s": np.array([7, 3])})
    assert sum(node.op_type == "MatMul" for node in joint.graph) == 2


@pytest.mark.parametrize("axes", ["", ", axes=[2,3]"])
def test_crops(axes: str) -> None:
    roi, sizes = [0.3, -0.1, 1.2, 0.8], [5, 3]
    if not axes:
        roi, sizes = [0, 0, 0.3, -0.1, 1, 1, 1.2, 0.8], [2, 3, 5, 3]
    text = f"""m (float[N,C,H,W] x, float[{len(roi)}] roi, int64[{len(sizes)}] s) => (float[A,B,D,E] y) {{ y = Resize<
        mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0 {axes}>(x, roi, , s) }}"""
    feeds = {"x": single(2, 3, 4, 5), "roi": np.array(roi, np.float32), "s": np.array(sizes)}
    check(text, feeds, wrt=["x", "roi"])
    with pytest.raises(NoGradient, match="region"):
        differentiate(parse(text.replace("linear", "cubic"), opset=18), ["y"], ["roi"])


def test_integer_factors_become_window_sums() -> None:
    text = """m (float[N,8,H,32] x) => (float[N,8,A,64] y) {
        s = Constant<value = float[4] {1, 1, 2, 2}>() y = Resize<mode="nearest">(x, , s) }"""
    joint = check(text, {"x": single(2, 8, 3, 32)})
    made = {node.op_type for node in joint.graph}
    assert "ReduceSum" in made and not made & {"MatMul", "EyeLike"}


def test_upsample() -> None:
    text = """m (float[1,2,3,4] x) => (float[1,2,6,12] y) {
        s = Constant<value = float[4] {1, 1, 2, 3}>() y = Upsample<mode="linear">(x, s) }"""
    model = parse(text, opset=9)
    joint = differentiate(model, ["y"], ["x"])
    feeds = {"x": single(1, 2, 3, 4)}
    given = single(1, 2, 6, 12)
    found = run(joint.model, feeds | {"cotangent.y": given})["grad.x"]
    assert np.isclose(np.sum(found * feeds["x"]), np.sum(given * run(model, feeds)["y"]), atol=1e-3)


@pytest.mark.parametrize(
    ("method", "scales"), [("linear", "2, 2"), ("linear", "2, 3"), ("nearest", "2, 3"), ("cubic", "2, 1.5")]
)
def test_second_derivatives_and_float16(method: str, scales: str) -> None:
    text = f"""m (float[N,C,H,W] x) => (float[N,C,A,B] y) {{ z = Mul(x, x)
        s = Constant<value = float[4] {{1, 1, {scales}}}>() y = Resize<mode="{method}">(z, , s) }}"""
    feeds = {"x": single(2, 2, 3, 4)}
    joint = check(text, feeds, twice=True)
    half = differentiate(parse(text.replace("float[N", "float16[N"), opset=18), ["y"], ["x"])
    feeds["cotangent.y"] = single(*run(parse(text, opset=18), feeds)["y"].shape)
    expected = run(joint, feeds)["grad.x"]
    found = run(half.model, {name: value.astype(np.float16) for name, value in feeds.items()})["grad.x"]
    assert found.dtype == np.float16 and np.allclose(found, expected, rtol=1e-2, atol=1e-1)


# GridSample --------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    feeds = {"x": numbers(2, 3, 4, 5), "g": RANDOM.uniform(-1.8, 1.8, (2, 3, 2, 2))}
    for dims in ("N,C,H,W", "2,3,4,5"):
        text = f"""m (double[{dims}] x, double[N,P,Q,2] g) => (double[N,C,P,Q] y) {{
            y = GridSample<mode="{mode}", padding_mode="{padding}", align_corners={align}>(x, g) }}"""
        check(text, feeds, opset=20, twice=dims[0] == "N" and align == 0)


@pytest.mark.parametrize("padding", ["zeros", "reflection"])
def test_grid_sample_in_three_dims(padding: str) -> None:
    text = f"""m (double[N,C,D,H,W] x, double[N,P,Q,R,3] g) => (double[N,C,P,Q,R] y) {{
        y = GridSample<mode="linear", padding_mode="{padding}">(x, g) }}"""
    check(text, {"x": numbers(2, 2, 1, 4, 3), "g": RANDOM.uniform(-1.8, 1.8, (2, 1, 3, 2, 3))}, opset=20)


def test_grid_sample_in_opset_16_and_float16() -> None:
    text = """m (float[N,C,H,W] x, float[N,P,Q,2] g) => (float[N,C,P,Q] y) {
        y = GridSample<mode="bilinear">(x, g) }"""
    feeds = {"x": single(2, 3, 4, 5), "g": RANDOM.uniform(-1, 1, (2, 3, 2, 2)).astype(np.float32)}
    newer = differentiate(parse(text.replace("bilinear", "linear"), opset=20), ["y"], ["x", "g"])
    feeds["cotangent.y"] = single(2, 3, 3, 2)
    expected = run(newer.model, feeds)
    for opset, dtype, exact in ((16, np.float32, 1e-5), (20, np.float16, 5e-2)):
        own = text.replace("float[", "float16[").replace("bilinear", "linear") if opset == 20 else text
        joint = differentiate(parse(own, opset=opset), ["y"], ["x", "g"])
        found = run(joint.model, {name: value.astype(dtype) for name, value in feeds.items()})
        assert all(np.allclose(found[name], expected[name], atol=exact) for name in ("grad.x", "grad.g"))


# Einsum ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij , jk", [(2, 3), (1, 4)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ii", [(3, 3)]),
        ("bii->bi", [(2, 3, 3)]),
        ("ijij,jk->ik", [(2, 3, 2, 3), (3, 4)]),
        ("iii,ij->j", [(2, 2, 2), (2, 3)]),
        ("ij,kl->ik", [(2, 3), (4, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (1, 5, 4, 2)]),
        ("...ii->i...", [(2, 3, 3)]),
        ("bi,bj,ijk->bk", [(2, 3), (2, 4), (3, 4, 5)]),
        ("ij->", [(2, 3)]),
        ("i,i,i->i", [(3,), (3,), (3,)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    feeds = {name: numbers(*shape) for name, shape in zip("xyz", shapes, strict=False)}
    for symbolic in (True, False):
        names = iter("ABCDEFGHIJKLM")
        inputs = [
            f"double[{','.join(next(names) if symbolic else str(size) for size in value.shape)}] {name}"
            for name, value in feeds.items()
        ]
        text = f"""m ({", ".join(inputs)}) => (double o) {{ o = Einsum<equation="{equation}">({", ".join(feeds)}) }}"""
        check(text, feeds, twice=symbolic and len(shapes) > 1)


def test_einsum_of_known_shapes_is_one_node_per_operand() -> None:
    text = """m (double[B,H,3,8] q, double[B,H,4,8] k) => (double[B,H,3,4] y)
        { y = Einsum<equation="bhid,bhjd->bhij">(q, k) }"""
    joint = check(text, {"q": numbers(2, 2, 3, 8), "k": numbers(2, 2, 4, 8)})
    assert joint.graph.num_nodes() == 3


# Det ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4), (2, 1, 2, 2)])
def test_determinants(shape: tuple[int, ...]) -> None:
    x = single(*shape)
    for dims in (",".join("ABCD"[: len(shape)]), ",".join(map(str, shape))):
        text = f"m (float[{dims}] x) => (float y) {{ d = Det(x) y = ReduceSum<keepdims=0>(d) }}"
        joint = differentiate(parse(text, opset=18), ["y"], ["x"])
        found = run(joint.model, {"x": x, "cotangent.y": np.array(2, np.float32)})["grad.x"]
        double = x.astype(np.float64)
        check(text, {"x": x}, twice=True, tolerance=1e-2)
        inverse = np.swapaxes(np.linalg.inv(double), -1, -2)
        assert np.allclose(found, 2 * np.linalg.det(double)[..., None, None] * inverse, atol=1e-4)


def test_determinants_of_singular_matrices() -> None:
    x = np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32)
    joint = differentiate(parse("m (float[A,A] x) => (float y) { y = Det(x) }"), ["y"], ["x"])
    found = run(joint.model, {"x": x, "cotangent.y": np.array(1, np.float32)})["grad.x"]
    assert np.allclose(found, [[4, 4, -4], [-2, -2, 2], [0, 0, 0]], atol=1e-5)


# Fourier transforms ------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("attributes", ["", "inverse=1", "onesided=1", "inverse=1, onesided=1"])
@pytest.mark.parametrize("length", [None, 4, 8])
def test_dft(parts: int, attributes: str, length: int | None) -> None:
    onesided, both = "onesided" in attributes, "inverse=1, onesided" in attributes
    if onesided and (parts == 2) != both:
        return
    x = numbers(2, (length or 10) // 2 + 1 if both else 6, 3, parts)
    n, more = ("n", ", int64 n") if length else ("", "")
    feeds = {"x": x} | ({"n": np.array(length)} if length else {})
    for axis in (1, -3):
        listed = ", ".join(filter(None, (f"axis={axis}", attributes)))
        text = f"m (double[A,B,C,{parts}] x{more}) => (double[D,E,F,G] y) {{ y = DFT<{listed}>(x{', ' * bool(n)}{n}) }}"
        check(text, feeds, opset=17, twice=axis == 1)
    flags = f"<{attributes}>" if attributes else ""
    text = f"""m (double[A,B,C,P] x, int64 a{more}) => (double[D,E,F,G] y) {{ y = DFT{flags}(x, {n}, a) }}"""
    check(text, feeds | {"a": np.array(-3)}, opset=20)
    shape = ",".join(map(str, x.shape))
    fixed = f"n = Constant<value = int64 {{{length}}}>()" if length else ""
    text = f"""m (double[{shape}] x) => (double[D,E,F,G] y) {{
        {fixed} a = Constant<value = int64 {{1}}>() y = DFT{flags}(x, {n}, a) }}"""
    check(text, {"x": x}, opset=20)


@pytest.mark.parametrize("step", [1, 3, 6])
@pytest.mark.parametrize(("parts", "onesided"), [(1, 1), (1, 0), (2, 0)])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft(step: int, parts: int, onesided: int, windowed: bool) -> None:
    feeds = {"x": numbers(2, 13, parts), "step": np.array(step)}
    feeds |= {"w": numbers(5)} if windowed else {"n": np.array(5)}
    extra, given = ("double[W] w", "w") if windowed else ("int64 n", ", n")
    text = f"""m (double[A,B,{parts}] x, int64 step, {extra}) => (double[C,D,E,2] y)
        {{ y = STFT<onesided={onesided}>(x, step, {given}) }}"""
    check(text, feeds, opset=17 if windowed else 20, twice=step == 3)
