"""Weights: files mapped once, cached content hashes, tensors with shared storage."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import graphs_of
from graphopt.util.copy_range import copy_range
from graphopt.util.text_tables import counted

_HASH = "graphopt.hash"
_TAG = "graphopt.tag"
_FAULT = "graphopt.size_fault"

#: Maximum bytes of a tensor whose tag depends on the whole contents.
_TAGGED_WHOLE = 1 << 20
#: Number and bytes of the evenly spread blocks that determine the tag of a larger tensor.
_TAG_BLOCKS, _TAG_BLOCK = 16, 4096
#: Bytes copied from file to file at a time.
_COPIED = 1 << 24


class MappedFile:
    """A file that is mapped into memory once for all its tensors.

    The old contents remain readable when another file of the same name replaces it, so that a model can be
    saved over the files that it was loaded from.

    Args:
        path: its path, without symbolic links.
        folder: the folder of the model that refers to it, without symbolic links; ``None`` if unknown.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path, self.folder = path, folder
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._status = os.fstat(self._descriptor)
        self.size = self._status.st_size
        # an empty file can't be mapped
        self.buffer: Any = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if self.size else b""

    @property
    def identity(self) -> tuple[int, ...]:
        """The device, inode, size and modification time of the file, as it was opened."""
        status = self._status
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    @property
    def is_in_place(self) -> bool:
        """Whether :attr:`path` is still this file, with the same size and modification time."""
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        before = self._status
        return os.path.samestat(now, before) and (now.st_size, now.st_mtime_ns) == (
            before.st_size,
            before.st_mtime_ns,
        )

    def copy_to(self, target: Any, offset: int, length: int) -> None:
        """Append bytes of this file to the binary file ``target``, bypassing the mapping."""
        if hasattr(os, "pread") and (descriptor := _regular_file(target)) is not None:
            target.flush()
            position = target.tell()
            copy_range(self._descriptor, offset, descriptor, position, length)
            target.seek(position + length)
            return
        end = offset + length
        for start in range(offset, end, _COPIED):
            target.write(self.buffer[start : min(start + _COPIED, end)])


def _regular_file(target: Any) -> int | None:
    """The descriptor of ``target`` if it is a file on disk, else ``None``."""
    try:
        descriptor: int = target.fileno()
    except (AttributeError, OSError):  # also io.UnsupportedOperation, of buffers in memory
        return None
    return descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


class MappedTensor(onnx_ir.ExternalTensor):
    """A tensor in a :class:`MappedFile`.

    onnx-ir's own external tensors open the file by name at the first read, and map it again for each tensor,
    so that a thousand weights exhaust the file descriptors.
    """

    def __init__(self, file: MappedFile, offset: int, tensor: onnx_ir.ExternalTensor) -> None:
        super().__init__(
            str(file.path),
            offset,
            tensor.nbytes,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name or "",
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )
        self.file = file
        self._offset: int = offset

    def _load(self) -> None:
        data = np.frombuffer(
            self.file.buffer, np.uint8, count=self.nbytes, offset=self._offset if self.nbytes else 0
        )
        if self.dtype.bitwidth < 8:
            self._array = onnx_ir.PackedTensor(data, self.dtype, shape=self.shape).numpy()
        else:
            dtype = np.dtype(self.dtype.numpy()).newbyteorder("<")
            self._array = data.view(dtype).reshape(self.shape.numpy())

    def tobytes(self) -> bytes:
        """The contents, read into memory."""
        return bytes(self.file.buffer[self._offset : self._offset + self.nbytes])

    def tofile(self, file: Any) -> None:
        """Append the contents to a binary file, in blocks."""
        self.file.copy_to(file, self._offset, self.nbytes)


_TENSORS = (onnx_ir.AttributeType.TENSOR, onnx_ir.AttributeType.TENSORS)


class Slot(NamedTuple):
    """A tensor of an initializer or attribute of a model, with a setter."""

    tensor: onnx_ir.TensorProtocol
    put: Callable[[onnx_ir.TensorProtocol], None]
    is_initializer: bool


def slots(model: onnx_ir.Model) -> Iterator[Slot]:
    """Every initializer and tensor attribute of ``model``, including bodies and functions."""
    for graph in graphs_of(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield Slot(value.const_value, partial(setattr, value, "const_value"), True)
        for node in graph:
            # UserDict's own iteration costs three times as much
            for attribute in list(node.attributes.data.values()):
                kind = attribute.type
                if kind not in _TENSORS or attribute.is_ref():
                    continue
                if kind is onnx_ir.AttributeType.TENSOR:
                    yield Slot(attribute.value, partial(_put_attribute, node, attribute, None), False)
                else:
                    for index, tensor in enumerate(attribute.value):
                        yield Slot(tensor, partial(_put_attribute, node, attribute, index), False)


def _put_attribute(
    node: onnx_ir.Node, attribute: onnx_ir.Attr, index: int | None, tensor: onnx_ir.TensorProtocol
) -> None:
    value: Any = tensor
    if index is not None:
        value = list(node.attributes[attribute.name].value)
        value[index] = tensor
    node.attributes.add(onnx_ir.Attr(attribute.name, attribute.type, value, doc_string=attribute.doc_string))


def initializer_bytes(model: onnx_ir.Model, above: int = -1) -> int:
    """Total bytes of the initializers of ``model`` and its bodies; shared storage counts each time.

    Args:
        model: the model.
        above: ignore initializers of at most this many bytes.
    """
    tensors = (value.const_value for graph in graphs_of(model) for value in graph.initializers.values())
    return sum(size for tensor in tensors if tensor is not None and (size := tensor.nbytes) > above)


def tied_storages(model: onnx_ir.Model) -> dict[tuple[object, ...], onnx_ir.TensorProtocol]:
    """The storages that several initializers or attributes share, each with one of their tensors."""
    found: dict[tuple[object, ...], onnx_ir.TensorProtocol] = {}
    tied: dict[tuple[object, ...], onnx_ir.TensorProtocol] = {}
    for slot in slots(model):
        storage = storage_of(slot.tensor)
        (tied if storage in found else found)[storage] = slot.tensor
    return tied


def hash_of(tensor: onnx_ir.TensorProtocol) -> str:
    """A content hash over dtype, shape and bytes; equal for equal tensors only.

    The hash is computed once per tensor. Tensors at the same offset of the same file are not read twice,
    because :func:`storage_of` identifies them as tied.
    """
    known = tensor.meta.get(_HASH)
    if known is not None:
        return str(known)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{tensor.dtype}:{tuple(tensor.shape.numpy())}:".encode())
    if tensor.dtype == onnx_ir.DataType.STRING:
        for text in tensor.numpy().reshape(-1):
            data = bytes(text)
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    elif isinstance(tensor, MappedTensor):
        digest.update(_bytes_view(tensor))
    else:
        digest.update(tensor.tobytes())
    result = digest.hexdigest()
    tensor.meta[_HASH] = result
    return result


def tag_of(tensor: onnx_ir.TensorProtocol) -> str:
    """Four hex digits for display, equal for equal contents.

    Only a few blocks of a tensor above 1 MiB are read, so a small change may not change the digits.
    """
    known = tensor.meta.get(_TAG)
    if known is not None:
        return str(known)
    if tensor.dtype == onnx_ir.DataType.STRING or tensor.nbytes <= _TAGGED_WHOLE:
        result = hash_of(tensor)[:4]
    else:
        digest = hashlib.blake2b(f"{tensor.dtype}:{tuple(tensor.shape.numpy())}:".encode(), digest_size=2)
        data, nbytes = _bytes_view(tensor), tensor.nbytes
        for block in range(_TAG_BLOCKS):
            start = (nbytes - _TAG_BLOCK) * block // (_TAG_BLOCKS - 1)
            digest.update(data[start : start + _TAG_BLOCK])
        result = digest.hexdigest()
    tensor.meta[_TAG] = result
    return result


def _bytes_view(tensor: onnx_ir.TensorProtocol) -> memoryview:
    if isinstance(tensor, MappedTensor):
        offset = tensor.offset or 0
        return memoryview(tensor.file.buffer)[offset : offset + tensor.nbytes]
    return memoryview(tensor.tobytes())


def storage_of(tensor: onnx_ir.TensorProtocol) -> tuple[object, ...]:
    """A key for the storage of ``tensor``; equal for tensors that share it."""
    if isinstance(tensor, MappedTensor):
        return (
            "file",
            id(tensor.file),
            tensor.offset or 0,
            tensor.nbytes,
            tensor.dtype,
            tuple(tensor.shape.numpy()),
        )
    if isinstance(tensor, onnx_ir.ExternalTensor):
        return (
            "file",
            tensor.path,
            tensor.offset or 0,
            tensor.nbytes,
            tensor.dtype,
            tuple(tensor.shape.numpy()),
        )
    return "memory", id(tensor)


def size_fault(tensor: onnx_ir.TensorProtocol) -> str | None:
    """A description of a mismatch between the data of ``tensor`` and its shape or dtype, or ``None``."""
    known = tensor.meta.get(_FAULT)
    if known is None:
        known = _size_fault(tensor) or ""
        tensor.meta[_FAULT] = known
    return known or None


#: For each dtype, the field with contents that are not in ``raw_data``, and the count of numbers per element
#: in this field (onnx.proto).
_FIELDS: dict[str, tuple[str, int]] = {
    "FLOAT": ("float_data", 1),
    "COMPLEX64": ("float_data", 2),
    "INT64": ("int64_data", 1),
    "DOUBLE": ("double_data", 1),
    "COMPLEX128": ("double_data", 2),
    "UINT32": ("uint64_data", 1),
    "UINT64": ("uint64_data", 1),
}


#: Maximum numbers of dims and of bytes of a numpy array, which ignores dims of 0 when it counts bytes.
_MOST_DIMS = 64
_MOST_BYTES = 2**63 - 1
_KNOWN = frozenset(int(dtype) for dtype in onnx_ir.DataType)
#: Bytes per element of the types whose elements are whole bytes.
_WHOLE_BYTES = {
    int(dtype): dtype.bitwidth // 8
    for dtype in onnx_ir.DataType
    if dtype not in (onnx_ir.DataType.UNDEFINED, onnx_ir.DataType.STRING) and dtype.bitwidth % 8 == 0
}


def _size_fault(tensor: onnx_ir.TensorProtocol) -> str | None:
    proto = getattr(tensor, "raw", None)
    if isinstance(proto, onnx.TensorProto) and _is_small_and_fits(proto):
        return None
    if isinstance(proto, onnx.TensorProto) and proto.data_type not in _KNOWN:
        return f"has an unknown element type, {proto.data_type}"
    shape = tensor.shape.numpy()
    if any(dim < 0 for dim in shape):
        return f"has a negative dim in its shape {list(shape)}"
    if tensor.dtype == onnx_ir.DataType.UNDEFINED:
        return "has no element type"
    if len(shape) > _MOST_DIMS:
        return f"has {len(shape)} dims; more than {_MOST_DIMS} are not supported"
    size = tensor.size
    if isinstance(tensor, onnx_ir.StringTensor):
        found = len(tensor.string_data())
        return None if found == size else f"has {found} strings, but its shape {list(shape)} requires {size}"
    if tensor.size == 0 and prod(dim for dim in shape if dim) * tensor.dtype.bitwidth // 8 > _MOST_BYTES:
        return f"has a shape, {list(shape)}, that no array can have"
    if not isinstance(proto, onnx.TensorProto):
        return None
    if proto.HasField("raw_data"):
        if _raw_fits(proto, tensor.nbytes):
            return None
        data = counted(len(proto.raw_data), "byte")
        return f"has {data}, but its shape {list(shape)} and type require {tensor.nbytes}"
    field, numbers = _FIELDS.get(tensor.dtype.name, ("int32_data", 1))
    per_number = 8 // tensor.dtype.bitwidth if tensor.dtype.bitwidth in (2, 4) else 1
    found, wanted = len(getattr(proto, field)), -(-size * numbers // per_number)
    return None if found == wanted else f"has {found} numbers, but its shape {list(shape)} requires {wanted}"


#: Maximum bytes of raw data that are copied to determine their exact length.
_CHEAP = 1 << 16


def _is_small_and_fits(proto: onnx.TensorProto) -> bool:
    """Whether ``proto`` has a few bytes of raw data, as many as its shape and type require.

    Most tensors of a large graph are of this kind, and onnx-ir's sizes cost several times as much.
    """
    element, dims = _WHOLE_BYTES.get(proto.data_type), proto.dims
    if element is None or len(dims) > _MOST_DIMS or min(dims, default=0) < 0:
        return False
    nbytes = prod(dims) * element
    return 0 < nbytes <= _CHEAP and proto.HasField("raw_data") and len(proto.raw_data) == nbytes


def _raw_fits(proto: onnx.TensorProto, nbytes: int) -> bool:
    """Whether ``proto`` has ``nbytes`` bytes of raw data, without copying them if possible."""
    if nbytes <= _CHEAP:
        return len(proto.raw_data) == nbytes
    name = proto.name if isinstance(proto.name, str) else ""  # a name that is not UTF-8 is bytes
    rest = onnx.TensorProto(name=name, data_type=proto.data_type, dims=proto.dims)
    tag_and_length = 1 + max(1, -(-nbytes.bit_length() // 7))
    if proto.ByteSize() == rest.ByteSize() + tag_and_length + nbytes:
        return True
    return len(proto.raw_data) == nbytes
