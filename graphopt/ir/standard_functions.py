"""Function bodies that the ONNX standard defines for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import bodies
from graphopt.ir.schema_checks import operator_schema


class StandardFunction(NamedTuple):
    """The standard's definition of a node as a function.

    Attributes:
        function: a function with the operator's inputs as parameters. It may import an older opset version.
        outputs: indices of the operator's outputs that it returns; outputs that the node omits may be
            missing.
    """

    function: onnx_ir.Function
    outputs: list[int]


class TensorKind(NamedTuple):
    """Element type and dims of a tensor; ``None`` for a dynamic dim."""

    dtype: onnx_ir.DataType
    dims: Sequence[int | None] | None


def standard_function(
    node: onnx_ir.Node, version: int, kinds: Sequence[TensorKind | None]
) -> StandardFunction | None:
    """The standard's definition of ``node`` as a function (ONNX Operators, "function operators").

    Args:
        node: the node.
        version: the opset version of the node's domain.
        kinds: the types of its inputs; ``None`` for omitted inputs.

    Returns:
        ``None`` without a definition for these inputs, or if the node has bodies.
    """
    import onnx

    schema: Any = operator_schema(node.domain, node.op_type, version)
    if schema is None or bodies(node):
        return None
    if schema.has_context_dependent_function:
        call = onnx_ir.serde.serialize_node(node).SerializeToString()
        types = [_type(kind) for kind in kinds]
        found = _newest(schema.context_dependent_function_opset_versions, version)
        data = schema.get_context_dependent_function_with_opset_version(found, call, types)
    elif schema.has_function:
        data = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, version))
    else:
        return None
    proto = onnx.FunctionProto.FromString(data)
    if not proto.node:
        return None
    produced = {name for item in proto.node for name in item.output}
    outputs = [index for index, name in enumerate(proto.output) if name in produced]
    names = [proto.output[index] for index in outputs]
    del proto.output[:]
    proto.output.extend(names)
    return StandardFunction(onnx_ir.from_proto(proto), outputs)


def _newest(versions: Sequence[int], version: int) -> int:
    """The newest of ``versions`` up to ``version``; for later versions, onnx may have no function."""
    return max((found for found in versions if found <= version), default=version)


def _type(kind: TensorKind | None) -> bytes:
    import onnx

    if kind is None:
        return b""
    return onnx.helper.make_tensor_type_proto(int(kind.dtype), kind.dims).SerializeToString()
