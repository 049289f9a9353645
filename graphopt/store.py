"""A store on disk for what is costly to make again: models, kernels, timings, calibrations.

An entry is written to a temporary name and renamed, so that several processes may write at once and a
reader never sees half of one. Most are one file, which begins with a checksum of the rest; one that does
not match it is removed and counts as absent. Others are a folder, for what reads files itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from graphopt.errors import ResourceLimit

_MAGIC = b"graphopt-store-1\n"
_DIGEST = 32
_KIND = re.compile(r"[a-z][a-z0-9-]*")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One entry of a store: its kind and key, the bytes that its files take, when it was written."""

    kind: str
    key: str
    bytes: int
    modified: float


def key_of(*parts: bytes | str | int) -> str:
    """The key of something that depends on ``parts`` alone."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else f"{type(part).__name__}:{part}".encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class Store:
    """Entries under ``root``, by kind and key.

    Args:
        root: the folder, made when something is first put into it (``settings.cache_dir``).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, kind: str, data: bytes, key: str | None = None) -> str:
        """Keep ``data``; returns its key.

        Args:
            kind: such as ``models`` or ``timings``.
            data: the contents.
            key: from :func:`key_of`; by default the hash of the contents.

        Raises:
            ResourceLimit: the disk is full, or the folder can't be written.
        """
        digest = hashlib.sha256(data)
        key = key or digest.hexdigest()
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + digest.digest() + data)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise self._unwritable(error) from error
        return key

    def get(self, kind: str, key: str) -> bytes | None:
        """The contents of an entry; ``None`` if there is none, or it was damaged (then it is removed)."""
        path = self._path(kind, key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        begin = len(_MAGIC) + _DIGEST
        data = content[begin:]
        if content[:begin] == _MAGIC + hashlib.sha256(data).digest():
            return data
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def folder(self, kind: str, key: str, fill: Callable[[Path], None]) -> Path:
        """The folder of an entry; if there is none, ``fill`` writes the files of a new one.

        Raises:
            ResourceLimit: the disk is full, or the folder can't be written.
        """
        path = self._path(kind, key)
        if path.is_dir():
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=".", suffix=".tmp"))
            try:
                fill(temporary)
                with contextlib.suppress(OSError):  # another process was faster
                    os.rename(temporary, path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            if not path.is_dir():
                raise NotADirectoryError(20, "a file is in the way", str(path))
        except OSError as error:
            raise self._unwritable(error) from error
        return path

    def entries(self, kind: str | None = None) -> Iterator[Entry]:
        """Every entry, or those of one kind, in the order of kind and key."""
        for path in sorted(self.root.glob(f"{kind or '*'}/??/*")):
            if not _KEY.fullmatch(path.name):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                files = [path] if path.is_file() else list(path.iterdir())
                size = sum(file.stat().st_size for file in files)
                yield Entry(path.parent.parent.name, path.name, size, path.stat().st_mtime)

    def remove(self, kind: str, key: str) -> None:
        """Remove an entry, if it is there."""
        path = self._path(kind, key)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> ResourceLimit:
        return ResourceLimit(
            f"can't write to the store in {self.root}: {error.strerror or error}",
            hint="another folder: --set cache-dir=FOLDER",
        )

    def _path(self, kind: str, key: str) -> Path:
        if not _KIND.fullmatch(kind) or not _KEY.fullmatch(key):
            raise ValueError(f"not a kind and key of a store: {kind!r}, {key!r}")
        return self.root / kind / key[:2] / key
