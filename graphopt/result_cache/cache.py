"""Find a stored result, or build and store it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from graphopt.errors import GraphoptError, ResourceLimit
from graphopt.result_cache.key import Key
from graphopt.result_cache.local_level import LocalLevel
from graphopt.result_cache.stored_result import StoredResult
from graphopt.settings import Settings
from graphopt.util.disk_store import Store


class ResultCache:
    """The result cache of ``settings``."""

    def __init__(self, settings: Settings) -> None:
        self.local = LocalLevel(Store(settings.cache_dir), settings.cache_size)

    def find(self, key: str) -> StoredResult | None:
        """The intact result with the key ``key``, if there is one."""
        folder = self.local.find(key)
        return None if folder is None else StoredResult(key, folder)

    @contextlib.contextmanager
    def reserved(self, key: Key, waits: Callable[[], None] = lambda: None) -> Iterator[StoredResult | None]:
        """The stored result; ``None`` if the ``with`` block has to build it.

        While one process builds a result, others that need the same result wait for it.

        Args:
            waits: called before a wait may begin.
        """
        if (found := self.find(key.digest)) is not None:
            yield found
            return
        waits()
        with self.local.building(key.digest):
            yield self.find(key.digest)  # another process may have stored the result

    def store(self, key: Key, nbytes: int, fill: Callable[[Path], None]) -> str | None:
        """Store a result of ``nbytes`` bytes, which ``fill`` writes; returns the reason of a failure."""
        if nbytes > self.local.limit:
            return "the result is larger than cache-size"
        try:
            self.local.put(key.digest, fill)
        except (GraphoptError, OSError) as error:
            return error.message if isinstance(error, ResourceLimit) else f"it can't be stored: {error}"
        return None
