"""The parts of a model that onnx-ir can't represent; :mod:`graphopt.ir.io.pack_opaque_parts` stores them."""

from __future__ import annotations

import base64

import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import NAMESPACE, UPDATED_OUTSIDE
from graphopt.ir.name_references import MENTIONED

#: Metadata keys of an opaque type and of training info.
TYPE, TRAINING_INFO = NAMESPACE + "type", NAMESPACE + "training_info"
#: Prefix of packed attributes, which are byte strings; it is not valid UTF-8.
PACKED = b"\xff\x00graphopt\x00"


def opaque_attribute(attribute: onnx_ir.Attr) -> onnx.AttributeProto | None:
    """The original of a packed attribute; ``None`` for an ordinary attribute."""
    value = attribute.value
    if isinstance(value, bytes) and value.startswith(PACKED):
        return onnx.AttributeProto.FromString(value[len(PACKED) :])
    return None


def has_training_info(model: onnx_ir.Model) -> bool:
    """Whether ``model`` has training info, whose graphs are opaque."""
    return bool(model.graph.meta.get(TRAINING_INFO))


def drop_training_info(model: onnx_ir.Model) -> None:
    """Remove training info; the initializers that it updates become constant."""
    for key in (TRAINING_INFO, UPDATED_OUTSIDE, MENTIONED):
        model.graph.meta.pop(key, None)


def opaque_type(value: onnx_ir.Value) -> onnx.TypeProto | None:
    """The declared type of ``value`` if onnx-ir can't represent it, such as a map; otherwise ``None``."""
    packed = value.metadata_props.get(TYPE)
    return None if packed is None else onnx.TypeProto.FromString(base64.b64decode(packed))
