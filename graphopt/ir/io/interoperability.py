"""Interoperability: models as objects of onnx or onnx-ir, bytes or paths; passes of onnx-ir."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.io.external_data import Change, changed, external_protos
from graphopt.ir.io.load import load
from graphopt.ir.io.proto_conversion import check_header, from_proto, parse_bytes
from graphopt.ir.weights import slots

#: Every representation of a model that the Python interface accepts. Bytes are the contents of an ``.onnx``
#: file.
ModelLike = onnx_ir.Model | onnx.ModelProto | bytes | str | os.PathLike[str]

_FORMS = "a model is an onnx.ModelProto, its serialized bytes, a path, or a graphopt.Model"
#: Maximum bytes of a serialized model that is kept in memory besides the model itself.
_SMALL = 1 << 28


def as_model(
    source: ModelLike,
    *,
    allow_external: Sequence[str | os.PathLike[str]] = (),
    base_dir: str | os.PathLike[str] | None = None,
) -> onnx_ir.Model:
    """``source`` as a model; a model that graphopt created is returned without a copy.

    A ModelProto, and a model that onnx-ir loaded, are copied, so that later changes do not affect the
    original.

    Args:
        source: a model in any representation.
        allow_external: further folders that may contain external data.
        base_dir: the folder of external data of a ModelProto or of bytes.

    Raises:
        TypeError: ``source`` is not a model.
        UsageError: the file does not exist.
        InvalidModel: the model is invalid, or its external data is missing or has no folder.
    """
    match source:
        case onnx_ir.Model():
            return source if IR_VERSION in source.graph.meta else _normalized_copy(source)
        case onnx.ModelProto():
            check_header(source, "the ModelProto")
            proto = onnx.ModelProto()
            proto.CopyFrom(source)
            for tensor in external_protos(proto):
                if tensor.raw_data:  # marked for external storage, and not yet saved there
                    tensor.data_location = onnx.TensorProto.DEFAULT
                    del tensor.external_data[:]
            return from_proto(proto, base_dir=base_dir, allow_external=allow_external)
        case bytes():
            return from_proto(parse_bytes(source), base_dir=base_dir, allow_external=allow_external)
        case str() | os.PathLike():
            return load(source, allow_external=allow_external)
    raise _unsupported(source)


def _normalized_copy(model: onnx_ir.Model) -> onnx_ir.Model:
    """A copy of a model from elsewhere, normalized like a loaded model."""
    changes: list[Change] = []
    folders: list[str] = []
    for slot in slots(model):
        if isinstance(slot.tensor, onnx_ir.ExternalTensor):
            path = os.path.abspath(os.path.join(slot.tensor.base_dir, slot.tensor.location))
            changes.append((slot, _read_from_file(slot.tensor, path)))
            folders.append(os.path.dirname(path))
    with changed(changes):
        proto = onnx_ir.to_proto(model)
    return from_proto(
        proto, base_dir=folders[0] if folders else None, allow_external=list(dict.fromkeys(folders))
    )


def _read_from_file(tensor: onnx_ir.ExternalTensor, path: str) -> onnx_ir.ExternalTensor:
    """``tensor``, read from the file ``path``."""
    return onnx_ir.ExternalTensor(
        path,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
    )


def serialized(source: onnx.ModelProto | bytes) -> bytes | None:
    """``source`` as bytes that onnxruntime loads without files; ``None`` if weights are large or external."""
    if isinstance(source, onnx.ModelProto):
        try:
            data = source.SerializeToString()
        except EncodeError:  # the model exceeds 2 GB
            return None
    else:
        data, source = source, parse_bytes(source)
    return None if len(data) > _SMALL or any(True for _ in external_protos(source)) else data


def _unsupported(source: object) -> TypeError:
    """The error for an object that is not a model, with a hint for related types."""
    kind = type(source).__name__
    if isinstance(getattr(source, "model", None), onnx_ir.Model):
        return TypeError(f"{_FORMS}, not {kind}; pass its attribute 'model'")
    if isinstance(source, onnx.GraphProto):
        return TypeError(f"{_FORMS}, not {kind}; onnx.helper.make_model(graph) makes a ModelProto of it")
    if isinstance(source, (bytearray, memoryview)):
        return TypeError(f"{_FORMS}, not {kind}; pass bytes({kind.lower()})")
    return TypeError(f"{_FORMS}, not {kind}")


# Passes of onnx-ir

#: Base class of passes of onnx-ir.
PassBase = onnx_ir.passes.PassBase


def move_contents(model: onnx_ir.Model, other: onnx_ir.Model) -> None:
    """Move the contents of ``other``, which must not be used afterwards, to ``model``."""
    notes = {**model.graph.meta, **other.graph.meta}
    functions, metadata = dict(other.functions), dict(other.metadata_props)
    model.graph = other.graph
    model.graph.meta.update(notes)
    model.functions.clear()
    model.functions.update(functions)
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    model.ir_version = other.ir_version
