"""Load and save models: .onnx with external data, the JSON IR, onnx's own JSON, and ONNX text.

External tensors stay on disk, memory-mapped, until somebody reads them. Files are published by
:mod:`graphopt.publish`: a failure leaves the old ones.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from graphopt import publish
from graphopt.errors import (
    GraphoptError,
    InvalidModel,
    ResourceLimit,
    UsageError,
    causes,
    not_downloaded,
    unwritable,
)
from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.constants import DATA_FILES, FUNCTIONS, IR_VERSION, LOADED_WITH
from graphopt.ir.io import opaque
from graphopt.ir.io.codecs import FileForm, form_of
from graphopt.ir.io.data_file import DataFile, is_own, locations, mentions, remove_orphans, remove_unread
from graphopt.ir.io.external_data import (
    Folders,
    Written,
    changed,
    external_protos,
    map_external_data,
    read_external_data,
    write_external_data,
)
from graphopt.ir.io.normalize_proto import admit, declare_references, unshadow
from graphopt.ir.io.onnx_json import from_onnx_json, to_onnx_json
from graphopt.ir.io.onnx_text import messages_of, to_text
from graphopt.ir.io.recognize import HEAD, folder_hint, recognized
from graphopt.ir.io.streaming import pieces, set_aside
from graphopt.ir.io.wire_format import MOST_NESTED, nesting
from graphopt.ir.json import from_json, to_json
from graphopt.ir.topological_order import sort_model
from graphopt.ir.validation import check_model
from graphopt.ir.weights import slots

#: protobuf can't hold more in one message; leave room for the rest of the model.
INLINE_LIMIT = 2**31 - 2**20
#: Of larger tensors, only the types are tried where a form is checked.
_SAMPLE = 4096
#: Smaller tensors stay in the model file when the others go to external data.
EXTERNAL_THRESHOLD = 1024

#: How often a model is loaded anew because another process replaces it meanwhile.
_RELOADS = 100

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
            :func:`graphopt.ir.validation.verify`), or its data is missing.
    """
    path = Path(path)
    folders = [Path(folder) for folder in allow_external]
    for tries_left in reversed(range(_RELOADS)):
        before = _identity(path)
        try:
            return _from_proto(_parse(path), Folders(path.parent, folders))
        except InvalidModel as error:
            if tries_left and _identity(path) != before:  # another process wrote it, and removed its data
                continue
            if str(path) in error.message:
                raise
            raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error
    raise AssertionError("the last try returns or raises")


def _identity(path: Path) -> tuple[int, ...] | None:
    """Differs between two files that were at ``path`` one after the other."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def from_proto(
    proto: onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    allow_external: Sequence[str | os.PathLike[str]] = (),
) -> onnx_ir.Model:
    """Turn ``proto`` into a model, sorted. Takes ``proto`` over: it is not to be used afterwards.

    Args:
        proto: the model.
        base_dir: the folder of its external data.
        allow_external: further folders that the data may lie in.

    Raises:
        InvalidModel: the model breaks the rules of ONNX, or has external data that ``base_dir`` lacks.
    """
    folder = None if base_dir is None else Path(base_dir)
    return _from_proto(proto, Folders(folder, [Path(path) for path in allow_external]))


def _from_proto(proto: onnx.ModelProto, folders: Folders) -> onnx_ir.Model:
    try:
        has_external_data = any(True for _ in external_protos(proto))
        opaque.stow(proto)
        remarks = admit(proto)
        model = onnx_ir.from_proto(proto)
        opaque.attach(proto, model)
        if remarks:
            model.graph.meta[LOADED_WITH] = tuple(remarks)
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
    opaque.unpack(proto, model)
    return proto


def to_whole_proto(model: onnx_ir.Model) -> onnx.ModelProto:
    """The proto of ``model`` with the contents of external tensors; it may exceed 2 GB.

    Raises:
        InvalidModel: a part of it can't be written.
    """
    with changed(read_external_data(model)):
        return to_proto(model)


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
        ResourceLimit: the disk is full, or the model exceeds 2 GB, and ``external_data`` is false.
        UnsupportedModel: it can't be told in the form.
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
    """Write ``model`` to temporary files, which are published after the block, so that others can go with it.

    Arguments and errors are those of :func:`save`.

    Yields:
        A list that holds the files after the block.
    """
    path = Path(path)
    if "\0" in str(path):
        raise UsageError(f"can't write {str(path)!r}: no path can have a NUL in it")
    if os.path.isdir(path):
        raise UsageError(f"can't write {path}: it is a folder", hint="give a file name, such as OUT.onnx")
    form = form_of(path)
    if os.path.exists(path) and any(file.exists() and path.samefile(file) for file in _read_by(model)):
        raise UsageError(f"can't write {path}: the model's weights are in it", hint="give another file name")
    if os.path.exists(path) and not os.path.isfile(path):
        external_data = False  # nothing lies beside a device
    if external_data is None:
        external_data = form is FileForm.JSON_IR or _wants_external_data(model)
    if external_data and form in (FileForm.JSON_IR, FileForm.ONNX):
        with _saving_with_data(model, path, form, threshold) as written:
            yield written
        return
    written = []
    if form is FileForm.ONNX:
        content = _in_pieces(model)
    else:
        content = iter([_converted(onnx.ModelProto.FromString(to_bytes(model)), form, threshold)])
    with publish.staged(path, content):
        yield written
    written.append(path)


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


@contextlib.contextmanager
def _saving_with_data(
    model: onnx_ir.Model, path: Path, form: FileForm, threshold: int
) -> Iterator[list[Path]]:
    """Publish the model and the file beside it; at any time ``path`` is the old model or the new one."""
    is_json = form is FileForm.JSON_IR
    suffix, threshold = (_SIDECAR, max(threshold, 1)) if is_json else (_DATA, threshold)
    written: list[Path] = []
    with contextlib.ExitStack() as stack:
        try:
            for target in (path, path.with_name(path.name + suffix)):
                publish.check_protected(target)
            content = stack.enter_context(publish.temporary_file(path.with_name(path.name + suffix)))
            with open(content, "wb") as file:
                relocated = write_external_data(model, file, threshold, attributes=is_json)
                is_needed = file.tell() > 0
            seen, old = _identity(path), data_files(path)
            data = DataFile(path, suffix, content, first=not old)
            staged = stack.enter_context(publish.temporary_file(path))

            def write() -> None:
                with changed(relocated(data.path.name)):
                    proto = to_proto(model)
                    staged.write_bytes(
                        _converted(proto, form, threshold) if is_json else proto.SerializeToString()
                    )

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
                if is_locked and _identity(path) != seen:
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


def metadata_of(path: str | os.PathLike[str]) -> dict[str, str] | None:
    """The metadata of the model at ``path``, unchecked otherwise; ``None`` if there is no model."""
    try:
        return {entry.key: entry.value for entry in _parse(Path(path)).metadata_props}
    except (GraphoptError, OSError):
        return None


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
            return parse_bytes(data, str(path), path)
    check_header(proto, str(path))
    return proto


def parse_bytes(
    data: bytes, where: str = "the serialized model", path: Path | None = None
) -> onnx.ModelProto:
    """The proto that is serialized in ``data``, which messages call ``where``.

    Args:
        data: the model, serialized.
        where: its name in messages.
        path: the file that it was read from, if any, to recognize what is no model.

    Raises:
        InvalidModel: it is no serialized model, or it is truncated.
    """
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        depth = nesting(data)
        if depth >= MOST_NESTED:
            raise InvalidModel(
                f"{where} nests bodies {depth} deep; protobuf, and so onnxruntime, gives up at about"
                f" {MOST_NESTED}"
            ) from error
        if path is not None:
            raise _no_model(path, data, " or it is cut short") from error
        raise InvalidModel(f"{where} is not an ONNX model, or it is cut short") from error
    if path is not None and not proto.HasField("graph"):
        raise _no_model(path, data)
    check_header(proto, where)
    return proto


def check_header(proto: onnx.ModelProto, where: str) -> None:
    """Check that ``proto``, which messages call ``where``, has a graph and an IR version.

    Raises:
        InvalidModel: it lacks one of them.
    """
    if not proto.HasField("graph"):
        raise InvalidModel(f"{where} is not an ONNX model")
    if not proto.ir_version:
        raise InvalidModel(
            f"{where} has no IR version (ir_version is 0), and ONNX requires one",
            hint="set model.ir_version, such as to 8 for opset 17, and save it again",
        )


def _no_model(path: Path, head: bytes, else_: str = "") -> InvalidModel:
    """The error for a file that is no ONNX model: its own kind, or ``else_`` where that is not known."""
    kind = recognized(path, head)
    if kind is None:
        return InvalidModel(f"{path} is not an ONNX model{else_ and ','}{else_}")
    return InvalidModel(f"{path} is not an ONNX model, but {kind.name}", hint=kind.hint)


def _read(path: Path) -> bytes:
    try:
        if not path.exists():
            url = not_downloaded(str(path))
            if url is not None:
                raise url
            raise UsageError(f"no such file: {path}", hint=_what_there_is(path))
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a model", hint=folder_hint(path))
        if not path.is_file():
            raise UsageError(
                f"{path} is a device or a pipe, not a model", hint="save its contents to a file first"
            )
        if path.stat().st_size >= 2**31:
            with path.open("rb") as file:
                head = file.read(HEAD)
            if recognized(path, head) is not None:
                raise _no_model(path, head)
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
        f"nearest in {where}: {', '.join(nearest)}" if nearest else f"no file in {where} has a similar name"
    )


def _parse_text(path: Path, data: bytes) -> onnx.ModelProto:
    import onnx.parser

    try:
        return onnx.parser.parse_model(data.decode())
    except Exception as error:  # onnx's parser lets C++'s own errors through, of numbers above all
        if recognized(path, data) is not None:
            raise _no_model(path, data) from error
        raise InvalidModel(f"{path} is not ONNX text: {_root_cause(error)}") from error


def _parse_json(path: Path, data: bytes, form: FileForm) -> onnx.ModelProto:
    hint = "docs/json-ir.md describes the format" if form is FileForm.JSON_IR else None
    try:
        text = data.decode("utf-8-sig")
        return from_json(text) if form is FileForm.JSON_IR else from_onnx_json(text)
    except UnicodeDecodeError as error:
        if recognized(path, data) is not None:
            raise _no_model(path, data) from None
        raise InvalidModel(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except InvalidModel as error:
        if recognized(path, data) is not None:
            raise _no_model(path, data) from None
        raise InvalidModel(f"{path}: {error.message}", hint=hint) from error


def _root_cause(error: BaseException) -> str:
    """The first line of the innermost cause of ``error``."""
    *_, root = causes(error)
    text = str(root).strip().splitlines()
    return text[0][:200] if text else type(root).__name__


def save_together(
    models: Mapping[str, onnx_ir.Model], folder: Path, data: str, threshold: int = EXTERNAL_THRESHOLD
) -> list[Path]:
    """Write ``models`` to ``folder``, and their large weights to one file there; returns the files.

    Tensors with the same storage are written once, in whichever models they are. The models are not changed.

    Args:
        models: by the names of their files.
        folder: exists, and has no such files yet.
        data: name of the file of weights; there is none if no weight is large.
        threshold: bytes from which on a weight is large.

    Raises:
        OSError: the files can't be written.
    """
    weights, written = folder / data, Written()
    with open(weights, "xb") as file:
        for name, model in models.items():
            with changed(write_external_data(model, file, threshold, written=written)(data)):
                (folder / name).write_bytes(to_proto(model).SerializeToString())
        is_needed = file.tell() > 0
    if not is_needed:
        weights.unlink()
    return [*(folder / name for name in models), *([weights] if is_needed else [])]
