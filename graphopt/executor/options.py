"""How an executor works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.ort.session import Optimizations
from graphopt.profile import FusionStrategy
from graphopt.util.arguments import checked


@dataclass(frozen=True)
class ExecutorOptions:
    """How an executor works.

    Attributes:
        strategy: how many specializations are made, and how closely they keep to what was seen.
        profiled_runs: runs that are watched before each specialization.
        compile: ``blocking`` makes a specialization while its first inputs wait; ``background`` runs the
            general plan meanwhile.
        wait: seconds from the beginning of a specialization for which runs wait for it, with ``blocking``.
            It is then finished in the background. ``None``: as long as that takes.
        release: let the original go once it is not needed; nothing is specialized from then on.
        delay: seconds after the last specialization before that; after the general plan if none is made.
        most_plans: optimized plans that are kept. That whose last run was longest ago is let go, which gives
            no specialization back; should its inputs come again, they count as new ones.
        depth: specializations to make, if not as many as the strategy says.
        requires_grad: inputs and initializers of which :meth:`Executor.vjp` is to tell gradients.
    """

    strategy: FusionStrategy | None = None
    profiled_runs: int = 1
    compile: Literal["blocking", "background"] = "blocking"
    wait: float | None = 2.0
    release: bool = False
    delay: float = 60.0
    most_plans: int | None = None
    depth: int | None = None
    requires_grad: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, FusionStrategy | None):
            raise UsageError(f"{self.strategy!r} is no strategy", hint="FusionStrategy.parse reads a text")
        for name, least in (("profiled_runs", 0), ("most_plans", 1), ("depth", 0)):
            number = getattr(self, name)
            optional = number is None and name != "profiled_runs"
            if not optional and (type(number) is not int or number < least):
                raise UsageError(f"{name} is a whole number from {least}, not {number!r}")
        for name in ("delay", "wait"):
            seconds = getattr(self, name)
            optional = seconds is None and name == "wait"
            if not optional and (not isinstance(seconds, int | float) or not seconds >= 0):
                raise UsageError(f"{name} is a time from 0, not {seconds!r}")
        if self.compile not in ("blocking", "background"):
            raise UsageError(f"compile is blocking or background, not {self.compile!r}")


_optimizing: ContextVar[bool] = ContextVar("graphopt optimizes executors", default=True)
_strategy: ContextVar[FusionStrategy | None] = ContextVar("graphopt fusion strategy", default=None)


@dataclass(frozen=True)
class Fuser:
    """Who puts nodes together.

    Attributes:
        pipeline: the preset whose passes run.
        optimizations: those of onnxruntime.
    """

    pipeline: str
    optimizations: Optimizations


#: By name. ``none``: nobody; ``ort``: onnxruntime; ``builtin``: graphopt too, with operators of onnxruntime;
#: ``native``: graphopt also compiles kernels of its own.
FUSERS = {
    "none": Fuser("O2", "basic"),
    "ort": Fuser("O2", "default"),
    "builtin": Fuser("O3", "default"),
    "native": Fuser("native", "default"),
}
_fuser: ContextVar[str | None] = ContextVar("graphopt fuser", default=None)
_last: ContextVar[ir.Model | None] = ContextVar("graphopt's last graph", default=None)


def note_executed(model: ir.Model) -> None:
    """Remember that an executor of this thread or task just ran ``model``."""
    _last.set(model)


@checked
def last_executed_optimized_graph() -> ir.Model:
    """The model that an executor ran last, in this thread or task.

    Raises:
        UsageError: none ran.
    """
    found = _last.get()
    if found is None:
        raise UsageError("no executor ran anything yet")
    return found


def is_optimizing() -> bool:
    """Whether executors optimize."""
    return _optimizing.get()


def current_fuser() -> Fuser | None:
    """The fuser that was chosen; ``None`` if none was."""
    name = _fuser.get()
    return None if name is None else FUSERS[name]


def current_strategy() -> FusionStrategy:
    """The strategy of executors that are made now."""
    return _strategy.get() or FusionStrategy()


@checked
@contextlib.contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    """Let executors optimize, or run models as they came, for the length of a ``with`` block."""
    token = _optimizing.set(should_optimize)
    try:
        yield
    finally:
        _optimizing.reset(token)


@checked
@contextlib.contextmanager
def fuser(name: str) -> Iterator[None]:
    """Choose who puts nodes together, for executors that are made in a ``with`` block.

    Args:
        name: ``none``, ``ort`` (onnxruntime alone), ``builtin`` (graphopt, too, with its operators)
            or ``native`` (also with kernels of its own).

    Raises:
        UsageError: there is no such fuser.
    """
    token = _fuser.set(check_fuser(name))
    try:
        yield
    finally:
        _fuser.reset(token)


def check_fuser(name: str) -> str:
    """``name``, if a fuser bears it; raises UsageError as :func:`fuser` does."""
    if name not in FUSERS:
        raise unknown("fuser", name, FUSERS)
    return name


@checked
def set_fusion_strategy(strategy: FusionStrategy | str) -> FusionStrategy:
    """Choose the strategy of executors that are made, or flushed, from now on; returns the one before.

    Args:
        strategy: such as ``static:2,dynamic:10``.

    Raises:
        UsageError: it can't be read.
    """
    before = current_strategy()
    _strategy.set(FusionStrategy.parse(strategy) if isinstance(strategy, str) else strategy)
    return before
