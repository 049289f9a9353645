"""Attributes from Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from graphopt.ir._onnx_ir_without_sympy import onnx_ir


def make_attributes(attributes: Mapping[str, Any] | Iterable[onnx_ir.Attr]) -> list[onnx_ir.Attr]:
    """Attributes from Python values; ``None`` omits one."""
    if not isinstance(attributes, Mapping):
        return list(attributes)
    return [_attribute(name, value) for name, value in attributes.items() if value is not None]


def _attribute(name: str, value: Any) -> onnx_ir.Attr:
    match value:
        case onnx_ir.Attr():
            return value if value.name == name else _renamed(value, name)
        case bool() | int() | np.integer():
            return onnx_ir.AttrInt64(name, int(value))
        case float() | np.floating():
            return onnx_ir.AttrFloat32(name, float(value))
        case str():
            return onnx_ir.AttrString(name, value)
        case onnx_ir.DataType():
            return onnx_ir.AttrInt64(name, int(value))
        case onnx_ir.Graph():
            return onnx_ir.AttrGraph(name, value)
        case onnx_ir.Tensor():
            return onnx_ir.AttrTensor(name, value)
        case np.ndarray():
            return onnx_ir.AttrTensor(name, onnx_ir.tensor(value))
        case list() | tuple() if all(isinstance(item, (int, np.integer)) for item in value):
            return onnx_ir.AttrInt64s(name, [int(item) for item in value])
        case list() | tuple() if all(isinstance(item, (float, int)) for item in value):
            return onnx_ir.AttrFloat32s(name, [float(item) for item in value])
        case list() | tuple() if all(isinstance(item, str) for item in value):
            return onnx_ir.AttrStrings(name, list(value))
        case onnx_ir.TensorProtocol():  # last, because the check is slow
            return onnx_ir.AttrTensor(name, value)
    raise TypeError(f"no attribute can hold {value!r}")


def _renamed(attribute: onnx_ir.Attr, name: str) -> onnx_ir.Attr:
    if attribute.is_ref():
        assert attribute.ref_attr_name is not None
        return onnx_ir.RefAttr(name, attribute.ref_attr_name, attribute.type)
    return onnx_ir.Attr(name, attribute.type, attribute.value)


def dtype_of_number(number: Any) -> onnx_ir.DataType | None:
    """The element type with ``number`` in TensorProto; ``None`` for an unknown number."""
    try:
        return onnx_ir.DataType(number)
    except ValueError:
        return None


def named_dtype(attribute: onnx_ir.Attr) -> onnx_ir.DataType | None:
    """The element type in an attribute such as ``to``; ``None`` for a reference or an unknown type."""
    if attribute.is_ref() or attribute.type != onnx_ir.AttributeType.INT:
        return None
    return dtype_of_number(attribute.value)
