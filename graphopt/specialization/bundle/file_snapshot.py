"""The files of a loaded bundle: a consistent snapshot, even if the folder is replaced."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from graphopt.errors import GraphoptError, InvalidModel, unwritable
from graphopt.publish import ScratchFolder
from graphopt.specialization.bundle.archive import extract
from graphopt.specialization.bundle.manifest import Manifest
from graphopt.specialization.bundle.read_manifest import read_manifest
from graphopt.util.fork_safe_lock import ForkSafeLock

T = TypeVar("T")

#: Maximum number of attempts to open a bundle that is being replaced.
_TRIES = 100
#: Flags that open a file; a file of a named pipe's kind, which a race may substitute, must not block.
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
#: Block size for reading, in bytes.
_BLOCK = 1 << 20


class BundleFiles:
    """The manifest and the files of one bundle. The files are kept open, so that the folder may be removed.

    Args:
        path: the folder of the bundle, or its zip file, which is extracted to a temporary folder.
        check: compare the size and the SHA-256 of all files with the manifest.

    Attributes:
        manifest: the manifest.

    Raises:
        UsageError: the bundle does not exist, or can't be read.
        InvalidModel: the manifest is damaged, or a file is missing or differs.
        ResourceLimit: the disk has no space for the members of the zip file.
    """

    def __init__(self, path: Path, *, check: bool) -> None:
        self._folder, self._checks = path, check
        self._extracted: ScratchFolder | None = None
        if path.is_file():
            self._extracted = ScratchFolder()
            extract(path, self._extracted.path)
            self._folder = self._extracted.path
        self._copy: ScratchFolder | None = None
        self._checked: set[str] = set()
        self._lock = ForkSafeLock(threading.RLock)
        with _named(path, self._folder):
            self.manifest, self._open = self._opened()
            weakref.finalize(self, _close, list(self._open.values()))
            self.check(*self.manifest.files)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file except the manifest, in bytes."""
        return {name: os.fstat(self._open[name]).st_size for name in self.manifest.files}

    def check(self, *names: str) -> None:
        """Compare files with their checksums in the manifest, once, if checks are enabled.

        Raises:
            InvalidModel: a file differs.
        """
        with self._lock:
            for name in names if self._checks else ():
                expected = self.manifest.sums.get(name)
                if expected is None or name in self._checked:
                    continue
                size, digest = _read(self._open[name])
                if (expected.bytes not in (None, size)) or expected.sha256 != digest:
                    raise InvalidModel(
                        f"the bundle {self._folder} is damaged: {name} does not match its checksum",
                        hint="write the bundle again, or copy it again completely",
                    )
                self._checked.add(name)

    def use(self, name: str, function: Callable[[Path], T]) -> T:
        """Call ``function`` with the path of a model in a folder that also contains the file of weights.

        The path is in the folder, or in a temporary copy if the folder has been replaced.

        Raises:
            InvalidModel: the model or the weights are damaged.
            ResourceLimit: the disk has no space for a copy.
        """
        self.check(name, *([self.manifest.weights] if self.manifest.weights else []))
        if self._is_in_place():
            try:
                found = function(self._folder / name)
            except Exception:
                if self._is_in_place():
                    raise
            else:
                if self._is_in_place():
                    return found
        return function(self._copied() / name)

    def weights_key(self) -> str:
        """A key that identifies the contents of the file of weights."""
        name = self.manifest.weights
        if name is None:
            return ""
        if self._checks and name in self.manifest.sums:
            self.check(name)
            return self.manifest.sums[name].sha256
        found = os.fstat(self._open[name])
        return f"{self.manifest.digest}:{found.st_size}:{found.st_mtime_ns}"

    def _opened(self) -> tuple[Manifest, dict[str, int]]:
        """The manifest, and file descriptors by name; the folder's name is ``.``."""
        for tries_left in reversed(range(_TRIES)):
            opened: dict[str, int] = {}
            try:
                with contextlib.suppress(PermissionError):  # Windows can't open folders
                    opened["."] = os.open(self._folder, os.O_RDONLY)
                found = read_manifest(self._folder)
                for name in found.files:
                    opened[name] = os.open(self._folder / name, _READ)
                if _is_at(self._folder, opened) or not tries_left:
                    return found, opened
            except (GraphoptError, OSError) as error:
                if _is_at(self._folder, opened) or not tries_left:
                    _close(list(opened.values()))
                    if isinstance(error, OSError):
                        raise InvalidModel(f"can't read {self._folder}: {error.strerror or error}") from error
                    raise
            _close(list(opened.values()))
        raise AssertionError("the last attempt returns or raises")

    def _is_in_place(self) -> bool:
        return self._copy is None and _is_at(self._folder, self._open)

    def _copied(self) -> Path:
        with self._lock:
            if self._copy is None:
                copy = ScratchFolder()
                for name in self.manifest.files:
                    target = copy.path / name
                    try:
                        target.parent.mkdir(parents=True, exist_ok=True)
                        with open(target, "wb") as file:
                            file.writelines(_blocks(self._open[name]))
                    except OSError as error:
                        raise unwritable(target, error) from error
                self._copy = copy
            return self._copy.path


@contextlib.contextmanager
def _named(path: Path, folder: Path) -> Iterator[None]:
    """Name ``path`` in messages in place of the temporary ``folder`` of its members."""
    try:
        yield
    except GraphoptError as error:
        if folder == path:
            raise
        raise type(error)(error.message.replace(str(folder), str(path)), hint=error.hint) from error


def _is_at(folder: Path, opened: dict[str, int]) -> bool:
    """Whether ``folder`` is still the opened folder; true if that can't be determined."""
    if "." not in opened:
        return True
    try:
        return os.path.samestat(os.stat(folder), os.fstat(opened["."]))
    except OSError:
        return False


def _read(descriptor: int) -> tuple[int, str]:
    """The size in bytes and the SHA-256 of an open file."""
    digest, size = hashlib.sha256(), 0
    for block in _blocks(descriptor):
        digest.update(block)
        size += len(block)
    return size, digest.hexdigest()


def _blocks(descriptor: int) -> Iterator[bytes]:
    """The contents of an open file, read without the file position, which forked processes share."""
    if not hasattr(os, "pread"):  # Windows, where processes are not forked
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield from iter(lambda: os.read(descriptor, _BLOCK), b"")
        return
    position = 0
    while block := os.pread(descriptor, _BLOCK, position):
        position += len(block)
        yield block


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
