"""A store on disk for results that are costly to compute: models, kernels, timings, calibrations.

An entry is published atomically, so that several processes may write at the same time and readers never
observe part of an entry. Most entries are one file, which begins with a checksum of the rest. Others are a
folder with a list of checksums, for programs that open files by name. An entry that does not match its
checksums counts as absent, and is removed or written again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from graphopt import publish
from graphopt.errors import ResourceLimit, UsageError
from graphopt.util.lazy_dataclass import dataclass

_MAGIC = b"graphopt-store-1\n"
_DIGEST = 32
#: The file in a folder that lists the folder's files, one per line: SHA-256, size in bytes, name.
_SUMS = "sha256sums"
#: The kind of entries with costs that were measured on this machine.
COSTS = "costs"
_KIND = re.compile(r"[a-z][a-z0-9-]*")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One entry of a store: kind, key, total size of its files in bytes, and time of writing."""

    kind: str
    key: str
    bytes: int
    modified: float


def key_of(*parts: bytes | str | int) -> str:
    """The key of a result that depends only on ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else f"{type(part).__name__}:{part}".encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def file_digest(file: Path) -> str:
    """The SHA-256 of a file in hex digits; raises OSError."""
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


class Store:
    """Entries under ``root``, by kind and key.

    Args:
        root: the folder, created when the first entry is written (``settings.cache_dir``).
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, kind: str, data: bytes, key: str | None = None) -> str:
        """Store ``data``; returns its key.

        Args:
            kind: the kind of the entry, such as ``models`` or ``timings``.
            data: the contents.
            key: the entry's key, from :func:`key_of`; by default the hash of the contents.

        Raises:
            ResourceLimit: the disk is full, or the folder can't be written.
        """
        digest = hashlib.sha256(data)
        key = key or digest.hexdigest()
        path = self._path(kind, key)
        with self._writing(path.parent):
            publish.write(path, [_MAGIC, digest.digest(), data])
        return key

    def get(self, kind: str, key: str) -> bytes | None:
        """The contents of an entry; ``None`` if it is missing or damaged. Damaged entries are removed."""
        path = self._path(kind, key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if (data := _content_of(content)) is not None:
            return data
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def find_folder(self, kind: str, key: str, *, check: bool = True) -> Path | None:
        """The folder of an entry; ``None`` if it is missing or damaged; arguments as for :meth:`folder`."""
        path = self._path(kind, key)
        return path if _is_complete(path, check) else None

    def folder(self, kind: str, key: str, fill: Callable[[Path], None], *, check: bool = True) -> Path:
        """The folder of an entry; if it is missing or damaged, ``fill`` writes the files of a new entry.

        Args:
            kind: as for :meth:`put`.
            key: the entry's key, from :func:`key_of`.
            fill: writes the files into an empty folder, without subfolders.
            check: compare the contents of the files with their checksums, not only their sizes.

        Raises:
            ResourceLimit: the disk is full, or the folder can't be written.
        """
        path = self._path(kind, key)
        if _is_complete(path, check):
            return path
        with contextlib.ExitStack() as stack:
            with self._writing(path.parent):
                new = stack.enter_context(publish.ScratchFolder(path.parent, f".{key[:8]}"))
            try:
                fill(new)
            except OSError as error:
                raise self._unwritable(error) from error
            with self._writing(path.parent), publish.locked(path.parent):
                _seal(new)
                if not _is_complete(path, check):  # no other process was faster
                    if path.is_file():
                        raise NotADirectoryError(errno.ENOTDIR, "a file is in the way")
                    publish.put_folder(new, path)
        return path

    def entries(self, kind: str | None = None) -> Iterator[Entry]:
        """Every entry, or those of one kind, in the order of kind and key."""
        for path in sorted(self.root.glob(f"{kind or '*'}/??/*")):
            if not _KEY.fullmatch(path.name):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process removed the entry
                files = [path] if path.is_file() else [item for item in path.iterdir() if item.name != _SUMS]
                size = sum(file.stat().st_size for file in files)
                yield Entry(path.parent.parent.name, path.name, size, path.stat().st_mtime)

    def is_intact(self, kind: str, key: str) -> bool:
        """Whether the contents of an entry match its checksums."""
        path = self._path(kind, key)
        if path.is_dir():
            return _is_complete(path, check=True)
        try:
            return _content_of(path.read_bytes()) is not None
        except OSError:
            return False

    def path_of(self, kind: str, key: str) -> Path:
        """The file or folder of an entry."""
        return self._path(kind, key)

    def remove(self, kind: str, key: str) -> None:
        """Remove an entry, if it exists."""
        path = self._path(kind, key)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self, folder: Path) -> Iterator[None]:
        """Create ``folder`` if it is missing; failed writes in the block are failures of the store."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            yield
        except (OSError, UsageError, ResourceLimit) as failure:
            error = failure if isinstance(failure, OSError) else failure.__cause__
            if not isinstance(error, OSError):
                raise
            raise self._unwritable(error) from failure

    def _unwritable(self, error: OSError) -> ResourceLimit:
        return ResourceLimit(
            f"can't write to the store in {self.root}: {error.strerror or error}",
            hint="another folder: --set cache-dir=FOLDER",
        )

    def _path(self, kind: str, key: str) -> Path:
        if not _KIND.fullmatch(kind) or not _KEY.fullmatch(key):
            raise ValueError(f"not a kind and key of a store: {kind!r}, {key!r}")
        return self.root / kind / key[:2] / key


def _content_of(file: bytes) -> bytes | None:
    """The contents of an entry, after its checksum; ``None`` if they do not match."""
    begin = len(_MAGIC) + _DIGEST
    data = file[begin:]
    return data if file[:begin] == _MAGIC + hashlib.sha256(data).digest() else None


def _seal(folder: Path) -> None:
    """Write the list of checksums of ``folder``."""
    files = sorted(folder.iterdir())
    lines = [f"{file_digest(file)} {file.stat().st_size} {file.name}\n" for file in files]
    (folder / _SUMS).write_text("".join(lines), encoding="utf-8")


def _is_complete(folder: Path, check: bool) -> bool:
    """Whether the files of ``folder`` have the listed sizes and, with ``check``, contents."""
    try:
        lines = (folder / _SUMS).read_text(encoding="utf-8").splitlines()
        rows = [line.split(" ", 2) for line in lines]
        return sorted([_SUMS, *(name for _, _, name in rows)]) == sorted(
            item.name for item in folder.iterdir()
        ) and all(
            (folder / name).stat().st_size == int(size)
            and (not check or file_digest(folder / name) == digest)
            for digest, size, name in rows
        )
    except (OSError, ValueError):
        return False
