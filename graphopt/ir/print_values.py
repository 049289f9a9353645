"""Types, constants and attributes as text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import NAMESPACE
from graphopt.ir.opaque_parts import opaque_attribute, opaque_type
from graphopt.ir.weights import tag_of

#: Maximum number of elements of a constant printed inline.
_INLINE = 8
#: Maximum characters of a constant printed inline.
_INLINE_TEXT = 40
#: Maximum number of elements of a list in an attribute; longer lists are truncated.
_SHOWN = 16
#: Maximum characters of a string; longer strings are truncated.
_SHOWN_TEXT = 60

_TEXT = NAMESPACE + "text"
_DTYPES = {onnx_ir.DataType.BOOL: "bool", onnx_ir.DataType.STRING: "str", onnx_ir.DataType.UNDEFINED: "?"}
_KNOWN = frozenset(int(dtype) for dtype in onnx_ir.DataType)
#: Element types that are implied by the notation of a constant.
_BARE = frozenset(
    {onnx_ir.DataType.FLOAT, onnx_ir.DataType.INT64, onnx_ir.DataType.BOOL, onnx_ir.DataType.STRING}
)


def type_text(dtype: onnx_ir.DataType | None, dims: Sequence[Any] | None) -> str:
    """``f32[B, S, 4]``; ``f32[...]`` for an unknown rank, ``?`` for an unknown dim or dtype."""
    element = "?" if dtype is None else _DTYPES.get(dtype) or dtype.short_name()
    return f"{element}[{'...' if dims is None else ', '.join(map(_dim, dims))}]"


def _dim(dim: Any) -> str:
    if type(dim) is int:
        return str(dim)
    if isinstance(dim, onnx_ir.SymbolicDim):
        dim = dim.value
    return "?" if dim is None else str(dim)


def declared_type(value: onnx_ir.Value) -> str | None:
    """The type that the model declares for ``value``."""
    original = opaque_type(value)
    if original is not None:
        return _proto_type(original)
    if value.type is None:
        return None if value.shape is None else type_text(None, value.shape.dims)
    return _type(value.type, value.shape)


def _type(kind: Any, shape: Iterable[Any] | None) -> str:
    around = ""
    while not isinstance(kind, (onnx_ir.TensorType, onnx_ir.SparseTensorType)):
        around += "seq(" if isinstance(kind, onnx_ir.SequenceType) else "opt("
        kind = kind.elem_type
    text = type_text(kind.dtype, None if shape is None else list(shape))
    if isinstance(kind, onnx_ir.SparseTensorType):
        text = f"sparse({text})"
    return around + text + ")" * around.count("(")


def _element_type(number: int) -> str:
    if number not in _KNOWN:
        return f"?{number}"
    return type_text(onnx_ir.DataType(number), [])[:-2]


def _proto_type(proto: onnx.TypeProto) -> str:
    """Text of a type that onnx-ir can't represent."""
    around = ""
    while (kind := proto.WhichOneof("value")) not in {None, "tensor_type", "sparse_tensor_type"}:
        inner = getattr(proto, str(kind))
        if kind == "map_type":
            around += f"map({_element_type(inner.key_type)}, "
            proto = inner.value_type
        elif kind == "opaque_type":
            return f"{around}opaque({inner.domain}.{inner.name})" + ")" * around.count("(")
        else:
            around += f"{str(kind)[:3]}("
            proto = inner.elem_type
    text = "?"
    if kind is not None:
        tensor = getattr(proto, kind)
        dims = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim
        ]
        text = type_text(None, dims if tensor.HasField("shape") else None)
        text = _element_type(tensor.elem_type) + text[1:]
    return around + text + ")" * around.count("(")


def constant_text(tensor: onnx_ir.TensorProtocol) -> str:
    """``{0.5}`` for a small tensor, ``f32[768, 768] #a91c`` for a large one.

    The dtype precedes the contents of a small tensor unless it is float32, int64, bool or string.
    """
    inline = inline_text(tensor)
    if inline is not None:
        return inline
    return f"{type_text(tensor.dtype, tensor.shape.numpy())} #{tag_of(tensor)}"


def inline_text(tensor: onnx_ir.TensorProtocol | None) -> str | None:
    """The contents of a small tensor; ``None`` for a large one."""
    if tensor is None:
        return None
    known = tensor.meta.get(_TEXT)
    if known is None:
        known = tensor.meta[_TEXT] = _inline(tensor) or ""
    return known or None


def _inline(tensor: onnx_ir.TensorProtocol) -> str | None:
    if tensor.size > _INLINE:
        return None
    dims = tensor.shape.numpy()
    if tensor.size == 0 and len(dims) != 1:
        return f"{type_text(tensor.dtype, dims)}{{}}"
    dtype = tensor.dtype
    try:
        texts = [_element(item) for item in tensor.numpy().reshape(-1)]
    except (TypeError, ValueError):  # the contents do not fit the type, which validation reports
        return None
    text = texts[0] if not dims else _nested(texts, dims)
    if len(text) > _INLINE_TEXT:
        return None
    prefix = type_text(dtype, [])[:-2]
    return f"{{{text}}}" if dtype in _BARE else f"{prefix}{{{text}}}"


def _element(item: Any) -> str:
    if isinstance(item, (bytes, str)):
        return quoted(item)
    if isinstance(item, (bool, np.bool_)):
        return "true" if item else "false"
    return str(item)


def _nested(texts: list[str], dims: Sequence[int]) -> str:
    for dim in reversed(dims):
        texts = [f"[{', '.join(texts[i : i + dim])}]" for i in range(0, len(texts), dim)] if texts else ["[]"]
    return texts[0]


def quoted(text: str | bytes) -> str:
    """``text`` in quotes on one line, truncated if it is long."""
    plain = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    if len(plain) > _SHOWN_TEXT:
        data = plain.encode("utf-8", "surrogatepass")
        tag = hashlib.blake2b(data, digest_size=2).hexdigest()
        return f"{json.dumps(plain[: _SHOWN_TEXT // 2])}… ({len(plain)} characters #{tag})"
    if '"' in plain and not {"'", "\\"} & set(plain) and plain.isprintable():  # for example JSON
        return f"'{plain}'"
    return json.dumps(plain, ensure_ascii=False)


def _listed(items: Sequence[Any], show: Callable[[Any], str]) -> str:
    if len(items) <= _SHOWN:
        return f"[{', '.join(map(show, items))}]"
    tag = hashlib.blake2b(repr(list(items)).encode(), digest_size=2).hexdigest()
    return f"[{', '.join(map(show, items[:4]))}, … {len(items)} #{tag}]"


def _float(number: float) -> str:
    return str(np.float32(number))


def attribute_text(attribute: onnx_ir.Attr) -> str | None:
    """The value of an attribute; ``None`` for graphs, which are printed below their node."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    original = opaque_attribute(attribute)
    if original is not None:
        return _opaque_text(original)
    value = attribute.value
    kind = onnx_ir.AttributeType
    match attribute.type:
        case kind.GRAPH | kind.GRAPHS:
            return None
        case kind.FLOAT:
            return _float(value)
        case kind.INT:
            return str(value)
        case kind.STRING:
            return quoted(value)
        case kind.TENSOR:
            return constant_text(value)
        case kind.FLOATS:
            return _listed(value, _float)
        case kind.INTS:
            return _listed(value, str)
        case kind.STRINGS:
            return _listed(value, quoted)
        case kind.TENSORS:
            return _listed(value, constant_text)
        case kind.TYPE_PROTO:
            return _type(value.type, value.shape) if value.type is not None else "?"
        case kind.TYPE_PROTOS:
            return _listed([_type(item.type, item.shape) if item.type else "?" for item in value], str)
    return "?"


def _opaque_text(attribute: onnx.AttributeProto) -> str:
    tag = hashlib.blake2b(attribute.SerializeToString(), digest_size=2).hexdigest()
    match attribute.type:
        case onnx.AttributeProto.SPARSE_TENSOR:
            sparse = attribute.sparse_tensor
            values = _element_type(sparse.values.data_type) + type_text(None, sparse.dims)[1:]
            return f"sparse({values}, {len(sparse.values.dims) and sparse.values.dims[0]} values) #{tag}"
        case onnx.AttributeProto.TYPE_PROTO:
            return _proto_type(attribute.tp)
        case onnx.AttributeProto.STRINGS:
            return _listed(attribute.strings, quoted)
    return f"{onnx.AttributeProto.AttributeType.Name(attribute.type).lower()} #{tag}"
