"""Stored results at a URL: memory, folders, an S3 server; damage, failures and bad URLs."""

from __future__ import annotations

import hashlib
import io
import json
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphopt.result_cache import remote_level
from tests.cli.conftest import Invoke, Outcome

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
memory = pytest.importorskip("fsspec.implementations.memory")

Run = Callable[..., Outcome]


@pytest.fixture
def run(invoke: Invoke, tmp_path: Path) -> Run:
    """Call graphopt with a store and a URL."""

    def call(store: str, url: str, *words: object) -> Outcome:
        environ = {
            "GRAPHOPT_CACHE": "true",
            "GRAPHOPT_CACHE_DIR": str(tmp_path / store),
            "GRAPHOPT_CACHE_URL": url,
        }
        return invoke(*words, environ=environ)

    return call


@pytest.fixture
def s3() -> Iterator[str]:
    """The URL of a folder in a new bucket of an S3 server that runs in this process."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    started = server.ThreadedMotoServer(port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    before = dict(fsspec.config.conf)
    fsspec.config.conf["s3"] = options
    bucket = uuid.uuid4().hex  # moto keeps buckets after a server stops
    fsspec.filesystem("s3").mkdir(bucket)
    try:
        yield f"s3://{bucket}/of/tests"
    finally:
        fsspec.config.conf.clear()
        fsspec.config.conf.update(before)
        started.stop()


@pytest.fixture(params=["memory", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        found: str = request.getfixturevalue("s3")
        return found
    name = uuid.uuid4().hex
    return f"memory://{name}" if request.param == "memory" else f"file://{tmp_path}/{name}"


def _cache(done: Outcome) -> dict[str, Any]:
    assert done.status == 0, done.err
    found: dict[str, Any] = json.loads(done.out)["cache"]
    return found


def _object(url: str) -> tuple[Any, str]:
    """The file system of ``url``, and the path of its only object."""
    files, root = fsspec.core.url_to_fs(url)
    files.invalidate_cache()
    (path,) = files.find(root)
    return files, path


def test_another_machine_reuses_a_result(run: Run, url: str, weights: Path) -> None:
    first = _cache(run("one", url, "optimize", weights, "-o", "a.onnx", "--json"))
    second = _cache(run("two", url, "optimize", weights, "-o", "b.onnx", "--json"))
    third = _cache(run("two", "", "optimize", weights, "-o", "c.onnx", "--json"))
    assert [found["level"] for found in (first, second, third)] == [None, "remote", "local"]
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes() == Path("c.onnx").read_bytes()
    _, path = _object(url)
    assert path.endswith(f"/graphopt-results-1/{first['key']}")
    text = run("three", url, "optimize", weights, "-o", "a.onnx").out
    assert "  cached    the result of an earlier run, from cache-url (graphopt cache show " in text


def test_a_store_that_cannot_be_written_still_has_remote_hits(
    run: Run, url: str, weights: Path, tmp_path: Path
) -> None:
    run("one", url, "optimize", weights, "-o", "a.onnx")
    (tmp_path / "file").write_text("in the way")
    found = run("file", url, "optimize", weights, "-o", "b.onnx", "--json")
    assert _cache(found)["level"] == "remote" and not found.err
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def test_a_result_larger_than_the_store_is_not_copied(run: Run, weights: Path, tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    run("one", url, "optimize", weights, "-o", "a.onnx")
    words = ["optimize", weights, "-o", "b.onnx", "--json", "--set", "cache-size=1"]
    assert _cache(run("two", url, *words))["level"] == "remote"
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert not list((tmp_path / "two").glob("results/*/*"))


def test_a_result_that_no_folder_can_contain_is_computed(
    run: Run, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError("no space left")

    url = f"memory://{uuid.uuid4().hex}"
    run("one", url, "optimize", weights, "-o", "a.onnx")
    monkeypatch.setattr(Path, "write_bytes", full)
    assert not _cache(run("two", url, "optimize", weights, "-o", "b.onnx", "--json"))["hit"]
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    data = buffer.getvalue()
    return hashlib.sha256(data).digest() + data


@pytest.mark.parametrize(
    "damage", ["cut", "flipped", "emptied", "other key", "no archive", "path", "no report"]
)
def test_damaged_objects_are_replaced(run: Run, tmp_path: Path, weights: Path, damage: str) -> None:
    url = f"file://{tmp_path}/shared"
    run("one", url, "optimize", weights, "-o", "a.onnx")
    files, path = _object(url)
    whole = files.cat_file(path)
    with zipfile.ZipFile(io.BytesIO(whole[32:])) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    changed = {
        "cut": whole[:-1],
        "flipped": whole[:500] + bytes([whole[500] ^ 1]) + whole[501:],
        "emptied": b"",
        "other key": _archive({**parts, "key.json": parts["key.json"].replace(b'"O2', b'"O1')}),
        "no archive": hashlib.sha256(b"x").digest() + b"x",
        "path": _archive({**parts, "../model.onnx": b"outside"}),
        "no report": _archive({name: data for name, data in parts.items() if name != "report.json"}),
    }
    files.pipe_file(path, changed[damage])
    done = run("two", url, "optimize", weights, "-o", "b.onnx", "--json")
    assert not _cache(done)["hit"] and not done.err
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert files.cat_file(path) != changed[damage]
    assert _cache(run("three", url, "optimize", weights, "-o", "c.onnx", "--json"))["level"] == "remote"
    assert not (tmp_path / "model.onnx").exists()


def test_equal_entries_are_equal_objects(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for file in ("key.json", "report.json", "model.onnx", "sha256sums"):
            (tmp_path / name / file).write_text(file)
        time.sleep(0.01)
    packed = [remote_level._packed(tmp_path / name) for name in ("one", "two")]
    assert packed[0] == packed[1] and b"sha256sums" not in packed[0]


@pytest.mark.parametrize("failing", ["cat_file", "pipe_file"])
@pytest.mark.parametrize("kind", ["fails", "is slow"])
def test_failing_servers_only_warn(
    run: Run, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, kind: str
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        if kind == "is slow":
            time.sleep(5)
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(memory.MemoryFileSystem, failing, fail)
    if kind == "is slow":
        monkeypatch.setattr(remote_level, "_PATIENCE", 0.2)
    for hit in (False, True):
        done = run("one", f"memory://{kind}", "optimize", weights, "-o", "a.onnx", "--json")
        assert _cache(done)["hit"] is hit
        reason = "no response in 0.2 s" if kind == "is slow" else "no route to host"
        expected = "" if hit else f"graphopt: warning: cache-url can't be used: {reason}\n"
        assert done.err == expected


@pytest.mark.parametrize(("url", "said"), [("nonsense://x", "nonsense"), ("s3a+b://", "cache-url")])
def test_a_url_that_is_not_supported_is_an_error(run: Run, weights: Path, url: str, said: str) -> None:
    done = run("one", url, "optimize", weights, "-o", "a.onnx")
    assert done.status == 2 and not Path("a.onnx").exists()
    assert done.err.startswith("graphopt: cache-url can't be ") and said in done.err


def test_a_missing_package_is_an_error(run: Run, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    done = run("one", "memory://x", "optimize", weights, "-o", "a.onnx")
    assert done.status == 2 and not Path("a.onnx").exists()
    assert (
        done.err == "graphopt: cache-url requires the package fsspec\nhint: pip install 'graphopt[cache]'\n"
    )
