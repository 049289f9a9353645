"""Publish a folder, and scratch folders."""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType

from graphopt.errors import GraphoptError, UsageError, unwritable
from graphopt.publish.atomic_rename import exchange
from graphopt.publish.interrupts import deferred_interrupts
from graphopt.publish.locks import locked
from graphopt.publish.temporary_folders import KEPT, remove_abandoned, remove_folder, temporary_folder

#: Attempts to publish a folder while other writers publish theirs.
_TRIES = 100
_CAME_FIRST = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT)


def remove_abandoned_scratch() -> None:
    """Remove scratch folders of killed processes in the system's temporary folder (``TMPDIR``)."""
    import tempfile

    with contextlib.suppress(OSError):  # there is no such folder
        remove_abandoned(Path(tempfile.gettempdir()))


def nearest_existing(path: Path) -> Path:
    """``path`` if it exists, or its nearest existing parent."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


class ScratchFolder:
    """A folder for temporary files, removed when it is closed or garbage-collected, or when the process ends.

    Folders of killed processes are removed when the next process creates one.

    Args:
        parent: the folder in which it is created; by default that of the system (``TMPDIR``).
        name: the beginning of its name.

    Raises:
        UsageError: the folder can't be created.
        ResourceLimit: the disk is full.
    """

    def __init__(self, parent: Path | None = None, name: str = "graphopt") -> None:
        if parent is None:
            import tempfile

            parent = Path(tempfile.gettempdir())
        try:
            with deferred_interrupts():
                outer, owner = temporary_folder(parent, name)
                self._remove = weakref.finalize(self, remove_folder, outer, owner)
            # not the folder with the lock of its owner: writers lock the folder that they write to
            self.path = outer / "new"
            self.path.mkdir()
        except OSError as error:
            raise unwritable(parent, error) from error

    def close(self) -> None:
        with deferred_interrupts():
            self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_not_current(folder: Path) -> None:
    """Check that ``folder`` is not the current folder, which can't be replaced.

    Raises:
        UsageError: it is.
    """
    if os.path.lexists(folder) and folder.resolve() == Path.cwd():
        raise UsageError(f"can't replace {folder}: it is the current folder", hint="name another folder")


def check_replaceable(folder: Path, kind: str, files_of: Callable[[Path], Collection[str] | None]) -> None:
    """Check that ``folder`` does not exist, is empty, or contains an older result and nothing else.

    Args:
        folder: the folder for a new result.
        kind: the kind of results with its article, for messages, such as "a bundle".
        files_of: the names of the files of the result in a folder; ``None`` if the folder has no such result.

    Raises:
        UsageError: ``folder`` has other contents, or is the current folder.
    """
    if not os.path.lexists(folder):
        return
    check_not_current(folder)
    if not folder.is_dir():
        raise UsageError(f"can't write {kind} to {folder}: not a folder")
    inside = sorted(os.listdir(folder))
    if not inside:
        return
    hint = f"choose a new folder, or the folder of {kind}"
    try:
        known = files_of(folder)
    except GraphoptError as error:
        raise UsageError(f"{folder} is not replaced: {error.message}", hint=hint) from error
    if known is None:
        raise UsageError(f"{folder} is not replaced: not {kind}", hint=hint)
    other = next((name for name in inside if name not in known), None)
    if other is not None:
        raise UsageError(f"{folder} is not replaced: {other} is not part of {kind}", hint=hint)


@contextlib.contextmanager
def writing_folder(target: Path, check: Callable[[Path], object]) -> Iterator[Path]:
    """A new folder that the ``with`` block fills; afterwards, it replaces ``target``.

    ``target`` is always either the old folder or the new one. With several writers, the last writer wins. A
    process that has files of the old folder open keeps access to them.

    Args:
        target: the folder, which may be missing.
        check: raises an error if ``target`` must not be replaced; called immediately before the replacement.

    Raises:
        UsageError: ``target`` can't be written, or is the current folder.
        ResourceLimit: the disk is full.
    """
    parent = target.absolute().parent
    try:
        check_not_current(target)
        if not parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with ScratchFolder(parent, f".{target.name}") as new:
            yield new
            with locked(parent):
                check(target)
                put_folder(new, target)
    except OSError as error:
        raise unwritable(target, error) from error


def put_folder(new: Path, target: Path) -> None:
    """Rename ``new``, the path of a :class:`ScratchFolder`, to ``target``; an old ``target`` becomes ``new``.

    Raises:
        OSError: ``new`` can't be renamed.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            if not os.path.lexists(target):
                os.rename(new, target)
            elif not exchange(new, target):
                _swap(new, target)
            return
        except OSError as error:
            if error.errno not in _CAME_FIRST or not tries_left or not new.is_dir():
                raise


def _swap(new: Path, target: Path) -> None:
    """Exchange two folders in two steps; if the process is killed in between, the next writer repairs it."""
    kept = new.parent / KEPT
    kept.mkdir(exist_ok=True)
    old = kept / target.name
    os.rename(target, old)
    try:
        os.rename(new, target)
    except OSError:
        os.rename(old, target)
        raise
