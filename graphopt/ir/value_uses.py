"""Query and replace the uses of values, in time proportional to the number of changes.

onnx-ir's ``Value.uses()`` creates a new tuple each time, and its ``Node.replace_input_with()`` creates a new
tuple of all inputs for each replaced input. For a Concat of 50,000 tensors, that would take hours.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import bodies, walk_nodes, with_bodies


def use_count(value: onnx_ir.Value) -> int:
    """The number of node inputs that read ``value``."""
    return len(value._uses)


def is_read(value: onnx_ir.Value) -> bool:
    """Whether a node reads ``value``, or it is an output of its graph."""
    return bool(value._uses) or value.is_graph_output()


def only_reader(value: onnx_ir.Value) -> onnx_ir.Node | None:
    """The node that reads ``value``, if exactly one node input does."""
    return next(iter(value._uses)).node if len(value._uses) == 1 else None


def readers(value: onnx_ir.Value) -> Iterator[onnx_ir.Node]:
    """The nodes in graphs that read ``value``, once per input. Uses must not change during iteration."""
    return (use.node for use in value._uses if use.node.graph is not None)


def replace_inputs(node: onnx_ir.Node, changes: Mapping[int, onnx_ir.Value | None]) -> None:
    """Replace several inputs of ``node`` by index, in one operation."""
    inputs = list(node.inputs)
    lost: dict[onnx_ir.Value, None] = {}
    for index, new in changes.items():
        old, inputs[index] = inputs[index], new
        if old is not None:
            old._remove_usage(node, index)
            lost[old] = None
        if new is not None:
            new._add_usage(node, index)
    node._inputs = tuple(inputs)
    if node.device_configurations:
        for value in lost:
            node._drop_sharding_for_value(value)


def clear_inputs(node: onnx_ir.Node) -> None:
    """Clear all inputs of ``node``."""
    replace_inputs(node, dict.fromkeys(range(len(node.inputs))))


def replace_uses(
    old: onnx_ir.Value, new: onnx_ir.Value, keep: Container[onnx_ir.Node] = frozenset()
) -> list[onnx_ir.Node]:
    """Replace ``old`` by ``new`` in all its readers except ``keep``; returns the changed readers."""
    changes: dict[onnx_ir.Node, dict[int, onnx_ir.Value | None]] = {}
    for node, index in old.uses():
        if node not in keep:
            changes.setdefault(node, {})[index] = new
    for node, inputs in changes.items():
        replace_inputs(node, inputs)
    return list(changes)


def replace_within(nodes: Iterable[onnx_ir.Node], values: Mapping[onnx_ir.Value, onnx_ir.Value]) -> None:
    """Replace values in the inputs of ``nodes``, and in the inputs and outputs of their bodies."""
    nodes = list(nodes)
    held = [body for node in nodes if node.attributes for body in bodies(node)]
    inside = {*nodes, *(node for body in held for node in walk_nodes(body))}
    changes: dict[onnx_ir.Node, dict[int, onnx_ir.Value | None]] = {}
    for old, new in values.items():
        for node, index in old.uses():
            if node in inside:
                changes.setdefault(node, {})[index] = new
    for node, inputs in changes.items():
        replace_inputs(node, inputs)
    for graph in (graph for body in held for graph in with_bodies(body)):
        for index, output in enumerate(graph.outputs):
            if output in values:
                graph.outputs[index] = values[output]
