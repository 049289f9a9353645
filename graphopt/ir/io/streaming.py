"""A serialized model in pieces, so that its large weights are never copied into one message of all.

protobuf's own serialization of a model with 1 GB of weights takes 3 GB besides the model: a copy of each
weight in the new proto, a buffer that doubles as it grows, and the bytes. Here the model is serialized
without its large weights, whose bytes are then put between the parts of that. The pieces together are
what protobuf would have written (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.io.external_data import Change
from graphopt.ir.weights import slots

#: Bytes from which on a weight is a piece of its own.
_LARGE = 1 << 20
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_NAME = onnx.TensorProto.NAME_FIELD_NUMBER


def set_aside(model: onnx_ir.Model) -> tuple[list[Change], dict[str, onnx_ir.TensorProtocol]]:
    """The large initializers of the main graph that are nothing but raw bytes in a proto.

    Returns:
        what their slots are to hold meanwhile, tensors without contents; and the tensors by name.
    """
    changes: list[Change] = []
    found: dict[str, onnx_ir.TensorProtocol] = {}
    own = {id(value.const_value) for value in model.graph.initializers.values()}
    for slot in slots(model):
        tensor, raw = slot.tensor, getattr(slot.tensor, "raw", None)
        if not isinstance(raw, onnx.TensorProto) or tensor.nbytes < _LARGE or id(tensor) not in own:
            continue
        light = onnx.TensorProto(name=raw.name, data_type=raw.data_type, dims=raw.dims)
        size = light.ByteSize() + len(_raw_head(tensor)) + tensor.nbytes
        is_plain = raw.HasField("raw_data") and raw.ByteSize() == size and not tensor.metadata_props
        if is_plain and raw.name not in found:
            changes.append((slot, onnx_ir.serde.TensorProtoTensor(light)))
            found[raw.name] = tensor
    return changes, found


def pieces(model: bytes, weights: Mapping[str, onnx_ir.TensorProtocol]) -> Iterator[bytes | memoryview]:
    """The serialized ``model`` with the contents of ``weights`` in its initializers of these names."""
    view = memoryview(model)
    for number, start, content, end in _fields(view):
        if number == _GRAPH:
            yield from _graph(view[content:end], weights)
        else:
            yield view[start:end]


def _graph(graph: memoryview, weights: Mapping[str, onnx_ir.TensorProtocol]) -> Iterator[bytes | memoryview]:
    parts: list[tuple[bytes | memoryview, onnx_ir.TensorProtocol | None]] = []
    for number, start, content, end in _fields(graph):
        weight = weights.get(_name(graph[content:end])) if number == _INITIALIZER else None
        if weight is None:
            parts.append((graph[start:end], None))
        else:  # the contents are its last field
            tensor = bytes(graph[content:end]) + _raw_head(weight)
            parts.append((_tag(_INITIALIZER) + _varint(len(tensor) + weight.nbytes) + tensor, weight))
    yield _tag(_GRAPH) + _varint(sum(len(part) + (weight.nbytes if weight else 0) for part, weight in parts))
    for part, weight in parts:
        yield part
        if weight is not None:
            yield weight.tobytes()


def _name(tensor: memoryview) -> str:
    for number, _, content, end in _fields(tensor):
        if number == _NAME:
            return bytes(tensor[content:end]).decode(errors="replace")
    return ""


def _raw_head(tensor: onnx_ir.TensorProtocol) -> bytes:
    """What stands before the contents of ``tensor`` in its message."""
    return _tag(_RAW_DATA) + _varint(tensor.nbytes)


def _fields(message: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, start of the content and end of each field of a serialized message."""
    start = 0
    while start < len(message):
        key, content = _read_varint(message, start)
        end = content
        match key & 7:
            case 0:
                _, end = _read_varint(message, content)
            case 1:
                end = content + 8
            case 2:
                length, content = _read_varint(message, content)
                end = content + length
            case 5:
                end = content + 4
            case kind:
                raise ValueError(f"no such wire type: {kind}")
        yield key >> 3, start, content, end
        start = end


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _tag(number: int) -> bytes:
    """Of a field that is bytes, or a message."""
    return _varint(number << 3 | 2)
