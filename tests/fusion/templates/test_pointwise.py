"""Pointwise convolutions with the operators before them agree with a reference in double precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as h

from graphopt.context import context_for
from graphopt.errors import RuntimeFailure
from graphopt.fusion.loops.ir import CantFuse
from graphopt.fusion.templates.pointwise import is_faster, pointwise
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fusion.templates.built_models import (
    Built,
    assert_special_values_agree,
    build,
    original_and_optimized,
)
from tests.fuzz.kernels.batches import cpu_levels
from tests.model_testing import parse

_EPSILON = 1e-3


@dataclass(frozen=True)
class Case:
    """A pointwise convolution of a random input.

    Attributes:
        parts: numbers of channels that are concatenated.
        before: operators between the concatenation and the convolution.
        spatial: sizes of the spatial axes.
        after: operators after it.
    """

    parts: tuple[int, ...]
    filters: int
    spatial: tuple[int, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    bias: bool = True

    @property
    def channels(self) -> int:
        return sum(self.parts)


#: Points of less than a vector, of several chunks, and with remainders; more terms than a partial sum has.
CASES = [
    Case((40,), 30, (7, 5), ("BatchNormalization", "Relu")),
    Case((40,), 30, (33, 31), ("BatchNormalization", "Mul", "Add", "Relu"), ("Relu",), bias=False),
    Case((512,), 33, (14, 14), ("BatchNormalization", "Relu"), ("BatchNormalization", "Relu")),
    Case((3, 270, 16), 20, (40, 30), (), ("Silu",)),
    Case((5, 5), 140, (2,), ("Mul",)),
    Case((17, 1, 9), 15, (3, 4, 5), ("Add", "Relu"), ("Add",)),
    Case((8,), 1, (65,), ("BatchNormalization",)),
    Case((6, 10), 64, (129,)),
]


def _nodes(
    index: int, case: Case, tensors: dict[str, np.ndarray], rng: np.random.Generator
) -> list[onnx.NodeProto]:
    nodes: list[onnx.NodeProto] = []
    value = f"x{index}_0"

    def add(op: str, inputs: list[str], **attributes: object) -> str:
        nodes.append(h.make_node(op, inputs, [f"v{index}_{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def constant(array: np.ndarray) -> str:
        tensors[f"c{index}_{len(tensors)}"] = array.astype(np.float32)
        return list(tensors)[-1]

    def elementwise(op: str, value: str, channels: int) -> str:
        spread = (channels, *[1] * len(case.spatial))
        if op == "BatchNormalization":
            vectors = [
                rng.normal(1, 0.3, channels),
                *rng.normal(0, 0.5, (2, channels)),
                rng.uniform(0.5, 2, channels),
            ]
            return add(op, [value, *map(constant, vectors)], epsilon=_EPSILON)
        if op == "Silu":
            return add("Mul", [value, add("Sigmoid", [value])])
        if op == "Relu":
            return add(op, [value])
        return add(
            op,
            [constant(rng.normal(1, 0.3, spread)), value]
            if op == "Mul"
            else [value, constant(rng.normal(0, 0.3, spread))],
        )

    if len(case.parts) > 1:
        value = add("Concat", [f"x{index}_{part}" for part in range(len(case.parts))], axis=1)
    for op in case.before:
        value = elementwise(op, value, case.channels)
    weights = rng.standard_normal((case.filters, case.channels, *[1] * len(case.spatial))) / np.sqrt(
        case.channels
    )
    operands = [value, constant(weights)]
    if case.bias:
        operands.append(constant(rng.standard_normal(case.filters)))
    value = add("Conv", operands)
    for op in case.after:
        value = elementwise(op, value, case.filters)
    nodes[-1].output[0] = f"y{index}"
    return nodes


def _model() -> onnx.ModelProto:
    """All cases, with inputs ``xN_PART`` and an output ``yN``; the batch is dynamic, and so is one spatial axis."""
    rng, tensors = np.random.default_rng(0), dict[str, np.ndarray]()
    nodes, inputs, outputs = [], [], []
    for index, case in enumerate(CASES):
        nodes += _nodes(index, case, tensors, rng)
        sizes = [*case.spatial[:-1], "last" + str(index)]
        for part, channels in enumerate(case.parts):
            shape = ["n", channels, *sizes]
            inputs.append(h.make_tensor_value_info(f"x{index}_{part}", onnx.TensorProto.FLOAT, shape))
        outputs.append(h.make_tensor_value_info(f"y{index}", onnx.TensorProto.FLOAT, None))
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = h.make_graph(nodes, "pointwise", inputs, outputs, constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def _reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All values in double precision."""
    values = {
        item.name: onnx.numpy_helper.to_array(item).astype(np.float64) for item in model.graph.initializer
    }
    values |= {name: array.astype(np.float64) for name, array in feeds.items()}
    for node in model.graph.node:
        a, *others = (values[name] for name in node.input)
        spread = (1, -1, *[1] * (a.ndim - 2))
        match node.op_type:
            case "Concat":
                result = np.concatenate([a, *others], 1)
            case "BatchNormalization":
                scale, bias, mean, variance = (other.reshape(spread) for other in others)
                result = (a - mean) / np.sqrt(variance + _EPSILON) * scale + bias
            case "Relu":
                result = np.maximum(a, 0)
            case "Sigmoid":
                result = 1 / (1 + np.exp(-a))
            case "Conv":
                weights = others[0].reshape(others[0].shape[:2])
                result = np.einsum("mc,nc...->nm...", weights, a)
                result = result + others[1].reshape(spread) if len(others) > 1 else result
            case "Mul":
                result = a * others[0]
            case "Add":
                result = a + others[0]
            case op:
                raise AssertionError(op)
        values[node.output[0]] = result
    return values


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    built = build(_model(), len(CASES), tmp_path_factory.mktemp("pointwise"))
    assert all(node.domain for node in onnx.ModelProto.FromString(built[1]).graph.node)
    return built


def _feeds(batch: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"x{index}_{part}": rng.standard_normal((batch, channels, *case.spatial), dtype=np.float32)
        for index, case in enumerate(CASES)
        for part, channels in enumerate(case.parts)
    }


@pytest.mark.parametrize("level", cpu_levels())
def test_results(built: Built, level: int) -> None:
    model, optimized, libraries = built
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    running = {threads: session.create(optimized, threads=threads, choice=choice) for threads in (1, 2)}
    for seed, batch in enumerate((2, 1)):
        feeds = _feeds(batch, seed)
        single, double = (session.run(running[threads], feeds) for threads in (1, 2))
        expected = _reference(model, feeds)
        for index, (case, found) in enumerate(zip(CASES, single, strict=True)):
            assert found.shape == expected[f"y{index}"].shape, case
            # Rounding errors of sums of up to 512 products, whose terms have a variance of about 1.
            assert np.abs(found - expected[f"y{index}"]).max() < 1e-5, case
            assert np.array_equal(found, double[index]), case


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_are_those_of_onnxruntime(built: Built, value: float) -> None:
    original, running = original_and_optimized(built)
    feeds, rng = _feeds(2, 0), np.random.default_rng(0)
    for array in feeds.values():
        array.flat[rng.integers(array.size)] = value
    for case, one, two in zip(CASES, session.run(running, feeds), session.run(original, feeds), strict=True):
        assert_special_values_agree(one, two, case)
        finite = np.isfinite(two)
        assert np.abs(one[finite] - two[finite]).max(initial=0) < 1e-5, case


def test_infinite_factors_are_those_of_onnxruntime(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n,4,h,9] x, float[4,1,1] f, float[8,4,1,1] w) => (float[n,8,h,9] y) {
            m = Mul(f, x)
            s = Relu(m)
            y = Conv(s, w)
        }""")
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 4, 5, 9), dtype=np.float32),
        "f": np.float32([1, -np.inf, 2, np.inf]).reshape(4, 1, 1),
        "w": -np.abs(rng.standard_normal((8, 4, 1, 1), dtype=np.float32)),
    }
    original, running = original_and_optimized(build(model, 1, tmp_path))
    (one,), (two,) = session.run(running, feeds), session.run(original, feeds)
    assert np.isneginf(two).sum() > 100
    assert_special_values_agree(one, two, "infinite factors")


def test_empty_batch_and_wrong_shapes(built: Built) -> None:
    _, running = original_and_optimized(built)
    assert all(found.shape[0] == 0 for found in session.run(running, _feeds(0, 0)))
    wrong = _feeds(1, 0)
    wrong["x3_1"] = wrong["x3_1"][..., :-1]
    with pytest.raises(RuntimeFailure, match="is 29 long on axis 3, 30 expected"):
        session.run(running, wrong)


#: A convolution with operators before it that are claimed, and the number of these.
CLAIMED = {
    "s = Relu(n)": 2,
    "m = Mul(f, n) a = Add(m, v) s = Relu(a)": 4,
    "s = Relu(n) z = Neg(n)": 0,
    "s = Mul(n, n)": 0,
    "s = Add(n, scalar)": 0,
    "a = Relu(n) s = Mul(a, f)": 1,
}


@pytest.mark.parametrize("body", CLAIMED)
def test_operators_before_the_convolution_are_claimed(body: str) -> None:
    model = parse(f"""g (float[1,64,20,20] x, float[64] p, float[64] q, float[64] r, float[64] t, float[64,1,1] f,
        float[1,64,1,1] v, float[32,64,1,1] w) => (float[1,32,20,20] y) <float scalar = {{2}}> {{
        n = BatchNormalization(x, p, q, r, t)
        {body}
        y = Conv(s, w)
    }}""")
    with context_for(model) as cx:
        anchor = next(node for node in model.graph if node.op_type == "Conv")
        if not CLAIMED[body]:
            with pytest.raises(CantFuse, match="no operators before it"):
                pointwise.match(anchor, cx)
            return
        match = pointwise.match(anchor, cx)
        assert len(match.nodes) == CLAIMED[body] + 1


def test_layouts_of_convolutions_decide() -> None:
    text = """g (float[1,64,40,40] x, float[64] p, float[64] q, float[64] r, float[64] t) => (float[1,64,40,40] y)
        <int64[4] d = {{64,64,1,1}}> {{
        w = ConstantOfShape(d)
        {}
        n = BatchNormalization(c, p, q, r, t)
        s = Relu(n)
        y = Conv(s, w)
    }}"""
    faster = {}
    for before in ("c = Conv(x, w)", "e = Conv(x, w) c = MaxPool <kernel_shape = [1,1]> (e)", "c = Neg(x)"):
        model = parse(text.format(before))
        with context_for(model) as cx:
            faster[before] = is_faster(pointwise.match(model.graph[-1], cx), cx)
    assert list(faster.values()) == [False, False, True]
