"""Types of values in onnxruntime's notation."""

from __future__ import annotations

from graphopt import ir
from graphopt.context import Context


def types_of(node: ir.Node, cx: Context) -> dict[ir.Value, str]:
    """The types of the inputs and outputs of ``node`` in onnxruntime's notation; none for unknown ones."""
    values = [*(value for value in node.inputs if value is not None), *node.outputs]
    found = ((value, _type(value, cx)) for value in dict.fromkeys(values))
    return {value: text for value, text in found if text}


def _type(value: ir.Value, cx: Context) -> str:
    dtype = cx.facts.dtype(value)
    if dtype is not None:
        return f"tensor({dtype.name.lower()})"
    return _text(cx.facts.type(value) or value.type)


def _text(type: ir.TypeProtocol | None) -> str:
    if isinstance(type, ir.SequenceType):
        return f"seq({inner})" if (inner := _text(type.elem_type)) else ""
    if isinstance(type, ir.OptionalType):
        return f"optional({inner})" if (inner := _text(type.elem_type)) else ""
    if isinstance(type, ir.TensorType):
        return f"tensor({type.dtype.name.lower()})"
    return ""
