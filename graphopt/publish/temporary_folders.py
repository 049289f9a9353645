"""Temporary folders owned by a live process, and removal of temporary folders of dead processes.

The owner holds an advisory lock (``flock``) on a temporary folder as long as it is in use; the system
releases the lock when the process ends for any reason. Process ids are not sufficient: they are reused, and
are not valid in other containers or on other hosts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphopt.publish.interrupts import deferred_interrupts

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

#: Suffix of all temporaries.
SUFFIX = ".graphopt-tmp"
#: Seconds after which a temporary counts as abandoned on a file system without locks.
_OLD = 24 * 3600.0
#: Maximum characters of the target's name in the name of a temporary.
_NAME = 40
#: The subfolder of a temporary folder that contains the folder being replaced, under its own name.
KEPT = "kept"
#: The file in a temporary folder that lists files that its owner may leave next to it, one per line.
_NOTE = "unfinished"


@contextlib.contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """An empty file with the name of ``target`` in a temporary folder next to it; removed after ``with``.

    The folder is locked rather than the file, because some libraries replace the file that they write.

    Raises:
        OSError: the folder can't be created.
    """
    made: list[tuple[Path, int | None]] = []
    try:
        try:
            with deferred_interrupts():
                made.append(temporary_folder(target.parent, f".{target.name}"))
            path = made[0][0] / target.name
            path.touch()
            yield path
        finally:
            _remove_all(made)
    finally:
        _remove_all(made)  # an interrupt may arrive before the first call defers it


def _remove_all(folders: list[tuple[Path, int | None]]) -> None:
    """Remove folders of :func:`temporary_folder`, and empty the list."""
    with deferred_interrupts():
        while folders:
            remove_folder(*folders.pop())


def temporary_folder(parent: Path, name: str) -> tuple[Path, int | None]:
    """A new folder in ``parent`` for files of this user, and the locked descriptor that marks it as owned.

    Raises:
        OSError: the folder can't be created.
    """
    found = _owned_folder(parent, name)
    remove_abandoned(parent)
    return found


def remove_folder(path: Path, owner: int | None) -> None:
    """Remove a folder of :func:`temporary_folder`."""
    shutil.rmtree(path, ignore_errors=True)
    if owner is not None:
        release(owner)


def note_unfinished(temporary: Path, names: Iterable[str]) -> None:
    """Record, next to the file ``temporary``, the files that this process would leave if killed."""
    (temporary.parent / _NOTE).write_text("\n".join(names), encoding="utf-8", errors="surrogateescape")


def take_unfinished(folder: Path) -> list[str]:
    """The files that killed processes may have left in ``folder``; their records are removed."""
    names: list[str] = []
    for note in sorted(folder.glob(f".*{SUFFIX}/{_NOTE}")):
        with contextlib.suppress(OSError, ValueError):
            descriptor = os.open(note.parent, os.O_RDONLY)
            try:
                if try_lock(descriptor):
                    names += note.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
                    shutil.rmtree(note.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
    return [name for name in names if name == os.path.basename(name) and name]


def remove_abandoned(folder: Path) -> None:
    """Remove the temporaries in ``folder`` of dead processes of this user."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for path in [Path(entry.path) for entry in entries if entry.name.endswith(SUFFIX)]:
            with contextlib.suppress(OSError):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY) if fcntl else None
    try:
        is_free = None if descriptor is None else try_lock(descriptor)
        if is_free is False or (is_free is None and time.time() - found.st_mtime < _OLD):
            return
        _restore(path)
        if not (path / _NOTE).exists():  # :func:`take_unfinished` needs existing records
            shutil.rmtree(path, ignore_errors=True)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _restore(temporary: Path) -> None:
    """Restore a folder whose writer was killed after renaming the old folder, before renaming the new one."""
    kept = temporary / KEPT
    for old in kept.iterdir() if kept.is_dir() else ():
        place = temporary.parent / old.name
        if not os.path.lexists(place):
            os.rename(old, place)


def try_lock(descriptor: int) -> bool | None:
    """Try to lock a file or folder exclusively, without waiting; ``None`` if locks are unsupported."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def release(descriptor: int) -> None:
    """Unlock and close; otherwise a copy of the descriptor in a forked process would keep the lock."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _owned_folder(parent: Path, name: str) -> tuple[Path, int | None]:
    """A new folder owned by this process, and the locked descriptor."""
    while True:
        path, descriptor = _new_folder(parent, name)
        if descriptor is None:
            return path, None
        # in between, another process may treat the new folder as abandoned
        if try_lock(descriptor) is not False and _is_at(path, descriptor):
            return path, descriptor
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _new_folder(parent: Path, name: str) -> tuple[Path, int | None]:
    while True:
        path = parent / f"{name[:_NAME]}.{os.urandom(6).hex()}{SUFFIX}"
        path.mkdir(mode=0o700)
        try:
            return path, os.open(path, os.O_RDONLY) if fcntl else None
        except FileNotFoundError:  # another process removed the folder as abandoned
            continue
