"""The file beside a model that holds its large tensors: what it is called, and when an old one goes.

A model and its data are two files, which no file system replaces at once. So new data goes under a
name that no file bears yet, unless it is the same data; the old model stays whole until the new one
takes its place, and only then does the data go that nothing reads any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path

import onnx

from graphopt.ir.external import external_protos

#: Digits of the contents' hash that tell data from other data of the same model; more if need be.
_DIGITS = (8, 16, 32)


def name_for(path: Path, suffix: str, content: Path) -> Path:
    """What to call ``content``, the data of model ``path``: ``<path><suffix>``, or a hash between them."""
    import filecmp

    plain = path.with_name(path.name + suffix)
    if not plain.is_file() or filecmp.cmp(plain, content, shallow=False):
        return plain
    with open(content, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=max(_DIGITS) // 2)).hexdigest()
    names = [path.with_name(f"{path.name}.{digest[:digits]}{suffix}") for digits in _DIGITS]
    free = (name for name in names if not name.exists() or filecmp.cmp(name, content, shallow=False))
    return next(free, names[-1])


def is_called_after(name: str, model: str, suffix: str) -> bool:
    """Whether a data file is called as :func:`name_for` calls those of a model."""
    return re.fullmatch(rf"{re.escape(model)}(\.[0-9a-f]+)?{re.escape(suffix)}", name) is not None


def locations(proto: onnx.ModelProto, folder: Path) -> list[Path]:
    """The files that hold the external data of a model of ``folder``, if their names are paths at all."""
    found = [
        entry.value
        for tensor in external_protos(proto)
        for entry in tensor.external_data
        if entry.key == "location" and entry.value and "\0" not in entry.value
    ]
    return [folder / location for location in dict.fromkeys(found)]


def mentions(model: Path, name: str) -> bool:
    """Whether the file of a model may hold ``name``, as it must where a file of that name holds its data.

    JSON may spell some characters otherwise: of names with them, every file is taken to tell.
    """
    plain = name.isascii() and name.isprintable() and not any(mark in name for mark in '"\\/')
    with open(model, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return not plain or view.find(name.encode()) >= 0


def remove_unread(old: Iterable[Path], path: Path, suffix: str, new: Path) -> None:
    """Remove those ``old`` data files of the model ``path`` that nothing reads now that it has ``new``.

    Only such go as are called after the model, and that no other file of the folder mentions: a model
    may have any suffix.
    """
    for file in old:
        if file.parent != path.parent or not is_called_after(file.name, path.name, suffix) or file == new:
            continue
        with contextlib.suppress(OSError):  # what can't be told or removed stays
            others = [item for item in path.parent.iterdir() if item not in (path, new, *old)]
            if not any(mentions(item, file.name) for item in others if item.is_file()):
                file.unlink()
