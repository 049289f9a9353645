"""External data: check and map the files of a model's weights, and write such files."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import onnx

from graphopt.errors import MEMORY_HINT, InvalidModel, ResourceLimit
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import DATA_FILES
from graphopt.ir.io.data_of import DataOf
from graphopt.ir.weights import MappedFile, MappedTensor, Slot, slots, storage_of
from graphopt.util.text_tables import counted

#: Alignment of tensors in a data file, in bytes. Tensors of at least :data:`_PAGED` bytes start at a page,
#: for memory mapping (recommended by ONNX's IR.md) and for reflinks.
_ALIGNMENT, _PAGE = 64, 4096
_PAGED = 1 << 20


class Folders:
    """The folders that may contain external data: the model's own, and folders that the user allows.

    Args:
        folder: the model's own folder; ``None`` if it is unknown.
        allowed: the other folders.
        data_of: a folder that locations refer to by an alias; if it is given, data files in the model's own
            folder can't be kept.
    """

    def __init__(
        self, folder: Path | None, allowed: Sequence[Path] = (), data_of: DataOf | None = None
    ) -> None:
        self._folder = folder
        self._of = None if data_of is None else Folders(data_of.folder)
        self._alias = "" if data_of is None else f"{data_of.alias}/"
        allowed = [] if folder is None else [folder, *allowed]
        self._allowed = [Path(os.path.realpath(path)) for path in allowed]  # realpath tolerates cyclic links
        self._files: dict[Path, MappedFile] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files mapped so far."""
        return tuple(self._files) + (() if self._of is None else self._of.files)

    def find(self, location: str, tensor: str) -> MappedFile:
        """Map the file at ``location`` of tensor ``tensor``, once.

        Raises:
            InvalidModel: the file is outside the folders (by ``..``, an absolute path or a symbolic link), or
                missing.
        """
        if self._folder is None:
            raise InvalidModel(
                f"the data of {tensor!r} is in another file, {location!r}",
                hint="give its path instead, or its folder: load_model(model, base_dir=...)",
            )
        if self._of is not None and location.startswith(self._alias):
            return self._of.find(location.removeprefix(self._alias), tensor)
        if not location:
            raise InvalidModel(f"the external tensor {tensor!r} has no location")
        try:
            file = (self._folder / location).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a loop of links
            is_unnameable = isinstance(error, UnicodeEncodeError)  # in the encoding of the locale
            raise InvalidModel(
                f"the external data of {tensor!r} has an invalid path: {location!r}",
                hint="PYTHONUTF8=1 names files in UTF-8" if is_unnameable else None,
            ) from error
        if file in self._files:
            return self._files[file]
        if not any(file.is_relative_to(folder) for folder in self._allowed):
            raise InvalidModel(
                f"the external data of {tensor!r} is outside the model's folder: {location}",
                hint=f"if you trust the model: --allow-external {file.parent}",
            )
        if not file.is_file():
            raise InvalidModel(
                f"the external data of {tensor!r} is missing: {file}",
                hint=f"put {file.name} there; models that --weights copy wrote need no other's data",
            )
        try:
            mapped = self._files[file] = MappedFile(file, self._allowed[0] if self._of is None else None)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise ResourceLimit(f"there is not enough memory to map {file}", hint=MEMORY_HINT) from error
            raise InvalidModel(
                f"the external data of {tensor!r} can't be read: {error.strerror or error}"
            ) from error
        return mapped


def external_protos(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every external tensor of ``proto``, including tensors in attributes, bodies and functions."""
    graphs = [proto.graph]
    node_lists = [function.node for function in proto.functions]
    while graphs or node_lists:
        if graphs:
            graph = graphs.pop()
            yield from (tensor for tensor in graph.initializer if tensor.data_location)
            node_lists.append(graph.node)
        for node in node_lists.pop():
            for attribute in node.attribute:
                match attribute.type:
                    case onnx.AttributeProto.TENSOR:
                        if attribute.t.data_location:
                            yield attribute.t
                    case onnx.AttributeProto.TENSORS:
                        yield from (tensor for tensor in attribute.tensors if tensor.data_location)
                    case onnx.AttributeProto.GRAPH:
                        graphs.append(attribute.g)
                    case onnx.AttributeProto.GRAPHS:
                        graphs.extend(attribute.graphs)


def map_external_data(model: onnx_ir.Model, folders: Folders) -> None:
    """Replace external tensors by tensors in mapped files.

    Raises:
        InvalidModel: a file is missing, out of bounds, or ends before the tensor does.
    """
    for slot in list(slots(model)):
        if isinstance(slot.tensor, onnx_ir.ExternalTensor):
            slot.put(_mapped(slot.tensor, folders))
    model.graph.meta[DATA_FILES] = folders.files


def _mapped(tensor: onnx_ir.ExternalTensor, folders: Folders) -> MappedTensor:
    name = tensor.name or ""
    file = folders.find(str(tensor.location), name)
    offset, nbytes = tensor.offset or 0, tensor.nbytes
    if any(dim < 0 for dim in tensor.shape.numpy()) or offset < 0:
        raise InvalidModel(f"the external tensor {name!r} has a negative dim or offset")
    if tensor.length is not None and tensor.length != nbytes:
        raise InvalidModel(
            f"the external data of {name!r} has {counted(tensor.length, 'byte')};"
            f" its shape and type require {nbytes}"
        )
    if offset + nbytes > file.size:
        raise InvalidModel(
            f"the external data of {name!r} ends at byte {offset + nbytes}, {file.path} at byte {file.size}"
        )
    return MappedTensor(file, offset, tensor)


Change = tuple[Slot, onnx_ir.TensorProtocol]
#: Positions of tensors in a file, by :func:`storage_of`.
Offsets = dict[tuple[object, ...], int]


def write_external_data(
    model: onnx_ir.Model,
    file: BinaryIO,
    threshold: int,
    *,
    attributes: bool = False,
    offsets: Offsets | None = None,
    kept_location: Callable[[MappedTensor], str | None] = lambda _: None,
) -> Callable[[str], list[Change]]:
    """Append the large tensors of ``model`` to ``file``; tensors with the same storage are written once.

    Large tensors are initializers of at least ``threshold`` bytes, and attribute tensors of that size if they
    are already external or ``attributes`` is true.

    Args:
        model: the model; it is not changed.
        file: a file opened for writing.
        threshold: the minimum size, in bytes.
        attributes: whether to also write attribute tensors that are not external.
        offsets: positions in ``file`` of tensors written earlier, by storage; extended by this call.
        kept_location: the location of a tensor that stays in its file; ``None`` for a tensor to write.

    Returns:
        a function from the file's final name to the changes of the model: external tensors for the written
        and the kept ones, and tensors in memory for external tensors below the threshold.
    """
    end = file.tell()
    offsets = {} if offsets is None else offsets
    inlined: list[Change] = []
    placed: list[tuple[Slot, int]] = []
    kept: list[Change] = []
    for slot in slots(model):
        tensor = slot.tensor
        is_external = isinstance(tensor, onnx_ir.ExternalTensor)
        if tensor.dtype == onnx_ir.DataType.STRING or tensor.nbytes < max(threshold, 1):
            if is_external:
                inlined.append((slot, _in_memory(tensor)))
            continue
        if not (slot.is_initializer or is_external or attributes):
            continue
        if isinstance(tensor, MappedTensor) and (location := kept_location(tensor)) is not None:
            kept.append((slot, _external_tensor_at(slot.tensor, location, tensor.offset or 0)))
            continue
        storage = storage_of(tensor)
        if storage not in offsets:
            padding = -end % (_PAGE if tensor.nbytes >= _PAGED else _ALIGNMENT)
            file.write(bytes(padding))
            offsets[storage] = end = end + padding
            tensor.tofile(file)  # type: ignore[attr-defined]
            end += tensor.nbytes
        placed.append((slot, offsets[storage]))
    file.flush()

    def changes(name: str) -> list[Change]:
        return (
            inlined
            + kept
            + [(slot, _external_tensor_at(slot.tensor, name, offset)) for slot, offset in placed]
        )

    return changes


def read_external_data(model: onnx_ir.Model) -> list[Change]:
    """The changes that load all external tensors of ``model`` into memory."""
    return [
        (slot, _in_memory(slot.tensor))
        for slot in slots(model)
        if isinstance(slot.tensor, onnx_ir.ExternalTensor)
    ]


def refer_to_data(
    model: onnx_ir.Model, threshold: int, kept_location: Callable[[MappedTensor], str | None]
) -> list[Change]:
    """The changes that let ``model`` refer to its data, and load other external tensors into memory.

    Args:
        model: the model; it is not changed.
        threshold: the minimum size in bytes of a tensor that remains external.
        kept_location: the location of a tensor in a file; ``None`` for a tensor to load.
    """
    changes: list[Change] = []
    for slot in slots(model):
        tensor = slot.tensor
        if isinstance(tensor, onnx_ir.ExternalTensor):
            location = None
            if isinstance(tensor, MappedTensor) and tensor.nbytes >= max(threshold, 1):
                location = kept_location(tensor)
            if location is None:
                changes.append((slot, _in_memory(tensor)))
            else:
                changes.append((slot, _external_tensor_at(tensor, location, tensor.offset or 0)))
    return changes


@contextlib.contextmanager
def changed(changes: Sequence[Change]) -> Iterator[None]:
    """Apply ``changes`` within the context, and revert them afterwards."""
    try:
        for slot, tensor in changes:
            slot.put(tensor)
        yield
    finally:
        for slot, _ in changes:
            slot.put(slot.tensor)


def _external_tensor_at(tensor: onnx_ir.TensorProtocol, name: str, offset: int) -> onnx_ir.ExternalTensor:
    return onnx_ir.ExternalTensor(
        name, offset, tensor.nbytes, tensor.dtype, shape=_shape(tensor), **_notes(tensor)
    )


def _in_memory(tensor: onnx_ir.TensorProtocol) -> onnx_ir.Tensor[Any]:
    return onnx_ir.Tensor(tensor.numpy(), dtype=tensor.dtype, shape=_shape(tensor), **_notes(tensor))


def _shape(tensor: onnx_ir.TensorProtocol) -> onnx_ir.Shape:
    return onnx_ir.Shape(tensor.shape.numpy())


def _notes(tensor: onnx_ir.TensorProtocol) -> dict[str, Any]:
    return {
        "name": tensor.name or "",
        "doc_string": tensor.doc_string,
        "metadata_props": dict(tensor.metadata_props),
    }
