"""Folders are replaced in one step, or restored if that is impossible and the process is killed in between."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from graphopt import publish
from graphopt.errors import UsageError
from graphopt.publish import atomic_rename, folders


def _publish(target: Path, text: str) -> None:
    with publish.writing_folder(target, lambda folder: None) as new:
        for name in "ab":
            (new / name).write_text(text)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic_rename, "_renameat2", lambda: None)
    target = tmp_path / "folder"
    for text in ("first", "second"):
        _publish(target, text)
        assert {file.read_text() for file in target.iterdir()} == {text}
        assert os.listdir(tmp_path) == ["folder"]
    assert target.stat().st_mode & 0o777 == 0o777 & ~_umask()
    with pytest.raises(ZeroDivisionError), publish.writing_folder(target, lambda folder: None):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["folder"] and len(os.listdir(target)) == 2


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_folder_that_fails_the_check_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    def check(folder: Path) -> None:
        raise UsageError(f"{folder.name} is not replaced")

    with (
        pytest.raises(UsageError, match="folder is not replaced"),
        publish.writing_folder(tmp_path / "folder", check) as new,
    ):
        (new / "a").write_text("")
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(tmp_path / "folder") == []
    with (
        pytest.raises(UsageError, match="No such file"),
        publish.writing_folder(tmp_path / "no" / "f", check),
    ):
        pass


def test_folder_is_locked_between_check_and_replacement(tmp_path: Path) -> None:
    with publish.locked(tmp_path) as has_locks:
        if not has_locks:
            pytest.skip("the file system has no locks on folders")
    held: list[bool] = []

    def check(folder: Path) -> None:
        with publish.locked(folder.parent, seconds=0.02) as is_held:
            held.append(is_held)

    with publish.writing_folder(tmp_path / "folder", check):
        pass
    assert held == [False]


def test_writer_killed_between_renames_loses_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder"
    _publish(target, "old")
    monkeypatch.setattr(atomic_rename, "_renameat2", lambda: None)
    monkeypatch.setattr(folders, "remove_folder", lambda path, owner: os.close(owner))  # as if it were killed
    really = os.rename

    def killed(source: Path, place: Path) -> None:
        if Path(source).name == "new":
            raise KeyboardInterrupt
        really(source, place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            _publish(target, "new")
    assert not target.exists()
    publish.write(tmp_path / "other", "")
    assert (target / "a").read_text() == "old" and sorted(os.listdir(tmp_path)) == ["folder", "other"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_concurrent_writers_do_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic_rename, "_renameat2", lambda: None)
    target, failures = tmp_path / "folder", []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                _publish(target, str(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and os.listdir(tmp_path) == ["folder"]
    assert len({file.read_text() for file in target.iterdir()}) == 1


def test_a_folder_that_disappears_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on file systems without locks on folders, where several writers replace a folder at once."""
    target, really, removed = tmp_path / "folder", folders.exchange, []
    _publish(target, "old")

    def exchange(new: Path, old: Path) -> bool:
        if not removed:
            removed.append(old)
            shutil.rmtree(old)
        return really(new, old)

    monkeypatch.setattr(folders, "exchange", exchange)
    _publish(target, "new")
    assert removed and (target / "a").read_text() == "new" and os.listdir(tmp_path) == ["folder"]


def test_scratch_folder_is_removed_with_its_object(tmp_path: Path) -> None:
    scratch = publish.ScratchFolder(tmp_path)
    (scratch.path / "weights").write_text("")
    assert len(os.listdir(tmp_path)) == 1
    del scratch
    assert os.listdir(tmp_path) == []
