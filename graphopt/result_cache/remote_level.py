"""Stored results at a URL that several machines share, by way of fsspec.

Each entry is one object, ``URL/VERSION/KEY``: a checksum, followed by an archive of the entry's files. An
object that does not match its checksum or its key counts as absent. Failures and slow servers are reported,
and do not stop a run.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from graphopt.errors import ResourceLimit, UsageError
from graphopt.process.threads import start_thread
from graphopt.result_cache.key import Key
from graphopt.result_cache.stored_result import KEY, MODEL, REPORT

T = TypeVar("T")

#: Version of the format of objects.
VERSION = "graphopt-results-1"
#: Maximum seconds for the transfer of one object.
_PATIENCE = 120.0
_DIGEST = 32
#: The date of all files in archives, so that equal entries are equal objects.
_DATE = (1980, 1, 1, 0, 0, 0)


class RemoteFailure(Exception):
    """The remote level can't be used; the message is the reason."""


class RemoteLevel:
    """Stored results at ``url``, such as ``s3://bucket/folder`` or ``file:///shared/folder``.

    Raises:
        UsageError: fsspec is not installed, or does not support the URL.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise UsageError(
                "cache-url requires the package fsspec", hint="pip install 'graphopt[cache]'"
            ) from None
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (
            ImportError,
            ValueError,
            TypeError,
        ) as error:  # a protocol that is unknown, or lacks its package
            raise UsageError(f"cache-url can't be {url!r}: {error}") from error
        self._root = f"{str(root).rstrip('/')}/{VERSION}"

    def get(self, key: str) -> dict[str, bytes] | None:
        """The contents of the files of an entry, by name; ``None`` if it is absent or damaged.

        Raises:
            RemoteFailure: the server can't be reached, or is too slow.
        """

        def read() -> bytes | None:
            try:
                content: bytes = self._files.cat_file(self._path(key))
            except FileNotFoundError:
                return None
            return content

        data = _within_limit(read)
        return None if data is None else _unpacked(data, key)

    def put(self, key: str, folder: Path) -> None:
        """Write the files in ``folder`` as an entry.

        Raises:
            RemoteFailure: the server can't be reached, or is too slow.
        """
        data = _packed(folder)

        def write() -> None:
            if "file" in self._files.protocol:  # other file systems have no folders
                self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(self._path(key), data)

        _within_limit(write)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


def _within_limit(action: Callable[[], T]) -> T:
    """The result of ``action``, which is abandoned after the time limit.

    Raises:
        RemoteFailure: it fails, or takes too long.
    """
    done = threading.Event()
    outcome: list[T] = []
    failures: list[Exception] = []

    def act() -> None:
        try:
            outcome.append(action())
        except Exception as error:  # fsspec's file systems raise exceptions of many libraries
            failures.append(error)
        finally:
            done.set()

    try:
        start_thread(act)
    except ResourceLimit as limit:
        raise RemoteFailure(f"cache-url can't be used: {limit.message}") from limit
    done.wait(_PATIENCE)
    if failures:
        (error,) = failures
        text = " ".join(str(error).split()) or type(error).__name__
        raise RemoteFailure(f"cache-url can't be used: {text[:200]}") from error
    if not outcome:
        raise RemoteFailure(f"cache-url can't be used: no response in {_PATIENCE:g} s")
    return outcome[0]


def _packed(folder: Path) -> bytes:
    """The files of an entry as an object."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.iterdir()):
            if _is_part(file.name):
                archive.writestr(zipfile.ZipInfo(file.name, _DATE), file.read_bytes())
    data = buffer.getvalue()
    return hashlib.sha256(data).digest() + data


def _unpacked(data: bytes, key: str) -> dict[str, bytes] | None:
    """The files in an object; ``None`` if it is damaged, or belongs to another key."""
    content = data[_DIGEST:]
    if hashlib.sha256(content).digest() != data[:_DIGEST]:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        parts: Any = json.loads(files[KEY])
    except (zipfile.BadZipFile, NotImplementedError, KeyError, ValueError, OSError, RuntimeError):
        return None
    is_whole = REPORT in files and all(map(_is_part, files))
    return files if is_whole and isinstance(parts, dict) and Key(parts).digest == key else None


def _is_part(name: str) -> bool:
    """Whether ``name`` is a plain name that files of entries have."""
    return "/" not in name and "\\" not in name and (name in (KEY, REPORT) or name.startswith(f"{MODEL}."))
