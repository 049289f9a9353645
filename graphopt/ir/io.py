"""Load and save models: .onnx with external data, the JSON IR, onnx's own JSON, and ONNX text.

External tensors stay on disk, memory-mapped, until somebody reads them. A file is written to a
temporary name beside its target and renamed, so a failure leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphopt.errors import GraphoptError, InvalidModel, ResourceLimit, UsageError
from graphopt.ir import carrier
from graphopt.ir.admit import admit, declare_references, unshadow
from graphopt.ir.beside import locations, mentions, name_for, remove_unread
from graphopt.ir.constants import DATA_FILES, FUNCTIONS, IR_VERSION
from graphopt.ir.external import (
    Folders,
    changed,
    external_protos,
    map_external_data,
    read_external_data,
    write_external_data,
)
from graphopt.ir.forms import FileForm, form_of
from graphopt.ir.json import from_json, to_json
from graphopt.ir.onnx_json import from_onnx_json, to_onnx_json
from graphopt.ir.onnx_text import messages_of, to_text
from graphopt.ir.onnxir import onnx_ir
from graphopt.ir.order import sort_model
from graphopt.ir.pieces import pieces, set_aside
from graphopt.ir.verify import check_model
from graphopt.ir.weights import slots

#: protobuf can't hold more in one message; leave room for the rest of the model.
INLINE_LIMIT = 2**31 - 2**20
#: Of larger tensors, only the types are tried where a form is checked.
_SAMPLE = 4096
#: Smaller tensors stay in the model file when the others go to external data.
EXTERNAL_THRESHOLD = 1024

#: What the file is called that holds the large tensors of a JSON IR, after the name of the JSON IR itself.
_SIDECAR = ".bin"
#: The same of a model that is no JSON IR.
_DATA = ".data"


def load(
    path: str | os.PathLike[str], *, allow_external: Sequence[str | os.PathLike[str]] = ()
) -> onnx_ir.Model:
    """Load a model from a file, whose suffix tells its form.

    ``.json`` is the JSON IR, ``.onnxjson`` onnx's own JSON, ``.onnxtxt`` and ``.txt`` are ONNX text,
    and everything else is ``.onnx``.

    Unsorted graphs are sorted. External data is checked (inside the model's folder or a folder
    of ``allow_external``, present, long enough) and memory-mapped.

    Raises:
        UsageError: the path does not exist, is a folder or can't be read.
        InvalidModel: the file is not a model, is cut short, breaks the rules of ONNX (see
            :func:`graphopt.ir.verify.verify`), or its data is missing.
    """
    path = Path(path)
    try:
        return _from_proto(_parse(path), Folders(path.parent, [Path(folder) for folder in allow_external]))
    except InvalidModel as error:
        if str(path) in error.message:
            raise
        raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error


def from_proto(proto: onnx.ModelProto) -> onnx_ir.Model:
    """Turn ``proto`` into a model, sorted. Takes ``proto`` over: it is not to be used afterwards.

    Raises:
        InvalidModel: the model breaks the rules of ONNX, or has external data.
    """
    return _from_proto(proto, Folders(None))


def _from_proto(proto: onnx.ModelProto, folders: Folders) -> onnx_ir.Model:
    try:
        has_external_data = any(True for _ in external_protos(proto))
        carrier.stow(proto)
        admit(proto)
        model = onnx_ir.from_proto(proto)
        carrier.attach(proto, model)
    except GraphoptError:
        raise
    except Exception as error:  # onnx-ir and protobuf raise whatever a malformed part makes them raise
        raise InvalidModel(f"the model can't be read: {_root_cause(error)}") from error
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
    """The proto of ``model``, without graphopt's private metadata. External tensors stay external.

    Raises:
        InvalidModel: a part of it can't be written, such as a text that is not UTF-8.
    """
    try:
        proto = onnx_ir.to_proto(model)
    except onnx_ir.serde.SerdeError as error:
        raise InvalidModel(f"the model can't be written: {_root_cause(error)}") from error
    carrier.unpack(proto, model)
    return proto


def to_bytes(model: onnx_ir.Model) -> bytes:
    """``model`` in one piece, external tensors included.

    Raises:
        ResourceLimit: it does not fit into 2 GB.
    """
    return b"".join(_in_pieces(model))


def _in_pieces(model: onnx_ir.Model) -> Iterator[bytes | memoryview]:
    """What :func:`to_bytes` tells, without a copy of all large weights."""
    if sum(slot.tensor.nbytes for slot in slots(model)) > INLINE_LIMIT:
        raise ResourceLimit(
            "the model is larger than 2 GB and can't be held in one piece", hint="use external data"
        )
    changes, weights = set_aside(model)
    with changed([*changes, *read_external_data(model)]):
        data = to_proto(model).SerializeToString()
    return pieces(data, weights)


def save(
    model: onnx_ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    threshold: int = EXTERNAL_THRESHOLD,
) -> list[Path]:
    """Write ``model`` to ``path``; returns the files written, the model first.

    It may be saved over the file that it was loaded from. Data of the old model is not written over: the new
    data then has a hash in its name, and the old goes with the old model unless other models of the folder
    may read it.

    Args:
        model: the model; it is not changed.
        path: target; its suffix tells the form, as for :func:`load`.
        external_data: put tensors of at least ``threshold`` bytes into a file beside ``path``:
            ``<path>.data`` (or ``<path>.<hash>.data``) beside ``.onnx``, by default when the model
            came with external data or exceeds 2 GB; ``<path>.bin`` beside the JSON IR, by default
            always. The other forms hold everything.
        threshold: bytes.

    Raises:
        UsageError: ``path`` can't be written. Nothing is left behind.
        ResourceLimit: the model exceeds 2 GB, and ``external_data`` is false.
        UnsupportedModel: it can't be told in the form.
    """
    path = Path(path)
    if "\0" in str(path):
        raise UsageError(f"can't write {str(path)!r}: no path can have a NUL in it")
    if os.path.isdir(path):
        raise UsageError(f"can't write {path}: it is a folder", hint="give a file name, such as OUT.onnx")
    form = form_of(path)
    try:
        if any(file.exists() and path.exists() and path.samefile(file) for file in _read_by(model)):
            raise UsageError(
                f"can't write {path}: the model's weights are in it", hint="give another file name"
            )
        if form is FileForm.JSON_IR and external_data is not False:
            return _save_with_data(model, path, form, threshold)
        if external_data is None and form is FileForm.ONNX:
            external_data = _wants_external_data(model)
        if external_data and form is FileForm.ONNX:
            return _save_with_data(model, path, form, threshold)
        if form is FileForm.ONNX:
            write_file(path, _in_pieces(model))
        else:
            write_file(path, [_converted(onnx.ModelProto.FromString(to_bytes(model)), form, threshold)])
        return [path]
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error


def check_form(model: onnx_ir.Model, path: str | os.PathLike[str]) -> None:
    """Check that ``model`` can be told in the form of the file ``path``, but for the contents of its weights.

    Raises:
        UnsupportedModel: it can't.
    """
    form = form_of(path)
    if form not in (FileForm.TEXT, FileForm.ONNX_JSON):
        return
    proto = to_proto(model)
    for message in messages_of(proto):
        if isinstance(message, onnx.TensorProto) and (
            message.data_location == onnx.TensorProto.EXTERNAL or message.ByteSize() > _SAMPLE
        ):
            sample = onnx.TensorProto(name=message.name, data_type=message.data_type, dims=[0])
            message.CopyFrom(sample)
    _converted(proto, form, EXTERNAL_THRESHOLD)


def _read_by(model: onnx_ir.Model) -> tuple[Path, ...]:
    files: tuple[Path, ...] = model.graph.meta.get(DATA_FILES, ())
    return files


def _converted(proto: onnx.ModelProto, form: FileForm, threshold: int) -> bytes:
    match form:
        case FileForm.JSON_IR:
            return to_json(proto, max(threshold, 1)).encode()
        case FileForm.ONNX_JSON:
            return to_onnx_json(proto).encode()
        case _:
            return to_text(proto).encode()


def _wants_external_data(model: onnx_ir.Model) -> bool:
    """Whether the weights came in a file of their own, or need one.

    The one beside a JSON IR does not count: a JSON IR is not asked where its model's weights were.
    """
    tensors = [slot.tensor for slot in slots(model)]
    return (
        any(
            isinstance(tensor, onnx_ir.ExternalTensor)
            and not re.search(rf"\.json(\.[0-9a-f]+)?{re.escape(_SIDECAR)}$", str(tensor.location))
            for tensor in tensors
        )
        or sum(tensor.nbytes for tensor in tensors) > INLINE_LIMIT
    )


def _save_with_data(model: onnx_ir.Model, path: Path, form: FileForm, threshold: int) -> list[Path]:
    """Write the model and the file beside it; at any time ``path`` is the old model or the new one."""
    is_json = form is FileForm.JSON_IR
    suffix, threshold = (_SIDECAR, max(threshold, 1)) if is_json else (_DATA, threshold)
    data_path = path.with_name(path.name + suffix)
    with _temporary(data_path) as temporary_data, _temporary(path) as temporary:

        def location() -> str:
            nonlocal data_path
            data_path = name_for(path, suffix, temporary_data)
            return data_path.name

        with open(temporary_data, "wb") as file:
            changes = write_external_data(model, file, location, threshold, attributes=is_json)
            is_needed = file.tell() > 0 or not is_json
        with changed(changes):
            proto = to_proto(model)
            temporary.write_bytes(
                _converted(proto, form, threshold) if is_json else proto.SerializeToString()
            )
        del proto
        old = data_files(path)
        is_new = is_needed and not os.path.lexists(data_path)
        if is_needed:
            os.replace(temporary_data, data_path)
        try:
            os.replace(temporary, path)
        except OSError:
            if is_new:
                data_path.unlink()
            raise
        remove_unread(old, path, suffix, data_path)
    return [path, data_path] if is_needed else [path]


def data_files(path: str | os.PathLike[str], name: str | None = None) -> list[Path]:
    """The files that hold the external data of the model at ``path``; none if there is no model.

    Args:
        name: only of interest if one of them is called so, which is told much sooner.
    """
    path = Path(path)
    try:
        if name is not None and path.is_file() and not mentions(path, name):
            return []
        return locations(_parse(path), path.parent)
    except (GraphoptError, OSError):
        return []


def is_protected(path: Path) -> bool:
    """Whether ``path`` is a file that nobody may write, whoever asks; its folder may say otherwise."""
    return path.is_file() and not path.stat().st_mode & 0o222


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A temporary file beside ``target``, removed unless it was renamed.

    Raises:
        PermissionError: ``target`` is there, and write-protected: to rename a file over it asks nobody.
    """
    if is_protected(target):
        raise PermissionError(errno.EACCES, "it is write-protected")
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, data: Iterable[bytes | memoryview]) -> None:
    """Write ``data`` beside ``path`` and rename it, so that nobody sees half a file; raises OSError."""
    if path.exists() and not path.is_file():  # /dev/stdout is not to be replaced by a file
        with open(path, "wb") as file:
            file.writelines(data)
        return
    with _temporary(path) as temporary:
        with open(temporary, "wb") as file:
            file.writelines(data)
        os.replace(temporary, path)


def _parse(path: Path) -> onnx.ModelProto:
    data = _read(path)
    if not data:
        raise InvalidModel(f"{path} is empty")
    match form_of(path):
        case FileForm.TEXT:
            return _parse_text(path, data)
        case FileForm.JSON_IR | FileForm.ONNX_JSON as form:
            proto = _parse_json(path, data, form)
        case _:
            try:
                proto = onnx.ModelProto.FromString(data)
            except DecodeError as error:
                raise InvalidModel(f"{path} is not an ONNX model, or it is cut short") from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise InvalidModel(f"{path} is not an ONNX model")
    return proto


def _read(path: Path) -> bytes:
    try:
        if not path.exists():
            raise UsageError(f"no such file: {path}", hint=_what_there_is(path))
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a model", hint="name the .onnx file in it")
        if not path.is_file():
            raise UsageError(
                f"{path} is a device or a pipe, not a model", hint="write what it gives into a file first"
            )
        if path.stat().st_size >= 2**31:
            raise InvalidModel(
                f"{path} is larger than 2 GB, which no ONNX file can be",
                hint="models of that size keep their weights in external data",
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(f"can't read {path}: {getattr(error, 'strerror', None) or error}") from error


def _what_there_is(path: Path) -> str:
    """A hint where ``path`` leads nowhere: what its name resembles."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    nearest = difflib.get_close_matches(path.name, names, n=3)
    where = "this folder" if str(path.parent) == "." else str(path.parent)
    return (
        f"nearest in {where}: {', '.join(nearest)}" if nearest else f"no file in {where} is called similarly"
    )


def _parse_text(path: Path, data: bytes) -> onnx.ModelProto:
    import onnx.parser

    try:
        return onnx.parser.parse_model(data.decode())
    except Exception as error:  # onnx's parser lets C++'s own errors through, of numbers above all
        raise InvalidModel(f"{path} is not ONNX text: {_root_cause(error)}") from error


def _parse_json(path: Path, data: bytes, form: FileForm) -> onnx.ModelProto:
    hint = "docs/json-ir.md describes the format" if form is FileForm.JSON_IR else None
    try:
        text = data.decode("utf-8-sig")
        return from_json(text) if form is FileForm.JSON_IR else from_onnx_json(text)
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error.message}", hint=hint) from error


def _root_cause(error: BaseException) -> str:
    """The first line of the innermost cause of ``error``."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
