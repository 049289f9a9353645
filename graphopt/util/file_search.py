"""Search for text in files that need not be parsed."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from graphopt.util.model_suffixes import suffixes

#: Size in bytes that no file of protobuf reaches. A larger file contains data, which names no files, unless
#: it has the suffix of a model: models as text may be larger.
_LARGEST = 1 << 31


def mentions(model: Path, name: str) -> bool:
    """Whether the file ``model`` contains ``name``, and therefore may read data of that name.

    JSON may escape some characters; a name with such characters is assumed to occur in every file. Large
    files without the suffix of a model are assumed to contain no names.

    Raises:
        OSError: the file can't be read.
    """
    plain = name.isascii() and name.isprintable() and not any(mark in name for mark in '"\\/')
    with open(model, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size or (size >= _LARGEST and model.suffix.lower() not in suffixes()):
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return not plain or view.find(name.encode()) >= 0
