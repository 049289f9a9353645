"""Parallel calls end with the first failure, and before the function returns."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable

import pytest

from graphopt.errors import ResourceLimit
from graphopt.process.stoppable_calls import run_all


def test_all_calls_run_and_are_counted() -> None:
    ran: list[int] = []
    counts: list[int] = []
    run_all([lambda stop, number=number: ran.append(number) for number in range(7)], 3, counts.append)
    assert sorted(ran) == list(range(7)) and counts == [1, 2, 3, 4, 5, 6, 7]


def test_no_calls_need_no_threads() -> None:
    run_all([], 3)


def test_first_failure_stops_running_calls_and_starts_no_others() -> None:
    stopped, started = threading.Event(), threading.Event()

    def waits(stop: threading.Event) -> None:
        started.set()
        assert stop.wait(60)
        stopped.set()

    def fails(stop: threading.Event) -> None:
        assert started.wait(60)
        raise ValueError("no")

    late: list[str] = []
    with pytest.raises(ValueError, match="no"):
        run_all([waits, fails, lambda stop: time.sleep(0.01), lambda stop: late.append("late")], 2)
    assert stopped.is_set()


@pytest.mark.parametrize("startable", [0, 1])
def test_at_least_one_thread_is_needed(monkeypatch: pytest.MonkeyPatch, startable: int) -> None:
    start, left = _thread.start_new_thread, [None] * startable

    def limited(function: Callable[[], None], arguments: tuple[()]) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(function, arguments)

    monkeypatch.setattr(_thread, "start_new_thread", limited)
    ran: list[int] = []
    calls = [lambda stop: ran.append(1)] * 3
    if startable:
        run_all(calls, 2)
        assert ran == [1, 1, 1]
    else:
        with pytest.raises(ResourceLimit, match="no thread could be started: can't start new thread"):
            run_all(calls, 2)
