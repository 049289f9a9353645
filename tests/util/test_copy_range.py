"""Copies of parts of files: contents, holes, and file systems without a system call."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from graphopt.util import copy_range as module
from graphopt.util.copy_range import copy_range

_MIB = 1 << 20


def _copied(
    source: Path, target: Path, offset: int, position: int, length: int, before: bytes = b""
) -> bytes:
    target.write_bytes(before)
    with open(source, "rb") as one, open(target, "r+b") as other:
        copy_range(one.fileno(), offset, other.fileno(), position, length)
    return target.read_bytes()


@pytest.mark.parametrize("lacking", [[], ["copy_file_range"], ["copy_file_range", "sendfile"]])
@pytest.mark.parametrize("error", [errno.EXDEV, None])
def test_every_call_copies_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: list[str], error: int | None
) -> None:
    def fails(*_: Any) -> int:
        if error is None:
            return 0
        raise OSError(error, os.strerror(error))

    for name in lacking:
        monkeypatch.setattr(os, name, fails, raising=False)
    monkeypatch.setattr(module, "_CALL", 1000)
    monkeypatch.setattr(module, "_BUFFER", 1000)
    content = os.urandom(5000)
    source = tmp_path / "source"
    source.write_bytes(content)
    assert _copied(source, tmp_path / "new", 7, 0, 4000) == content[7:4007]
    assert _copied(source, tmp_path / "later", 7, 3, 4000, b"ab") == b"ab\0" + content[7:4007]
    assert _copied(source, tmp_path / "within", 7, 3, 10, b"x" * 20) == b"xxx" + content[7:17] + b"x" * 7


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(OSError, match="ends too early"):
        _copied(tmp_path / "source", tmp_path / "target", 0, 0, 4)


def test_other_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if not hasattr(os, "copy_file_range"):
        pytest.skip("no copy_file_range here")
    monkeypatch.setattr(os, "copy_file_range", full)
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(OSError) as caught:
        _copied(tmp_path / "source", tmp_path / "target", 0, 0, 3)
    assert caught.value.errno == errno.ENOSPC


def test_holes_stay_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with open(source, "wb") as file:
        file.seek(8 * _MIB)
        file.write(b"a" * 4096)
        file.truncate(32 * _MIB)
    if source.stat().st_blocks * 512 > _MIB:
        pytest.skip("the file system has no holes")
    assert _copied(source, target, 100, 0, 20 * _MIB) == source.read_bytes()[100 : 20 * _MIB + 100]
    assert target.stat().st_blocks * 512 < _MIB
    # the target has contents there already
    before = b"x" * (10 * _MIB)
    assert _copied(source, target, 0, 0, 10 * _MIB, before) == source.read_bytes()[: 10 * _MIB]
