"""Convolutions agree with a reference in double precision, at each CPU level and number of threads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

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

#: Groups of all convolutions, whether they are faster or not.
_PIPELINE = "fuse-groups{kernels=all}"


@dataclass(frozen=True)
class Case:
    """A convolution of random operands, followed by ``after``: nothing, or elementwise operators."""

    x: tuple[int, ...]
    weights: tuple[int, ...]
    attributes: dict[str, object] = field(default_factory=dict)
    bias: bool = True
    after: str = ""


def _case(
    x: tuple[int, ...], weights: tuple[int, ...], after: str = "", bias: bool = True, **kw: object
) -> Case:
    return Case(x, weights, kw, bias, after)


#: Vectors of positions, vectors of filters, Winograd's algorithm, and depthwise convolutions; with one and several
#: chunks.
CASES = [
    _case((1, 3, 37), (5, 3, 4)),
    _case((2, 16, 41), (33, 16, 3), pads=[2, 1], strides=[2]),
    _case((2, 6, 300), (4, 3, 5), group=2, dilations=[3], pads=[6, 6]),
    _case((1, 1, 900), (36, 1, 64), strides=[16], after="silu"),
    _case((1, 1, 900), (1, 1, 64), strides=[2], bias=False),
    _case((1, 7, 19, 23), (12, 7, 3, 2), pads=[1, 0, 2, 1], after="add"),
    _case((1, 8, 11, 40), (8, 8, 3, 19), pads=[1, 9, 1, 9]),
    _case((2, 20, 12, 9), (20, 1, 3, 3), group=20, pads=[1, 1, 1, 1], strides=[2, 2]),
    _case((1, 24, 14, 14), (40, 24, 1, 1), after="silu"),
    _case((1, 9, 31, 29), (18, 9, 3, 3), strides=[2, 3], auto_pad="SAME_UPPER"),
    _case((1, 9, 31, 29), (18, 9, 3, 3), strides=[2, 1], dilations=[2, 3], pads=[2, 3, 1, 0]),
    _case((1, 9, 31, 29), (18, 9, 2, 4), auto_pad="SAME_LOWER", bias=False),
    _case((3, 17, 5), (70, 17, 3), pads=[1, 1], after="relu"),
    _case((20, 65, 4), (64, 65, 3), pads=[1, 1]),
    _case((1, 40, 7, 7), (70, 40, 3, 3), pads=[1, 1, 1, 1], after="add"),
    _case((2, 3, 5, 8, 7), (6, 3, 2, 3, 3), pads=[0, 1, 1, 1, 1, 1], strides=[1, 2, 1]),
    _case((1, 16, 33, 35), (20, 16, 3, 3), pads=[1, 1, 1, 1], after="silu"),
    _case((2, 17, 20, 64), (16, 17, 3, 3), pads=[1, 2, 0, 1], bias=False, after="add"),
    _case((1, 64, 300, 1), (70, 64, 5, 1), after="relu"),
    _case((2, 65, 129), (64, 65, 4), pads=[1, 3]),
    _case((1, 16, 24, 24), (18, 16, 5, 7), pads=[2, 3, 2, 3]),
    _case((2, 9, 30, 150), (9, 1, 3, 3), group=9, pads=[1, 1, 1, 1], after="silu"),
    _case((1, 17, 19, 50), (17, 1, 3, 3), group=17, pads=[0, 1, 2, 0], strides=[2, 1], bias=False),
    _case((1, 9, 23, 70), (9, 1, 5, 5), group=9, pads=[2, 2, 2, 2], strides=[1, 2], after="add"),
    _case((1, 8, 21, 45), (16, 1, 5, 5), group=8, auto_pad="SAME_UPPER", strides=[2, 2]),
    _case((1, 20, 6, 7), (20, 1, 5, 5), group=20, pads=[4, 4, 4, 4], after="relu"),
    _case((1, 9, 3, 40), (9, 1, 3, 3), group=9, pads=[5, 0, 5, 1], bias=False),
    _case((1, 18, 40, 40), (36, 1, 4, 3), group=18, pads=[3, 1, 2, 4], dilations=[2, 3]),
    _case((2, 33, 700), (33, 1, 7), group=33, pads=[3, 0], strides=[3], after="relu"),
    _case((1, 10, 5, 9, 12), (10, 1, 2, 3, 3), group=10, pads=[1, 1, 1, 0, 1, 2], strides=[2, 1, 2]),
]
SPECIAL = [np.nan, np.inf, -np.inf]


def _model(cases: list[Case], rng: np.random.Generator) -> onnx.ModelProto:
    """All cases, each with an input ``xN`` and an output ``yN``; the batch is dynamic."""
    nodes, inputs, outputs, constants = [], [], [], []
    for index, case in enumerate(cases):
        names = [f"x{index}", f"w{index}"]
        weights = rng.standard_normal(case.weights) / np.sqrt(np.prod(case.weights[1:]))
        constants.append(onnx.numpy_helper.from_array(weights.astype(np.float32), names[1]))
        if case.bias:
            names.append(f"b{index}")
            values = rng.standard_normal(case.weights[0]).astype(np.float32)
            constants.append(onnx.numpy_helper.from_array(values, names[2]))
        inputs.append(h.make_tensor_value_info(names[0], onnx.TensorProto.FLOAT, ["n", *case.x[1:]]))
        outputs.append(h.make_tensor_value_info(f"y{index}", onnx.TensorProto.FLOAT, None))
        result = f"c{index}" if case.after else f"y{index}"
        nodes.append(h.make_node("Conv", names, [result], name=f"conv{index}", **case.attributes))
        if case.after == "relu":
            nodes.append(h.make_node("Relu", [result], [f"y{index}"]))
        if case.after == "silu":
            nodes.append(h.make_node("Sigmoid", [result], [f"s{index}"]))
            nodes.append(h.make_node("Mul", [result, f"s{index}"], [f"y{index}"]))
        if case.after == "add":
            values = rng.standard_normal((case.weights[0], *[1] * (len(case.weights) - 2))).astype(np.float32)
            constants.append(onnx.numpy_helper.from_array(values, f"a{index}"))
            nodes.append(h.make_node("Add", [result, f"a{index}"], [f"y{index}"]))
    graph = h.make_graph(nodes, "convolutions", inputs, outputs, constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


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
    shape = (1, -1, *[1] * rank)
    if case.bias:
        y += tensors[f"b{index}"].reshape(shape)
    if case.after == "add":
        y += tensors[f"a{index}"].reshape(shape)
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
    (native,) = natives([model], _PIPELINE, tmp_path_factory.mktemp("conv"))
    assert len(native.groups) == len(CASES)
    assert not [
        node for node in onnx.ModelProto.FromString(native.model).graph.node if node.op_type == "Conv"
    ]
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
def test_results(built: tuple[onnx.ModelProto, bytes, tuple[str, ...]], level: int) -> None:
    model, optimized, libraries = built
    tensors = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    running = {threads: session.create(optimized, threads=threads, choice=choice) for threads in (1, 2)}
    for seed, batch in enumerate((2, 1, 3)):
        feeds = _feeds(batch, seed)
        single, double = (session.run(running[threads], feeds) for threads in (1, 2))
        for index, (case, found) in enumerate(zip(CASES, single, strict=True)):
            expected = _reference(case, feeds[f"x{index}"], tensors, index)
            assert found.shape == expected.shape, case
            # Rounding errors of sums of up to a few thousand products, whose terms have a variance of 1.
            assert np.abs(found - expected).max() < 2e-5, case
            assert np.array_equal(found, double[index]), case


def test_special_values_are_those_of_onnxruntime(
    built: tuple[onnx.ModelProto, bytes, tuple[str, ...]],
) -> None:
    model, optimized, libraries = built
    original = session.create(model.SerializeToString(), threads=1)
    running = session.create(optimized, threads=1, choice=SessionChoice(libraries=libraries))
    for seed, value in enumerate(SPECIAL):
        feeds = _feeds(2, seed)
        rng = np.random.default_rng(seed)
        for array in feeds.values():
            array.flat[rng.integers(array.size)] = value
        found, expected = session.run(running, feeds), session.run(original, feeds)
        for case, one, two in zip(CASES, found, expected, strict=True):
            special = ~np.isfinite(two)
            assert np.array_equal(special, ~np.isfinite(one)), case
            assert np.array_equal(one[special], two[special], equal_nan=True), case
            assert np.abs(one[~special] - two[~special]).max() < 2e-5, case


def test_empty_batch(built: tuple[onnx.ModelProto, bytes, tuple[str, ...]]) -> None:
    _, optimized, libraries = built
    running = session.create(optimized, threads=1, choice=SessionChoice(libraries=libraries))
    for found in session.run(running, _feeds(0, 0)):
        assert found.shape[0] == 0


def test_a_kernel_wider_than_its_input_fails_with_a_message(tmp_path: Path) -> None:
    graph = h.make_graph(
        [h.make_node("Conv", ["x", "w"], ["y"])],
        "wide",
        [h.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, "width"])],
        [h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones((3, 2, 5), np.float32), "w")],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    (native,) = natives([model], _PIPELINE, tmp_path)
    assert native.groups
    running = session.create(native.model, threads=1, choice=native.choice)
    assert session.run(running, {"x": np.ones((1, 2, 5), np.float32)})[0].shape == (1, 3, 1)
    with pytest.raises(RuntimeFailure, match="do not match"):
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
    with context_for(model) as cx:
        (match,) = (
            template_table.matches(node, cx)[0] for node in model.graph if node.attributes.get("group")
        )
        assert template_policy.is_faster_as_template(match, cx) is is_kernel


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
    with context_for(model) as cx:
        (match,) = template_table.matches(next(iter(model.graph)), cx)
        assert template_policy.is_faster_as_template(match, cx) is is_kernel
