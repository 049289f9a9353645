"""Stored results in the local store: lookup, eviction, and the lock for building an entry."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from graphopt import publish
from graphopt.publish.temporary_folders import remove_abandoned
from graphopt.util.disk_store import Store

#: The kind of stored results.
KIND = "results"
#: The folder with a folder for each key that a process is building.
_BUILDING = "building"
#: Maximum seconds to wait for another process that builds the same result.
_PATIENCE = 300.0


class LocalLevel:
    """Stored results in ``store``.

    Args:
        store: the store.
        limit: maximum bytes of all stored results.
    """

    def __init__(self, store: Store, limit: int) -> None:
        self.store, self.limit = store, limit

    def find(self, key: str) -> Path | None:
        """The folder of an intact entry, marked as recently used; ``None`` if it is missing or damaged."""
        folder = self.store.find_folder(KIND, key)
        if folder is not None:
            with contextlib.suppress(OSError):  # a read-only store keeps its order
                os.utime(folder)
        return folder

    def put(self, key: str, fill: Callable[[Path], None]) -> Path:
        """Write an entry by ``fill``, and remove the least recently used ones above the limit.

        Raises:
            ResourceLimit: the disk is full, or the store can't be written.
        """
        folder = self.store.folder(KIND, key, fill)
        with contextlib.suppress(OSError):
            os.utime(folder)
        self._evict(kept=key)
        return folder

    def _evict(self, kept: str) -> None:
        for folder in self.store.root.glob(f"{KIND}/??"):
            remove_abandoned(folder)  # of killed processes
        entries = sorted(self.store.entries(KIND), key=lambda entry: (entry.modified, entry.key))
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= self.limit:
                break
            if entry.key != kept:
                with contextlib.suppress(OSError):  # another process removes it
                    self.store.remove(KIND, entry.key)
                total -= entry.bytes

    @contextlib.contextmanager
    def building(self, key: str) -> Iterator[None]:
        """Mark an entry as being built during the ``with`` block.

        If another process builds the entry, the block begins after that process has finished. In stores
        without locks, and after a long wait, several processes may build the same entry.
        """
        folder = self.store.root / _BUILDING / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            yield
            return
        try:
            with publish.locked(folder, 0) as is_first:
                if is_first:
                    yield
                    return
            with publish.locked(folder, _PATIENCE):
                pass  # if the other process failed, all waiting processes build the entry at the same time
            yield
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
