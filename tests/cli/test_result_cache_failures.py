"""The result cache with killed processes, full disks and read-only file systems."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphopt.util.disk_store import Store
from tests.cli.conftest import Invoke

#: Kills the process at the operation of number argv[1] that changes files of the store.
_KILLED = """
import os, signal, sys
moment, store = int(sys.argv[1]), os.environ["GRAPHOPT_CACHE_DIR"]
count = 0
def hook(event, arguments):
    global count
    if event == "open":
        path, mode, flags = arguments
        changes = bool(flags & (os.O_WRONLY | os.O_RDWR)) and str(path).startswith(store)
    else:
        names = ("os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.utime")
        changes = event in names and str(arguments[0]).startswith(store)
    if changes:
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
from graphopt.cli.main import main
sys.addaudithook(hook)
sys.exit(main(["optimize", sys.argv[2], "-o", sys.argv[3], "-q", "--no-verify"]))
"""


def _environment(store: Path) -> dict[str, str]:
    return {**os.environ, "GRAPHOPT_CACHE": "true", "GRAPHOPT_CACHE_DIR": str(store)}


def test_a_process_killed_at_any_moment_leaves_nothing_bad(
    invoke: Invoke, weights: Path, tmp_path: Path
) -> None:
    def hit(store: Path, *words: str) -> bool:
        environ = {"GRAPHOPT_CACHE": "true", "GRAPHOPT_CACHE_DIR": str(store)}
        done = invoke("optimize", weights, "-o", "out.onnx", "--no-verify", "--json", *words, environ=environ)
        assert done.status == 0 and not done.err
        return bool(json.loads(done.out)["cache"]["hit"])

    assert not hit(tmp_path / "first")
    expected = Path("out.onnx").read_bytes()
    for moment in range(1, 61):
        store, target = tmp_path / f"store{moment}", tmp_path / f"{moment}.onnx"
        words = [sys.executable, "-c", _KILLED, str(moment), str(weights), str(target)]
        done = subprocess.run(words, env=_environment(store), check=False)
        assert done.returncode in (0, -signal.SIGKILL)
        assert not target.exists() or target.read_bytes() == expected
        entries = Store(store)
        assert all(entries.is_intact(entry.kind, entry.key) for entry in entries.entries())
        hit(store)
        assert hit(store) and Path("out.onnx").read_bytes() == expected
        assert not hit(store, "--seed", "1")  # writing another entry removes the rest of the killed process
        assert not [path for path in store.rglob("*") if path.name.endswith(".graphopt-tmp")]
        if done.returncode == 0:
            break
    assert done.returncode == 0 and moment > 20


#: Optimizes twice with a store in a file system that is full, then read-only with a stored result.
_MOUNTED = """
set -e
store=$1; python=$2; model=$3; out=$4
run() { "$python" -m graphopt optimize "$model" -o "$out/$1.onnx" --json 2> "$out/$1.err" > "$out/$1.json"; }
mount -t tmpfs -o size=8k tmpfs "$store"
run full
umount "$store"
mount -t tmpfs -o size=4m tmpfs "$store"
mount -o remount,ro "$store"
run locked
mount -o remount,rw "$store"
run stored
mount -o remount,ro "$store"
run reused
"""


def _has_mounts() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    words = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt && mount -o remount,ro /mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_mounts(), reason="no file system can be mounted here")
def test_full_and_read_only_file_systems_only_warn(weights: Path, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    store.mkdir()
    out.mkdir()
    words = ["unshare", "-rm", "sh", "-c", _MOUNTED, "sh", str(store), sys.executable, str(weights), str(out)]
    root = Path(__file__).parents[2]
    subprocess.run(words, env={**_environment(store), "PYTHONPATH": str(root)}, check=True)
    reports = {
        name: json.loads((out / f"{name}.json").read_text())["cache"]
        for name in ("full", "locked", "stored", "reused")
    }
    warnings = {name: (out / f"{name}.err").read_text() for name in reports}
    assert "No space left on device" in warnings["full"] and "Read-only file system" in warnings["locked"]
    for name in ("full", "locked"):
        assert warnings[name].count("\n") == 1
        assert warnings[name].startswith("graphopt: warning: the result is not stored for later runs: ")
    assert not warnings["stored"] and not warnings["reused"]
    assert [report["hit"] for report in reports.values()] == [False, False, False, True]
    assert len({(out / f"{name}.onnx").read_bytes() for name in reports}) == 1
