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
from graphopt.errors import ResourceLimit, UsageError
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import DATA_FILES
from graphopt.ir.io.codecs import ONNX, Chunks, Codec, codec_of, codecs
from graphopt.ir.io.data_file_replacement import removable, remove_unread
from graphopt.ir.io.data_of import DataOf
from graphopt.ir.io.external_data import (
    Change,
    Offsets,
    changed,
    read_external_data,
    refer_to_data,
    write_external_data,
)
from graphopt.ir.io.kept_data import KeptData, check_kept
from graphopt.ir.io.load import old_data
from graphopt.ir.io.old_data import OldData
from graphopt.ir.io.proto_conversion import to_proto
from graphopt.ir.io.save_with_data import WrittenFiles, saving_with_data
from graphopt.ir.weights import MappedTensor, slots
from graphopt.util.file_search import mentions
from graphopt.util.weight_placement import WeightPlacement

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
    weights: WeightPlacement = "copy",
    threshold: int = EXTERNAL_THRESHOLD,
    data_of: DataOf | None = None,
) -> WrittenFiles:
    """Write ``model`` to ``path``; returns the files written, the model first.

    ``path`` may be the file that the model was loaded from. Data of an old model is not overwritten: the new
    data has a hash in its name, and the old data is removed with the old model unless other models of the
    folder may read it.

    Args:
        model: the model; it is not changed.
        path: target; its suffix selects the format, as for :func:`graphopt.ir.load`.
        weights: the file of tensors of at least ``threshold`` bytes. ``beside``: a file beside ``path``,
            ``<path>.data`` (or ``<path>.<hash>.data``) beside ``.onnx``, ``<path>.bin`` beside the JSON IR.
            ``inside``: ``path`` itself. ``copy``: beside if the model was loaded with external data or
            exceeds 2 GB, and beside the JSON IR; otherwise inside. ``keep``: as ``copy``, but tensors of a
            model that was loaded from the folder of ``path`` stay in its data files in this folder, to which
            the new model refers. ``auto``: ``keep`` in that folder, else ``copy``. Files of the other formats
            contain all tensors.
        threshold: bytes.
        data_of: with ``copy``, refer to data of this folder under its alias instead of copying it; the result
            loads only with the same argument of :func:`graphopt.ir.load`.

    Raises:
        UsageError: ``path`` can't be written, or the data can't be kept. No partial file remains.
        ResourceLimit: the disk is full, or the model exceeds 2 GB and ``weights`` is ``inside``.
        UnsupportedModel: the format can't represent the model.
    """
    with saving(model, path, weights=weights, threshold=threshold, data_of=data_of) as written:
        pass
    return written


@contextlib.contextmanager
def saving(
    model: onnx_ir.Model,
    path: str | os.PathLike[str],
    *,
    weights: WeightPlacement = "copy",
    threshold: int = EXTERNAL_THRESHOLD,
    data_of: DataOf | None = None,
) -> Iterator[WrittenFiles]:
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
    if any(_is_same_file(path, file) for file in _read_by(model)):
        raise UsageError(
            f"can't write {path}: it contains the model's weights", hint="give another file name"
        )
    data = codec.external_data
    if weights == "keep":
        check_kept(model, path)
    is_apart = weights == "beside"
    if weights in ("auto", "keep", "copy"):
        is_apart = (data is not None and data.by_default) or _needs_external_data(model)
    if os.path.exists(path) and not os.path.isfile(path):
        is_apart = False  # a device has no folder for a second file
    if is_apart and data is not None:
        with saving_with_data(model, path, codec, data, threshold, weights, data_of) as written:
            yield written
        return
    written = WrittenFiles()
    old = [] if data is None else removable(_replaced_data(path), path, data.suffix)
    with publish.staged(path, _self_contained(model, codec, threshold)):
        yield written
    written.append(path)
    if old:
        with contextlib.suppress(OSError), publish.locked(path.parent) as is_locked:
            if is_locked:  # another writer may have published a model with data
                remove_unread(old, path, _replaced_data(path).files)


def _replaced_data(path: Path) -> OldData:
    """The data of the model at ``path``, if there is one; does not parse most models without data."""
    with contextlib.suppress(OSError):
        # keys of ONNX and of the JSON IR
        if path.is_file() and any(mentions(path, name) for name in ("location", "file", path.name)):
            return old_data(path)
    return OldData()


def to_bytes(model: onnx_ir.Model) -> bytes:
    """Serialize ``model`` to ONNX, including its external tensors.

    Raises:
        ResourceLimit: the model exceeds 2 GB.
    """
    return b"".join(_self_contained(model, ONNX, EXTERNAL_THRESHOLD))


def to_bytes_beside_data(model: onnx_ir.Model, limit: int) -> tuple[bytes, KeptData] | None:
    """Serialize ``model`` to ONNX with references to the data files that it was read from.

    Returns:
        the serialized model, and the files that it refers to; ``None`` if there are no references, if a file
        has changed, or if the other tensors have more than ``limit`` bytes.
    """
    tensors = [slot.tensor for slot in slots(model)]
    folder = next((item.file.folder for item in tensors if isinstance(item, MappedTensor)), None)
    if folder is None:
        return None
    kept = KeptData(folder, "keep", nested=True)
    changes = refer_to_data(model, EXTERNAL_THRESHOLD, kept.location)
    referring = {id(slot.tensor) for slot, tensor in changes if isinstance(tensor, onnx_ir.ExternalTensor)}
    others = sum(tensor.nbytes for tensor in tensors if id(tensor) not in referring)
    if not referring or others > limit or not kept.is_in_place(locked=False):
        return None
    with changed(changes):
        return to_proto(model).SerializeToString(), kept


def _self_contained(model: onnx_ir.Model, codec: Codec, threshold: int) -> Chunks:
    if sum(slot.tensor.nbytes for slot in slots(model)) > INLINE_LIMIT:
        raise ResourceLimit("the model is larger than 2 GB, the limit of one file", hint="--weights beside")
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


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one does not exist
        return False


def _read_by(model: onnx_ir.Model) -> tuple[Path, ...]:
    files: tuple[Path, ...] = model.graph.meta.get(DATA_FILES, ())
    return files


def has_external_data(model: onnx_ir.Model) -> bool:
    """Whether tensors of ``model`` are in data files."""
    return any(isinstance(slot.tensor, onnx_ir.ExternalTensor) for slot in slots(model))


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
