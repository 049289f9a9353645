"""How a value is used, without copying its uses: onnx-ir's ``Value.uses()`` makes a new tuple each time."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.ir.onnxir import onnx_ir


def use_count(value: onnx_ir.Value) -> int:
    """How many inputs of nodes read ``value``."""
    return len(value._uses)


def is_read(value: onnx_ir.Value) -> bool:
    """Whether a node reads ``value``, or its graph returns it."""
    return bool(value._uses) or value.is_graph_output()


def only_reader(value: onnx_ir.Value) -> onnx_ir.Node | None:
    """The node that reads ``value``, if exactly one input does."""
    return next(iter(value._uses)).node if len(value._uses) == 1 else None


def readers(value: onnx_ir.Value) -> Iterator[onnx_ir.Node]:
    """The nodes in a graph that read ``value``, once for each input; no edits while iterating."""
    return (use.node for use in value._uses if use.node.graph is not None)
