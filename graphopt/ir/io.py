"""Load and save models: .onnx with external data, and ONNX text.

External tensors stay on disk, memory-mapped, until somebody reads them. A file is written to a
temporary name beside its target and renamed, so a failure leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from graphopt.errors import InvalidModel, UsageError
from graphopt.ir import carrier
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.onnxir import onnx_ir
from graphopt.ir.order import sort_model

#: protobuf can't hold more in one message; leave room for the rest of the model.
INLINE_LIMIT = 2**31 - 2**20
#: Smaller tensors stay in the model file when the others go to external data.
EXTERNAL_THRESHOLD = 1024

_TEXT_SUFFIXES = frozenset({".onnxtxt", ".txt"})


def load(
    path: str | os.PathLike[str], *, allow_external: Sequence[str | os.PathLike[str]] = ()
) -> onnx_ir.Model:
    """Load a model from ``.onnx`` or, by suffix ``.onnxtxt`` or ``.txt``, from ONNX text.

    Unsorted graphs are sorted. External data is checked (inside the model's folder or a folder
    of ``allow_external``, present, long enough) and memory-mapped when first read.

    Raises:
        UsageError: the path does not exist or is a folder.
        InvalidModel: the file is not a model, is cut short, has a cycle, or its data is missing.
    """
    path = Path(path)
    proto = _parse(path)
    _resolve_external_data(proto, path, [Path(folder) for folder in allow_external])
    return from_proto(proto)


def from_proto(proto: onnx.ModelProto) -> onnx_ir.Model:
    """Turn ``proto`` into a model, sorted. Takes ``proto`` over: it is not to be used afterwards.

    Raises:
        InvalidModel: onnx-ir can't make sense of it, or a graph has a cycle.
    """
    training = carrier.stow(proto)
    try:
        model = onnx_ir.from_proto(proto)
    except Exception as error:
        raise InvalidModel(f"the model can't be read: {_root_cause(error)}") from error
    model.graph.meta[IR_VERSION] = model.ir_version
    carrier.attach_training_info(model, training)
    sort_model(model)
    return model


def to_proto(model: onnx_ir.Model) -> onnx.ModelProto:
    """The proto of ``model``, without graphopt's private metadata."""
    proto = onnx_ir.to_proto(model)
    carrier.unpack(proto, model)
    return proto


def to_bytes(model: onnx_ir.Model) -> bytes:
    """``model`` in one piece, external tensors included.

    Raises:
        InvalidModel: it does not fit into 2 GB.
    """
    with _tensors_in_memory(model):
        proto = to_proto(model)
    if proto.ByteSize() > INLINE_LIMIT:
        raise InvalidModel("the model is larger than 2 GB and can't be held in one piece")
    return proto.SerializeToString()


def save(
    model: onnx_ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    threshold: int = EXTERNAL_THRESHOLD,
) -> list[Path]:
    """Write ``model`` to ``path``; returns the files written, the model first.

    Args:
        model: the model; it is not changed.
        path: target; suffix ``.onnxtxt`` or ``.txt`` writes ONNX text.
        external_data: put tensors of at least ``threshold`` bytes into ``<name>.data`` beside
            ``path``. By default, when the model came with external data or exceeds 2 GB.
        threshold: bytes.

    Raises:
        UsageError: ``path`` can't be written. Nothing is left behind.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"can't write {path}: it is a folder", hint="give a file name, such as OUT.onnx")
    if external_data is None:
        external_data = _comes_with_external_data(model) or _tensor_bytes(model) > INLINE_LIMIT
    try:
        if path.suffix in _TEXT_SUFFIXES:
            with _tensors_in_memory(model):
                text = onnx.printer.to_text(to_proto(model))
            _write_atomically(path, text.encode())
            return [path]
        if not external_data:
            with _tensors_in_memory(model):
                _write_atomically(path, to_proto(model).SerializeToString())
            return [path]
        return _save_with_external_data(model, path, threshold)
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error


def _save_with_external_data(model: onnx_ir.Model, path: Path, threshold: int) -> list[Path]:
    """Stream the large tensors to ``<name>.data``; tensors with the same storage are written once."""
    data_path = path.with_name(path.name + ".data")
    places: dict[int, onnx_ir.ExternalTensor] = {}
    with _temporary(data_path) as temporary:
        end = 0
        with open(temporary, "wb") as file:
            for value in _initializers(model):
                tensor = value.const_value
                if tensor is None or not _goes_outside(tensor, threshold) or id(tensor) in places:
                    continue
                end += -end % 64
                file.seek(end)
                tensor.tofile(file)
                places[id(tensor)] = onnx_ir.ExternalTensor(
                    data_path.name,
                    end,
                    tensor.nbytes,
                    tensor.dtype,
                    shape=tensor.shape,
                    name=tensor.name or "",
                )
                end += tensor.nbytes
        with _replaced_tensors(model, places):
            data = to_proto(model).SerializeToString()
        with _temporary(path) as temporary_model:
            temporary_model.write_bytes(data)
            os.replace(temporary, data_path)
            os.replace(temporary_model, path)
    return [path, data_path]


def _goes_outside(tensor: onnx_ir.TensorProtocol, threshold: int) -> bool:
    return tensor.dtype != onnx_ir.DataType.STRING and tensor.nbytes >= max(threshold, 1)


def _initializers(model: onnx_ir.Model) -> Iterator[onnx_ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def _tensor_bytes(model: onnx_ir.Model) -> int:
    return sum(value.const_value.nbytes for value in _initializers(model) if value.const_value is not None)


def _comes_with_external_data(model: onnx_ir.Model) -> bool:
    return any(isinstance(value.const_value, onnx_ir.ExternalTensor) for value in _initializers(model))


@contextlib.contextmanager
def _replaced_tensors(model: onnx_ir.Model, places: dict[int, onnx_ir.ExternalTensor]) -> Iterator[None]:
    """Let the initializers in ``places`` (by identity of their tensor) stand for others for a while."""
    originals = [(value, value.const_value) for value in _initializers(model)]
    try:
        for value, tensor in originals:
            if id(tensor) in places:
                value.const_value = places[id(tensor)]
        yield
    finally:
        for value, tensor in originals:
            value.const_value = tensor


@contextlib.contextmanager
def _tensors_in_memory(model: onnx_ir.Model) -> Iterator[None]:
    """Let external tensors stand in memory for a while."""
    external = [
        (value, value.const_value)
        for value in _initializers(model)
        if isinstance(value.const_value, onnx_ir.ExternalTensor)
    ]
    try:
        for value, tensor in external:
            value.const_value = onnx_ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
        yield
    finally:
        for value, tensor in external:
            value.const_value = tensor


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A temporary file beside ``target``, removed unless it was renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent or ".")
    os.close(handle)
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _write_atomically(path: Path, data: bytes) -> None:
    with _temporary(path) as temporary:
        temporary.write_bytes(data)
        os.replace(temporary, path)


def _parse(path: Path) -> onnx.ModelProto:
    if not path.exists():
        raise UsageError(f"no such file: {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a model", hint="name the .onnx file in it")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from error
    if not data:
        raise InvalidModel(f"{path} is empty")
    if path.suffix in _TEXT_SUFFIXES:
        return _parse_text(path, data)
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise InvalidModel(f"{path} is not an ONNX model, or it is cut short") from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise InvalidModel(f"{path} is not an ONNX model")
    return proto


def _parse_text(path: Path, data: bytes) -> onnx.ModelProto:
    import onnx.parser

    try:
        return onnx.parser.parse_model(data.decode())
    except (onnx.parser.ParseError, UnicodeDecodeError) as error:
        raise InvalidModel(f"{path} is not ONNX text: {_root_cause(error)}") from error


def _root_cause(error: BaseException) -> str:
    """The first line of the innermost cause of ``error``."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__


def _resolve_external_data(proto: onnx.ModelProto, path: Path, allowed: list[Path]) -> None:
    """Check each external tensor's file and make its location absolute."""
    folders = [path.parent.resolve(), *(folder.resolve() for folder in allowed)]
    sizes: dict[str, tuple[Path, int]] = {}
    for tensor in _external_protos(proto):
        info = {entry.key: entry.value for entry in tensor.external_data}
        location = info.get("location", "")
        if location not in sizes:
            sizes[location] = _find_external_file(location, path, folders, tensor.name)
        file, size = sizes[location]
        offset, length = int(info.get("offset") or 0), int(info.get("length") or 0)
        if offset < 0 or length < 0 or offset + length > size:
            raise InvalidModel(
                f"the external data of {tensor.name!r} ends at byte {offset + length}, but {file} has {size} bytes"
            )
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(file)


def _find_external_file(location: str, path: Path, folders: list[Path], tensor: str) -> tuple[Path, int]:
    if not location:
        raise InvalidModel(f"the external tensor {tensor!r} names no file")
    file = (path.parent / location).resolve()
    if not any(file.is_relative_to(folder) for folder in folders):
        raise InvalidModel(
            f"the external data of {tensor!r} lies outside the model's folder: {location}",
            hint=f"if you trust the model: --allow-external {file.parent}",
        )
    if not file.is_file():
        raise InvalidModel(f"the external data of {tensor!r} is missing: {file}")
    return file, file.stat().st_size


def _external_protos(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every external tensor of ``proto``, in attributes and bodies too."""
    graphs = [proto.graph]
    nodes = [function.node for function in proto.functions]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from (t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL)
            nodes.append(graph.node)
        for node in nodes.pop():
            for attribute in node.attribute:
                tensors = [attribute.t] if attribute.HasField("t") else attribute.tensors
                yield from (t for t in tensors if t.data_location == onnx.TensorProto.EXTERNAL)
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
                graphs.extend(attribute.graphs)
