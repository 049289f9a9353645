"""Transposed convolutions agree with a reference in double precision, at each CPU level and number of threads."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from benchmarks.native_models import natives
from graphopt import ir
from graphopt.context import context_for
from graphopt.errors import RuntimeFailure
from graphopt.fusion import template_table
from graphopt.fusion.loops.ir import CantFuse
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

CASES = [
    conv((1, 24, 16, 20), (24, 24, 2, 2), strides=[2, 2], after="relu"),
    conv((2, 6, 7, 9), (6, 5, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    conv((1, 16, 40), (16, 3, 16), strides=[8], pads=[4, 4], after="silu"),
    conv((2, 9, 11), (9, 4, 5), strides=[3], pads=[2, 1], output_padding=[1], bias=False),
    conv((1, 6, 5, 6), (6, 2, 3, 4), group=3, strides=[2, 3], dilations=[2, 3], pads=[1, 2, 0, 3]),
    conv((1, 4, 3, 4, 5), (4, 3, 2, 3, 3), strides=[1, 2, 2], pads=[0, 1, 1, 1, 0, 1], after="relu"),
    conv((1, 8, 13, 13), (8, 8, 4, 4), strides=[2, 2], auto_pad="SAME_UPPER"),
    conv((1, 8, 13, 13), (8, 8, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    conv((1, 8, 13, 13), (8, 4, 3, 3), strides=[3, 3], output_shape=[37, 38]),
    conv((1, 8, 13, 13), (8, 4, 3, 4), strides=[2, 2], output_shape=[26, 27], auto_pad="SAME_UPPER"),
    conv((1, 3, 5, 5), (3, 2, 1, 1), strides=[3, 3], after="silu"),
    conv((1, 3, 5, 5), (3, 2, 2, 2), strides=[3, 2], dilations=[1, 2]),
    conv((1, 20, 6, 6), (20, 1, 4, 4), group=20, strides=[2, 2], pads=[1, 1, 1, 1]),
    conv((1, 70, 4, 4), (70, 40, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    conv((1, 7, 30), (7, 1, 64), strides=[16]),
    conv((1, 2, 100), (2, 2, 3), strides=[2], pads=[7, 60]),
    conv((1, 300, 3, 70), (300, 9, 3, 3), pads=[1, 1, 1, 1], bias=False),
]


def _reference(
    case: Case, x: np.ndarray, tensors: dict[str, np.ndarray], index: int, shape: tuple[int, ...]
) -> np.ndarray:
    """The result of ``shape`` in double precision: products are added to windows of the uncropped result."""
    w = tensors[f"w{index}"].astype(np.float64)
    rank = w.ndim - 2
    strides, dilations = (case.attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    more, group = case.attributes.get("output_padding", [0] * rank), case.attributes.get("group", 1)
    whole = [
        (size - 1) * s + (k - 1) * d + 1 + extra
        for size, s, d, k, extra in zip(x.shape[2:], strides, dilations, w.shape[2:], more, strict=True)
    ]
    totals = [max(0, size - out) for size, out in zip(whole, shape[2:], strict=True)]
    upper = case.attributes.get("auto_pad") == "SAME_UPPER"
    before = [total // 2 if upper else (total + 1) // 2 for total in totals]
    if "pads" in case.attributes:
        before = case.attributes["pads"][:rank]
    channels, filters = w.shape[0] // group, w.shape[1]
    grown = [max(size, at + out) for size, at, out in zip(whole, before, shape[2:], strict=True)]
    y = np.zeros((x.shape[0], filters * group, *grown))
    for part, tap in itertools.product(range(group), itertools.product(*map(range, w.shape[2:]))):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True)
        )
        rows = slice(part * filters, (part + 1) * filters)
        given = slice(part * channels, (part + 1) * channels)
        values: np.ndarray = x[:, given].astype(np.float64)
        weights: np.ndarray = w[(given, slice(None), *tap)]
        y[(slice(None), rows, *window)] += np.einsum("cm,nc...->nm...", weights, values)
    cropped = tuple(slice(at, at + out) for at, out in zip(before, shape[2:], strict=True))
    y = y[(slice(None), slice(None), *cropped)]
    return with_epilogue(case, y, tensors, index)


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    model = model_of("ConvTranspose", CASES, np.random.default_rng(0))
    built = build(model, len(CASES), tmp_path_factory.mktemp("transposed"))
    assert op_types(built[1]).isdisjoint({"ConvTranspose", "Relu", "Sigmoid"})
    return built


@pytest.mark.parametrize("level", cpu_levels())
def test_errors_are_at_most_twice_those_of_onnxruntime(built: Built, level: int) -> None:
    model, optimized, libraries = built
    tensors = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    original = session.create(model.SerializeToString(), threads=1)
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    running = {threads: session.create(optimized, threads=threads, choice=choice) for threads in (1, 2)}
    for seed, batch in enumerate((2, 1)):
        feeds = feeds_of(CASES, batch, seed)
        single, double = (session.run(running[threads], feeds) for threads in (1, 2))
        theirs = session.run(original, feeds)
        for index, (case, found, other) in enumerate(zip(CASES, single, theirs, strict=True)):
            expected = _reference(case, feeds[f"x{index}"], tensors, index, other.shape)
            assert found.shape == expected.shape, case
            error, allowed = (np.sqrt(np.mean((each - expected) ** 2)) for each in (found, other))
            assert error <= 2 * allowed, case
            assert np.abs(found - expected).max() < 2e-5, case
            assert np.array_equal(found, double[index]), case


def test_special_values_are_those_of_onnxruntime(built: Built) -> None:
    assert len(list(results_of_special_values(built, CASES))) == 3 * len(CASES)


def test_empty_batch(built: Built) -> None:
    _, running = original_and_optimized(built)
    for found in session.run(running, feeds_of(CASES, 0, 0)):
        assert found.shape[0] == 0


@pytest.mark.parametrize(
    ("attributes", "width", "fault"),
    [
        ({"pads": [3, 2]}, 5, None),
        ({"pads": [3, 2]}, 1, "for which the result is empty"),
        ({"strides": [2], "output_shape": [8]}, 3, None),
        ({"strides": [2], "output_shape": [8]}, 2, "too short for output_shape"),
    ],
)
def test_sizes_that_onnxruntime_rejects_fail_with_a_message(
    tmp_path: Path, attributes: dict[str, Any], width: int, fault: str | None
) -> None:
    model = model_of_any_width("ConvTranspose", (2, 3, 3), attributes)
    (native,) = natives([model], PIPELINE, tmp_path)
    assert native.groups
    running = session.create(native.model, threads=1, choice=native.choice)
    feeds = {"x": np.ones((1, 2, width), np.float32)}
    if fault is None:
        original = session.create(model.SerializeToString(), threads=1)
        assert np.array_equal(session.run(running, feeds)[0], session.run(original, feeds)[0])
        return
    with pytest.raises(RuntimeFailure, match=f"X is {width} long on axis 2, {fault}"):
        session.run(running, feeds)


def test_an_empty_axis_of_the_input_has_the_bias_as_its_result(tmp_path: Path) -> None:
    """onnxruntime 1.31 may crash for three spatial axes of which one is empty."""
    cases = [
        conv((1, 2, 3), (2, 3, 3)),
        conv((1, 4, 3), (4, 3, 4), group=2, pads=[1, 1], after="relu"),
        conv((1, 2, 3), (2, 3, 3), strides=[2], after="silu"),
        conv((1, 2, 3, 5), (2, 3, 3, 3)),
        conv((1, 2, 3, 5), (2, 3, 5, 60), strides=[3, 2], after="relu"),
        conv((1, 2, 3), (2, 3, 4), bias=False),
    ]
    model = model_of("ConvTranspose", cases, np.random.default_rng(0))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[2].dim_param = f"{value.name}_length"
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    (native,) = natives([model], PIPELINE, tmp_path)
    assert len(native.groups) == len(cases)
    running = session.create(native.model, threads=1, choice=native.choice)
    original = session.create(model.SerializeToString(), threads=1)
    feeds = {name: array[:, :, :0] for name, array in feeds_of(cases, 2, 0).items()}
    for case, one, two in zip(cases, session.run(running, feeds), session.run(original, feeds), strict=True):
        assert one.size and one.shape == two.shape, case
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6, err_msg=str(case))


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ({"strides": [3]}, "for which the result is empty"),
        ({"pads": [1, 1]}, "for which the result is empty"),
        ({"auto_pad": "SAME_UPPER"}, "at least 1 expected"),
        ({"strides": [2], "output_padding": [1]}, "at least 1 expected"),
        ({"output_shape": [4]}, "at least 1 expected"),
    ],
)
def test_an_empty_axis_that_onnxruntime_rejects(
    tmp_path: Path, attributes: dict[str, Any], fault: str
) -> None:
    model = model_of_any_width("ConvTranspose", (2, 3, 3), attributes)
    (native,) = natives([model], PIPELINE, tmp_path)
    feeds = {"x": np.ones((1, 2, 0), np.float32)}
    for running in (
        session.create(model.SerializeToString(), threads=1),
        session.create(native.model, threads=1, choice=native.choice),
    ):
        with pytest.raises(RuntimeFailure) as failure:
            session.run(running, feeds)
    assert f"X is 0 long on axis 2, {fault}" in str(failure.value)


@pytest.mark.parametrize(
    ("channels", "filters", "attributes", "after", "is_kernel"),
    [
        (24, 24, "<strides = [2, 2]>", "Relu", True),
        (24, 24, "<strides = [2, 2]>", "MatMul", False),
        (24, 1, "<strides = [2, 2]>", "MatMul", True),
        (24, 24, "", "MatMul", True),
    ],
)
def test_kernels_are_chosen_where_they_are_faster(
    channels: int, filters: int, attributes: str, after: str, is_kernel: bool
) -> None:
    values = ",".join(["0.1"] * (channels * filters * 4))
    then = "y = MatMul(c, c)" if after == "MatMul" else f"y = {after}(c)"
    model = parse(
        f"g (float[1,{channels},20,20] x) => (float[N,C,H,W] y) "
        f"<float[{channels},{filters},2,2] w = {{{values}}}> {{ c = ConvTranspose {attributes} (x, w) {then} }}"
    )
    assert is_faster_as_template(model, next(iter(model.graph))) is is_kernel


def test_infinite_weights_have_no_template() -> None:
    model = parse("""g (float[1,1,20,20] x) => (float[N,C,H,W] y)
        <float[1,1,2,2] k = {1, 2, 3, 4}> { y = ConvTranspose(x, k) }""")
    node = next(iter(model.graph))
    for value, refused in ((4.0, False), (np.inf, True), (np.nan, True)):
        array = np.array([1, 2, 3, value], np.float32).reshape(1, 1, 2, 2)
        model.graph.initializers["k"].const_value = ir.tensor(array)
        with context_for(model) as cx, pytest.raises(CantFuse) if refused else nullcontext():
            assert template_table.matches(node, cx)
