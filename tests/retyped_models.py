"""Models in other element types."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto


def retyped(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """``model`` with all tensors of float32 in another type."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for graph in _graphs(made.graph):
        for port in (*graph.input, *graph.output, *graph.value_info):
            if port.type.tensor_type.elem_type == TensorProto.FLOAT:
                port.type.tensor_type.elem_type = kind
        for tensor in graph.initializer:
            _convert(tensor, kind)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    _convert(attribute.t, kind)
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = kind
    return made


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _convert(tensor: TensorProto, kind: int) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        array = onnx.numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
