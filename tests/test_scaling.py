"""Work grows with the model, not faster: counted in calls, since times depend on the machine."""

from __future__ import annotations

import sys
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.scaling import BUILDERS
from graphopt import ir
from graphopt.api import optimize


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


def calls(model: onnx.ModelProto) -> int:
    """How many functions, Python's and C's, optimizing ``model`` calls."""
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    loaded = ir.from_proto(model)
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        optimize(loaded, verify=False)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("build", [*BUILDERS.values(), hub])
def test_calls_grow_linearly(build: Any) -> None:
    optimize(ir.from_proto(build(200)), verify=False)  # imports, and tables that are made once
    small, large = build(300), build(1200)
    grown = len(large.graph.node) / len(small.graph.node)
    assert calls(large) <= 1.15 * grown * calls(small)
