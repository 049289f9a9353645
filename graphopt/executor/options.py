"""How an executor works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphopt.errors import UsageError
from graphopt.profile import FusionStrategy


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
