"""Random chains of operators that the arithmetic rules rewrite: results are preserved for all numbers."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Options
from graphopt.ort import session
from graphopt.transforms.scalar.peephole import Peephole

_FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3.0, -2.5, 0.75, -0.75, 1e9, -1e9] * 3, np.float32
)


def _optimized(proto: onnx.ModelProto, families: tuple[str, ...]) -> onnx.ModelProto:
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    Peephole(families).run(model, context_for(model, Options()))
    result = ir.to_proto(model)
    onnx.checker.check_model(result)
    return result


def _run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    made = session.create(proto.SerializeToString(), optimizations="off", threads=1)
    return [np.asarray(result) for result in session.run(made, feeds)]


def _model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], shape: list[int | str]
) -> onnx.ModelProto:
    rank = len(shape)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


_bound = st.none() | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, float("inf"), float("-inf")])


@_FEW
@given(
    st.lists(
        st.tuples(st.sampled_from(["Relu", "Clip", "Max", "Min"]), _bound, _bound), min_size=2, max_size=6
    )
)
def test_chains_of_bounds(chain: list[tuple[str, float | None, float | None]]) -> None:
    nodes, constants, value = [], {}, "x"
    for index, (kind, low, high) in enumerate(chain):
        inputs = [value]
        for side, bound in (("low", low), ("high", high)):
            if kind == "Relu" or (side == "high" and kind != "Clip"):
                break
            name = "" if bound is None and kind == "Clip" else f"{side}{index}"
            if name:
                constants[name] = np.array(bound or 0.0, np.float32)
            inputs.append(name)
        value = f"y{index}"
        nodes.append(helper.make_node(kind, inputs, [value]))
    before = _model(nodes, constants, ["N"])
    after = _optimized(before, ("activation", "bounds", "identities"))
    assert len(after.graph.node) <= len(before.graph.node)
    (expected,), (got,) = _run(before, {"x": _SPECIAL}), _run(after, {"x": _SPECIAL})
    np.testing.assert_array_equal(got, expected)


_number = st.sampled_from([0.5, 2.0, -4.0, 0.125, 3.0, -0.75, 1.0, 0.0, -0.0])


@_FEW
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Add", "Sub", "Mul", "Div", "Neg"]),
            st.lists(_number, min_size=1, max_size=1),
            st.booleans(),
        ),
        min_size=2,
        max_size=7,
    )
)
def test_chains_of_constants(chain: list[tuple[str, list[float], bool]]) -> None:
    nodes, constants, value = [], {}, "x"
    for index, (kind, numbers, swapped) in enumerate(chain):
        inputs = [value]
        if kind != "Neg":
            constants[f"c{index}"] = np.array(numbers, np.float32)
            inputs = [f"c{index}", value] if swapped else [value, f"c{index}"]
        value = f"y{index}"
        nodes.append(helper.make_node(kind, inputs, [value]))
    before = _model(nodes, constants, ["N"])
    after = _optimized(before, ("arithmetic", "chains", "identities"))
    assert len(after.graph.node) <= len(before.graph.node)
    x = np.array([1.5, -2.0, 0.3, -7.0, 123.0, -0.01], np.float32)
    (expected,), (got,) = _run(before, {"x": x}), _run(after, {"x": x})
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    finite = np.isfinite(expected)
    # the largest numbers on the way set the size of the rounding errors
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-4, atol=1e-3)


@_FEW
@given(
    kind=st.sampled_from(["Conv", "ConvTranspose"]),
    group=st.sampled_from([1, 2]),
    bias=st.booleans(),
    padded=st.booleans(),
    before=st.sampled_from([None, "Mul", "Add"]),
    after=st.lists(
        st.sampled_from(["Add", "Sub", "Mul", "Div", "BatchNormalization", "Neg"]), min_size=1, max_size=4
    ),
    seed=st.integers(0, 1000),
)
def test_neighbouring_scales_and_shifts_are_folded_into_convolutions(
    kind: str, group: int, bias: bool, padded: bool, before: str | None, after: list[str], seed: int
) -> None:
    random = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray:
        return random.uniform(0.5, 2.0, shape).astype(np.float32) * random.choice([-1, 1], shape).astype(
            np.float32
        )

    channels = 3 * group
    constants = {"w": numbers(*((channels, 2, 3) if kind == "Conv" else (2 * group, 3, 3)))}
    nodes, value = [], "x"
    if before:
        constants["c"] = numbers(2 * group, 1)
        nodes.append(helper.make_node(before, ["c", "x"], ["p"]))
        value = "p"
    if bias:
        constants["b"] = numbers(channels)
    inputs = [value, "w", "b"] if bias else [value, "w"]
    pads = [1, 1] if padded else [0, 0]
    nodes.append(helper.make_node(kind, inputs, ["y"], group=group, pads=pads))
    value = "y"
    for index, step in enumerate(after):
        operands = [value]
        if step == "BatchNormalization":
            for name in ("scale", "shift", "mean", "variance"):
                array = numbers(channels)
                constants[f"{name}{index}"] = np.abs(array) if name == "variance" else array
                operands.append(f"{name}{index}")
        elif step != "Neg":
            constants[f"k{index}"] = numbers(*((), (channels, 1), (1, channels, 1))[seed % 3])
            operands.append(f"k{index}")
        value = f"z{index}"
        nodes.append(helper.make_node(step, operands, [value]))
    model = _model(nodes, constants, ["N", 2 * group, "L"])
    folded = _optimized(model, ("conv", "batchnorm", "arithmetic", "chains", "identities"))
    kept = 1 if before != "Add" or (kind == "Conv" and not padded) else 2
    kept += before == "Mul" and kind == "ConvTranspose"
    assert len(folded.graph.node) == kept
    x = random.standard_normal((2, 2 * group, 7)).astype(np.float32)
    (expected,), (got,) = _run(model, {"x": x}), _run(folded, {"x": x})
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.max(np.abs(expected)))


def _shared_weight(size: int, readers: int) -> onnx.ModelProto:
    """``readers`` pairs of Conv and Mul whose Convs have the same weight."""
    nodes, last = [], "x"
    for index in range(readers):
        nodes += [
            helper.make_node("Conv", [last, "w"], [f"y{index}"]),
            helper.make_node("Mul", [f"y{index}", "two"], [f"z{index}"]),
        ]
        last = f"z{index}"
    constants = {"w": np.full((size, size, 1, 1), 0.5, np.float32), "two": np.array(2.0, np.float32)}
    return _model(nodes, constants, ["N", size, "H", "W"])


def test_large_shared_weight_is_not_copied() -> None:
    assert len(_optimized(_shared_weight(64, 1), ("conv",)).graph.node) == 1
    assert len(_optimized(_shared_weight(64, 2), ("conv",)).graph.node) == 4
    assert len(_optimized(_shared_weight(4, 2), ("conv",)).graph.node) == 2


def test_inside_a_body_outer_weights_are_folded_into_constants_of_the_body() -> None:
    inner = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["p"]), helper.make_node("Mul", ["p", "two"], ["q"])],
        "then",
        [],
        [helper.make_tensor_value_info("q", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["r"])],
        "else",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    constants = {
        "w": np.ones((2, 2, 1), np.float32),
        "two": np.array(2.0, np.float32),
        "yes": np.array(True),
    }
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    model = _model([node], constants, ["N", 2, "L"])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    after = _optimized(model, ("conv",))
    body = next(a.g for a in after.graph.node[0].attribute if a.name == "then_branch")
    assert [node.op_type for node in body.node] == ["Conv"]
    feeds = {"x": np.ones((1, 2, 3), np.float32), "c": np.array(True)}
    (expected,), (got,) = _run(model, feeds), _run(after, feeds)
    np.testing.assert_array_equal(got, expected)


def test_below_opset_7_broadcasting_is_left_alone() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Sub", ["x", "n"], ["d"], broadcast=1),
        helper.make_node("Mul", ["d", "c"], ["m"], broadcast=1, axis=0),
        helper.make_node("Mul", ["m", "c"], ["k"], broadcast=1, axis=1),
        helper.make_node("Add", ["k", "z"], ["y"], broadcast=1, axis=0),
    ]
    constants = {"c": np.array([2.0, 4.0], np.float32), "z": np.array([-0.0, -0.0], np.float32)}
    model = _model(nodes, constants, [2, 2])
    model.opset_import[0].version = 6
    after = _optimized(model, ())
    assert [node.op_type for node in after.graph.node] == [node.op_type for node in model.graph.node]
