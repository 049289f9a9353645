"""What an executor knows and makes until it is flushed: it watches what inputs come, and makes plans.

The seed is ``torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp``. There, a miss of a guard calls a
fallback function, which has an executor of its own with one specialization less to make; here that chain is
one list of plans, whose guards one function asks in turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from graphopt import ir
from graphopt.errors import GraphoptError
from graphopt.executor.debug_state import DebugState, PlanState
from graphopt.executor.options import ExecutorOptions, is_optimizing, note_executed
from graphopt.executor.plan import Plan, PlanFactory
from graphopt.executor.plan_cache import GuardedPlans, PlanCache
from graphopt.inputs.run_once import check_feeds
from graphopt.ir.signature import Signature
from graphopt.profile import (
    FusionStrategy,
    Pattern,
    Profile,
    SpecializationKind,
    branch_inputs,
    guard_for_all,
    observe,
    unfit,
)

#: For each reason why the general plan runs, so many runs are compared with all guards; others are counted.
_EXPLAINED = 20
#: Why the general plan runs while another thread has the job.
_IN_PROGRESS = "a specialization is being made"


@dataclass(frozen=True, eq=False)
class Job:
    """A specialization that is to be made, with all that it depends on.

    Attributes:
        original: what it is made of.
        record: what was seen.
        behaviour: how closely it keeps to that.
        thread: the one that decided on it.
        process: the one that does it. A fork of that has no thread that would.
        done: it is there, or failed.
        begun: when it was decided on, in seconds of :func:`time.monotonic`.
    """

    original: ir.Model
    record: Profile
    behaviour: SpecializationKind
    thread: int = field(default_factory=threading.get_ident)
    process: int = field(default_factory=os.getpid)
    done: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.monotonic)

    def wait(self, seconds: float | None) -> bool:
        """Wait until ``seconds`` after its beginning at the latest, in its process; whether it is done."""
        if os.getpid() != self.process:
            return self.done.is_set()
        left = None if seconds is None else max(0.0, self.begun + seconds - time.monotonic())
        return self.done.wait(left)


class Specializer:
    """Chooses the plan of each run, learns from the runs, and makes plans.

    Whoever has the job makes the next plan; there is one at a time. The lock of the state is never held while
    anything is made or run. Runs that a guard lets through take none but that of the counters.

    Args:
        signature: of the original.
        memory: the original, and the plans for all inputs.
        maker: makes plans.
        options: how it works.
        strategy: how many specializations are made, and how closely they keep to what was seen.
        depth: how many may be made.
    """

    def __init__(
        self,
        signature: Signature,
        memory: PlanCache,
        maker: PlanFactory,
        options: ExecutorOptions,
        strategy: FusionStrategy,
        depth: int,
    ) -> None:
        self.signature, self.memory, self._maker = signature, memory, maker
        self._options, self._strategy, self._depth = options, strategy, depth
        self._ports = [port for port in signature.inputs if port.role != "constant"]
        self._types = {port.name: port.type for port in self._ports}
        self._wanted = max(options.profiled_runs, 1)
        self._state, self._counts = threading.Lock(), threading.Lock()
        self._chain = GuardedPlans()
        self._job: Job | None = None
        self._making: int | None = None
        self._record = Profile("")
        self._hopeless: frozenset[object] = frozenset()
        self._failures: list[str] = []
        self._made: Counter[str] = Counter()
        self._evicted = self._runs = 0
        self._reasons: Counter[str] = Counter()
        self._explained: Counter[str] = Counter()
        self.last: Plan | None = None

    # Running ------------------------------------------------------------------------------------

    def plan_for(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan for ``feeds``, made if it is time for that."""
        return self.known_plan(feeds) or self._missed(feeds)

    def known_plan(self, feeds: Mapping[str, Any]) -> Plan | None:
        """The plan that is there for ``feeds``; ``None`` if only the general one is."""
        if not is_optimizing():
            return self.memory.fallback()
        return self._chain.plan_for(feeds)

    def ran(self, plan: Plan, feeds: Mapping[str, Any]) -> None:
        """Count a run that succeeded, and learn from it. It has its outputs, and nothing takes them away."""
        with self._counts:
            self._runs += 1
            plan.hits += 1
            plan.last_used = self._runs
        self.last = plan
        note_executed(plan.model)
        if plan.kind == "general":
            self._watch(feeds)
        if self._options.release and self.memory.original.model is not None and self.memory.is_due:
            self._release()

    def _missed(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan for ``feeds`` that no guard let through: the general one, or a new one."""
        if not self._types.keys() >= feeds.keys():
            check_feeds(feeds, self.signature)
        found = self._next(feeds)
        while isinstance(found, Job):
            mine = found.thread == threading.get_ident()
            if mine and self._options.wait is None:
                self._make(found)
            elif mine:
                self._start(found)
            if not found.wait(self._options.wait):
                found = _IN_PROGRESS
                break
            if mine and self._options.profiled_runs == 0 and self._options.release:
                self._release()  # at once, as this very run was watched
            plan = self._chain.plan_for(feeds)
            if plan is not None:
                return plan
            found = "the new specialization is for other inputs" if mine else self._next(feeds)
        self._tell(found, feeds)
        return self.memory.general()

    def _next(self, feeds: Mapping[str, Any]) -> Job | str:
        """The job that ``feeds`` wait for, or the reason to run the general plan.

        This thread has to do the job if it has the thread's number.
        """
        reason = self._end() or self._why_unfit(feeds)
        if reason is not None:
            return reason
        blocking = self._options.compile == "blocking"
        with self._state:
            job = self._job
            if job is not None:
                waits = blocking and threading.get_ident() not in (job.thread, self._making)
                return job if waits else _IN_PROGRESS
            if self._options.profiled_runs == 0 and self._record.runs == 0:
                self._see(feeds)
            if self._record.runs < self._wanted:
                return self._why_unseen(feeds) or "profiling"
            if blocking:
                job = self._begin()
            return job or self._end() or _IN_PROGRESS

    def _end(self) -> str | None:
        """Why nothing will be specialized any more; ``None`` if something may."""
        if self._depth == 0:
            return "all specializations are made"
        return "the original was released" if self.memory.original.model is None else None

    def _tell(self, reason: str, feeds: Mapping[str, Any]) -> None:
        """Count why the general plan runs, with the nearest guard's first difference at the beginning."""
        text = reason
        if self._explained[reason] < _EXPLAINED:
            near = min((plan.guard.explain(feeds) for plan in self._chain.plans), key=len, default=[])
            text = f"{reason}: {near[0]}" if near else reason
        with self._counts:
            self._explained[reason] += 1
            self._reasons[text] += 1

    # Watching and compiling ---------------------------------------------------------------------

    def _watch(self, feeds: Mapping[str, Any]) -> None:
        """Note what the general plan just ran on, if that is of use."""
        if self._job is not None or self._end() is not None or self._why_unfit(feeds) is not None:
            return
        job = None
        with self._state:
            if self._job is None:
                known = self._chain.plan_for(feeds) is not None  # another thread just saw to it
                if self._record.runs < self._wanted and not known:
                    self._see(feeds)
                if self._record.runs >= self._wanted and self._options.compile == "background":
                    job = self._begin()
        if job is not None:
            self._start(job)

    def _see(self, feeds: Mapping[str, Any]) -> None:
        """Note what ``feeds`` are, if that is of use; under the lock."""
        if self._why_unseen(feeds) is None:
            self._record = self._record.with_run(observe(self._types, feeds))

    def _why_unfit(self, feeds: Mapping[str, Any]) -> str | None:
        """Why nothing can be specialized for such ``feeds``; ``None`` if it can."""
        return next(filter(None, (unfit(port, feeds.get(port.name)) for port in self._ports)), None)

    def _why_unseen(self, feeds: Mapping[str, Any]) -> str | None:
        """Why such ``feeds`` are not specialized for again; ``None`` if nothing is known against it."""
        if self._hopeless and Pattern(observe(self._types, feeds)).key in self._hopeless:
            return "no specialization could be made"
        return None

    def _begin(self) -> Job | None:
        """Take the next specialization upon oneself; under the lock. ``None`` if there will be no more."""
        original = self.memory.original.model
        if original is not None and self._depth > 0:
            self._job = Job(original, self._record, self._strategy.kind(self._depth))
        return self._job

    def _start(self, job: Job) -> None:
        """Do a job in a thread of its own."""
        try:
            threading.Thread(target=self._make, args=(job,), daemon=True).start()
        except RuntimeError as error:  # there are too many threads
            self._finish(job, None, f"no thread could be started: {error}")

    def _make(self, job: Job) -> None:
        """Do a job. A failure is noted, whatever raised it: the general plan is right for all inputs."""
        what, chain, failure = job.behaviour.value, None, None
        self._making = threading.get_ident()
        try:
            guard = guard_for_all(job.record, job.behaviour, branch_inputs(job.original))
            what = str(guard)
            chain = self._with(self._maker.specialized(job.original, guard, job.behaviour))
        except GraphoptError as error:
            failure = f"{what}: {error}"
        except Exception as error:  # a fault of a pass
            failure = f"{what}: {type(error).__name__}: {error}"
        finally:  # others wait, even if this run was interrupted
            self._finish(job, chain, failure)

    def _with(self, plan: Plan) -> GuardedPlans:
        """The chain that asks ``plan`` last, with no more plans than are kept; by who does the job."""
        assert plan.behaviour is not None
        kind = plan.behaviour.value
        self._made[kind] += 1
        plan.name = f"{kind}-{self._made[kind]}"
        chain = self._chain.with_last(plan)
        if self._options.most_plans is not None and len(chain.plans) > self._options.most_plans:
            chain = chain.without_least_recent()  # whose session ends with its last run
        return chain

    def _finish(self, job: Job, chain: GuardedPlans | None, failure: str | None) -> None:
        """Let ``chain`` be asked from now on. What is made next watches anew."""
        with self._state:
            if chain is not None or failure is not None:
                self._depth -= 1
                self._record = Profile("")
                self.memory.note_made()
            if chain is not None:
                self._evicted += len(self._chain.plans) + 1 - len(chain.plans)
                self._chain = chain
            if failure is not None:
                self._failures.append(failure)
                self._hopeless |= {pattern.key for pattern in job.record.patterns}
            self._job = None
        job.done.set()

    def wait(self) -> None:
        """Wait until the specialization that is being made is there."""
        job = self._job
        if job is not None:
            job.wait(None)

    def _release(self) -> None:
        """Let the original go, unless a specialization is being made, after which the delay begins anew."""
        if self._job is None:
            self.memory.release()
            if self.memory.original.model is None:
                with self._state:
                    self._record = Profile("")

    # Looking in ---------------------------------------------------------------------------------

    def debug_state(self) -> DebugState:
        """What was done so far."""
        with self._state, self._counts:
            plans = [*self._chain.plans, *self.memory.plans]
            hits = [plan.hits for plan in plans]
            state = DebugState(
                strategy=str(self._strategy),
                depth=self._depth,
                plans=(),
                reasons=dict(self._reasons),
                profiled=self._record.runs,
                compiling=self._job is not None,
                released=self.memory.original.model is None,
                kept=self.memory.kept,
                evicted=self._evicted,
                failures=tuple(self._failures),
            )
        remarks = dict.fromkeys(remark for plan in plans for remark in (*plan.problems, *plan.remarks))
        return replace(state, plans=tuple(map(PlanState.of, plans, hits)), remarks=tuple(remarks))
