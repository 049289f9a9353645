"""What an executor holds besides its optimized plans: the original, and the plans that run for all inputs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt import config, ir
from graphopt.errors import UsageError
from graphopt.executor.plan import Plan, PlanFactory
from graphopt.models import ModelLike, copy, loaded
from graphopt.specialization.dispatch import Dispatch, compile_guards


class PlanCache:
    """The original and what is made of it for all inputs, when that is needed first.

    Each of the two plans has a lock of its own, so that nobody waits for a plan that he does not run.

    Args:
        original: the original.
        maker: makes the plans.
        delay: seconds after the last plan before the original may go.
        clock: seconds.
        is_last: the general plan is the last one that is made: nothing will be specialized.

    Attributes:
        original: the original.
        kept: why it could not be let go when it was time.
    """

    def __init__(
        self,
        original: ModelSource,
        maker: PlanFactory,
        delay: float,
        clock: Callable[[], float],
        *,
        is_last: bool,
    ) -> None:
        self.original = original
        self.kept: str | None = None
        self._maker, self._delay, self._clock, self._is_last = maker, delay, clock, is_last
        self._general: Plan | None = None
        self._fallback: Plan | None = None
        self._general_lock, self._fallback_lock = threading.Lock(), threading.Lock()
        self._last_made: float | None = None

    @property
    def plans(self) -> list[Plan]:
        """Those that were made, and are held."""
        return [plan for plan in (self._general, self._fallback) if plan is not None]

    def general(self) -> Plan:
        """The plan that runs for inputs that nothing is specialized for."""
        plan = self._general
        if plan is None:
            with self._general_lock:
                plan = self._general
                if plan is None:
                    plan = self._general = self._maker.general(self.original.read())
                    if self._is_last:
                        self.note_made()
        return plan

    def fallback(self) -> Plan:
        """The plan that runs where optimizing is off; the general one if nothing else is left."""
        plan = self._fallback
        if plan is None:
            with self._fallback_lock:
                plan = self._fallback
                if plan is None:
                    original = self.original.find()
                    if original is None:
                        return self.general()
                    plan = self._fallback = self._maker.fallback(original)
        return plan

    def note_made(self) -> None:
        """The delay begins anew: a plan was made."""
        self._last_made = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether it is time to let the original go: strictly more than the delay has passed."""
        made = self._last_made
        return made is not None and self._clock() - made > self._delay

    def release(self) -> None:
        """Let go what only further specializations need, and where optimizing is off.

        The general plan has to be there by then. If it can't be made, that is noted, and the original stays
        for another delay: no run fails because of this.
        """
        try:
            self.general()
        except Exception as error:  # whatever optimizing raises
            self.kept = str(error) or type(error).__name__
            self.note_made()
            return
        self.kept = None
        self._fallback = None
        self.original.release()


class ModelSource:
    """A model that can be let go, and read from its file again.

    Args:
        given: a model in any form; of one in memory, a copy is held.

    Attributes:
        model: the model; ``None`` once it was released.
    """

    def __init__(self, given: ModelLike) -> None:
        self._settings = config.current()  # whoever reads it again may run under others
        self._path = Path(given).absolute() if isinstance(given, (str, os.PathLike)) else None
        self.model: ir.Model | None = copy(loaded(given)) if isinstance(given, ir.Model) else loaded(given)

    def find(self) -> ir.Model | None:
        """The model, which is not held if it has to be read again; ``None`` if that is not possible."""
        found = self.model
        if found is None and self._path is not None:
            with config.using(self._settings):
                found = loaded(self._path)
        return found

    def read(self) -> ir.Model:
        """The model, as :meth:`find` finds it.

        Raises:
            UsageError: it was released, and came from no file, or the file is gone.
            InvalidModel: the file is no model any more.
        """
        found = self.find()
        if found is None:
            raise UsageError(
                "the original was released, and came from no file", hint="compile the model from its path"
            )
        return found

    def release(self) -> None:
        """Hold it no longer."""
        self.model = None

    def again(self) -> ModelSource:
        """Another one that holds the model, whatever becomes of this one; raises as :meth:`read` does."""
        other = ModelSource.__new__(ModelSource)
        other._settings, other._path, other.model = self._settings, self._path, self.read()
        return other


@dataclass(frozen=True)
class GuardedPlans:
    """The plans that there are; never changed, but replaced as a whole, so that runs need no lock.

    Attributes:
        plans: in the order in which their guards are asked.
        dispatch: tells which of them feeds are for.
    """

    plans: tuple[Plan, ...] = ()
    dispatch: Dispatch = field(default_factory=lambda: compile_guards([]))

    @classmethod
    def of(cls, plans: tuple[Plan, ...]) -> GuardedPlans:
        """The chain of ``plans``."""
        return cls(plans, compile_guards([plan.guard for plan in plans]))

    def with_last(self, plan: Plan) -> GuardedPlans:
        """This chain, with ``plan`` asked last."""
        return GuardedPlans.of((*self.plans, plan))

    def plan_for(self, feeds: Mapping[str, Any]) -> Plan | None:
        """The first plan whose guard lets ``feeds`` through."""
        number = self.dispatch(feeds)
        return self.plans[number] if number < len(self.plans) else None

    def without_least_recent(self) -> GuardedPlans:
        """This chain without the plan whose last run was longest ago, the last one apart, which is new."""
        victim = min(self.plans[:-1], key=lambda plan: plan.last_used, default=self.plans[-1])
        return GuardedPlans.of(tuple(plan for plan in self.plans if plan is not victim))
