"""A thread that can't start is an error instead of an endless wait."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from graphopt.errors import SystemExhausted
from graphopt.process import threads
from graphopt.process.child import Child


def test_function_runs_in_another_thread() -> None:
    found: list[int] = []
    done = threading.Event()

    def work(*numbers: int) -> None:
        found.extend([*numbers, threading.get_ident()])
        done.set()

    threads.start_thread(work, 1, 2)
    assert done.wait(60)
    assert found[:2] == [1, 2] and found[2] != threading.get_ident()


def test_system_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", _refused)
    with pytest.raises(SystemExhausted, match="no thread could be started: can't start new thread"):
        threads.start_thread(print)


def test_thread_that_dies_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, arguments: 0)
    monkeypatch.setattr(threads, "_PATIENCE", 0.01)
    with pytest.raises(SystemExhausted, match="there is not enough memory"):
        threads.start_thread(print)


_STARTS = """
import resource, threading
from graphopt.errors import SystemExhausted
from graphopt.process import threads
from graphopt.process.memory import status_bytes

threads._PATIENCE = 3600.0
threading.stack_size(1 << 20)
unlimited = resource.getrlimit(resource.RLIMIT_AS)
end = threading.Event()
for extra in range(0, 1 << 17, 1 << 12):
    limit = status_bytes("VmSize") + (1 << 20) + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, unlimited[1]))
    message = "begun"
    try:
        threads.start_thread(end.wait)
    except SystemExhausted as error:
        message = error.message.rpartition(": ")[2]
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    print(message)
end.set()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits on address space")
def test_thread_without_memory_for_its_first_frame_fails_at_once_and_in_silence() -> None:
    """The limits leave memory for the stack of a thread, and up to 128 kB."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _STARTS], check=True, capture_output=True, text=True, timeout=120, env=environ
    )
    assert done.stderr == ""
    assert {"begun", "there is not enough memory"} <= set(done.stdout.splitlines())


def test_other_unraisable_exceptions_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    original, failure = _thread.start_new_thread, SimpleNamespace(object=print)

    def start(function: Callable[[], None], arguments: tuple[()]) -> int:
        sys.unraisablehook(failure)  # type: ignore[arg-type]
        return original(function, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", start)
    threads.start_thread(int)
    assert found == [failure]
    assert sys.unraisablehook == found.append


def test_lack_of_threads_in_a_child_is_not_a_memory_limit() -> None:
    with Child() as child, pytest.raises(SystemExhausted, match="no thread could be started"):
        child.call(_start_without_threads)


def _start_without_threads() -> None:
    _thread.start_new_thread = _refused  # type: ignore[assignment]
    threads.start_thread(print)


def _refused(function: Callable[[], None], arguments: tuple[()]) -> int:
    raise RuntimeError("can't start new thread")
