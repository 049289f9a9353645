"""Convert between models and onnx's protos."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphopt.errors import MEMORY_HINT, GraphoptError, InvalidModel, ResourceLimit, causes, exhausted
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import COPIED_OUTPUTS, FUNCTIONS, IR_VERSION, LOADED_WITH
from graphopt.ir.io import pack_opaque_parts
from graphopt.ir.io.external_data import (
    Folders,
    changed,
    external_protos,
    map_external_data,
    read_external_data,
)
from graphopt.ir.io.normalize_proto import declare_references, normalize, unshadow
from graphopt.ir.io.wire_format import MAX_NESTING, nesting_depth
from graphopt.ir.topological_order import sort_model
from graphopt.ir.validation import check_model
from graphopt.process.garbage_collection import collection_paused

#: The hint for a model file that is empty or truncated.
EXPORT_AGAIN = "export or download the model again"


def from_proto(
    proto: onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    allow_external: Sequence[str | os.PathLike[str]] = (),
) -> onnx_ir.Model:
    """Convert ``proto`` to a model with sorted graphs. Consumes ``proto``, which must not be used afterwards.

    Args:
        proto: the model.
        base_dir: folder of its external data.
        allow_external: further folders that may contain external data.

    Raises:
        InvalidModel: the model violates the ONNX specification, or ``base_dir`` lacks its external data.
    """
    folder = None if base_dir is None else Path(base_dir)
    return from_proto_in(proto, Folders(folder, [Path(path) for path in allow_external]))


def from_proto_in(proto: onnx.ModelProto, folders: Folders) -> onnx_ir.Model:
    """Like :func:`from_proto`, for external data in ``folders``."""
    with collection_paused():
        return _converted(proto, folders)


def _converted(proto: onnx.ModelProto, folders: Folders) -> onnx_ir.Model:
    try:
        has_external_data = any(True for _ in external_protos(proto))
        pack_opaque_parts.pack(proto)
        remarks, copied = normalize(proto)
        model = onnx_ir.from_proto(proto)
        pack_opaque_parts.attach(proto, model)
        if copied:
            model.graph.meta[COPIED_OUTPUTS] = True
            remarks.append(
                f"onnxruntime computes outputs of bodies incorrectly: {copied[0]!r}"
                f"{f' and {len(copied) - 1} others' if len(copied) > 1 else ''}; copies of them are returned"
            )
        if remarks:
            model.graph.meta[LOADED_WITH] = tuple(remarks)
    except GraphoptError:
        raise
    except Exception as error:  # onnx-ir and protobuf raise arbitrary exceptions for malformed protos
        if any(map(exhausted, causes(error))):
            raise ResourceLimit("there is not enough memory to read the model", hint=MEMORY_HINT) from error
        raise InvalidModel(f"the model can't be read: {root_cause(error)}") from error
    model.graph.meta[IR_VERSION] = model.ir_version
    model.graph.meta[FUNCTIONS] = frozenset(model.functions)
    declare_references(model)
    if has_external_data:
        map_external_data(model, folders)
    sort_model(model)
    unshadow(model)
    check_model(model)
    return model


def to_proto(model: onnx_ir.Model) -> onnx.ModelProto:
    """Convert ``model`` to a proto without graphopt's private metadata. External tensors stay external.

    Raises:
        InvalidModel: a part of the model can't be serialized, such as text that is not UTF-8.
    """
    try:
        proto = onnx_ir.to_proto(model)
    except onnx_ir.serde.SerdeError as error:
        raise InvalidModel(f"the model can't be written: {root_cause(error)}") from error
    pack_opaque_parts.unpack(proto, model)
    return proto


def to_whole_proto(model: onnx_ir.Model) -> onnx.ModelProto:
    """Convert ``model`` to a proto that includes the contents of external tensors; it may exceed 2 GB.

    Raises:
        InvalidModel: a part of the model can't be serialized.
    """
    with changed(read_external_data(model)):
        return to_proto(model)


def decode(data: bytes, where: str) -> onnx.ModelProto:
    """Parse a serialized model.

    Args:
        data: the model.
        where: its name in messages, such as a path.

    Raises:
        InvalidModel: ``data`` is not a model, is truncated, or nests bodies too deeply.
        ResourceLimit: memory does not suffice.
    """
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        if (limit := exhausted(error)) is not None:
            raise ResourceLimit(f"{limit} to read {where}", hint=MEMORY_HINT) from error
        depth = nesting_depth(data)
        if depth >= MAX_NESTING:
            raise InvalidModel(
                f"{where} nests bodies {depth} deep; protobuf, and therefore onnxruntime, fails at about"
                f" {MAX_NESTING}"
            ) from error
        raise InvalidModel(f"{where} is not an ONNX model, or it is truncated", hint=EXPORT_AGAIN) from error
    if not proto.HasField("graph"):
        raise InvalidModel(f"{where} is not an ONNX model")
    return proto


def parse_bytes(data: bytes) -> onnx.ModelProto:
    """Parse a serialized model and check its header; raises errors as :func:`decode` does."""
    where = "the serialized model"
    proto = decode(data, where)
    check_header(proto, where)
    return proto


def check_header(proto: onnx.ModelProto, where: str) -> None:
    """Check that ``proto``, called ``where`` in messages, has a graph and an IR version.

    Raises:
        InvalidModel: the graph or the IR version is missing.
    """
    if not proto.HasField("graph"):
        raise InvalidModel(f"{where} is not an ONNX model")
    if not proto.ir_version:
        raise InvalidModel(
            f"{where} has no IR version (ir_version is 0), and ONNX requires one",
            hint="set model.ir_version, such as to 8 for opset 17, and save it again",
        )


def root_cause(error: BaseException) -> str:
    """The first line of the innermost cause of ``error``, at most 200 characters."""
    *_, root = causes(error)
    text = str(root).strip().splitlines()
    return text[0][:200] if text else type(root).__name__
