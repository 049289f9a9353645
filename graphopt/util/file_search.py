"""Search for text in files that need not be parsed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

#: Bytes that no file of a model reaches; a larger file contains data, which names no files.
_LARGEST = 1 << 31


def mentions(model: Path, name: str) -> bool:
    """Whether the file ``model`` contains ``name``, and therefore may read data of that name.

    JSON may escape some characters; a name with such characters is assumed to occur in every file.

    Raises:
        OSError: the file can't be read.
    """
    plain = name.isascii() and name.isprintable() and not any(mark in name for mark in '"\\/')
    with open(model, "rb") as file:
        if not 0 < os.fstat(file.fileno()).st_size < _LARGEST:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return not plain or view.find(name.encode()) >= 0
