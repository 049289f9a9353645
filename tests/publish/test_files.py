"""Files are published completely or not at all, and leftovers of killed processes are removed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphopt import publish
from graphopt.cli.main import main
from graphopt.errors import ResourceLimit, UsageError
from graphopt.publish import atomic_rename, temporary_folders
from graphopt.publish.files import is_protected


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("content", ["text ü", b"bytes", [b"in ", memoryview(b"pieces")]])
def test_contents(tmp_path: Path, content: str | bytes | list[bytes | memoryview]) -> None:
    publish.write(tmp_path / "a", content)
    expected = (
        content.encode()
        if isinstance(content, str)
        else b"".join(content if type(content) is list else [content])
    )  # type: ignore[list-item]
    assert (tmp_path / "a").read_bytes() == expected and _names(tmp_path) == ["a"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    publish.write(tmp_path / "a", "old")

    def fail(error: BaseException) -> Callable[[Path], None]:
        def fill(file: Path) -> None:
            file.write_text("new")
            raise error

        return fill

    with pytest.raises(KeyboardInterrupt):
        publish.write(tmp_path / "a", fail(KeyboardInterrupt()))
    with pytest.raises(ResourceLimit, match=r"can't write .*a: No space left"):
        publish.write(tmp_path / "a", fail(OSError(errno.ENOSPC, "No space left on device")))
    assert (tmp_path / "a").read_text() == "old" and _names(tmp_path) == ["a"]


def test_nested_files_are_published_together(tmp_path: Path) -> None:
    def fail(file: Path) -> None:
        file.write_text("half")
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with (
        pytest.raises(ResourceLimit, match="second: Disk quota exceeded"),
        publish.staged(tmp_path / "first", "1"),
        publish.staged(tmp_path / "second", fail),
    ):
        raise AssertionError("not reached")
    assert _names(tmp_path) == []
    with publish.staged(tmp_path / "first", "1"), publish.staged(tmp_path / "second", Path(__file__)):
        pass
    assert _names(tmp_path) == ["first", "second"]
    assert (tmp_path / "second").read_bytes() == Path(__file__).read_bytes()


def test_errors_in_the_block_are_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), publish.staged(tmp_path / "a", "new"):
        (tmp_path / "missing").read_text()
    assert _names(tmp_path) == []


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        publish.write(tmp_path / "a", "")
        with publish.staged(tmp_path / "b", "", executable=True):
            pass
    finally:
        os.umask(before)
    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in "ab"] == ["0o640", "0o750"]


def test_protected_files_and_missing_folders(tmp_path: Path) -> None:
    publish.write(tmp_path / "a", "old")
    (tmp_path / "a").chmod(0o444)
    with pytest.raises(UsageError, match=r"can't write .*a: it is write-protected"):
        publish.write(tmp_path / "a", "new")
    with pytest.raises(UsageError, match="No such file or directory"):
        publish.write(tmp_path / "none" / "a", "new")
    publish.write(Path(os.devnull), "not replaced")
    assert not Path(os.devnull).is_file()


#: Makes a temporary file and a temporary folder, and waits.
_OWNER = """
import sys, time
from pathlib import Path
from graphopt import publish
from graphopt.cli.main import main
with publish.temporary_file(Path(sys.argv[1]) / "out.onnx"), publish.ScratchFolder(Path(sys.argv[1])) as folder:
    (folder / "weights").write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_only_temporaries_of_dead_processes_are_removed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    publish.write(tmp_path / "a", "1")
    left = [name for name in _names(tmp_path) if name.endswith(publish.SUFFIX)]
    assert len(left) == 2 and any(name.startswith(".out.onnx.") for name in left)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert len(_names(tmp_path)) == 3
    publish.write(tmp_path / "a", "2")
    assert _names(tmp_path) == ["a"]


def test_a_temporary_that_is_removed_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, removed = temporary_folders.try_lock, []

    def late(descriptor: int) -> bool | None:
        """Before the lock, another process considers the new folder abandoned, and removes it."""
        if not removed:
            [folder] = [path for path in tmp_path.iterdir() if path.name.endswith(publish.SUFFIX)]
            folder.rmdir()
            removed.append(folder)
        return really(descriptor)

    monkeypatch.setattr(temporary_folders, "try_lock", late)
    publish.write(tmp_path / "a", "1")
    assert removed and (tmp_path / "a").read_text() == "1" and _names(tmp_path) == ["a"]


def test_commands_remove_leftovers_of_killed_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"graphopt.0123{publish.SUFFIX}"
    (left / "new").mkdir(parents=True)
    (left / "new" / "model.onnx.data").write_text("")
    with publish.ScratchFolder() as kept:
        assert main(["passes"], {}) == 0
        assert [kept.parent.name] == _names(tmp_path)


def test_only_old_temporaries_are_removed_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_folders, "try_lock", lambda descriptor: None)
    young, old = (tmp_path / f".{name}.0123{publish.SUFFIX}" for name in ("young", "old"))
    young.mkdir()
    old.mkdir()
    (old / "weights").write_text("")
    os.utime(old, (time.time() - 10**6,) * 2)
    (tmp_path / "link").symlink_to(young)
    (tmp_path / "link").rename(tmp_path / f"link{publish.SUFFIX}")
    publish.write(tmp_path / "a", "1")
    assert _names(tmp_path) == sorted([young.name, "a", f"link{publish.SUFFIX}"])


@pytest.mark.parametrize("has_call", [True, False])
def test_a_rename_to_a_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_call: bool) -> None:
    if not has_call:
        monkeypatch.setattr(atomic_rename, "_renameat2", lambda: None)
    (tmp_path / "a").write_text("1")
    assert publish.rename_to_new(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").write_text("2")
    with pytest.raises(FileExistsError):
        publish.rename_to_new(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "1" and _names(tmp_path) == ["a", "b"]


def test_wait_for_a_lock_is_limited(tmp_path: Path) -> None:
    with publish.locked(tmp_path) as first:
        if not first:
            pytest.skip("the file system has no locks on folders")
        with publish.locked(tmp_path, seconds=0.05) as second:
            assert not second
    with publish.locked(tmp_path) as third:
        assert third


def test_a_file_that_disappears_meanwhile_is_not_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really = tmp_path / "a", Path.stat
    path.touch(0o444)

    def once(self: Path, **options: bool) -> os.stat_result:
        found = really(self, **options)
        path.unlink(missing_ok=True)  # by another process
        return found

    monkeypatch.setattr(Path, "stat", once)
    assert is_protected(path) and not is_protected(path)
