"""What the installed onnxruntime can't run any more under another opset: it lags behind the standard."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context
from graphopt.opset import convert
from graphopt.ort.target import Target


def lost_kernels(model: ir.Model, source: int, cx: Context) -> list[str]:
    """Operators of ``model`` that onnxruntime has kernels for under opset ``source``, and none under its own.

    Operators that the standard also defines by others need none.
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
    """The type that a kernel has to be for; small floating-point types are cast where there is none."""
    first = next((value for value in (*node.inputs, *node.outputs) if value is not None), None)
    dtype = None if first is None else cx.dtype(first)
    return None if dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else dtype


def _has_kernel(op_type: str, version: int, dtype: ir.DataType | None, cx: Context) -> bool:
    """Whether onnxruntime has a kernel: on the CPU, which helps out, or on the target."""
    return any(target.has_kernel(op_type, "", version, dtype) for target in (Target(), cx.target))
