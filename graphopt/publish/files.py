"""Publish one file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from graphopt.errors import unwritable
from graphopt.publish.temporary_folders import temporary_file

#: The contents of a file: text (UTF-8), bytes, chunks of bytes, a file to copy, or a function that writes to
#: the path that it receives.
Content = str | bytes | Iterable[bytes | memoryview] | Path | Callable[[Path], object]


@contextlib.contextmanager
def staged(target: Path, content: Content, *, executable: bool = False) -> Iterator[None]:
    """Write ``content`` to a temporary file, which becomes ``target`` after the ``with`` block.

    Nested blocks publish several files together: all are written before the first, the innermost, is renamed.
    If a block raises, its ``target`` is unchanged. A device or a pipe is written directly.

    Args:
        executable: make it executable for everyone with read permission.

    Raises:
        UsageError: ``target`` can't be written; usually detected before the block.
        ResourceLimit: the disk is full; usually detected before the block.
    """
    with contextlib.ExitStack() as stack:
        try:
            temporary = stack.enter_context(_temporary(target))
            _fill(temporary, content)
            if executable and temporary != target:
                mode = temporary.stat().st_mode
                os.chmod(temporary, mode | (mode & 0o444) >> 2)
        except OSError as error:
            raise unwritable(target, error) from error
        yield
        try:
            if temporary != target:
                os.replace(temporary, target)
        except OSError as error:
            raise unwritable(target, error) from error


def write(target: Path, content: Content) -> None:
    """Replace a file atomically.

    Raises:
        UsageError: the file can't be written, or is write-protected.
        ResourceLimit: the disk is full.
    """
    with staged(target, content):
        pass


def _mode(path: Path) -> int:
    """The type and permissions of ``path``, read at once, as other processes may remove it; 0 if missing."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def is_protected(path: Path) -> bool:
    """Whether ``path`` is a file without write permissions, regardless of the permissions of its folder."""
    mode = _mode(path)
    return stat.S_ISREG(mode) and not mode & 0o222


def check_protected(path: Path) -> None:
    """Check that ``path`` is not write-protected, which a rename would ignore.

    Raises:
        PermissionError: ``path`` is write-protected.
    """
    if is_protected(path):
        raise PermissionError(errno.EACCES, "it is write-protected")


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A temporary file for ``target``, or a device or a pipe itself; raises OSError."""
    mode = _mode(target)
    if mode and not stat.S_ISREG(mode):  # /dev/stdout must not be replaced by a file
        # a pipe without a reader is an error, instead of a wait
        opened = os.open(target, os.O_WRONLY | os.O_NONBLOCK) if stat.S_ISFIFO(mode) else None
        try:
            yield target
        finally:
            if opened is not None:
                os.close(opened)
        return
    check_protected(target)
    with temporary_file(target) as temporary:
        yield temporary


def _fill(file: Path, content: Content) -> None:
    if callable(content):
        mode = file.stat().st_mode
        content(file)
        if file.stat().st_mode != mode:  # a library may have replaced the file
            os.chmod(file, mode)
        return
    if isinstance(content, Path):
        import shutil

        shutil.copyfile(content, file)
        return
    with open(file, "wb") as opened:
        if isinstance(content, str):
            opened.write(content.encode(errors="surrogateescape"))  # preserves paths that are not UTF-8
        elif isinstance(content, bytes):
            opened.write(content)
        else:
            opened.writelines(content)
