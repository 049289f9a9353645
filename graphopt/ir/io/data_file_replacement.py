"""Name the external-data file of a model, and remove stale ones.

A model and its data are two files, which no file system replaces atomically. Therefore new data never
overwrites other data: its name includes a hash of its contents, unless the model has no older data. The old
model remains intact until the new one replaces it; unread data is removed afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path

from graphopt import publish
from graphopt.ir.io.old_data import OldData
from graphopt.util.file_search import mentions

#: Hex digits of the content hash in the name of a data file: 64 bits.
_DIGITS = 16


class DataFile:
    """New external data of a model, in a temporary file that will be renamed into the model's folder.

    The name is chosen first, because the model contains the name, and claimed later, while the folder is
    locked. If another process has claimed it, claiming fails, and another name is chosen.

    Args:
        path: the path of the model.
        suffix: the suffix of the data file.
        content: the temporary file.
        first: whether there is no older model with data, so that the plain name is available.

    Attributes:
        path: the name chosen, ``<path><suffix>`` or with a hash between them.
    """

    def __init__(self, path: Path, suffix: str, content: Path, *, first: bool) -> None:
        self._model, self._suffix, self._content = path, suffix, content
        plain = self._plain = path.with_name(path.name + suffix)
        self._shared = _if_equal(plain, content)
        is_free = first and not os.path.lexists(plain)
        self.path = plain if self._shared or is_free else self._hashed

    def claim(self, locked: bool) -> bool:
        """Rename the data file to :attr:`path`; if this is taken, change :attr:`path`, and return ``False``.

        Args:
            locked: whether the folder is locked. If false, no name is shared with another writer, because
                that writer may remove the file.

        Raises:
            OSError: the file can't be renamed.
        """
        if not locked and self.path == self._hashed:
            self.path = self._named(os.urandom(_DIGITS // 2).hex())
            return False
        if self.path != self._plain:
            os.replace(self._content, self.path)  # replaces at most a file with equal contents
            return True
        with contextlib.suppress(FileExistsError):
            if self._shared is None and publish.rename_to_new(self._content, self._plain):
                return True
            if self._shared is None and locked and not os.path.lexists(self._plain):
                os.replace(self._content, self._plain)
                return True
        if self._shared is not None and locked and _is_unchanged(self._plain, self._shared):
            return True
        self.path = self._hashed
        return False

    @property
    def is_new(self) -> bool:
        """Whether this writer created the claimed file, rather than sharing an equal one."""
        return self._shared is None or self.path != self._plain

    @cached_property
    def _hashed(self) -> Path:
        with open(self._content, "rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGITS // 2))
        return self._named(digest.hexdigest())

    def _named(self, middle: str) -> Path:
        return self._model.with_name(f"{self._model.name}.{middle}{self._suffix}")


def _if_equal(file: Path, content: Path) -> os.stat_result | None:
    """The status of ``file`` if it has the contents of the file ``content``; otherwise ``None``."""
    import filecmp

    try:
        found = file.stat()
        return found if filecmp.cmp(file, content, shallow=False) else None
    except OSError:  # another process may have removed the file
        return None


def _is_unchanged(file: Path, before: os.stat_result) -> bool:
    try:
        now = file.stat()
    except OSError:
        return False
    return os.path.samestat(now, before) and (now.st_size, now.st_mtime_ns) == (
        before.st_size,
        before.st_mtime_ns,
    )


def is_own(file: Path, model: Path, suffix: str) -> bool:
    """Whether ``file`` is a data file that :class:`DataFile` may have named for ``model``."""
    pattern = rf"{re.escape(model.name)}(\.[0-9a-f]+)?{re.escape(suffix)}"
    return file.parent == model.parent and re.fullmatch(pattern, file.name) is not None


def removable(old: OldData, model: Path, suffix: str) -> list[Path]:
    """The data files of the replaced ``model`` that no other model is expected to read.

    These are the files that graphopt named after the model, and other files in its folder that consist of its
    tensors.
    """
    return [file for file in old.files if is_own(file, model, suffix) or file in old.whole]


def remove_unread(old: Iterable[Path], path: Path, used: Collection[Path]) -> None:
    """Remove :func:`removable` files of the model ``path``, whose new version reads the files ``used``.

    The folder must be locked. A file stays if another file of the folder mentions it: a model may have any
    suffix.
    """
    for file in old:
        if file in used:
            continue
        with contextlib.suppress(OSError):  # a file that can't be read or removed is kept
            others = [item for item in path.parent.iterdir() if item not in (path, *used, *old)]
            others = [item for item in others if not item.name.endswith(publish.SUFFIX)]
            if not any(_may_read(item, file.name) for item in others):
                file.unlink()


def remove_orphans(folder: Path, names: Iterable[str]) -> None:
    """Remove data files of killed processes from ``folder``, unless another file mentions them.

    Args:
        folder: the folder, which must be locked.
        names: names of files that graphopt wrote, or was about to remove.
    """
    for name in dict.fromkeys(names):
        with contextlib.suppress(OSError):
            others = [item for item in folder.iterdir() if item.name not in (name, *names)]
            others = [item for item in others if not item.name.endswith(publish.SUFFIX)]
            if not any(_may_read(item, name) for item in others):
                (folder / name).unlink()


def _may_read(item: Path, name: str) -> bool:
    """Whether ``item`` is a file that mentions ``name``; other processes may remove it meanwhile."""
    try:
        return item.is_file() and mentions(item, name)
    except FileNotFoundError:
        return False
