"""A model of a single node, as input of onnx's version converter."""

from __future__ import annotations

import onnx

from graphopt import ir
from graphopt.context import Context
from graphopt.ir.signature import text_of_type

#: Maximum size, in elements, of a constant that is passed to the converter, which turns some constants into
#: attributes.
_MAX_ELEMENTS = 4096


def model_of(
    node: ir.Node, proto: onnx.NodeProto, named: dict[ir.Value, str], source: int, cx: Context
) -> onnx.ModelProto:
    """A model with only this node; its operands are inputs, or initializers for small constants."""
    model = onnx.ModelProto(ir_version=10)
    model.opset_import.add(domain="", version=source)
    model.graph.name = "node"
    model.graph.node.append(proto)
    dims: dict[str, str] = {}
    for value, name in named.items():
        tensor = ir.constant_of(value)
        if tensor is not None and tensor.size <= _MAX_ELEMENTS:
            ir.read(value)
            model.graph.initializer.append(ir.serialize_tensor(tensor))
            model.graph.initializer[-1].name = name
        else:
            _declare(model.graph.input.add(name=name), value, dims, cx)
    for name, value in zip(proto.output, node.outputs, strict=False):
        _declare(model.graph.output.add(name=name), value, dims, cx)
    return model


def _declare(info: onnx.ValueInfoProto, value: ir.Value, dims: dict[str, str], cx: Context) -> None:
    """Declare the known type and shape of ``value``, with renumbered dims: equal nodes give equal models."""
    dtype, shape = cx.dtype(value), cx.shape(value)
    tensor = info.type.tensor_type
    tensor.elem_type = 0 if dtype is None else int(dtype)
    if shape is not None:
        tensor.shape.SetInParent()
        for dim in shape:
            if isinstance(dim, int):
                tensor.shape.dim.add(dim_value=dim)
            else:
                tensor.shape.dim.add(dim_param=dims.setdefault(str(dim), f"d{len(dims)}"))


def type_text(value: ir.Value, cx: Context) -> str | None:
    """The type in the notation of schemas; ``None`` if it is unknown."""
    found = cx.facts.type(value) or value.type
    is_known = found is not None and found.dtype != ir.DataType.UNDEFINED
    return text_of_type(found) if found is not None and is_known else None
