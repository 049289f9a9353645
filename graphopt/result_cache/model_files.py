"""The files of a model, and digests of their contents."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

from graphopt.result_cache.not_cached import NotCached
from graphopt.settings import Settings
from graphopt.util import model_suffixes
from graphopt.util.disk_store import file_digest
from graphopt.util.lazy_dataclass import dataclass

#: The key in ONNX files that names a file of external data.
_LOCATION = b"location"
#: The keys in JSON IR, onnx's own JSON and ONNX text; a backslash may begin another spelling of a key.
_IN_TEXT = (_LOCATION, b"file", b"\\")
_TEXTS = (*model_suffixes.JSON_IR, *model_suffixes.ONNX_JSON, *model_suffixes.TEXT)


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model at one point in time.

    Attributes:
        digests: the SHA-256 of each file, by role: ``model``, then ``data NAME`` for external data.
        nbytes: their total size.
        states: device, inode, size and modification time of each file.
    """

    digests: dict[str, str]
    nbytes: int
    states: tuple[tuple[Path, tuple[int, ...]], ...]

    @classmethod
    def read(cls, path: Path, settings: Settings) -> ModelFiles:
        """The files of the model at ``path``.

        Args:
            path: the file of the model.
            settings: without a second level, models larger than ``cache_size`` are not hashed: this is slow,
                and their results would not be stored.

        Raises:
            NotCached: a file is missing, empty or not a plain file, its format may refer to any files, or the
                model is larger than the cache.
        """
        known = (*model_suffixes.ONNX, *_TEXTS)
        if path.suffix not in known and path.suffix in model_suffixes.suffixes():
            raise NotCached(f"the format {path.suffix} of another package may refer to any files")
        try:
            states = [(path, _state(path))]
            digest, has_data = _scan(path)
            digests = {"model": digest}
            data_files = _data_files(path) if has_data else []
            states += [(file, _state(file)) for file in data_files]
            is_larger = sum(state[2] for _, state in states) > settings.cache_size
            if is_larger and not settings.cache_url:
                raise NotCached("the model is larger than cache-size")
            for file in data_files:
                digests[f"data {file.relative_to(path.parent)}"] = file_digest(file)
        except (OSError, ValueError) as error:
            raise NotCached("a file of the model can't be read") from error
        return cls(digests, sum(state[2] for _, state in states), tuple(states))

    def unchanged(self) -> bool:
        """Whether the files are unchanged, so that a result computed in the meantime belongs to them."""
        try:
            return all(_state(path) == state for path, state in self.states)
        except (OSError, ValueError):
            return False


def _state(path: Path) -> tuple[int, ...]:
    if not path.is_file():
        raise FileNotFoundError(path)
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _scan(path: Path) -> tuple[str, bool]:
    """The digest of a model's file, and whether it may name files of external data."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ValueError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            keys = _IN_TEXT if path.suffix in _TEXTS else (_LOCATION,)
            return hashlib.sha256(view).hexdigest(), any(view.find(key) >= 0 for key in keys)


def _data_files(path: Path) -> list[Path]:
    from graphopt import ir

    return ir.data_files(path)
