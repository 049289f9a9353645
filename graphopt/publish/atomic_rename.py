"""Atomic operations beyond ``os.rename``: exchange two paths, and rename without replacing.

Linux provides both as ``renameat2`` (https://man7.org/linux/man-pages/man2/renameat2.2.html).
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CURRENT_FOLDER = -100  # AT_FDCWD
_NO_REPLACE, _EXCHANGE = 1, 2
#: Errors of a kernel or a file system that does not support the flag.
_LACKING = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two files or folders of one file system atomically; ``False`` if unsupported.

    Raises:
        OSError: a path is missing, or can't be renamed.
    """
    return _renamed(one, other, _EXCHANGE)


def rename_to_new(source: Path, target: Path) -> bool:
    """Rename a file to an unused name atomically; ``False`` if the file system does not support it.

    Raises:
        FileExistsError: the name is already used.
        OSError: the file can't be renamed.
    """
    if _renamed(source, target, _NO_REPLACE):
        return True
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        return False
    os.unlink(source)
    return True


def _renamed(source: Path, target: Path, flags: int) -> bool:
    call = _renameat2()
    if call is None:
        return False
    import ctypes

    if call(_CURRENT_FOLDER, os.fsencode(source), _CURRENT_FOLDER, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _LACKING:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    """The function of the C library; ``None`` if the library lacks it."""
    try:
        import ctypes

        found: Any = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    found.restype = ctypes.c_int
    call: Callable[..., int] = found
    return call
