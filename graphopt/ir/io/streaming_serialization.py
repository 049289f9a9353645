"""Serialize a model without copying its large weights.

protobuf's own serialization of a model with 1 GB of weights takes 3 GB besides the model: a copy of each
weight in the new proto, a buffer that doubles as it grows, and the bytes. Here the model is serialized
without its large weights, whose bytes are then inserted. The concatenated chunks equal protobuf's output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.io.external_data import Change
from graphopt.ir.io.wire_format import bytes_tag, fields, varint
from graphopt.ir.weights import Slot

#: Minimum size of a weight that is a separate chunk, in bytes.
_LARGE = 1 << 20
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_NAME = onnx.TensorProto.NAME_FIELD_NUMBER


def detach_weights(model: onnx_ir.Model) -> tuple[list[Change], dict[str, onnx_ir.TensorProtocol]]:
    """Select the large initializers of the main graph that are arrays, or raw bytes in a proto.

    Returns:
        the changes that replace them by tensors without contents; and the initializers by name.
    """
    changes: list[Change] = []
    detached: dict[str, onnx_ir.TensorProtocol] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < _LARGE or (empty := _without_contents(tensor)) is None:
            continue
        # the tensor has its name in the last written model; others may share it under other names
        empty.name = name
        slot = Slot(tensor, partial(setattr, value, "const_value"), True)
        changes.append((slot, onnx_ir.serde.TensorProtoTensor(empty)))
        detached[name] = tensor
    return changes, detached


def _without_contents(tensor: onnx_ir.TensorProtocol) -> onnx.TensorProto | None:
    """The proto of ``tensor`` without ``raw_data``; ``None`` if that is not its last field."""
    if tensor.metadata_props:
        return None
    raw = getattr(tensor, "raw", None)
    if isinstance(raw, onnx.TensorProto):
        empty = onnx.TensorProto(name=raw.name, data_type=raw.data_type, dims=raw.dims)
        size = empty.ByteSize() + len(_raw_data_header(tensor)) + tensor.nbytes
        return empty if raw.HasField("raw_data") and raw.ByteSize() == size else None
    if _array_of(tensor) is None or tensor.doc_string:
        return None
    return onnx.TensorProto(data_type=tensor.dtype.value, dims=tensor.shape.numpy())


def _array_of(tensor: onnx_ir.TensorProtocol) -> np.ndarray | None:
    """The array whose memory has the bytes that are written for ``tensor``, if there is one."""
    array = tensor.raw if type(tensor) is onnx_ir.Tensor else None
    if not isinstance(array, np.ndarray) or sys.byteorder != "little":
        return None
    is_whole = array.nbytes == tensor.nbytes and array.dtype.kind != "O"
    return array if is_whole and array.flags.c_contiguous else None


def _contents(weight: onnx_ir.TensorProtocol) -> bytes | memoryview:
    array = _array_of(weight)
    return weight.tobytes() if array is None else array.reshape(-1).view(np.uint8).data


def chunks(model: bytes, weights: Mapping[str, onnx_ir.TensorProtocol]) -> Iterator[bytes | memoryview]:
    """The serialized ``model`` with the contents of ``weights`` in its initializers of these names."""
    view = memoryview(model)
    for number, start, content, end in fields(view):
        if number == _GRAPH:
            yield from _graph_chunks(view[content:end], weights)
        else:
            yield view[start:end]


def _graph_chunks(
    graph: memoryview, weights: Mapping[str, onnx_ir.TensorProtocol]
) -> Iterator[bytes | memoryview]:
    parts: list[tuple[bytes | memoryview, onnx_ir.TensorProtocol | None]] = []
    for number, start, content, end in fields(graph):
        weight = weights.get(_name(graph[content:end])) if number == _INITIALIZER else None
        if weight is None:
            parts.append((graph[start:end], None))
        else:  # raw_data is its last field
            tensor = bytes(graph[content:end]) + _raw_data_header(weight)
            parts.append((bytes_tag(_INITIALIZER) + varint(len(tensor) + weight.nbytes) + tensor, weight))
    size = sum(len(part) + (weight.nbytes if weight else 0) for part, weight in parts)
    yield bytes_tag(_GRAPH) + varint(size)
    for part, weight in parts:
        yield part
        if weight is not None:
            yield _contents(weight)


def _name(tensor: memoryview) -> str:
    for number, _, content, end in fields(tensor):
        if number == _NAME:
            return bytes(tensor[content:end]).decode(errors="replace")
    return ""


def _raw_data_header(tensor: onnx_ir.TensorProtocol) -> bytes:
    """Tag and length of ``raw_data``, which precede the contents of ``tensor`` in its message."""
    return bytes_tag(_RAW_DATA) + varint(tensor.nbytes)
