"""Extract: copy nodes into a separate graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import constant_of
from graphopt.ir.region.clone import Cloner, reads

Declare = Callable[[onnx_ir.Value], tuple[onnx_ir.TypeProtocol | None, onnx_ir.Shape | None]]


def declared(value: onnx_ir.Value) -> tuple[onnx_ir.TypeProtocol | None, onnx_ir.Shape | None]:
    """The type and shape that the model declares for ``value``."""
    return value.type, value.shape


def extract(
    nodes: Sequence[onnx_ir.Node],
    outputs: Sequence[onnx_ir.Value],
    inputs: Sequence[onnx_ir.Value] = (),
    *,
    declare: Declare = declared,
) -> onnx_ir.Graph:
    """Create a graph of copies of ``nodes``, which computes ``outputs``.

    Args:
        nodes: the nodes, in topological order.
        outputs: values of the nodes, or outer values.
        inputs: the first inputs of the graph. Other values that the nodes read are appended, except
            constants, which are copied and share tensors.
        declare: type and shape of an input or output; by default as declared by the model.
    """
    produced = {output for node in nodes for output in node.outputs}
    requested = frozenset(inputs)
    wanted = dict.fromkeys([*inputs, *(value for node in nodes for value in reads(node)), *outputs])
    copier = Cloner()
    graph_inputs: list[onnx_ir.Value] = []
    initializers: list[onnx_ir.Value] = []
    for value in wanted:
        if value in produced:
            continue
        kind, shape = declare(value)
        copy = onnx_ir.Value(
            name=value.name,
            type=kind,
            shape=None if shape is None else shape.copy(),
            doc_string=value.doc_string,
            metadata_props=dict(value.metadata_props),
        )
        copier.values[value] = copy
        tensor = constant_of(value)
        if value.is_initializer() and value.const_value is not None:
            copy.const_value = value.const_value
            initializers.append(copy)
        elif tensor is not None:  # an outer Constant node
            copy.const_value = tensor
            initializers.append(copy)
        if tensor is None or value in requested:
            graph_inputs.append(copy)
    copies = copier.nodes(nodes)
    results = [copier.value(value) for value in outputs]
    for value, result in zip(outputs, results, strict=True):
        if result is not None and value in produced:
            result.type, result.shape = declare(value)
    return onnx_ir.Graph(
        graph_inputs,
        [result for result in results if result is not None],
        nodes=copies,
        initializers=initializers,
    )
