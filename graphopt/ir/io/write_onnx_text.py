"""ONNX text, in onnx's own notation. Models that the notation can't represent are rejected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import onnx
import onnx.parser
import onnx.printer

from graphopt.errors import UnsupportedModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.json.tensors import bytes_of

#: Maximum characters of a quoted line.
_LONGEST = 100
#: Fields that may be lost: they affect neither the computation nor the signature.
_COMMENTARY = ("doc_string", "metadata_props", "value_info", "denotation")


def to_text(proto: onnx.ModelProto) -> str:
    """The text of ``proto``, which may lack doc strings, metadata, denotations and types of inner values.

    Raises:
        UnsupportedModel: onnx can't parse its text of the model, or parses it as another model.
    """
    try:
        text = onnx.printer.to_text(proto)
        back = onnx.parser.parse_model(text)
    except Exception as error:  # onnx also raises exceptions translated from C++
        raise _unsupported(_complaint(error)) from error
    essence = _essence(proto)
    lost = _difference(essence, _essence(back))
    if lost:
        raise _unsupported(f"{lost} would change{_names(essence, lost)}")
    return text


def _unsupported(why: str) -> UnsupportedModel:
    hint = "write .json, which holds everything; to look at a model: graphopt dump MODEL"
    return UnsupportedModel(f"ONNX text can't hold this model: {why}", hint=hint)


def _complaint(error: Exception) -> str:
    """A description of the part that onnx can't print or parse, with its line."""
    if isinstance(error, UnicodeDecodeError):
        before, after = error.object[: error.start], error.object[error.start :]
        line = before[before.rfind(b"\n") + 1 :] + after.partition(b"\n")[0]
        return f"text that is not UTF-8 in {_shortened(line.decode('utf-8', 'replace'))}"
    detail = error.args[0] if error.args else ""
    text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)
    found = re.search(r"Error context:(.*)\n(.*)", text)
    if found is None:
        return "onnx can't parse its own output"
    return f"onnx prints, but can't parse {_shortened(found[1])}: {found[2].strip().rstrip('.')}"


def _shortened(line: str) -> str:
    line = line.strip()
    return f"{line[:_LONGEST]}…" if len(line) > _LONGEST else line


def _names(proto: onnx.ModelProto, path: str) -> str:
    """The names of the node and other elements along ``path`` into ``proto``, in parentheses."""
    here: Any = proto
    names: list[str] = []
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        here = getattr(here, name)[int(index)] if index else getattr(here, name)
        match here:
            case onnx.NodeProto():
                names.append(f"node {(here.name or ', '.join(here.output))!r} ({here.op_type})")
            case onnx.AttributeProto() | onnx.TensorProto() | onnx.ValueInfoProto() | onnx.FunctionProto():
                names.append(f"{name.removesuffix('s')} {here.name!r}")
    return f" ({', '.join(names)})" if names else ""


def _essence(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A normalized copy without commentary; equal for equivalent models."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for message, depth in _messages(copy, 0):
        if isinstance(message, onnx.TensorProto):
            _use_raw_data(message)
        elif isinstance(message, onnx.GraphProto) and depth:
            for info in (*message.input, *message.output):
                info.ClearField("type")
        for field, value in message.ListFields():
            if field.name in _COMMENTARY or (not field.is_repeated and value == ""):
                message.ClearField(field.name)
    return copy


def _messages(message: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """Every message in ``message``, outer ones first, with the number of enclosing bodies."""
    pending: list[tuple[Any, int]] = [(message, depth)]
    while pending:
        message, depth = pending.pop()
        yield message, depth
        inside = depth + isinstance(message, onnx.AttributeProto)
        for field, value in message.ListFields():
            if field.message_type is not None:
                pending += [(item, inside) for item in (value if field.is_repeated else [value])]


def _use_raw_data(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == onnx_ir.DataType.STRING:
        return
    data = bytes_of(tensor)
    for field, _ in tensor.ListFields():
        if field.name.endswith("_data"):
            tensor.ClearField(field.name)
    tensor.raw_data = data


def _difference(one: Any, other: Any) -> str:
    """The path of the first difference of two messages; empty if they are equal."""
    path = ""
    while True:
        if one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True):
            return path
        step = _differing_part(one, other)
        if step is None:
            return path
        name, one, other = step
        path = f"{path}.{name}" if path else name
        if one is None:
            return path


def _differing_part(one: Any, other: Any) -> tuple[str, Any, Any] | None:
    """A field in which two messages differ, with both values if they are messages."""
    for field in one.DESCRIPTOR.fields:
        left, right = getattr(one, field.name), getattr(other, field.name)
        if not field.is_repeated:
            if field.message_type is None:
                if left != right:
                    return field.name, None, None
            elif left.SerializeToString(deterministic=True) != right.SerializeToString(deterministic=True):
                return field.name, left, right
        elif len(left) != len(right) or field.message_type is None:
            if list(left) != list(right):
                return field.name, None, None
        else:
            for index, (a, b) in enumerate(zip(left, right, strict=True)):
                if a.SerializeToString(deterministic=True) != b.SerializeToString(deterministic=True):
                    return f"{field.name}[{index}]", a, b
    return None
