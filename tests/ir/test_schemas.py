"""Nodes that do not have what their operators ask for are refused, wherever they stand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphopt import ir
from graphopt.errors import InvalidModel
from tests.ir.models import model, weight

NODE = helper.make_node


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (NODE("Add", ["x"], ["y"]), "1 input, which Add does not take"),
        (NODE("Relu", ["x", "x"], ["y"]), "2 inputs, which Relu does not take"),
        (NODE("Relu", [""], ["y"]), "leaves out input 0"),
        (NODE("Concat", [], ["y"], axis=0), "0 inputs"),
        (NODE("Relu", ["x"], ["y", "z"]), "2 outputs, which Relu does not give"),
        (NODE("Relu", ["x"], []), "0 outputs"),
        (NODE("Cast", ["x"], ["y"]), "no attribute 'to'"),
        (NODE("Transpose", ["x"], ["y"], perm=1.5), "'perm' of type FLOAT"),
        (NODE("If", ["x"], ["y"], then_branch=[1], else_branch=[2]), "'.*_branch' of type INTS"),
    ],
)
def test_nodes_without_what_their_operators_ask_for(node: onnx.NodeProto, reason: str) -> None:
    nodes = [node] if "y" in node.output else [node, NODE("Neg", ["x"], ["y"])]
    with pytest.raises(InvalidModel, match=reason) as error:
        ir.from_proto(model(nodes))
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    "node",
    [
        NODE("Clip", ["x", "", "w"], ["y"]),  # an optional input is left out
        NODE("Dropout", ["x"], ["y", ""]),
        NODE("Neg", ["x", "x", "x"], ["y"], domain="vendor"),
        NODE("NoSuchOperator", [], ["y"]),
        NODE("Elu", ["x"], ["y"], unknown=1),
    ],
)
def test_what_may_be(node: onnx.NodeProto) -> None:
    tensor = numpy_helper.from_array(np.array(6, np.float32), "w")
    assert len(ir.from_proto(model([node], [tensor])).graph) == 1


def test_a_function_may_bear_the_name_of_an_operator() -> None:
    function = onnx.FunctionProto(name="Relu", domain="", input=["a", "b"], output=["c"])
    function.opset_import.add(domain="", version=17)
    function.node.append(NODE("Add", ["a", "b"], ["c"]))
    loaded = ir.from_proto(
        model([NODE("Relu", ["x", "w"], ["y"])], [weight("w", 4)], functions=[function], ir_version=10)
    )
    assert len(loaded.functions) == 1
