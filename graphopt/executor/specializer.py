"""The state of an executor between flushes: profiles runs, and selects and creates plans.

Modelled on ``torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp``. In PyTorch, a failing guard calls a
fallback function with its own executor and one specialization fewer; here, one list of plans with one
dispatch function replaces this chain.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from graphopt.executor.debug_state import DebugState, PlanState
from graphopt.executor.executor_options import ExecutorOptions
from graphopt.executor.general_plan_reasons import GeneralPlanReasons
from graphopt.executor.plan import Plan
from graphopt.executor.plan_cache import GuardedPlans, PlanCache
from graphopt.executor.plan_factory import PlanFactory
from graphopt.executor.profiled_plan import ProfiledPlan
from graphopt.executor.release_timer import ReleaseTimer
from graphopt.executor.run_profile import RunProfile, SavedRunInputs
from graphopt.executor.specialization_job import Job
from graphopt.executor.thread_local_switches import is_optimizing, is_profiling, note_executed
from graphopt.executor.watched_values import AnotherThreadObserves, WatchedValues
from graphopt.inputs.run_once import check_feeds
from graphopt.ir.signature import Signature
from graphopt.profile import FusionStrategy, SpecializationKind, branch_inputs, guard_for_all
from graphopt.specialization.guard_counts import GuardCounter
from graphopt.specialization.instrumented_model import Observed
from graphopt.specialization.ort_values import kept_contents
from graphopt.transforms.profile.instrument import Watch
from graphopt.util.fork_safe_lock import ForkSafeLock

#: Reasons for using the general plan: another thread creates the specialization, or there will be none.
_IN_PROGRESS, _NOT_PROFILING = "a specialization is being made", "profiling is off"


class Specializer:
    """Selects the plan of each run, profiles the runs, and creates plans.

    At most one job creates a plan at a time. Neither jobs nor runs hold the state lock. A run that satisfies
    a guard acquires only the lock of the counters.

    Args:
        signature: the signature of the original.
        cache: the original, and the plans for all inputs.
        factory: creates plans.
        options: options of the executor.
        strategy: the number and kinds of specializations.
        depth: the maximum number of specializations.
    """

    def __init__(
        self,
        signature: Signature,
        cache: PlanCache,
        factory: PlanFactory,
        options: ExecutorOptions,
        strategy: FusionStrategy,
        depth: int,
    ) -> None:
        self.signature, self.cache, self._factory = signature, cache, factory
        self._options, self._strategy, self._depth = options, strategy, depth
        self._state, self._counts = ForkSafeLock(), ForkSafeLock()
        self._plans = GuardedPlans()
        self._job: Job | None = None
        self._watched = WatchedValues(Watch(options.watch), options.watch_limit, factory.host.device)
        self._profile = RunProfile(signature, self._watched, max(options.profiled_runs, 1))
        self._failures: list[str] = []
        self._made: Counter[str] = Counter()
        self._evicted: list[GuardCounter | None] = []
        self._runs = 0
        self._reasons = GeneralPlanReasons()
        self._timer = ReleaseTimer(options.delay)
        self.last: Plan | None = None

    # Running ------------------------------------------------------------------------------------

    def plan_for(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan for ``feeds``; creates a specialization if one is due."""
        return self.known_plan(feeds) or self._plan_without_guard(feeds)

    def known_plan(self, feeds: Mapping[str, Any]) -> Plan | None:
        """The existing plan for ``feeds``; ``None`` if only the general plan accepts them."""
        if not is_optimizing():
            return self.cache.fallback()
        plan = self._plans.plan_for(feeds)
        if plan is None and not is_profiling() and self._factory.pipelines.profiled is not None:
            return self.cache.fallback()
        return plan

    def unguarded_plan(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan without a guard that runs ``feeds``: the profiled plan if the run will be profiled."""
        plan = self._profiled() if self._needs(feeds) else None
        return plan or self.cache.general()

    def _profiled(self) -> ProfiledPlan | None:
        """The profiled plan, if the pipelines have one."""
        plan = self.cache.profiled()
        if plan is not None:
            self._watched.watched, self._watched.left_out = plan.watched, plan.left_out
        return plan

    def before(self, plan: Plan, feeds: Mapping[str, Any], overwritten: Container[str]) -> SavedRunInputs:
        """The argument of :meth:`ran` for a run that overwrites inputs."""
        if plan.kind not in ("general", "profiled") or not self._is_profiled(feeds):
            return SavedRunInputs(feeds, is_profiled=False)
        try:
            inner = None if plan.kind == "profiled" else self._observe_inner(feeds, valid=False)
        except AnotherThreadObserves:
            return SavedRunInputs(feeds, is_profiled=False)
        return SavedRunInputs(kept_contents(feeds, overwritten), inner)

    def ran(
        self,
        plan: Plan,
        feeds: Mapping[str, Any],
        inner: Observed | None = None,
        before: SavedRunInputs | None = None,
    ) -> None:
        """Count and profile a successful run; failures of this method do not affect its outputs.

        Args:
            plan: the plan.
            feeds: the inputs.
            inner: the values that the plan itself observed.
            before: the result of :meth:`before`, if the run overwrote inputs.
        """
        with self._counts:
            self._runs += 1
            plan.hits += 1
            plan.last_used = self._runs
        self.last = plan
        note_executed(plan.kept)
        if plan.kind in ("general", "profiled"):
            self._profile_run(feeds, inner, before)
        if self._options.release and self.cache.original.model is not None:
            if self.cache.is_due:
                self._release()
            else:
                self._release_later()

    def _plan_without_guard(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan for ``feeds`` that satisfy no guard: a new plan, or the general plan."""
        if not self.signature.input_types.keys() >= feeds.keys():
            check_feeds(feeds, self.signature)
        found = self._plan_or_job(feeds)
        while isinstance(found, Job):
            is_own = found.thread == threading.get_ident()
            if is_own and self._options.wait is None:
                found.run()
            elif is_own:
                found.start()
            if not found.wait(self._options.wait):
                found = _IN_PROGRESS
                break
            if is_own and self._options.profiled_runs == 0 and self._options.release:
                self._release()  # at once: this run itself was profiled
            plan = self._plans.plan_for(feeds)
            if plan is not None:
                return plan
            found = "the new specialization is for other inputs" if is_own else self._plan_or_job(feeds)
        if isinstance(found, Plan):
            return found
        text = self._reasons.text(found, feeds, self._plans.plans)
        with self._counts:
            self._reasons.add(found, text)
        return self.unguarded_plan(feeds)

    def _plan_or_job(self, feeds: Mapping[str, Any]) -> Plan | Job | str:
        """A new plan for ``feeds``, the job that they have to wait for, or a reason for the general plan.

        If this thread created the job, the caller has to execute it.
        """
        reason = self._reason_to_stop() or self._profile.why_unfit(feeds)
        if reason is not None:
            return reason
        blocking = self._options.compile == "blocking"
        try:
            tried = self._tried(feeds)
        except AnotherThreadObserves:
            return "profiling"
        with self._state:
            job = self._job
            if job is not None:
                return job if blocking and not job.is_of_this_thread else _IN_PROGRESS
            known = self._plans.plan_for(feeds)
            if known is not None:  # another thread has specialized for these feeds
                return known
            if tried.is_profiled and self._profile.profile.runs == 0:
                self._profile.add(feeds, tried.inner)
            if not self._profile.is_complete:
                return self._profile.known_failure(feeds) or "profiling"
            if blocking:
                job = self._begin_job()
            return job or self._reason_to_stop() or _IN_PROGRESS

    def _tried(self, feeds: Mapping[str, Any]) -> SavedRunInputs:
        """Without profiled runs, a run of the original on ``feeds``; it is profiled if it succeeds."""
        if self._options.profiled_runs or not self._needs(feeds):
            return SavedRunInputs(feeds, is_profiled=False)
        inner = self._observe_inner(feeds, valid=False)
        return SavedRunInputs(feeds, inner, inner is not None or self.cache.accepts(feeds))

    def _reason_to_stop(self) -> str | None:
        """The reason why there will be no more specializations in this thread or task, or ``None``."""
        if not is_profiling():
            return _NOT_PROFILING
        if self._depth == 0:
            return "all specializations are made"
        return "the original was released" if self.cache.original.model is None else None

    # Profiling and compiling --------------------------------------------------------------------

    def _is_profiled(self, feeds: Mapping[str, Any]) -> bool:
        """Whether a run on ``feeds`` of a plan without a guard may be profiled."""
        return self._job is None and self._reason_to_stop() is None and self._profile.why_unfit(feeds) is None

    def _needs(self, feeds: Mapping[str, Any]) -> bool:
        """Whether the profile needs a run on ``feeds``."""
        if self._profile.is_complete or not self._is_profiled(feeds):
            return False
        return self._profile.known_failure(feeds) is None and self._plans.plan_for(feeds) is None

    def _profile_run(
        self, feeds: Mapping[str, Any], inner: Observed | None, before: SavedRunInputs | None
    ) -> None:
        """Profile a run of a plan without a guard, and start the next job in the background mode."""
        if not self._is_profiled(feeds):
            return
        if before is None:
            try:
                inner = self._observe_inner(feeds, valid=True) if inner is None else inner
                before = SavedRunInputs(feeds, inner)
            except AnotherThreadObserves:
                return
        if not before.is_profiled:
            return
        job, feeds, inner = None, before.feeds, before.inner if inner is None else inner
        with self._state:
            if self._job is None:
                # another thread may have specialized for these feeds
                known = self._plans.plan_for(feeds) is not None
                if not self._profile.is_complete and not known:
                    self._profile.add(feeds, inner)
                if self._profile.is_complete and self._options.compile == "background":
                    job = self._begin_job()
        if job is not None:
            job.start()

    def _observe_inner(self, feeds: Mapping[str, Any], *, valid: bool) -> Observed | None:
        """Observe watched intermediate values, if the profile needs this run.

        Args:
            feeds: the inputs.
            valid: whether a run on them has succeeded.

        Raises:
            AnotherThreadObserves: the run of another thread is profiled instead.
        """
        original = self.cache.original.model
        if original is None or not self._needs(feeds):
            return None
        return self._watched.observe(original, feeds, self._profiled, valid=valid)

    def _begin_job(self) -> Job | None:
        """The next job, if any; requires the state lock."""
        original = self.cache.original.model
        if original is not None and self._depth > 0:
            kind = self._strategy.kind(self._depth)
            self._job = Job(original, self._profile.profile, kind, self._create, self._finish)
        return self._job

    def _create(self, job: Job) -> GuardedPlans:
        """The plans after the creation of the plan of ``job``."""
        guard = guard_for_all(job.profile, job.kind, branch_inputs(job.original))
        job.subject = str(guard)
        profiled = self._profiled()
        source = None if profiled is None else profiled.model
        plan = self._factory.specialized(job.original, guard, job.kind, job.profile, source)
        return self._with_plan(plan, job.kind)

    def _with_plan(self, plan: Plan, kind: SpecializationKind) -> GuardedPlans:
        """The plans with ``plan`` appended, and one evicted if there are too many; called by jobs only."""
        self._made[kind.value] += 1
        plan.name = f"{kind.value}-{self._made[kind.value]}"
        plans = self._plans.append(plan)
        if self._options.most_plans is not None and len(plans.plans) > self._options.most_plans:
            plans = plans.without_least_recent()  # the last run of the evicted plan closes its session
        return plans

    def _finish(self, job: Job, plans: GuardedPlans | None, failure: str | None) -> None:
        """Publish ``plans``, or record the failure, and restart profiling."""
        with self._state:
            if plans is not None or failure is not None:
                self._depth -= 1
                self._profile.clear()
                self.cache.note_made()
            if plans is not None:
                self._evicted += [plan.guards for plan in self._plans.plans if plan not in plans.plans]
                self._plans = plans
            if failure is not None:
                self._failures.append(failure)
                self._profile.note_failure(job.profile)
            self._job = None
        try:
            if self._options.release:
                self._release_later()
        finally:
            job.done.set()

    def wait(self) -> None:
        """Wait for the specialization in progress."""
        job = self._job
        if job is not None:
            job.wait(None)

    def _release(self) -> None:
        """Release the original, unless a job needs it; the delay restarts after the job."""
        if self._job is None:
            self.cache.release(self._plans.plans)
            if self.cache.original.model is None:
                with self._state:
                    self._profile.clear()

    def _release_later(self) -> None:
        """Release the original after the delay, even if no run follows; in a fork, only a run releases it."""
        made = self.cache.last_made
        if made is not None and self.cache.kept is None:
            self._timer.start(made, self.prepare_release, self.release_if_due)

    def prepare_release(self) -> None:
        """Write the models of the plans to files, unless a job will create another plan."""
        if self._job is None:
            self.cache.prepare_release(self._plans.plans)

    def release_if_due(self) -> None:
        """Release the original if the delay has passed."""
        if self.cache.original.model is not None and self.cache.is_due:
            self._release()

    # Inspection ---------------------------------------------------------------------------------

    def debug_state(self) -> DebugState:
        """A snapshot of the state."""
        with self._state, self._counts:
            plans = [*self._plans.plans, *self.cache.plans]
            hits = [plan.hits for plan in plans]
            counters = [*(plan.guards for plan in plans), *self._evicted]
            state = DebugState(
                strategy=str(self._strategy),
                depth=self._depth,
                plans=(),
                reasons=dict(self._reasons.counts),
                profiled=self._profile.profile.runs,
                compiling=self._job is not None,
                released=self.cache.original.model is None,
                kept=self.cache.kept,
                evicted=len(self._evicted),
                failures=tuple(self._failures),
                runs=self._runs,
            )
        watched = self._watched
        remarks = [remark for plan in plans for remark in (*plan.problems, *plan.remarks)]
        remarks += filter(None, [watched.failure, self.cache.unprofiled, self._factory.log.failure])
        nested = [count for counter in counters if counter is not None for count in counter.counts]
        return replace(
            state,
            plans=tuple(map(PlanState.of, plans, hits)),
            remarks=tuple(dict.fromkeys(remarks)),
            **watched.figures,
            nested_hits=sum(count.hits for count in nested),
            nested_misses=sum(count.misses for count in nested),
        )
