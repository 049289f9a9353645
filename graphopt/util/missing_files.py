"""The error for a missing file, with the names of similar files as its hint."""

from __future__ import annotations

import os
from pathlib import Path

from graphopt.errors import UsageError, nearest_names, not_downloaded

#: Maximum number of names in a hint.
_LISTED = 3


def no_such_file(path: Path, kind: str = "file") -> UsageError:
    """The error for ``path``, which does not exist, or is a symbolic link to a missing file.

    Args:
        path: the missing file or folder.
        kind: the expected kind, such as ``file or folder``; a hint names folders only if it has the word.
    """
    if path.is_symlink():
        return UsageError(f"{path} is a symbolic link to {os.readlink(path)}, which does not exist")
    return not_downloaded(str(path)) or UsageError(f"no such {kind}: {path}", hint=_similar_names(path, kind))


def _similar_names(path: Path, kind: str) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = sorted(
        entry.name
        for entry in path.parent.iterdir()
        if ("file" in kind and entry.is_file()) or ("folder" in kind and entry.is_dir())
    )
    stems = nearest_names(path.stem, [Path(name).stem for name in names])
    nearest = [name for stem in dict.fromkeys(stems) for name in names if Path(name).stem == stem][:_LISTED]
    where = "this folder" if str(path.parent) == "." else str(path.parent)
    if nearest:
        return f"nearest in {where}: {', '.join(nearest)}"
    return f"no {kind} in {where} has a similar name"
