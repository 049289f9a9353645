"""Operators that the standard itself spells out in simpler ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.schemas import operator_schema
from graphopt.ir.scopes import bodies


class StandardFunction(NamedTuple):
    """How the standard spells out a node.

    Attributes:
        function: takes the operator's inputs. It may import an older version of the standard.
        outputs: which of the operator's outputs it returns, by index; it may lack some that the node lacks.
    """

    function: onnx_ir.Function
    outputs: list[int]


class TensorKind(NamedTuple):
    """What is known of a tensor: its element type, and its dims, ``None`` for those that are open."""

    dtype: onnx_ir.DataType
    dims: Sequence[int | None] | None


def standard_function(
    node: onnx_ir.Node, version: int, kinds: Sequence[TensorKind | None]
) -> StandardFunction | None:
    """How the standard spells out ``node`` in simpler operators (ONNX Operators, "function operators").

    Args:
        version: the opset version of the node's domain.
        kinds: those of its inputs; ``None`` for inputs that are left out.

    Returns:
        ``None`` if the standard does not, or not for these inputs, or if the node has bodies.
    """
    import onnx

    schema: Any = operator_schema(node.domain, node.op_type, version)
    if schema is None or bodies(node):
        return None
    if schema.has_context_dependent_function:
        call = onnx_ir.serde.serialize_node(node).SerializeToString()
        types = [_type(kind) for kind in kinds]
        told = _newest(schema.context_dependent_function_opset_versions, version)
        data = schema.get_context_dependent_function_with_opset_version(told, call, types)
    elif schema.has_function:
        data = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, version))
    else:
        return None
    proto = onnx.FunctionProto.FromString(data)
    if not proto.node:
        return None
    made = {name for item in proto.node for name in item.output}
    outputs = [index for index, name in enumerate(proto.output) if name in made]
    names = [proto.output[index] for index in outputs]
    del proto.output[:]
    proto.output.extend(names)
    return StandardFunction(onnx_ir.from_proto(proto), outputs)


def _newest(versions: Sequence[int], version: int) -> int:
    """The version that a definition is written for: onnx gives none where operators have changed since."""
    return max((told for told in versions if told <= version), default=version)


def _type(kind: TensorKind | None) -> bytes:
    import onnx

    if kind is None:
        return b""
    return onnx.helper.make_tensor_type_proto(int(kind.dtype), kind.dims).SerializeToString()
