"""Transposed convolutions agree with a reference in double precision, at each CPU level and number of threads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper as h

from benchmarks.native_models import natives
from graphopt.context import context_for
from graphopt.errors import NoCompiler, RuntimeFailure
from graphopt.fusion import template_policy, template_table
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fuzz.kernels.batches import cpu_levels
from tests.model_testing import parse

_PIPELINE = "fuse-groups{kernels=all}"


@dataclass(frozen=True)
class Case:
    """A transposed convolution of random operands, followed by ``after``: nothing, or elementwise operators."""

    x: tuple[int, ...]
    weights: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    after: str = ""
    bias: bool = True


def _case(
    x: tuple[int, ...], weights: tuple[int, ...], after: str = "", bias: bool = True, **kw: Any
) -> Case:
    return Case(x, weights, kw, after, bias)


CASES = [
    _case((1, 24, 16, 20), (24, 24, 2, 2), strides=[2, 2], after="relu"),
    _case((2, 6, 7, 9), (6, 5, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    _case((1, 16, 40), (16, 3, 16), strides=[8], pads=[4, 4], after="silu"),
    _case((2, 9, 11), (9, 4, 5), strides=[3], pads=[2, 1], output_padding=[1], bias=False),
    _case((1, 6, 5, 6), (6, 2, 3, 4), group=3, strides=[2, 3], dilations=[2, 3], pads=[1, 2, 0, 3]),
    _case((1, 4, 3, 4, 5), (4, 3, 2, 3, 3), strides=[1, 2, 2], pads=[0, 1, 1, 1, 0, 1], after="relu"),
    _case((1, 8, 13, 13), (8, 8, 4, 4), strides=[2, 2], auto_pad="SAME_UPPER"),
    _case((1, 8, 13, 13), (8, 8, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    _case((1, 8, 13, 13), (8, 4, 3, 3), strides=[3, 3], output_shape=[37, 38]),
    _case((1, 8, 13, 13), (8, 4, 3, 4), strides=[2, 2], output_shape=[26, 27], auto_pad="SAME_UPPER"),
    _case((1, 3, 5, 5), (3, 2, 1, 1), strides=[3, 3], after="silu"),
    _case((1, 3, 5, 5), (3, 2, 2, 2), strides=[3, 2], dilations=[1, 2]),
    _case((1, 20, 6, 6), (20, 1, 4, 4), group=20, strides=[2, 2], pads=[1, 1, 1, 1]),
    _case((1, 70, 4, 4), (70, 40, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    _case((1, 7, 30), (7, 1, 64), strides=[16]),
    _case((1, 2, 100), (2, 2, 3), strides=[2], pads=[7, 60]),
    _case((1, 300, 3, 70), (300, 9, 3, 3), pads=[1, 1, 1, 1], bias=False),
]


def _model(cases: list[Case], rng: np.random.Generator) -> onnx.ModelProto:
    """All cases, each with an input ``xN`` and an output ``yN``; the batch is dynamic."""
    nodes, inputs, outputs, constants = [], [], [], []
    for index, case in enumerate(cases):
        names = [f"x{index}", f"w{index}"]
        weights = rng.standard_normal(case.weights) / np.sqrt(case.weights[0])
        constants.append(onnx.numpy_helper.from_array(weights.astype(np.float32), names[1]))
        if case.bias:
            names.append(f"b{index}")
            values = rng.standard_normal(case.weights[1] * case.attributes.get("group", 1))
            constants.append(onnx.numpy_helper.from_array(values.astype(np.float32), names[2]))
        inputs.append(h.make_tensor_value_info(names[0], onnx.TensorProto.FLOAT, ["n", *case.x[1:]]))
        outputs.append(h.make_tensor_value_info(f"y{index}", onnx.TensorProto.FLOAT, None))
        result = f"c{index}" if case.after else f"y{index}"
        nodes.append(h.make_node("ConvTranspose", names, [result], **case.attributes))
        if case.after == "relu":
            nodes.append(h.make_node("Relu", [result], [f"y{index}"]))
        if case.after == "silu":
            nodes.append(h.make_node("Sigmoid", [result], [f"s{index}"]))
            nodes.append(h.make_node("Mul", [result, f"s{index}"], [f"y{index}"]))
    graph = h.make_graph(nodes, "transposed", inputs, outputs, constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


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
    if case.bias:
        y = y + tensors[f"b{index}"].reshape(1, -1, *[1] * rank)
    if case.after == "relu":
        y = np.maximum(y, 0)
    return y / (1 + np.exp(-y)) if case.after == "silu" else y


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, bytes, tuple[str, ...]]:
    try:
        find_compiler(None)
    except NoCompiler:
        pytest.skip("no C compiler")
    model = _model(CASES, np.random.default_rng(0))
    (native,) = natives([model], _PIPELINE, tmp_path_factory.mktemp("transposed"))
    assert len(native.groups) == len(CASES)
    nodes = onnx.ModelProto.FromString(native.model).graph.node
    assert {node.op_type for node in nodes}.isdisjoint({"ConvTranspose", "Relu", "Sigmoid"})
    return model, native.model, native.choice.libraries


def _feeds(batch: int | None, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"x{index}": rng.standard_normal(
            (case.x[0] if batch is None else batch, *case.x[1:]), dtype=np.float32
        )
        for index, case in enumerate(CASES)
    }


@pytest.mark.parametrize("level", cpu_levels())
def test_errors_are_at_most_twice_those_of_onnxruntime(
    built: tuple[onnx.ModelProto, bytes, tuple[str, ...]], level: int
) -> None:
    model, optimized, libraries = built
    tensors = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    original = session.create(model.SerializeToString(), threads=1)
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    running = {threads: session.create(optimized, threads=threads, choice=choice) for threads in (1, 2)}
    for seed, batch in enumerate((2, 1)):
        feeds = _feeds(batch, seed)
        single, double = (session.run(running[threads], feeds) for threads in (1, 2))
        theirs = session.run(original, feeds)
        for index, (case, found, other) in enumerate(zip(CASES, single, theirs, strict=True)):
            expected = _reference(case, feeds[f"x{index}"], tensors, index, other.shape)
            assert found.shape == expected.shape, case
            error, allowed = (np.sqrt(np.mean((each - expected) ** 2)) for each in (found, other))
            assert error <= 2 * allowed, case
            assert np.abs(found - expected).max() < 2e-5, case
            assert np.array_equal(found, double[index]), case


def test_special_values_are_those_of_onnxruntime(
    built: tuple[onnx.ModelProto, bytes, tuple[str, ...]],
) -> None:
    model, optimized, libraries = built
    original = session.create(model.SerializeToString(), threads=1)
    running = session.create(optimized, threads=1, choice=SessionChoice(libraries=libraries))
    for seed, value in enumerate((np.nan, np.inf, -np.inf)):
        feeds = _feeds(2, seed)
        rng = np.random.default_rng(seed)
        for array in feeds.values():
            array.flat[rng.integers(array.size)] = value
        found, expected = session.run(running, feeds), session.run(original, feeds)
        for case, one, two in zip(CASES, found, expected, strict=True):
            special = ~np.isfinite(two)
            assert np.array_equal(special, ~np.isfinite(one)), case
            assert np.array_equal(one[special], two[special], equal_nan=True), case


def test_empty_batch(built: tuple[onnx.ModelProto, bytes, tuple[str, ...]]) -> None:
    _, optimized, libraries = built
    running = session.create(optimized, threads=1, choice=SessionChoice(libraries=libraries))
    for found in session.run(running, _feeds(0, 0)):
        assert found.shape[0] == 0


@pytest.mark.parametrize(
    ("attributes", "width", "is_valid"),
    [
        ({"pads": [3, 2]}, 5, True),
        ({"pads": [3, 2]}, 1, False),  # all outputs are cropped
        ({"strides": [2], "output_shape": [8]}, 3, True),
        ({"strides": [2], "output_shape": [8]}, 2, False),  # needs a larger output padding than the stride
    ],
)
def test_sizes_that_onnxruntime_rejects_fail_with_a_message(
    tmp_path: Path, attributes: dict[str, Any], width: int, is_valid: bool
) -> None:
    graph = h.make_graph(
        [h.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)],
        "narrow",
        [h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, "width"])],
        [h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones((2, 3, 3), np.float32), "w")],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    (native,) = natives([model], _PIPELINE, tmp_path)
    assert native.groups
    running = session.create(native.model, threads=1, choice=native.choice)
    feeds = {"x": np.ones((1, 2, width), np.float32)}
    if is_valid:
        original = session.create(model.SerializeToString(), threads=1)
        assert np.array_equal(session.run(running, feeds)[0], session.run(original, feeds)[0])
        return
    with pytest.raises(RuntimeFailure, match="do not match"):
        session.run(running, feeds)


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
    with context_for(model) as cx:
        (match,) = template_table.matches(next(iter(model.graph)), cx)
        assert template_policy.is_faster_as_template(match, cx) is is_kernel
