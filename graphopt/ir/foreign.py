"""Passes of onnx-ir, and models that they return."""

from __future__ import annotations

from graphopt.ir.onnxir import onnx_ir

#: What passes written for onnx-ir derive from.
PassBase = onnx_ir.passes.PassBase


def take_over(model: onnx_ir.Model, other: onnx_ir.Model) -> None:
    """Let ``model`` hold what ``other`` holds; ``other`` is not to be used afterwards."""
    notes = {**model.graph.meta, **other.graph.meta}
    functions, metadata = dict(other.functions), dict(other.metadata_props)
    model.graph = other.graph
    model.graph.meta.update(notes)
    model.functions.clear()
    model.functions.update(functions)
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    model.ir_version = other.ir_version
