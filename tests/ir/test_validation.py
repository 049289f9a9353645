"""Validation finds the faults that passes may cause, and their position."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

from graphopt import ir
from graphopt.errors import InvalidModel
from tests.ir.models import chain
from tests.model_testing import parse

TEXT = """g (float[N] x, bool c) => (float[N] y) <float[1] w = {2.0}> {
    a = Relu(x)
    b = Mul(a, w)
    d = If (c) <
        then_branch = t () => (float[N] t1) { t1 = Neg(b) },
        else_branch = e () => (float[N] e1) { e1 = Abs(a) }
    >
    y = Add(d, a)
}"""


def _nodes(model: ir.Model) -> dict[str, ir.Node]:
    return {node.op_type: node for node in ir.walk_nodes(model.graph)}


def _read_a_removed_node(model: ir.Model) -> None:
    nodes = _nodes(model)
    model.graph.remove(nodes["Mul"])


def _leave_a_removed_reader(model: ir.Model) -> None:
    nodes = _nodes(model)
    ir.Editor(model).replace(nodes["Mul"].outputs[0], model.graph.inputs[0])
    model.graph.remove(nodes["Mul"])  # it still lists itself as a reader of a


def _read_before(model: ir.Model) -> None:
    nodes = _nodes(model)
    nodes["Relu"].replace_input_with(0, nodes["If"].outputs[0])


def _disorder(model: ir.Model) -> None:
    relu = _nodes(model)["Relu"]
    model.graph.remove(relu)
    model.graph.append(relu)


def _read_out_of_scope(model: ir.Model) -> None:
    nodes = _nodes(model)
    nodes["Add"].replace_input_with(1, nodes["Neg"].outputs[0])


def _return_an_outer_value(model: ir.Model) -> None:
    body = ir.bodies(_nodes(model)["If"])[0]
    value = ir.Value(name="elsewhere")
    body.outputs[0] = value


def _rename_to_another(model: ir.Model) -> None:
    _nodes(model)["Mul"].outputs[0].name = "a"


def _shadow(model: ir.Model) -> None:
    _nodes(model)["Neg"].outputs[0].name = "a"


def _name_nodes_alike(model: ir.Model) -> None:
    nodes = _nodes(model)
    nodes["Relu"].name = nodes["Mul"].name = "same"


def _forget_the_contents(model: ir.Model) -> None:
    model.graph.initializers["w"].const_value = None


def _refer_to_nothing(model: ir.Model) -> None:
    _nodes(model)["Relu"].attributes.add(ir.RefAttr("alpha", "a", ir.AttributeType.FLOAT))


def _forget_an_import(model: ir.Model) -> None:
    model.opset_imports.clear()


def _forget_a_type(model: ir.Model) -> None:
    model.graph.inputs[0].type = None


def _unname(model: ir.Model) -> None:
    _nodes(model)["Mul"].outputs[0].name = ""


BREAKS: dict[Callable[[ir.Model], None], str] = {
    _read_a_removed_node: "reads 'b', which was defined by a node that was removed",
    _leave_a_removed_reader: "'[aw]' is read by 'Mul.*', which is in no graph",
    _read_before: "depends on it in a cycle",
    _disorder: "reads 'a', which is defined later",
    _read_out_of_scope: "reads 't1', which belongs to another graph",
    _return_an_outer_value: "output 'elsewhere' of graph 't' has no definition",
    _rename_to_another: "'a' is defined twice",
    _shadow: "'a' is defined twice",
    _name_nodes_alike: "two nodes have the name 'same'",
    _forget_the_contents: "initializer 'w' has no contents",
    _refer_to_nothing: "is in no function",
    _forget_an_import: "domain 'ai.onnx', which the model does not import",
    _forget_a_type: "input 'x' has no type",
    _unname: "a value has no name",
}


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda function: function.__name__.strip("_"))
def test_breaks_are_found(break_it: Callable[[ir.Model], None]) -> None:
    model = parse(TEXT)
    ir.validate(model)
    break_it(model)
    with pytest.raises(InvalidModel, match=BREAKS[break_it]):
        ir.validate(model)


def test_message_shows_the_node_and_its_producers() -> None:
    model = parse(TEXT)
    _disorder(model)
    with pytest.raises(InvalidModel) as error:
        ir.validate(model)
    assert error.value.message.splitlines() == [
        "'Mul(b)' reads 'a', which is defined later",
        "  %a = Relu(%x)",
        "  %b = Mul(%a, {[2.0]})",
    ]


def test_a_call_of_a_function_that_was_dropped_is_found() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N] x) => (float[N] y) { y = local.F(x) }
        <domain: "local", opset_import: ["" : 17]> F (a) => (b) { b = Neg(a) }"""
    )
    ir.validate(model)
    ir.Editor(model).remove_function(next(iter(model.functions.values())))
    with pytest.raises(InvalidModel, match="calls function F, which does not exist"):
        ir.validate(model)


def test_wrong_sizes_are_found_once_tensors_are_replaced() -> None:
    model = parse(TEXT)
    model.graph.initializers["w"].const_value = ir.tensor(np.ones(3, np.float32))
    ir.validate(model)  # another shape than declared is the file's affair


def test_the_verifier_is_linear() -> None:
    def calls(length: int) -> int:
        model = ir.from_proto(chain(length))
        count = 0

        def profile(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(profile)
        try:
            ir.validate(model)
        finally:
            sys.setprofile(None)
        return count

    assert calls(4000) < 4.2 * calls(1000)
