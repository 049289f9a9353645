"""Operators without a kernel in the installed onnxruntime after a conversion to another opset."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.opset import convert
from graphopt.ort.target import Target


def lost_kernels(model: ir.Model, source: int, cx: Context) -> list[str]:
    """Operators of ``model`` with a kernel in onnxruntime under opset ``source``, but not the model's opset.

    Operators that the standard also defines as functions need no kernel.
    """
    used = dict.fromkeys(
        (node.op_type, cx.version(node), _computed_in(node, cx))
        for graph in ir.graphs_of(model)
        for node in graph
        if node.domain == "" and node.op_identifier() not in model.functions
    )
    lost = [
        op_type
        for op_type, version, dtype in used
        if convert.changes(op_type, source, version)
        and not convert.is_function(op_type, version)
        and _has_kernel(op_type, source, dtype, cx)
        and not _has_kernel(op_type, version, dtype, cx)
    ]
    return list(dict.fromkeys(lost))


def _computed_in(node: ir.Node, cx: Context) -> ir.DataType | None:
    """The type that a kernel must support; ``None`` for float16 and bfloat16, which may be cast."""
    first = next((value for value in (*node.inputs, *node.outputs) if value is not None), None)
    dtype = None if first is None else cx.dtype(first)
    return None if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else dtype


def _has_kernel(op_type: str, version: int, dtype: ir.DataType | None, cx: Context) -> bool:
    """Whether onnxruntime has a kernel on the target, or on the CPU, to which it falls back."""
    return any(target.has_kernel(op_type, "", version, dtype) for target in (Target(), cx.target))
