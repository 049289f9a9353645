"""Threads that end while they compile, forks, and files that change."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UsageError
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.util.fork_safe_lock import ForkSafeLock
from tests.model_testing import parse

TEXT = "g (float[N] x) => (float[N] y) { a = Relu(x) y = Exp(a) }"
X = {"x": np.ones(3, np.float32)}

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
# onnxruntime's threads do not matter here: they do not exist in the child
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

_begun, _go_on = threading.Event(), threading.Event()


@dataclass(frozen=True)
class Wait(graphopt.Pass):
    """Wait for an event, but not in a fork."""

    name: ClassVar[str] = "wait"
    parent: int = 0

    def run(self, model: ir.Model, cx: Context) -> None:
        if os.getpid() == self.parent:
            _begun.set()
            assert _go_on.wait(60)


def _in_fork(function: Callable[[], Any], seconds: int = 60) -> int:
    """The exit status of a fork that calls ``function``; negative for a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(seconds)
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@posix
def test_a_fork_does_not_wait_for_the_general_plan_of_its_parent() -> None:
    _begun.clear()
    _go_on.clear()
    executor = graphopt.compile(parse(TEXT), post_passes=[Wait(os.getpid())], verify=False)
    thread = threading.Thread(target=executor.run, args=(X,), daemon=True)
    thread.start()
    assert _begun.wait(60)

    def run() -> None:
        np.testing.assert_allclose(executor.run(X)["y"], np.exp(X["x"]), rtol=1e-6)

    try:
        assert _in_fork(run) == 0
    finally:
        _go_on.set()
    thread.join(60)
    run()


@posix
def test_a_lock_is_free_in_a_fork() -> None:
    lock = ForkSafeLock()
    with lock:
        assert not lock.acquire(blocking=False)
        assert _in_fork(lambda: lock.acquire() or sys.exit(1)) == 0
        assert _in_fork(lock.release) == 0  # it was acquired in the parent only
        assert not lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)


@pytest.mark.parametrize("compile_", ["blocking", "background"])
def test_a_thread_that_ends_while_it_compiles_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, compile_: Any
) -> None:
    calls = []

    def exits(*arguments: object) -> None:
        calls.append(arguments)
        raise SystemExit(3)

    executor = graphopt.compile(parse(TEXT), ExecutorOptions(compile=compile_, wait=60), verify=False)
    monkeypatch.setattr("graphopt.executor.plan_factory.PlanFactory.specialized", exits)
    for _ in range(4):
        np.testing.assert_allclose(executor(X)["y"], np.exp(X["x"]), rtol=1e-6)
        executor.wait()
    assert len(calls) == 1 and executor.last_plan == "general"
    assert executor.debug_state().failures == ("x: f32[3]: the thread ended: SystemExit: 3",)


def test_an_interrupt_of_the_caller_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupts(*arguments: object) -> None:
        raise KeyboardInterrupt

    executor = graphopt.compile(parse(TEXT), ExecutorOptions(wait=None), verify=False)
    executor(X)
    with monkeypatch.context() as patch:
        patch.setattr("graphopt.executor.plan_factory.PlanFactory.specialized", interrupts)
        with pytest.raises(KeyboardInterrupt):
            executor(X)
    assert not executor.debug_state().failures
    executor(X)
    assert executor.last_plan == "static-1"


def test_a_file_that_changes_after_the_release_is_not_mixed_with_its_plans(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(graphopt.to_proto(parse(TEXT)), file)
    executor = graphopt.compile(file, ExecutorOptions(release=True, delay=0.0, wait=None), verify=False)
    for _ in range(3):
        executor(X)
    executor._specializer._release()
    assert executor.debug_state().released
    onnx.save(graphopt.to_proto(parse(TEXT.replace("Relu", "Neg"))), file)
    with (
        graphopt.optimized_execution(False),
        pytest.raises(UsageError, match="has changed since it was compiled"),
    ):
        executor(X)
    with pytest.raises(UsageError, match="has changed since it was compiled"):
        executor.vjp(X, ["x"])
    np.testing.assert_allclose(executor(X)["y"], np.exp(X["x"]), rtol=1e-6)
    executor.flush()
    np.testing.assert_allclose(executor(X)["y"], np.exp(-X["x"]), rtol=1e-6)


def test_an_equal_file_is_read_again_after_the_release(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(graphopt.to_proto(parse(TEXT)), file)
    executor = graphopt.compile(file, ExecutorOptions(release=True, delay=0.0, wait=None), verify=False)
    for _ in range(3):
        executor(X)
    executor._specializer._release()
    onnx.save(graphopt.to_proto(parse(TEXT)), file)
    with graphopt.optimized_execution(False):
        np.testing.assert_allclose(executor(X)["y"], np.exp(X["x"]), rtol=1e-6)
