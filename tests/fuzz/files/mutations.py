"""Corruption of a serialized model: of its bytes, and of its fields."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

_NUMBERS = (-(2**63), -(2**31), -5, -1, 0, 1, 2, 3, 7, 16, 64, 100, 2**31 - 1, 2**40, 2**63 - 1)
_NAMES = ("", "x", "y", "a", "\n", "nothing", "\U0001f600" * 3, "x\0", "n" * 3000)
_OPERATORS = (
    "Add", "Cast", "Concat", "Conv", "Expand", "Gather", "If", "Loop", "MatMul", "Pad", "Reshape", "Shape",
    "Slice", "Softmax", "Split", "Squeeze", "Tile", "Transpose", "Where", "Range", "Identity", "Nothing",
)  # fmt: skip


def mutate(data: bytes, draw: random.Random) -> bytes:
    """``data`` corrupted at one to four sites: half of the time in its bytes, else in its fields."""
    if draw.random() < 0.5:
        for _ in range(draw.randint(1, 4)):
            data = draw.choice(_BYTEWISE)(data, draw)
        return data
    model = ModelProto.FromString(data)
    for _ in range(draw.randint(1, 4)):
        draw.choice(_FIELDWISE)(model, draw)
    return model.SerializeToString()


# By bytes ---------------------------------------------------------------------------------------


def _flip(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    byte = draw.choice((draw.randrange(256), data[at] ^ 1 << draw.randrange(8), 0, 1, 127, 255))
    return data[:at] + bytes([byte]) + data[at + 1 :]


def _delete(data: bytes, draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + data[at + draw.randint(1, 9) :]


def _insert(data: bytes, draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + draw.randbytes(draw.randint(1, 9)) + data[at:]


def _truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randint(0, len(data))]


def _swap(data: bytes, draw: random.Random) -> bytes:
    a, b, c, d = sorted(draw.randint(0, len(data)) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


_BYTEWISE: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _flip, _flip, _delete, _insert, _truncate, _swap,
)  # fmt: skip

# By fields --------------------------------------------------------------------------------------


def _nodes(model: ModelProto) -> list[NodeProto]:
    graphs, found = [model.graph], [node for function in model.functions for node in function.node]
    while graphs:
        nodes = list(graphs.pop().node)
        found += nodes
        graphs += [attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g")]
    return found


def _copied(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def _node(model: ModelProto, draw: random.Random) -> NodeProto:
    return draw.choice(_nodes(model) or [model.graph.node.add()])


def _values(model: ModelProto) -> list[str]:
    names = [name for node in _nodes(model) for name in (*node.input, *node.output)]
    return [*names, *(value.name for value in model.graph.input), *_NAMES]


def _tensors(model: ModelProto) -> list[TensorProto]:
    inner = [attribute.t for node in _nodes(model) for attribute in node.attribute if attribute.HasField("t")]
    return [*model.graph.initializer, *inner] or [model.graph.initializer.add()]


def _change_attribute(model: ModelProto, draw: random.Random) -> None:
    attributes = [attribute for node in _nodes(model) for attribute in node.attribute]
    if not attributes:
        return
    attribute = draw.choice(attributes)
    match draw.randrange(7):
        case 0:
            attribute.i = draw.choice(_NUMBERS)
        case 1:
            attribute.ints[:] = [draw.choice(_NUMBERS) for _ in range(draw.randint(0, 4))]
        case 2:
            attribute.f = draw.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
        case 3:
            attribute.s = draw.choice((b"", b"\xff\xfe", b"ij,->", b"SAME_UPPER", b"x" * 3000))
        case 4:
            attribute.type = draw.choice(AttributeProto.AttributeType.values())
        case 5:
            attribute.name = draw.choice((*_NAMES, "axis", "to", "perm", "value", "body"))
        case _:
            if attribute.ints:
                attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(_NUMBERS)


def _move_attribute(model: ModelProto, draw: random.Random) -> None:
    node = _node(model, draw)
    if node.attribute and draw.random() < 0.4:
        del node.attribute[draw.randrange(len(node.attribute))]
        return
    attributes = [attribute for other in _nodes(model) for attribute in other.attribute]
    if attributes:
        node.attribute.append(_copied(draw.choice(attributes)))


def _rewire(model: ModelProto, draw: random.Random) -> None:
    node, name = _node(model, draw), draw.choice(_values(model))
    match draw.randrange(5):
        case 0 if node.input:
            node.input[draw.randrange(len(node.input))] = name
        case 1:
            node.input.append(name)
        case 2 if node.input:
            del node.input[draw.randrange(len(node.input))]
        case 3 if node.output:
            node.output[draw.randrange(len(node.output))] = name
        case _:
            node.output.append(name)


def _change_operator(model: ModelProto, draw: random.Random) -> None:
    node = _node(model, draw)
    if draw.random() < 0.8:
        node.op_type = draw.choice((*_OPERATORS, *(other.op_type for other in _nodes(model))))
    else:
        node.domain = draw.choice(("", "l", "ai.onnx", "ai.onnx.ml", "com.microsoft", "no\0where"))


def _change_tensor(model: ModelProto, draw: random.Random) -> None:
    tensor = draw.choice(_tensors(model))
    match draw.randrange(5):
        case 0:
            tensor.data_type = draw.choice((*range(27), 99, -1))
        case 1:
            tensor.dims[:] = [draw.choice(_NUMBERS) for _ in range(draw.randint(0, 3))]
        case 2:
            tensor.raw_data = draw.randbytes(draw.choice((0, 1, 4, 8, 15, 16, 32)))
        case 3:
            numbers = numpy_helper.from_array(np.array([draw.choice(_NUMBERS)]))
            tensor.CopyFrom(TensorProto(name=tensor.name, dims=[1], data_type=7, raw_data=numbers.raw_data))
        case _:
            other = draw.choice(_tensors(model))
            tensor.CopyFrom(_copied(other))


def _change_type(model: ModelProto, draw: random.Random) -> None:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not values:
        return
    tensor = draw.choice(values).type.tensor_type
    if draw.random() < 0.5:
        tensor.elem_type = draw.choice((*range(27), 99))
        return
    dims = tensor.shape.dim
    if dims and draw.random() < 0.7:
        dims[draw.randrange(len(dims))].dim_value = draw.choice(_NUMBERS)
    else:
        dims.add().dim_param = draw.choice(_NAMES)


def _change_list(model: ModelProto, draw: random.Random) -> None:
    graph = model.graph
    if not graph.node:
        return
    at = draw.randrange(len(graph.node))
    match draw.randrange(5):
        case 0:
            del graph.node[at]
        case 1:
            graph.node.append(_copied(graph.node[at]))
        case 2:
            nodes = list(graph.node)
            draw.shuffle(nodes)
            copies = list(map(_copied, nodes))
            del graph.node[:]
            graph.node.extend(copies)
        case 3:
            graph.output.append(
                _copied(draw.choice([*graph.input, *graph.output] or [onnx.ValueInfoProto()]))
            )
        case _:
            graph.input.append(_copied(draw.choice([*graph.input, *graph.output] or [onnx.ValueInfoProto()])))


def _change_versions(model: ModelProto, draw: random.Random) -> None:
    if model.opset_import and draw.random() < 0.7:
        number = draw.choice((*range(-1, 26), 10**9))
        model.opset_import[draw.randrange(len(model.opset_import))].version = number
    else:
        model.ir_version = draw.choice((*range(-1, 14), 10**6))


_FIELDWISE: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _change_attribute, _change_attribute, _move_attribute, _rewire, _rewire, _change_operator, _change_tensor,
    _change_tensor, _change_type, _change_list, _change_versions,
)  # fmt: skip
