"""Options of an executor, and thread-local switches: optimizing, the fuser, the fusion strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.executor.kept_model import KeptModel
from graphopt.ort.session import Optimizations
from graphopt.profile import FusionStrategy, StrategyLike
from graphopt.util.argument_checks import checked


@dataclass(frozen=True)
class ExecutorOptions:
    """Options of an executor.

    Attributes:
        strategy: the number and kinds of specializations, in any form; kept as a :class:`FusionStrategy`.
        profiled_runs: the number of runs to profile before each specialization.
        compile: ``blocking`` lets runs wait for a specialization; ``background`` uses the general plan
            meanwhile.
        wait: the maximum time that runs wait for a specialization from its start, in seconds, with
            ``blocking``; it then finishes in the background. ``None``: no limit.
        release: release the original when it is not needed; no specializations are made afterwards. The
            models of plans are moved to temporary files.
        delay: time between the last specialization, or the general plan if there will be none, and the
            release, in seconds.
        most_plans: the maximum number of optimized plans; the least recently used one is evicted, without
            giving back its specialization. Its inputs then count as new.
        depth: the maximum number of specializations, failed ones included; by default that of the strategy.
        requires_grad: inputs and initializers for which :meth:`Executor.vjp` returns gradients.
    """

    strategy: StrategyLike | None = None
    profiled_runs: int = 1
    compile: Literal["blocking", "background"] = "blocking"
    wait: float | None = 2.0
    release: bool = False
    delay: float = 60.0
    most_plans: int | None = None
    depth: int | None = None
    requires_grad: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.strategy is not None:
            object.__setattr__(self, "strategy", FusionStrategy.of(self.strategy))
        for name, least in (("profiled_runs", 0), ("most_plans", 1), ("depth", 0)):
            number = getattr(self, name)
            optional = number is None and name != "profiled_runs"
            if not optional and (type(number) is not int or number < least):
                raise UsageError(f"{name} must be an integer of at least {least}, not {number!r}")
        for name in ("delay", "wait"):
            seconds = getattr(self, name)
            optional = seconds is None and name == "wait"
            if not optional and (not isinstance(seconds, int | float) or not seconds >= 0):
                raise UsageError(f"{name} must be a number of seconds of at least 0, not {seconds!r}")
        if self.compile not in ("blocking", "background"):
            raise UsageError(f"compile must be blocking or background, not {self.compile!r}")


_optimizing: ContextVar[bool] = ContextVar("graphopt optimizes executors", default=True)
_strategy: ContextVar[FusionStrategy | None] = ContextVar("graphopt fusion strategy", default=None)


@dataclass(frozen=True)
class Fuser:
    """A fuser: which optimizer fuses operators.

    Attributes:
        pipeline: the preset of graphopt's passes.
        optimizations: onnxruntime's optimization level.
    """

    pipeline: str
    optimizations: Optimizations


#: Fusers by name. ``none``: no fusion; ``ort``: onnxruntime only; ``builtin``: also graphopt, with fused
#: operators of onnxruntime; ``native``: also graphopt's own kernels.
FUSERS = {
    "none": Fuser("O2", "basic"),
    "ort": Fuser("O2", "default"),
    "builtin": Fuser("O3", "default"),
    "native": Fuser("native", "default"),
}
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


def check_fuser(name: str) -> str:
    """``name``, if there is such a fuser; raises UsageError as :func:`fuser` does."""
    if name not in FUSERS:
        raise unknown("fuser", name, FUSERS)
    return name


@checked
def set_fusion_strategy(strategy: StrategyLike) -> FusionStrategy:
    """Set the strategy for executors created or flushed later in this thread or task; returns the old one.

    Args:
        strategy: such as ``static:2,dynamic:10``, ``always-dynamic`` or ``[("STATIC", 2), ("DYNAMIC", 10)]``.

    Raises:
        UsageError: the strategy is invalid.
    """
    before = current_strategy()
    _strategy.set(FusionStrategy.of(strategy))
    return before
