"""Convolutions agree with a reference in double precision, at each CPU level and number of threads."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from benchmarks.native_models import natives
from graphopt.errors import RuntimeFailure
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fusion.templates.built_models import PIPELINE, Built, build, op_types, original_and_optimized
from tests.fusion.templates.convolution_cases import (
    Case,
    conv,
    feeds_of,
    is_faster_as_template,
    model_of,
    model_of_any_width,
    results_of_special_values,
    with_epilogue,
)
from tests.fuzz.kernels.batches import cpu_levels
from tests.model_testing import parse

#: Vectors of positions, vectors of filters, Winograd's algorithm, and depthwise convolutions; with one and several
#: chunks.
CASES = [
    conv((1, 3, 37), (5, 3, 4)),
    conv((2, 16, 41), (33, 16, 3), pads=[2, 1], strides=[2]),
    conv((2, 6, 300), (4, 3, 5), group=2, dilations=[3], pads=[6, 6]),
    conv((1, 1, 900), (36, 1, 64), strides=[16], after="silu"),
    conv((1, 1, 900), (1, 1, 64), strides=[2], bias=False),
    conv((1, 7, 19, 23), (12, 7, 3, 2), pads=[1, 0, 2, 1], after="add"),
    conv((1, 8, 11, 40), (8, 8, 3, 19), pads=[1, 9, 1, 9]),
    conv((2, 20, 12, 9), (20, 1, 3, 3), group=20, pads=[1, 1, 1, 1], strides=[2, 2]),
    conv((1, 24, 14, 14), (40, 24, 1, 1), after="silu"),
    conv((1, 9, 31, 29), (18, 9, 3, 3), strides=[2, 3], auto_pad="SAME_UPPER"),
    conv((1, 9, 31, 29), (18, 9, 3, 3), strides=[2, 1], dilations=[2, 3], pads=[2, 3, 1, 0]),
    conv((1, 9, 31, 29), (18, 9, 2, 4), auto_pad="SAME_LOWER", bias=False),
    conv((3, 17, 5), (70, 17, 3), pads=[1, 1], after="relu"),
    conv((20, 65, 4), (64, 65, 3), pads=[1, 1]),
    conv((1, 40, 7, 7), (70, 40, 3, 3), pads=[1, 1, 1, 1], after="add"),
    conv((2, 3, 5, 8, 7), (6, 3, 2, 3, 3), pads=[0, 1, 1, 1, 1, 1], strides=[1, 2, 1]),
    conv((1, 16, 33, 35), (20, 16, 3, 3), pads=[1, 1, 1, 1], after="silu"),
    conv((2, 17, 20, 64), (16, 17, 3, 3), pads=[1, 2, 0, 1], bias=False, after="add"),
    conv((1, 64, 300, 1), (70, 64, 5, 1), after="relu"),
    conv((2, 65, 129), (64, 65, 4), pads=[1, 3]),
    conv((1, 16, 24, 24), (18, 16, 5, 7), pads=[2, 3, 2, 3]),
    conv((2, 9, 30, 150), (9, 1, 3, 3), group=9, pads=[1, 1, 1, 1], after="silu"),
    conv((1, 17, 19, 50), (17, 1, 3, 3), group=17, pads=[0, 1, 2, 0], strides=[2, 1], bias=False),
    conv((1, 9, 23, 70), (9, 1, 5, 5), group=9, pads=[2, 2, 2, 2], strides=[1, 2], after="add"),
    conv((1, 8, 21, 45), (16, 1, 5, 5), group=8, auto_pad="SAME_UPPER", strides=[2, 2]),
    conv((1, 20, 6, 7), (20, 1, 5, 5), group=20, pads=[4, 4, 4, 4], after="relu"),
    conv((1, 9, 3, 40), (9, 1, 3, 3), group=9, pads=[5, 0, 5, 1], bias=False),
    conv((1, 18, 40, 40), (36, 1, 4, 3), group=18, pads=[3, 1, 2, 4], dilations=[2, 3]),
    conv((2, 33, 700), (33, 1, 7), group=33, pads=[3, 0], strides=[3], after="relu"),
    conv((1, 10, 5, 9, 12), (10, 1, 2, 3, 3), group=10, pads=[1, 1, 1, 0, 1, 2], strides=[2, 1, 2]),
]


def _reference(case: Case, x: np.ndarray, tensors: dict[str, np.ndarray], index: int) -> np.ndarray:
    """The result in double precision."""
    w = tensors[f"w{index}"].astype(np.float64)
    rank = w.ndim - 2
    strides, dilations = (case.attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads, group = case.attributes.get("pads", [0] * 2 * rank), case.attributes.get("group", 1)
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    mode = case.attributes.get("auto_pad")
    if mode:
        totals = [
            max(0, -(-size // stride) * stride - stride + extent - size)
            for size, stride, extent in zip(x.shape[2:], strides, extents, strict=True)
        ]
        less, more = [total // 2 for total in totals], [(total + 1) // 2 for total in totals]
        pads = less + more if mode == "SAME_UPPER" else more + less
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    out = [
        (size - extent) // stride + 1
        for size, extent, stride in zip(wide.shape[2:], extents, strides, strict=True)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    channels, filters = w.shape[1], w.shape[0] // group
    for part, tap in itertools.product(range(group), itertools.product(*map(range, w.shape[2:]))):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, out, strides, strict=True)
        )
        given = wide[(slice(None), slice(part * channels, (part + 1) * channels), *window)]
        rows = slice(part * filters, (part + 1) * filters)
        y[:, rows] += np.einsum("mc,nc...->nm...", w[(rows, slice(None), *tap)], given)
    return with_epilogue(case, y, tensors, index)


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    model = model_of("Conv", CASES, np.random.default_rng(0))
    built = build(model, len(CASES), tmp_path_factory.mktemp("conv"))
    assert "Conv" not in op_types(built[1])
    return built


@pytest.mark.parametrize("level", cpu_levels())
def test_results(built: Built, level: int) -> None:
    model, optimized, libraries = built
    tensors = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    running = {threads: session.create(optimized, threads=threads, choice=choice) for threads in (1, 2)}
    for seed, batch in enumerate((2, 1, 3)):
        feeds = feeds_of(CASES, batch, seed)
        single, double = (session.run(running[threads], feeds) for threads in (1, 2))
        for index, (case, found) in enumerate(zip(CASES, single, strict=True)):
            expected = _reference(case, feeds[f"x{index}"], tensors, index)
            assert found.shape == expected.shape, case
            # Rounding errors of sums of up to a few thousand products, whose terms have a variance of 1.
            assert np.abs(found - expected).max() < 2e-5, case
            assert np.array_equal(found, double[index]), case


def test_special_values_are_those_of_onnxruntime(built: Built) -> None:
    for case, found, expected in results_of_special_values(built, CASES):
        finite = np.isfinite(expected)
        assert np.abs(found[finite] - expected[finite]).max() < 2e-5, case


def test_empty_batch(built: Built) -> None:
    _, running = original_and_optimized(built)
    for found in session.run(running, feeds_of(CASES, 0, 0)):
        assert found.shape[0] == 0


@pytest.mark.parametrize(
    ("weights", "pads"), [((3, 2, 3), [2, 2]), ((16, 16, 3), [2, 2]), ((20, 2, 1), [1, 0])]
)
def test_an_empty_axis_of_the_input_is_padding(
    tmp_path: Path, weights: tuple[int, int, int], pads: list[int]
) -> None:
    model = model_of_any_width("Conv", weights, {"pads": pads})
    (native,) = natives([model], PIPELINE, tmp_path)
    assert native.groups
    feeds = {"x": np.ones((1, weights[1], 0), np.float32)}
    original = session.create(model.SerializeToString(), threads=1)
    running = session.create(native.model, threads=1, choice=native.choice)
    (one,), (two,) = session.run(running, feeds), session.run(original, feeds)
    assert one.size and np.array_equal(one, two)


def test_a_kernel_wider_than_its_input_fails_with_a_message(tmp_path: Path) -> None:
    model = model_of_any_width("Conv", (3, 2, 5))
    (native,) = natives([model], PIPELINE, tmp_path)
    assert native.groups
    running = session.create(native.model, threads=1, choice=native.choice)
    assert session.run(running, {"x": np.ones((1, 2, 5), np.float32)})[0].shape == (1, 3, 1)
    with pytest.raises(RuntimeFailure, match="X is 4 long on axis 2, at least 5 expected"):
        session.run(running, {"x": np.ones((1, 2, 4), np.float32)})


@pytest.mark.parametrize(
    ("before", "after", "is_kernel"),
    [("", "HardSwish", True), ("Conv", "HardSwish", False), ("", "Conv", False), ("Relu", "HardSwish", True)],
)
def test_depthwise_convolutions_beside_others_keep_the_blocked_layout(
    before: str, after: str, is_kernel: bool
) -> None:
    text = """
    g (float[1,16,30,30] x) => (float[N,16,H,W] y)
    <float[16,1,3,3] w = {VALUES}, float[16,16,1,1] v = {VALUES2}>
    {
        BEFORE
        c = Conv <group = 16> (b, w)
        AFTER
    }
    """
    text = text.replace("VALUES2", ",".join(["0.1"] * 256)).replace("VALUES", ",".join(["0.5"] * 144))
    text = text.replace("BEFORE", "b = Conv(x, v)" if before == "Conv" else f"b = {before or 'HardSwish'}(x)")
    text = text.replace("AFTER", "y = Conv(c, v)" if after == "Conv" else f"y = {after}(c)")
    model = parse(text)
    (node,) = (node for node in model.graph if node.attributes.get("group"))
    assert is_faster_as_template(model, node) is is_kernel


@pytest.mark.parametrize(
    ("size", "taps", "after", "is_kernel"),
    [
        (32, 5, "", False),
        (32, 5, "HardSwish", True),
        (60, 5, "", True),
        (32, 3, "", True),
        (14, 3, "", False),
    ],
)
def test_depthwise_convolutions_of_many_taps_need_an_epilogue_or_many_positions(
    size: int, taps: int, after: str, is_kernel: bool
) -> None:
    weights = ",".join(["0.5"] * 16 * taps * taps)
    epilogue = f"y = {after}(c)" if after else "y = Identity(c)"
    model = parse(f"""g (float[1,16,{size},{size}] x) => (float[N,16,H,W] y)
        <float[16,1,{taps},{taps}] w = {{{weights}}}> {{ c = Conv <group = 16> (x, w) {epilogue} }}""")
    assert is_faster_as_template(model, next(iter(model.graph))) is is_kernel
