"""Modules kept as model-local functions: they call each other and take attributes of their caller."""

from __future__ import annotations

import onnx
from onnx import AttributeProto, helper

from zoo.writer import FLOAT, GraphWriter

DOMAIN = "samples.nn"
OPSET = 17
WIDTH = 16


def functions() -> onnx.ModelProto:
    """Two calls of Block, which calls Linear and Normalize; what they inherit stays in the functions."""
    w = GraphWriter("functions", seed=6)
    x = w.input("x", FLOAT, ["batch", "seq", WIDTH])
    w.output("y", FLOAT, ["batch", "seq", WIDTH])
    for i, epsilon in enumerate([1e-5, 1e-3]):
        weight = w.weight(f"blocks.{i}.weight", w.normal(WIDTH, WIDTH))
        bias = w.weight(f"blocks.{i}.bias", w.normal(WIDTH))
        x = w.op("Block", x, weight, bias, domain=DOMAIN, epsilon=epsilon, result="y" if i == 1 else None)

    model = w.model(opset=OPSET, ir_version=9, producer="samples")
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.functions.extend([_block(), _linear(), _normalize()])
    return model


def _block() -> onnx.FunctionProto:
    f = GraphWriter("Block")
    y = f.op("Linear", "x", "weight", "bias", domain=DOMAIN)
    y = f.op("Identity", f.op("Relu", y))
    node = helper.make_node("Normalize", [f.op("Add", y, "x")], ["y"], "/Normalize", domain=DOMAIN)
    node.attribute.append(_caller_float("epsilon"))
    f.nodes.append(node)
    return _function(f, ["x", "weight", "bias"], ["epsilon"])


def _linear() -> onnx.FunctionProto:
    f = GraphWriter("Linear")
    f.op("Add", f.op("MatMul", "x", f.op("Transpose", "weight", perm=[1, 0])), "bias", result="y")
    return _function(f, ["x", "weight", "bias"], [])


def _normalize() -> onnx.FunctionProto:
    f = GraphWriter("Normalize")
    epsilon = helper.make_node("Constant", [], ["epsilon_value"], "/epsilon")
    epsilon.attribute.append(_caller_float("epsilon", name="value_float"))
    f.nodes.append(epsilon)
    centred = f.op("Sub", "x", f.op("ReduceMean", "x", axes=[-1]))
    variance = f.op("ReduceMean", f.op("Mul", centred, centred), axes=[-1])
    f.op("Div", centred, f.op("Sqrt", f.op("Add", variance, "epsilon_value")), result="y")
    return _function(f, ["x"], ["epsilon"])


def _caller_float(attribute: str, name: str | None = None) -> onnx.AttributeProto:
    """An attribute with the value of the caller's float attribute."""
    return AttributeProto(name=name or attribute, ref_attr_name=attribute, type=AttributeProto.FLOAT)


def _function(f: GraphWriter, inputs: list[str], attributes: list[str]) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_function(DOMAIN, f.name, inputs, ["y"], f.nodes, opsets, attributes)
