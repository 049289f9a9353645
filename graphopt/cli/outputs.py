"""Paths that are written to: checked before any work is done.

The folder of a file must exist. A folder that is an output itself is made when its first file is
written, so that a failure before that leaves nothing behind.
"""

from __future__ import annotations

import os
from pathlib import Path

from graphopt.errors import UsageError


def check_file(path: Path | None) -> None:
    """Check that a file can be written to ``path``, if there is one.

    Raises:
        UsageError: its folder is missing, or it can't be written there.
    """
    if path is None:
        return
    if str(path) == "-":
        raise UsageError("stdout takes reports, not files", hint="give a path; ./- is a file called -")
    if path.is_dir():
        raise UsageError(f"can't write {path}: it is a folder", hint="give the name of a file")
    _check_parents(path)
    if not path.parent.is_dir():
        raise UsageError(
            f"can't write {path}: there is no folder {path.parent}", hint=f"mkdir -p {path.parent}"
        )
    special = path.exists() and not path.is_file()
    _check_access(path if special else path.parent, path)


def check_folder(path: Path | None) -> None:
    """Check that the folder ``path``, if there is one, exists or can be made.

    Raises:
        UsageError: it can't.
    """
    if path is None:
        return
    if str(path) == "-":
        raise UsageError("stdout takes reports, not files", hint="give a folder")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file, not a folder")
    _check_parents(path)
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    _check_access(nearest, path)


def make_folder(path: Path) -> Path:
    """Make the folder ``path`` unless it is there."""
    check_folder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"can't make the folder {path}: {error.strerror or error}") from error
    return path


def _check_parents(path: Path) -> None:
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise UsageError(f"can't write {path}: {parent} is a file, not a folder")


def _check_access(place: Path, path: Path) -> None:
    if not os.access(place, os.W_OK):
        raise UsageError(f"can't write {path}: {place} is not writable")
