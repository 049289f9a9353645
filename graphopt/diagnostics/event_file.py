"""Files of events that several processes append to: JSON lines, or Chrome's trace format.

Each event is appended under a lock on the file, so that lines are whole and, in Chrome's format, the file is
a complete JSON array after each event. If the disk is full, the file keeps its former contents.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from graphopt.publish.temporary_folders import release, try_lock

Format = Literal["auto", "lines", "chrome"]

#: Seconds of waiting for the lock, and between two attempts.
_PATIENCE, _STEP = 10.0, 0.001
#: The most bytes of a line that are read to recognize a file.
_LONGEST = 2**20
#: The beginning and the end of an array with one item a line.
_OPEN, _CLOSE = b"[\n", b"\n]\n"


def format_of(path: Path, chosen: Format = "auto") -> Literal["lines", "chrome"]:
    """The format of the file ``path``: by default Chrome's format for the suffix ``.json``."""
    if chosen != "auto":
        return chosen
    return "chrome" if path.suffix == ".json" else "lines"


class EventFile:
    """Appends events to a file.

    Args:
        path: the file; it is created if it does not exist.
        as_array: write a JSON array with an item a line, instead of JSON lines.
    """

    def __init__(self, path: str | os.PathLike[str], *, as_array: bool = False) -> None:
        self.path = Path(path).absolute()
        self._is_array = as_array
        self._is_known = False

    def append(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Append ``items``, one line each; without items, create the file.

        Raises:
            OSError: the file can't be written, or contains anything other than such events; its contents
                are unchanged.
        """
        lines = [json.dumps(item, ensure_ascii=False, default=str) for item in items]
        descriptor = _opened(self.path, os.O_RDWR if self._is_array else os.O_WRONLY)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                _wait_for_lock(descriptor)
                if not (self._is_array or self._is_known):
                    _check_lines(self.path)
                    self._is_known = True
            elif self._is_array:
                raise OSError(errno.ESPIPE, "Chrome's format requires a regular file")
            write = _append_items if self._is_array else _append_lines
            write(descriptor, [line.encode(errors="surrogatepass") for line in lines])
        finally:
            release(descriptor)


def _opened(path: Path, mode: int) -> int:
    """The descriptor of the open file; a pipe that no process reads is an error, instead of a wait."""
    flags = mode | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def _wait_for_lock(descriptor: int) -> None:
    end = time.monotonic() + _PATIENCE
    while try_lock(descriptor) is False:
        if time.monotonic() > end:
            raise OSError(errno.EAGAIN, "another process keeps it locked")
        time.sleep(_STEP)


def _check_lines(path: Path) -> None:
    """Raise OSError unless ``path`` is empty, or its first line is a JSON object, as that of JSON lines."""
    try:
        with open(path, "rb") as file:
            line = file.readline(_LONGEST)
    except PermissionError:  # a file that may only be written
        return
    try:
        known = not line or (line.endswith(b"\n") and isinstance(json.loads(line), dict))
    except ValueError:
        known = False
    if not known:
        raise OSError(errno.EINVAL, "it exists, and is not a trace in JSON lines")


def _append_lines(descriptor: int, lines: list[bytes]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    _write(descriptor, _end(descriptor), data, b"")


def _append_items(descriptor: int, lines: list[bytes]) -> None:
    size, body = _end(descriptor), b",\n".join(lines)
    if size == 0:
        if lines:
            _write(descriptor, 0, _OPEN + body + _CLOSE, b"")
        return
    os.lseek(descriptor, 0, os.SEEK_SET)
    begin = os.read(descriptor, len(_OPEN))
    os.lseek(descriptor, max(0, size - len(_CLOSE)), os.SEEK_SET)
    if begin != _OPEN or os.read(descriptor, len(_CLOSE)) != _CLOSE:
        raise OSError(errno.EINVAL, "it exists, and is not a trace in Chrome's format")
    if lines:
        _write(descriptor, size - len(_CLOSE), b",\n" + body + _CLOSE, _CLOSE)


def _end(descriptor: int) -> int:
    """The size of the file; 0 for a pipe or a device."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _write(descriptor: int, offset: int, data: bytes, replaced: bytes) -> None:
    """Write ``data`` at ``offset``; after a failure, restore the bytes ``replaced``, the end of the file."""
    with contextlib.suppress(OSError):  # a pipe has no offset
        os.lseek(descriptor, offset, os.SEEK_SET)
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        with contextlib.suppress(OSError):
            os.lseek(descriptor, offset, os.SEEK_SET)
            os.write(descriptor, replaced)
            os.ftruncate(descriptor, offset + len(replaced))
        raise
