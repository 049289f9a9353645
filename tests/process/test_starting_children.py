"""Child processes in programs of any kind: interrupted, threaded, forked, embedded, or run anywhere."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.ort import preflight
from graphopt.process import child as children
from graphopt.process import fork_server
from graphopt.process.child import Child, NoProcess
from tests.ort.build import data, parse
from tests.process.test_child import double

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there are fork servers on Linux only"
)
PYTHON = sys.executable
MODEL = "g (float[n] x) => (float[n] y) { y = Neg(x) }"


class Interrupted:
    """A channel on which waiting for a reply is interrupted by Ctrl-C."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def recv(self, size: int) -> bytes:
        raise KeyboardInterrupt


@linux_only
def test_interrupted_request_does_not_affect_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with Child() as running:
        server = fork_server._server_of(os.getpid())
        with monkeypatch.context() as patch:
            patch.setattr(server, "_channel", Interrupted(server._channel))
            with pytest.raises(KeyboardInterrupt):
                Child()
        with Child() as other:
            assert other.call(os.getpid) == other._process.pid  # type: ignore[union-attr]
            assert running.call(double, 2) == 4 and running.alive


@linux_only
def test_a_killed_server_is_replaced_without_a_zombie() -> None:
    with Child() as running:
        server = running.call(os.getppid)
        os.kill(server, signal.SIGKILL)
        with Child() as other:
            assert other.call(double, 2) == 4
    assert not Path(f"/proc/{server}").exists()


def blocked() -> list[int]:
    """The signals that this process blocks, such as SIGXCPU, which limits on CPU time require."""
    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


@linux_only
def test_children_block_no_signals_of_the_program() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXCPU})
    try:
        fork_server._server_of.cache_clear()
        assert children.run_in_child(blocked) == []
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGXCPU})
        fork_server._server_of.cache_clear()


@linux_only
def test_threads_that_start_children_share_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started, popen = [], subprocess.Popen

    def count(*args: Any, **options: Any) -> Any:
        started.append(args)
        return popen(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", count)
    fork_server._server_of.cache_clear()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(children.run_in_child(double, 3))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [6] * 4 and len(started) == 1


@linux_only
def test_server_ends_while_forks_have_its_channel_open() -> None:
    server = fork_server._server_of.__wrapped__(os.getpid())
    held = server._channel.dup()
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    held.close()


def test_children_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("json", "signal", "graphopt"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the working directory')")
    (tmp_path / "program").mkdir()
    program = tmp_path / "program" / "main.py"
    program.write_text(
        "import os, pathlib, sys\n"
        f"sys.path.insert(0, {os.getcwd()!r})\n"
        "sys.path.append(pathlib.Path('nowhere'))  # which Python ignores\n"
        "from graphopt.process.child import Child\n"
        "for fresh in (False, True):\n"
        "    with Child(fresh=fresh) as child:\n"
        "        print(child.call(os.getppid) > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


@pytest.fixture(params=[None, "/nonexistent", PYTHON])
def no_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be started, or the started program is not an interpreter with graphopt."""
    monkeypatch.setattr(fork_server, "start", lambda task, errors: None)
    monkeypatch.setattr(sys, "executable", request.param)
    if request.param == PYTHON:
        monkeypatch.setattr(children, "command", lambda *args: [request.param, "-c", "raise SystemExit(3)"])


@pytest.mark.usefixtures("no_process")
def test_without_processes_models_are_not_verified() -> None:
    with pytest.raises(NoProcess, match="no child process could be started"):
        children.run_in_child(double, 1)
    feeds = {"x": np.ones(2, np.float32)}
    assert preflight.create(data(MODEL)).run(None, feeds)[0].tolist() == [-1, -1]
    executor = graphopt.compile(parse(MODEL))
    assert [executor(feeds)["y"].tolist() for _ in range(2)] == [[-1, -1]] * 2


@pytest.mark.parametrize("fresh", [False, True])
def test_processes_send_no_usage_data_unless_the_environment_decides(
    fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "from graphopt.process.child import Child\n"
        f"with Child(fresh={fresh}) as child: print(child.call(os.getenv, 'ORT_DISABLE_TELEMETRY'))"
    )
    for said, expected in ((None, "1"), ("0", "0")):
        monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
        if said is not None:
            monkeypatch.setenv("ORT_DISABLE_TELEMETRY", said)
        done = subprocess.run(
            [PYTHON, "-c", f"import os\n{script}"], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [expected]


def test_the_command_line_sends_no_usage_data_unless_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = (
        "import os, sys\n"
        "from graphopt.cli.main import main\n"
        "sys.argv = ['graphopt', '--version']\n"
        "main()\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    for said, expected in ((None, "1"), ("0", "0")):
        monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
        if said is not None:
            monkeypatch.setenv("ORT_DISABLE_TELEMETRY", said)
        done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.split()[-1] == expected
