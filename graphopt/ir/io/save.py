"""Save models to files of any registered format, with or without external data.

Files are published by :mod:`graphopt.publish`: after a failure, the old files are unchanged.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

from graphopt import publish
from graphopt.errors import ResourceLimit, UsageError, unwritable
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import DATA_FILES
from graphopt.ir.io.codecs import ONNX, Chunks, Codec, ExternalData, codec_of, codecs
from graphopt.ir.io.data_file_replacement import DataFile, is_own, remove_orphans, remove_unread
from graphopt.ir.io.external_data import (
    Change,
    Offsets,
    changed,
    read_external_data,
    write_external_data,
)
from graphopt.ir.io.load import data_files, identity
from graphopt.ir.io.proto_conversion import to_proto
from graphopt.ir.weights import slots

#: Maximum bytes of weights inside a model: protobuf's limit of 2 GB, less 1 MiB for everything else.
INLINE_LIMIT = 2**31 - 2**20
#: Default minimum size of external tensors, in bytes.
EXTERNAL_THRESHOLD = 1024
#: Bytes above which a tensor's contents are omitted when only the capabilities of a format are checked.
_SAMPLE = 4096


def save(
    model: onnx_ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    threshold: int = EXTERNAL_THRESHOLD,
) -> list[Path]:
    """Write ``model`` to ``path``; returns the files written, the model first.

    ``path`` may be the file that the model was loaded from. Data of an old model is not overwritten: the new
    data has a hash in its name, and the old data is removed with the old model unless other models of the
    folder may read it.

    Args:
        model: the model; it is not changed.
        path: target; its suffix selects the format, as for :func:`graphopt.ir.load`.
        external_data: store tensors of at least ``threshold`` bytes in a file beside ``path``:
            ``<path>.data`` (or ``<path>.<hash>.data``) beside ``.onnx``, by default if the model was loaded
            with external data or exceeds 2 GB; ``<path>.bin`` beside the JSON IR, by default always. Files of
            the other formats contain all tensors.
        threshold: bytes.

    Raises:
        UsageError: ``path`` can't be written. No partial file remains.
        ResourceLimit: the disk is full, or the model exceeds 2 GB and ``external_data`` is false.
        UnsupportedModel: the format can't represent the model.
    """
    with saving(model, path, external_data=external_data, threshold=threshold) as written:
        pass
    return written


@contextlib.contextmanager
def saving(
    model: onnx_ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    threshold: int = EXTERNAL_THRESHOLD,
) -> Iterator[list[Path]]:
    """Write ``model`` to temporary files that are published with others after the ``with`` block.

    Arguments and errors are the same as for :func:`save`.

    Yields:
        A list that contains the files once the ``with`` block has ended.
    """
    path = Path(path)
    if "\0" in str(path):
        raise UsageError(f"can't write {str(path)!r}: a path can't contain NUL")
    if os.path.isdir(path):
        raise UsageError(f"can't write {path}: it is a folder", hint="give a file name, such as OUT.onnx")
    codec = codec_of(path)
    if os.path.exists(path) and any(file.exists() and path.samefile(file) for file in _read_by(model)):
        raise UsageError(
            f"can't write {path}: it contains the model's weights", hint="give another file name"
        )
    if os.path.exists(path) and not os.path.isfile(path):
        external_data = False  # a device has no folder for a second file
    data = codec.external_data
    if external_data is None:
        external_data = (data is not None and data.by_default) or _needs_external_data(model)
    if external_data and data is not None:
        with _saving_with_data(model, path, codec, data, threshold) as written:
            yield written
        return
    written = []
    with publish.staged(path, _self_contained(model, codec, threshold)):
        yield written
    written.append(path)


def to_bytes(model: onnx_ir.Model) -> bytes:
    """Serialize ``model`` to ONNX, including its external tensors.

    Raises:
        ResourceLimit: the model exceeds 2 GB.
    """
    return b"".join(_self_contained(model, ONNX, EXTERNAL_THRESHOLD))


def _self_contained(model: onnx_ir.Model, codec: Codec, threshold: int) -> Chunks:
    if sum(slot.tensor.nbytes for slot in slots(model)) > INLINE_LIMIT:
        raise ResourceLimit("the model is larger than 2 GB, the limit of one file", hint="use external data")
    with changed(read_external_data(model)):
        return codec.save(model, threshold)


def check_format(model: onnx_ir.Model, path: str | os.PathLike[str]) -> None:
    """Check that the format of ``path`` can represent ``model``, apart from contents of weights.

    Formats with external data represent every model.

    Raises:
        UnsupportedModel: the format can't represent ``model``.
    """
    codec = codec_of(path)
    if codec.external_data is not None:
        return
    samples: list[Change] = []
    for slot in slots(model):
        tensor = slot.tensor
        is_string = tensor.dtype == onnx_ir.DataType.STRING
        if isinstance(tensor, onnx_ir.ExternalTensor) or (not is_string and tensor.nbytes > _SAMPLE):
            sample = onnx.TensorProto(name=tensor.name or "", data_type=int(tensor.dtype), dims=[0])
            samples.append((slot, onnx_ir.serde.TensorProtoTensor(sample)))
    with changed(samples):
        for _ in codec.save(model, EXTERNAL_THRESHOLD):
            pass


def _read_by(model: onnx_ir.Model) -> tuple[Path, ...]:
    files: tuple[Path, ...] = model.graph.meta.get(DATA_FILES, ())
    return files


def _needs_external_data(model: onnx_ir.Model) -> bool:
    """Whether the model was loaded with external data, or is too large without it.

    A data file that the format writes by default does not count.
    """
    tensors = [slot.tensor for slot in slots(model)]
    return (
        any(
            isinstance(tensor, onnx_ir.ExternalTensor)
            and not any(codec.writes_data_by_default(str(tensor.location)) for codec in codecs())
            for tensor in tensors
        )
        or sum(tensor.nbytes for tensor in tensors) > INLINE_LIMIT
    )


@contextlib.contextmanager
def _saving_with_data(
    model: onnx_ir.Model, path: Path, codec: Codec, external: ExternalData, threshold: int
) -> Iterator[list[Path]]:
    """Publish the model and its data file. ``path`` is the old model until it is the new model."""
    suffix = external.suffix
    written: list[Path] = []
    with contextlib.ExitStack() as stack:
        try:
            for target in (path, path.with_name(path.name + suffix)):
                publish.check_protected(target)
            content = stack.enter_context(publish.temporary_file(path.with_name(path.name + suffix)))
            with open(content, "wb") as file:
                relocated = write_external_data(model, file, threshold, attributes=external.attributes)
                is_needed = file.tell() > 0
            before, old = identity(path), data_files(path)
            data = DataFile(path, suffix, content, first=not old)
            staged = stack.enter_context(publish.temporary_file(path))

            def write() -> None:
                with changed(relocated(data.path.name)), open(staged, "wb") as file:
                    file.writelines(codec.save(model, threshold))

            def note() -> None:
                own = [file.name for file in old if is_own(file, path, suffix)]
                publish.note_unfinished(staged, [data.path.name, *own])

            write()
        except OSError as error:
            raise unwritable(path, error) from error
        yield written
        try:
            with publish.locked(path.parent) as is_locked:
                if is_locked:
                    remove_orphans(path.parent, publish.take_unfinished(path.parent))
                note()
                while is_needed and not data.claim(is_locked):
                    write()
                    note()
                if is_locked and identity(path) != before:
                    old = data_files(path)
                try:
                    os.replace(staged, path)
                except OSError:
                    if is_needed and data.is_new:
                        data.path.unlink(missing_ok=True)
                    raise
                if is_locked:
                    remove_unread(old, path, suffix, data.path)
        except OSError as error:
            raise unwritable(path, error) from error
    written += [path, data.path] if is_needed else [path]


def save_together(models: Mapping[str, onnx_ir.Model], folder: Path, data: str) -> list[Path]:
    """Write ``models`` as ONNX to ``folder``, with their large weights in one shared file; returns the files.

    Tensors with the same storage are written once, even if several models use them. The models are not
    changed.

    Args:
        models: the models by file name.
        folder: an existing folder without these files.
        data: name of the file of weights, which is omitted if no weight is large.

    Raises:
        OSError: the files can't be written.
    """
    weights = folder / data
    offsets: Offsets = {}
    with open(weights, "xb") as file:
        for name, model in models.items():
            with changed(write_external_data(model, file, EXTERNAL_THRESHOLD, offsets=offsets)(data)):
                (folder / name).write_bytes(to_proto(model).SerializeToString())
        is_needed = file.tell() > 0
    if not is_needed:
        weights.unlink()
    return [*(folder / name for name in models), *([weights] if is_needed else [])]
