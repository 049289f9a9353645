"""Move the graph of a case into a branch, a loop or a function."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto, helper

Wrap = Callable[[onnx.ModelProto], onnx.ModelProto]


def in_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """The nodes become both branches of an If, and read inputs and constants of the graph around it."""
    graph = model.graph
    condition = helper.make_tensor_value_info("nested_condition", TensorProto.BOOL, [])
    branches = [_body(f"branch{index}", graph, [], graph.output, f"_{index}") for index in (0, 1)]
    node = helper.make_node(
        "If",
        ["nested_condition"],
        [value.name for value in graph.output],
        then_branch=branches[0],
        else_branch=branches[1],
    )
    return _around(model, [node], [*graph.input, condition])


def in_loop(model: onnx.ModelProto) -> onnx.ModelProto:
    """The nodes become the body of a Loop, whose results are scanned; the number of trips is an input."""
    graph = model.graph
    trips = helper.make_tensor_value_info("nested_trips", TensorProto.INT64, [])
    inputs = [
        helper.make_tensor_value_info("nested_trip", TensorProto.INT64, []),
        helper.make_tensor_value_info("nested_go_on", TensorProto.BOOL, []),
    ]
    go_on = onnx.ValueInfoProto(name="nested_on")
    go_on.type.CopyFrom(inputs[1].type)
    body = _body("body", graph, inputs, [go_on, *graph.output], "_0")
    body.node.append(helper.make_node("Identity", ["nested_go_on"], ["nested_on"]))
    body.output[0].name = "nested_on"
    node = helper.make_node("Loop", ["nested_trips", ""], [value.name for value in graph.output], body=body)
    result = _around(model, [node], [*graph.input, trips])
    for value in result.graph.output:
        dims = [onnx.TensorShapeProto.Dimension(), *value.type.tensor_type.shape.dim]
        del value.type.tensor_type.shape.dim[:]
        value.type.tensor_type.shape.dim.extend(dims)
    return result


def in_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The nodes become a function of one call; its constants are Constant nodes."""
    graph = model.graph
    fed = [value.name for value in graph.input]
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in graph.initializer
        if tensor.name not in fed
    ]
    outputs = [value.name for value in graph.output]
    function = helper.make_function(
        "nested", "f", fed, outputs, [*constants, *graph.node], list(model.opset_import)
    )
    call = helper.make_node("f", fed, outputs, domain="nested")
    result = _around(model, [call], list(graph.input))
    result.opset_import.add(domain="nested", version=1)
    result.functions.append(function)
    defaults = [tensor for tensor in graph.initializer if tensor.name in fed]
    del result.graph.initializer[:]
    result.graph.initializer.extend(defaults)
    return result


def in_function_with_parameters(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """As :func:`in_function`, but the call has the attributes of the nodes; ``None`` without any."""
    result = in_function(model)
    call, function = result.graph.node[0], result.functions[0]
    for index, node in enumerate(function.node):
        for attribute in node.attribute if node.op_type != "Constant" else ():
            given = onnx.AttributeProto()
            given.CopyFrom(attribute)
            given.name = f"{attribute.name}_{index}"
            call.attribute.append(given)
            function.attribute.append(given.name)
            name, kind = attribute.name, attribute.type
            attribute.Clear()
            attribute.name, attribute.type, attribute.ref_attr_name = name, kind, given.name
    return result if call.attribute else None


def inner_nodes(model: onnx.ModelProto) -> list[str]:
    """Operators of the first branch, body or function, sorted, without constants."""
    if model.functions:
        nodes = list(model.functions[0].node)
    else:
        holder = next(node for node in model.graph.node if node.op_type in ("If", "Loop"))
        nodes = list(holder.attribute[0].g.node)
        nodes = [node for node in nodes if "nested_on" not in node.output]
    return sorted(node.op_type for node in nodes if node.op_type != "Constant")


def _around(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.input[:], result.graph.value_info[:]
    result.graph.node.extend(nodes)
    result.graph.input.extend(inputs)
    return result


def _body(
    name: str,
    graph: onnx.GraphProto,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    suffix: str,
) -> onnx.GraphProto:
    """The nodes of ``graph`` with new names; values that they do not compute are captured."""
    own = {output for node in graph.node for output in node.output if output}
    body = onnx.GraphProto(name=name)
    body.input.extend(inputs)
    for node in graph.node:
        copy = body.node.add()
        copy.CopyFrom(node)
        for names in (copy.input, copy.output):
            for index, item in enumerate(names):
                if item in own:
                    names[index] = item + suffix
    for value in outputs:
        info = body.output.add()
        info.CopyFrom(value)
        if value.name in own:
            info.name = value.name + suffix
        elif value.name not in ("nested_on",):
            info.name = f"{value.name}{suffix}"
            body.node.append(helper.make_node("Identity", [value.name], [info.name]))
    return body
