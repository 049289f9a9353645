"""The models and plans of an executor: its source model, unguarded plans, and guarded plans."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from graphopt import config, ir
from graphopt.errors import GraphoptError, UsageError
from graphopt.executor.plan import Plan, store_models
from graphopt.executor.plan_factory import PlanFactory
from graphopt.executor.profiled_plan import ProfiledPlan
from graphopt.model_arguments import ModelLike, copy, loaded
from graphopt.process import memory
from graphopt.specialization.compiled_guards import Dispatch, compile_guards
from graphopt.specialization.ort_values import arrays_of
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.lazy_dataclass import dataclass


class PlanCache:
    """The source model and the plans that accept all inputs, which are created on first use.

    Each plan has a separate lock, so that a run never waits for a plan that it does not need.

    Args:
        original: the source model.
        factory: creates the plans.
        delay: time between the last plan and the release of the original, in seconds.
        clock: the current time, in seconds.
        is_last: whether the general plan is the last one, because no specializations will follow.

    Attributes:
        original: the source model.
        kept: the reason why the last attempt to release the original failed; ``None`` without a failure.
        unprofiled: the reason why there is no profiled plan; ``None`` without a failure.
        last_made: the time of the last plan, from which the delay counts; ``None`` before the first plan.
    """

    def __init__(
        self,
        original: ModelSource,
        factory: PlanFactory,
        delay: float,
        clock: Callable[[], float],
        *,
        is_last: bool,
    ) -> None:
        self.original = original
        self.kept: str | None = None
        self.unprofiled: str | None = None
        self._factory, self._delay, self._clock, self._is_last = factory, delay, clock, is_last
        self._general: Plan | None = None
        self._fallback: Plan | None = None
        self._profiled: ProfiledPlan | None = None
        self._general_lock, self._fallback_lock = ForkSafeLock(), ForkSafeLock()
        self._profiled_lock, self._releasing = ForkSafeLock(), ForkSafeLock()
        self.last_made: float | None = None

    @property
    def plans(self) -> list[Plan]:
        """The plans that exist."""
        return [plan for plan in (self._general, self._profiled, self._fallback) if plan is not None]

    def general(self) -> Plan:
        """The plan for inputs without a specialization."""
        plan = self._general
        if plan is None:
            with self._general_lock:
                plan = self._general
                if plan is None:
                    plan = self._general = self._factory.general(self.original.read())
                    if self._is_last:
                        self.note_made()
        return plan

    def fallback(self) -> Plan:
        """The plan that is used while optimizing is off; the general plan if the original was released."""
        plan = self._fallback
        if plan is None:
            with self._fallback_lock:
                plan = self._fallback
                if plan is None:
                    original = self.original.find()
                    if original is None:
                        return self.general()
                    plan = self._factory.fallback(original)
                    if self.original.model is None:
                        store_models([plan])
                        plan.kept.spill()
                    self._fallback = plan
        return plan

    def accepts(self, feeds: Mapping[str, Any]) -> bool:
        """Whether the original accepts ``feeds``: a run of the plan that is used while optimizing is off."""
        try:
            self.fallback().run(arrays_of(feeds))
        except GraphoptError:
            return False
        return True

    def profiled(self) -> ProfiledPlan | None:
        """The plan whose runs are profiled; ``None`` if runs of the general plan are profiled instead."""
        plan = self._profiled
        if plan is None and self.unprofiled is None and self._factory.pipelines.profiled is not None:
            with self._profiled_lock:
                plan, original = self._profiled, self.original.model
                if plan is not None or self.unprofiled is not None or original is None:
                    return plan
                try:
                    plan = self._profiled = self._factory.profiled(original)
                except Exception as error:  # optimizing failed; the general plan is used instead
                    if self._factory.strict and isinstance(error, GraphoptError):
                        raise
                    self.unprofiled = f"there is no profiled plan: {str(error) or type(error).__name__}"
        return plan

    def note_made(self) -> None:
        """Restart the delay, because a plan was created."""
        self.last_made = self._clock()

    @property
    def is_due(self) -> bool:
        """Whether more than the delay has passed since the last plan."""
        made = self.last_made
        return made is not None and self._clock() - made > self._delay

    def prepare_release(self, plans: Sequence[Plan]) -> None:
        """Do the slow part of :meth:`release`, so that the release frees memory without delay.

        If this fails, the release tries again, and reports the reason.
        """
        with self._releasing, contextlib.suppress(Exception):
            if self.original.model is not None:
                store_models([self.general(), *plans])
                self.original.prepare_release()

    def release(self, plans: Sequence[Plan]) -> None:
        """Release the original, the fallback plan and the profiled plan, after creating the general plan.

        The models of the remaining plans are moved to files. If the general plan can't be created, or a file
        can't be written, the original is kept for another delay, and :attr:`kept` has the reason; no run
        fails because of this.

        Args:
            plans: the guarded plans.
        """
        with self._releasing:
            if self.original.model is None:
                return
            try:
                kept = [self.general(), *plans]
                store_models(kept)
                for plan in kept:
                    plan.kept.spill()
                self.original.release()
            except Exception as error:  # optimizing may raise any exception
                self.kept = str(error) or type(error).__name__
                self.note_made()
                return
            self.kept = None
            self._fallback = self._profiled = None
        gc.collect()  # nodes, values and graphs form reference cycles
        memory.trim()


class ModelSource:
    """A model that can be released, and read from its file again.

    Args:
        source: a model in any form; a model in memory is copied.

    Attributes:
        model: the model; ``None`` after its release.
    """

    def __init__(self, source: ModelLike) -> None:
        self._settings = config.current()  # a second read must not depend on later settings
        self._path = Path(source).absolute() if isinstance(source, (str, os.PathLike)) else None
        self.model: ir.Model | None = copy(loaded(source)) if isinstance(source, ir.Model) else loaded(source)
        self._fingerprint = ""

    def find(self) -> ir.Model | None:
        """The model; after its release, each call reads the file of the model. ``None`` without a file.

        Raises:
            UsageError: the file can't be read, or contains another model than before the release.
            InvalidModel: the file is no longer a model.
        """
        found = self.model
        if found is None and self._path is not None:
            found = self._load(self._path)
            if ir.fingerprint(found, names=True) != self._fingerprint:
                raise UsageError(
                    f"{self._path} has changed since it was compiled",
                    hint="executor.flush() compiles the new model",
                )
        return found

    def _load(self, path: Path) -> ir.Model:
        with config.using(self._settings):
            return loaded(path)

    def read(self) -> ir.Model:
        """The model, as for :meth:`find`.

        Raises:
            UsageError: the model was released and has no file, or as for :meth:`find`.
            InvalidModel: the file is no longer a model.
        """
        found = self.find()
        if found is None:
            raise UsageError(
                "the original was released and has no file", hint="compile the model from its path"
            )
        return found

    def prepare_release(self) -> None:
        """Compute the fingerprint of a model with a file, once."""
        if self.model is not None and self._path is not None and not self._fingerprint:
            self._fingerprint = ir.fingerprint(self.model, names=True)

    def release(self) -> None:
        """Drop the model; of a model with a file, keep the fingerprint."""
        self.prepare_release()
        self.model = None

    def reopen(self) -> ModelSource:
        """An independent source with the model in memory; after a release, with the model in the file.

        Raises:
            UsageError: the model was released and has no file, or the file can't be read.
            InvalidModel: the file is no longer a model.
        """
        other = ModelSource.__new__(ModelSource)
        other._settings, other._path, other._fingerprint = self._settings, self._path, ""
        is_in_file = self.model is None and self._path is not None
        other.model = self._load(self._path) if is_in_file and self._path else self.read()
        return other


@dataclass(frozen=True)
class GuardedPlans:
    """An immutable sequence of guarded plans, which is replaced as a whole, so that runs need no lock.

    Attributes:
        plans: the plans, in the order in which their guards are checked.
        dispatch: returns the index of the plan for given feeds.
    """

    plans: tuple[Plan, ...] = ()
    dispatch: Dispatch = field(default_factory=lambda: compile_guards([]))

    @classmethod
    def of(cls, plans: tuple[Plan, ...]) -> GuardedPlans:
        """These ``plans``, with their compiled dispatch."""
        return cls(plans, compile_guards([plan.guard for plan in plans]))

    def append(self, plan: Plan) -> GuardedPlans:
        """These plans, and ``plan`` as the last one."""
        return GuardedPlans.of((*self.plans, plan))

    def plan_for(self, feeds: Mapping[str, Any]) -> Plan | None:
        """The first plan whose guard holds for ``feeds``."""
        number = self.dispatch(feeds)
        return self.plans[number] if number < len(self.plans) else None

    def without_least_recent(self) -> GuardedPlans:
        """These plans without the least recently used one; the last one, which is new, is kept."""
        victim = min(self.plans[:-1], key=lambda plan: plan.last_used, default=self.plans[-1])
        return GuardedPlans.of(tuple(plan for plan in self.plans if plan is not victim))
