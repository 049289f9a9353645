"""Copy a part of one file to another within the kernel, and preserve its holes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

#: Maximum bytes of one system call, and of one buffer without such a call.
_CALL, _BUFFER = 1 << 30, 1 << 24
#: Errors if a file, a file system or the kernel does not support a system call: the next one is tried.
_LACKING = (
    errno.EXDEV,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EOPNOTSUPP,
    errno.EBADF,
    errno.EPERM,
    errno.ETXTBSY,
)


def copy_range(source: int, offset: int, target: int, position: int, length: int) -> None:
    """Copy ``length`` bytes at ``offset`` of the open file ``source`` to ``position`` of the file ``target``.

    ``copy_file_range`` shares the blocks of the files (reflinks) where the file system supports it, such as
    btrfs and XFS, and where both positions are multiples of its block size. Without this call, ``sendfile``,
    or reads and writes copy the bytes. If ``target`` ends before ``position``, holes of ``source`` become
    holes.

    Raises:
        OSError: a file can't be read or written, or ``source`` ends too early.
    """
    end = offset + length
    if os.fstat(source).st_size < end:
        raise OSError(errno.EIO, "the file ends too early")
    if os.fstat(target).st_size > position:
        _copy(source, offset, target, position, length)
        return
    for start, stop in _data_ranges(source, offset, end):
        _copy(source, start, target, position + start - offset, stop - start)
    if os.fstat(target).st_size < position + length:
        os.ftruncate(target, position + length)


def _data_ranges(file: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges between ``start`` and ``end`` that contain data."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, end
        return
    while start < end:
        try:
            start = os.lseek(file, start, os.SEEK_DATA)
            stop = min(os.lseek(file, start, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno != errno.ENXIO:  # the file system does not report holes
                yield start, end
            return
        if start < end:
            yield start, stop
        start = stop


def _copy(source: int, offset: int, target: int, position: int, length: int) -> None:
    for call in _calls():
        while length:
            try:
                copied = call(source, offset, target, position, length)
            except OSError as error:
                if error.errno not in _LACKING or call is _buffered:
                    raise
                break
            if not copied:
                if call is _buffered:
                    raise OSError(errno.EIO, "the file ends too early")
                break  # some kernels copy nothing from files of /proc and the like
            offset, position, length = offset + copied, position + copied, length - copied


def _calls() -> Iterator[Callable[[int, int, int, int, int], int]]:
    if hasattr(os, "copy_file_range"):
        yield _kernel_copy
    if hasattr(os, "sendfile"):
        yield _sent
    yield _buffered


def _kernel_copy(source: int, offset: int, target: int, position: int, length: int) -> int:
    return os.copy_file_range(source, target, min(length, _CALL), offset, position)


def _sent(source: int, offset: int, target: int, position: int, length: int) -> int:
    os.lseek(target, position, os.SEEK_SET)
    return os.sendfile(target, source, offset, min(length, _CALL))


def _buffered(source: int, offset: int, target: int, position: int, length: int) -> int:
    return os.pwrite(target, os.pread(source, min(length, _BUFFER), offset), position)
