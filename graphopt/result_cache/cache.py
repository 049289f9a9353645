"""Find a stored result, or build and store it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt import publish
from graphopt.diagnostics import tracer
from graphopt.errors import GraphoptError, ResourceLimit
from graphopt.result_cache.key import Key
from graphopt.result_cache.local_level import LocalLevel
from graphopt.result_cache.model_files import ModelFiles
from graphopt.result_cache.stored_result import StoredResult
from graphopt.settings import Settings
from graphopt.util.disk_store import Store
from graphopt.util.resource_budget import is_cut_short

if TYPE_CHECKING:
    from graphopt.instrument.report import Report
    from graphopt.result_cache.remote_level import RemoteLevel


def why_not_stored(key: Key, files: ModelFiles | None, report: Report) -> str | None:
    """The reason why a new result must not be stored; ``None`` if it may be.

    Args:
        key: its key.
        files: the files of the model; ``None`` for a model in memory.
        report: its report.
    """
    from graphopt.fusion.kernel_library import are_missing  # imports the IR, which reuse does not need

    if report.libraries:
        return "it has native kernels, which have entries of their own"
    if are_missing(report.remarks):
        return "its native kernels were not built, and another run may build them"
    if is_cut_short(report.remarks):
        return "--time-limit was reached, and another run may compute more"
    if files is not None and not files.unchanged():
        return "a file of the model changed in the meantime"
    return None if key.is_current() else "code changed in the meantime"


def _trace(outcome: str, key: Key) -> None:
    tracer.point("cache", outcome=outcome, key=key.digest, reason=None)


def trace_bypass(reason: str) -> None:
    """Record in the trace that no result was searched for."""
    tracer.point("cache", outcome="bypass", key=None, reason=reason)


class ResultCache:
    """The result cache of ``settings``: a local level, and a remote one if a URL is set.

    Attributes:
        warnings: the failures of the remote level.
    """

    def __init__(self, settings: Settings) -> None:
        self.local = LocalLevel(Store(settings.cache_dir), settings.cache_size)
        self.warnings: list[str] = []
        self._url = settings.cache_url

    @cached_property
    def _remote(self) -> RemoteLevel | None:
        if not self._url:
            return None
        from graphopt.result_cache.remote_level import RemoteLevel

        return RemoteLevel(self._url)

    @contextlib.contextmanager
    def reserved(self, key: Key, waits: Callable[[], None] = lambda: None) -> Iterator[StoredResult | None]:
        """The stored result; ``None`` if the ``with`` block has to build it.

        While one process builds a result, others that need the same result wait for it.

        Args:
            waits: called before a wait may begin.

        Raises:
            UsageError: the URL of the remote level is not supported.
        """
        if (found := self._find_locally(key)) is not None:
            _trace("hit", key)
            yield found
            return
        waits()
        with self.local.building(key.digest), contextlib.ExitStack() as stack:
            # another process may have stored the result
            found = self._find_locally(key) or self._find_remotely(key, stack)
            _trace("miss" if found is None else "hit", key)
            yield found

    def store(self, key: Key, nbytes: int, fill: Callable[[Path], None]) -> str | None:
        """Store a result of ``nbytes`` bytes, which ``fill`` writes; returns the reason of a failure."""
        if nbytes > self.local.limit:
            return "the result is larger than cache-size"
        try:
            folder = self.local.put(key.digest, fill)
        except (GraphoptError, OSError) as error:
            return error.message if isinstance(error, ResourceLimit) else f"it can't be stored: {error}"
        if (remote := self._remote) is not None:
            self._try(lambda: remote.put(key.digest, folder))
        return None

    def _find_locally(self, key: Key) -> StoredResult | None:
        folder = self.local.find(key.digest)
        return None if folder is None else StoredResult(key.digest, folder)

    def _find_remotely(self, key: Key, stack: contextlib.ExitStack) -> StoredResult | None:
        """A result of the remote level, copied to the local one, or to a folder that ``stack`` removes."""
        if (remote := self._remote) is None:
            return None
        files: dict[str, bytes] = {}
        self._try(lambda: files.update(remote.get(key.digest) or {}))
        if not files:
            return None

        def fill(folder: Path) -> None:
            for name, content in files.items():
                (folder / name).write_bytes(content)

        fits = sum(map(len, files.values())) <= self.local.limit
        with contextlib.suppress(GraphoptError, OSError):
            if fits:
                return StoredResult(key.digest, self.local.put(key.digest, fill), level="remote")
        with contextlib.suppress(
            GraphoptError, OSError
        ):  # no folder can be written: the caller builds the result
            folder = stack.enter_context(publish.ScratchFolder())
            fill(folder)
            return StoredResult(key.digest, folder, level="remote")
        return None

    def _try(self, action: Callable[[], None]) -> None:
        """Use the remote level; after a failure, it is not used again."""
        from graphopt.result_cache.remote_level import RemoteFailure

        try:
            action()
        except RemoteFailure as failure:
            self.warnings.append(str(failure))
            self._remote = None
