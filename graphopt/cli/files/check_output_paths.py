"""Checks of output paths, made before any other work.

The folder of a file must exist. A folder that is an output itself is created when its first file is
written, so that an earlier failure leaves no files.
"""

from __future__ import annotations

import errno
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from graphopt.errors import FULL, UsageError, unwritable
from graphopt.util.model_suffixes import suffixes
from graphopt.util.weight_placement import WeightPlacement


def check_model_file(path: Path, *sources: Path) -> None:
    """Check that a model can be written to ``path``, with the suffix of a format or of one of ``sources``."""
    check_file(path, (*suffixes(), *(source.suffix for source in sources)))


def check_target(source: Path, target: Path) -> None:
    """Check that a model derived from the one in ``source`` can be written to ``target``."""
    check_model_file(target, source)
    check_representable(source, target)


def check_representable(source: Path, target: Path) -> None:
    """Check that the format of ``target`` can represent the model in ``source``.

    Raises:
        UnsupportedModel: the format can't represent the model.
    """
    from graphopt import ir

    if ir.codec_of(target).external_data is None:
        from graphopt import api

        ir.check_format(api.load_model(source), target)


def check_weights(source: Path, target: Path, weights: WeightPlacement) -> None:
    """Check that a model derived from the one in ``source`` can store its weights as ``weights`` requires.

    Raises:
        UsageError: the weights of the model in ``target`` can't stay in the data files of ``source``, or
            a model on standard output requires a data file.
    """
    if weights == "beside" and str(target) == "-":
        raise UsageError(
            "a model on standard output can't have a data file",
            hint="name a file, or --weights inside",
        )
    if weights == "keep":
        from graphopt import api, ir

        model = api.load_model(source)
        if str(target) != "-":
            ir.check_kept(model, target)
        elif ir.has_external_data(model):
            raise UsageError(
                "a model on standard output can't keep its weights in data files",
                hint="name a file, or --weights inside",
            )


def check_file(path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Check that a file can be written to ``path``, if a path is given.

    Args:
        suffixes: the permitted suffixes; any if empty.

    Raises:
        UsageError: the folder of the file is missing, the file can't be written, or its suffix is not
            permitted.
    """
    if path is None:
        return
    from graphopt import publish

    if str(path) == "-":
        raise UsageError("stdout is for reports, not files", hint="name a file")
    if path.is_dir():
        raise UsageError(f"can't write {path}: it is a folder", hint="give the name of a file")
    _check_parents(path)
    if not path.parent.is_dir():
        raise UsageError(
            f"can't write {path}: there is no folder {path.parent}", hint=f"mkdir -p {path.parent}"
        )
    special = path.exists() and not path.is_file()
    if suffixes and not special and path.suffix not in suffixes:
        *known, last = dict.fromkeys(suffix for suffix in suffixes if suffix)
        text = f"{', '.join(known)} or {last}" if known else last
        hint = "the suffix determines the format"
        if path.suffix == ".bundle":
            hint = "graphopt optimize MODEL -o FOLDER --profile FILE.json --emit bundle writes a bundle"
        elif path.suffix == ".gopt":
            hint = f"graphopt compile MODEL -o {path} writes a bundle"
        raise UsageError(f"{path} needs the suffix {text}", hint=hint)
    _check_access(path if special else path.parent, path)
    if publish.is_protected(path):
        raise UsageError(
            f"can't write {path}: it is write-protected", hint=f"chmod u+w {path}, or name another"
        )


def check_folder(path: Path | None) -> None:
    """Check that the folder ``path``, if given, exists or can be created.

    Raises:
        UsageError: ``path`` is a file, or the folder can't be created.
    """
    if path is None:
        return
    if str(path) == "-":
        raise UsageError("stdout is for reports, not files", hint="give a folder")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file, not a folder", hint="name a new folder")
    from graphopt import publish

    _check_parents(path)
    _check_access(publish.nearest_existing(path), path)


def check_empty_folder(path: Path, option: str) -> None:
    """Check that ``path`` is an empty folder, or can be created.

    Args:
        option: the option with this path, for messages.

    Raises:
        UsageError: the folder is not empty, or can't be created.
    """
    check_folder(path)
    if path.is_dir() and next(path.iterdir(), None) is not None:
        raise UsageError(f"{path} is not empty", hint=f"{option} requires a new or empty folder")


def free_folder(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3``, … that does not exist."""
    names = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(found for found in itertools.chain([path], names) if not os.path.lexists(found))


def make_folder(path: Path) -> Path:
    """Create the folder ``path`` if it does not exist."""
    check_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def _check_parents(path: Path) -> None:
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise UsageError(f"can't write {path}: {parent} is a file, not a folder")


def open_pipe(path: Path) -> int:
    """The number of the open pipe ``path``, for writing.

    Raises:
        UsageError: no process reads the pipe, so that opening it would wait for one.
    """
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise unwritable(path, error) from error
        text = f"can't write {path}: it is a pipe, and no process reads it"
        raise UsageError(text, hint=f"first run: cat {path} > FILE &") from error


def _check_access(place: Path, path: Path) -> None:
    """Check that ``place``, a folder, a device or a pipe, is writable.

    Some folders, such as /proc, refuse new files in spite of their mode.
    """
    if not os.access(place, os.W_OK):
        raise UsageError(
            f"can't write {path}: {place} is not writable", hint=f"chmod u+w {place}, or name another place"
        )
    if not place.is_dir():
        return
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        if error.errno in FULL:
            raise unwritable(path, error) from error
        text = f"can't write {path}: no file can be created in {place} ({error.strerror})"
        raise UsageError(text) from error


def check_page(path: Path | None) -> None:
    """Check the path for a report page, and that its packages are installed, before a long run.

    Raises:
        UsageError: the path is unusable, or a package of the extra ``report`` is missing.
    """
    if path is not None:
        from graphopt.page.section import check_installed

        check_file(path, [".html"])
        check_installed()
