"""Thread-local switches of executors: optimizing, profiling, fuser, fusion strategy; and the last graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from graphopt import ir
from graphopt.errors import UsageError
from graphopt.executor.fusers import FUSERS, Fuser, check_fuser
from graphopt.executor.kept_model import KeptModel
from graphopt.profile import FusionStrategy, StrategyLike
from graphopt.util.argument_checks import checked

_optimizing: ContextVar[bool] = ContextVar("graphopt optimizes executors", default=True)
_profiling: ContextVar[bool] = ContextVar("graphopt profiles executors", default=True)
_strategy: ContextVar[FusionStrategy | None] = ContextVar("graphopt fusion strategy", default=None)
_fuser: ContextVar[str | None] = ContextVar("graphopt fuser", default=None)
_last: ContextVar[KeptModel | None] = ContextVar("graphopt's last graph", default=None)


def note_executed(model: KeptModel) -> None:
    """Record ``model`` as the last one that an executor ran in this thread or task."""
    _last.set(model)


@checked
def last_executed_optimized_graph() -> ir.Model:
    """The model that an executor ran last in this thread or task.

    Raises:
        UsageError: no executor has run.
    """
    found = _last.get()
    if found is None:
        raise UsageError("no executor has run yet")
    return found.get()


def is_optimizing() -> bool:
    """Whether executors optimize, in this thread or task."""
    return _optimizing.get()


def is_profiling() -> bool:
    """Whether executors profile runs and create specializations, in this thread or task."""
    return _profiling.get()


def current_fuser() -> Fuser | None:
    """The selected fuser, or ``None``."""
    name = _fuser.get()
    return None if name is None else FUSERS[name]


def current_strategy() -> FusionStrategy:
    """The strategy for executors created in this thread or task."""
    return _strategy.get() or FusionStrategy()


@checked
@contextlib.contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    """Enable or disable optimization by executors within a ``with`` block, in this thread or task."""
    token = _optimizing.set(should_optimize)
    try:
        yield
    finally:
        _optimizing.reset(token)


@checked
@contextlib.contextmanager
def profiled_execution(should_profile: bool) -> Iterator[None]:
    """Enable or disable profiling by executors within a ``with`` block, in this thread or task.

    While it is disabled, runs create no specializations. Runs that no existing specialization accepts use the
    general plan, or with ``pipelines="jit"`` the original model.
    """
    token = _profiling.set(should_profile)
    try:
        yield
    finally:
        _profiling.reset(token)


@checked
@contextlib.contextmanager
def fuser(name: str) -> Iterator[None]:
    """Select the fuser for executors created within a ``with`` block, in this thread or task.

    Args:
        name: ``none``, ``ort`` (onnxruntime only), ``builtin`` (also graphopt, with onnxruntime's operators)
            or ``native`` (also graphopt's own kernels).

    Raises:
        UsageError: the fuser does not exist.
    """
    token = _fuser.set(check_fuser(name))
    try:
        yield
    finally:
        _fuser.reset(token)


@checked
def set_fusion_strategy(strategy: StrategyLike) -> FusionStrategy:
    """Set the strategy for executors created or flushed later in this thread or task; returns the old one.

    Args:
        strategy: a strategy as text or pairs, such as ``static:2,dynamic:10``, ``always-dynamic`` or
            ``[("STATIC", 2), ("DYNAMIC", 10)]``.

    Raises:
        UsageError: the strategy is invalid.
    """
    before = current_strategy()
    _strategy.set(FusionStrategy.of(strategy))
    return before
