"""The store: entries are returned complete or not at all."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from graphopt.errors import ResourceLimit
from graphopt.util.disk_store import Store, key_of


def test_stored_values_are_returned(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.get("models", "0" * 64) is None
    key = store.put("models", b"content")
    assert store.put("models", b"content") == key
    assert store.get("models", key) == b"content"
    assert store.get("timings", key) is None
    named = store.put("timings", b"12 ms", key_of("model", 3))
    assert named == key_of("model", 3) and store.get("timings", named) == b"12 ms"
    assert store.get("timings", store.put("timings", b"")) == b""


def test_keys_of_different_parts_differ() -> None:
    keys = [key_of("a", "b"), key_of("ab"), key_of("a", b"b"), key_of("1"), key_of(1), key_of("b", "a")]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("damage", [b"", b"graphopt-store-1\n", b"x" * 200])
def test_a_damaged_entry_is_removed(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    key = store.put("models", b"content" * 10)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    path.write_bytes(damage)
    assert store.get("models", key) is None
    assert not path.exists()


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    key = store.put("models", b"content")
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert store.get("models", key) is None


def test_listing_and_removing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert list(store.entries()) == []
    keys = sorted(store.put("models", bytes([number])) for number in range(5))
    other = store.put("timings", b"x")
    assert [entry.key for entry in store.entries("models")] == keys
    assert [entry.kind for entry in store.entries()] == ["models"] * 5 + ["timings"]
    for key in keys:
        store.remove("models", key)
    assert [entry.key for entry in store.entries()] == [other]
    store.remove("timings", other)
    store.remove("timings", other)
    assert list(store.entries()) == []


def _write_often(root: str, number: int) -> None:
    store = Store(Path(root))
    for _ in range(20):
        store.put("models", bytes([number]) * 100_000, "a" * 64)


def test_concurrent_writers_leave_one_whole_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(str(tmp_path), number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    store, seen = Store(tmp_path), set()
    while any(writer.is_alive() for writer in writers):
        seen.add(store.get("models", "a" * 64))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen <= {None, b"\1" * 100_000, b"\2" * 100_000}
    assert store.get("models", "a" * 64) in (b"\1" * 100_000, b"\2" * 100_000)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceLimit) as caught:
        Store(tmp_path / "file").put("models", b"x")
    assert "cache-dir" in (caught.value.hint or "")


def test_kinds_and_keys_are_no_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a kind"):
        Store(tmp_path).put("../models", b"x")
    with pytest.raises(ValueError, match="not a kind"):
        Store(tmp_path).get("models", "../../etc/passwd")


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    filled: list[Path] = []

    def fill(folder: Path) -> None:
        filled.append(folder)
        (folder / "a").write_bytes(b"12")
        (folder / "b").write_bytes(b"345")

    found = store.folder("models", key_of("x"), fill)
    assert store.folder("models", key_of("x"), fill) == found and len(filled) == 1
    assert (found / "b").read_bytes() == b"345"
    (entry,) = store.entries()
    assert (entry.kind, entry.key, entry.bytes) == ("models", key_of("x"), 5)
    store.remove("models", entry.key)
    assert list(store.entries()) == [] and not found.exists()


def test_failed_folder_leaves_no_files(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    def fail(folder: Path) -> None:
        (folder / "a").write_bytes(b"12")
        raise OSError(28, "No space left on device")

    with pytest.raises(ResourceLimit, match="No space left on device"):
        store.folder("models", key_of("x"), fail)
    assert [path for path in (tmp_path / "store").rglob("*") if path.name.startswith(".")] == []
    assert list(store.entries()) == []


def test_the_first_of_two_processes_fills_the_folder(tmp_path: Path) -> None:
    store, key = Store(tmp_path), key_of("x")

    def late(folder: Path) -> None:
        store.folder("models", key, lambda other: (other / "a").write_text("first"))
        (folder / "a").write_text("second")

    assert (store.folder("models", key, late) / "a").read_text() == "first"


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("models", b"content", key_of("x"))
    with pytest.raises(ResourceLimit, match="a file is in the way"):
        store.folder("models", key_of("x"), lambda folder: None)
