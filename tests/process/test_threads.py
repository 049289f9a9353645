"""A thread that can't start is an error instead of an endless wait."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

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


def test_lack_of_threads_in_a_child_is_not_a_memory_limit() -> None:
    with Child() as child, pytest.raises(SystemExhausted, match="no thread could be started"):
        child.call(_start_without_threads)


def _start_without_threads() -> None:
    _thread.start_new_thread = _refused  # type: ignore[assignment]
    threads.start_thread(print)


def _refused(function: Callable[[], None], arguments: tuple[()]) -> int:
    raise RuntimeError("can't start new thread")
