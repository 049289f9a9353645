"""Work grows with the model, not faster: counted in calls, since times depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.scaling import BUILDERS
from graphopt import ir
from graphopt.api import optimize
from graphopt.autodiff.joint_graph import differentiate
from graphopt.training.optimizers import AdamW
from graphopt.training.training_step import write_step
from tests.ort.build import parse_proto


def hub(nodes: int) -> onnx.ModelProto:
    """One value that all nodes read, and one node that reads them all."""
    names = [f"term_{i}" for i in range(nodes // 2)]
    made = []
    for name in names:
        made += [helper.make_node("Identity", ["x"], [f"{name}_same"])]
        made += [helper.make_node("Tanh", [f"{name}_same"], [name])]
    made.append(helper.make_node("Sum", names, ["y"]))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph(made, "hub", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def extrema(nodes: int) -> onnx.ModelProto:
    """A chain of Max."""
    steps = " ".join(f"v{i + 1} = Max(v{i}, w{i % 7})" for i in range(nodes))
    others = ", ".join(f"float[4] w{i}" for i in range(7))
    return parse_proto(f"g (float[4] v0, {others}) => (float[4] v{nodes}) {{ {steps} }}")


def squeezed_parts(nodes: int) -> onnx.ModelProto:
    """A Split whose every part is squeezed."""
    return _parts(nodes, f"float[{nodes}, 4] x", "x", "float[4]", "Squeeze(p{i}, axis)")


def transposed_parts(nodes: int) -> onnx.ModelProto:
    """A Split of a transposed tensor whose every part is transposed back."""
    return _parts(
        nodes,
        f"float[4, {nodes}] x",
        "Transpose<perm = [1, 0]>(x)",
        "float[4, 1]",
        "Transpose<perm = [1, 0]>(p{i})",
    )


def _parts(count: int, x: str, whole: str, of: str, each: str) -> onnx.ModelProto:
    parts = ", ".join(f"p{i}" for i in range(count))
    made = " ".join(f"s{i} = {each.format(i=i)} r{i} = Relu(s{i})" for i in range(count))
    together = f"y = Sum({', '.join(f'r{i}' for i in range(count))})"
    source = "" if whole == "x" else f"t = {whole}"
    split = f"{parts} = Split<axis = 0>({'x' if whole == 'x' else 't'})"
    return parse_proto(
        f"g ({x}) => ({of} y) <int64[1] axis = {{0}}> {{ {source} {split} {made} {together} }}"
    )


def captures(nodes: int) -> onnx.ModelProto:
    """A Loop whose body captures as many values as it has nodes."""
    others = ", ".join(f"float[2] w{i}" for i in range(nodes))
    steps = " ".join(f"v{i + 1} = Mul(v{i}, w{i})" for i in range(nodes))
    return parse_proto(
        f"""g (float[2] x, int64 m, {others}) => (float[2] y) {{ y = Loop(m, , x) <body =
            b (int64 i, bool c, float[2] v0) => (bool d, float[2] v{nodes}) {{ d = Identity(c) {steps} }}> }}"""
    )


def calls(work: Callable[[ir.Model], object], model: onnx.ModelProto) -> int:
    """How many functions, Python's and C's, ``work`` on ``model`` calls."""
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    loaded = ir.from_proto(model)
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work(loaded)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("build", [*BUILDERS.values(), hub, extrema, squeezed_parts, transposed_parts])
def test_calls_grow_linearly(build: Any) -> None:
    work = partial(optimize, verify=False)
    work(ir.from_proto(build(200)))  # imports, and tables that are made once
    small, large = build(300), build(1200)
    grown = len(large.graph.node) / len(small.graph.node)
    assert calls(work, large) <= 1.15 * grown * calls(work, small)


def test_gradient_calls_grow_linearly_with_captures_of_a_loop() -> None:
    work = partial(differentiate, loss=["y"], wrt="inputs", optimize=False)
    work(ir.from_proto(captures(10)))
    assert calls(work, captures(400)) <= 1.15 * 4 * calls(work, captures(100))


def weights(nodes: int) -> onnx.ModelProto:
    """A chain of products with as many parameters, and a loss."""
    held = ", ".join(f"float[2] w{i} = {{1, 2}}" for i in range(nodes))
    steps = " ".join(f"v{i + 1} = Mul(v{i}, w{i})" for i in range(nodes))
    return parse_proto(
        f"g (float[2] v0) => (float loss) <{held}> {{ {steps} loss = ReduceSum<keepdims = 0>(v{nodes}) }}"
    )


def test_calls_for_a_step_of_training_grow_linearly_with_the_parameters() -> None:
    work = partial(write_step, loss="loss", optimizer=AdamW())
    work(ir.from_proto(weights(10)))
    few, some, many = (calls(work, weights(nodes)) for nodes in (30, 60, 120))
    assert many - some <= 2.03 * (some - few)
