"""Gather the cases of a verifier: find inputs, and run the original on them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.inputs.binding_search import BindingSearch, ValidBinding, find_valid_bindings
from graphopt.inputs.feeds import Feeds, Inputs
from graphopt.inputs.value_generator import Distribution
from graphopt.ort.model_runs import SLACK, Runner
from graphopt.ort.session import Optimizations
from graphopt.process.child import NoProcess, ProcessCrashed
from graphopt.verification.case import Case, Cases
from graphopt.verification.case_maker import CaseMaker, cause_of, inputs_text
from graphopt.verification.comparison_plan import LEVELS, ComparisonPlan
from graphopt.verification.verdict import ORIGINAL_FAILS, Skipped

#: Distributions, the most informative first; ``special``, ``large`` and ``huge`` are compared more leniently.
DISTRIBUTIONS: tuple[Distribution, ...] = (
    *("normal", "zero", "negative", "special", "large", "overridden"),
    *("tiny", "huge"),
)
#: Distributions that are tried with one binding only, because the faults that they reveal do not depend on
#: sizes.
_ONCE: tuple[Distribution, ...] = ("tiny", "huge")
#: Distributions that are compared at the smallest sizes even if all rewrites are proven exact.
_SAMPLE: tuple[Distribution, ...] = ("zero", "special")
#: Number of crashed processes after which a model is not tried further.
_CRASHES = 4
#: Seconds of CPU time for one run of the original, unless no run ends in that time.
QUICK = 4.0
#: Seconds of CPU time of the search for bindings.
_SEARCH = 12.0
#: Number of timeouts after which the search for bindings ends.
_TIMEOUTS = 4
#: Limit on the total CPU time of runs with a timeout, in seconds.
_LOST = 8.0
#: Bytes of inputs and outputs of all cases beyond which no more distributions are tried.
_MEMORY = 1 << 29


class CaseGatherer:
    """Finds bindings that an original accepts, and adds cases of ordinary and of other inputs.

    Args:
        inputs: generates the feeds.
        original: runs the original.
        random: whether the model contains operators that draw random numbers.
        seconds: CPU time of runs after which only the cases of one distribution are created; stopped runs do
            not count. Wall-clock time also has a bound, so large that a loaded machine does not reach it.
        quick: seconds of CPU time for one run, unless no run ends in that time.
        is_single: whether only one session fits into memory: only the first case has a default session,
            because each change of the session costs the time of its creation.
        cost: the estimated CPU seconds of one run, by the sizes of dynamic dims.
        work: limit on the estimated CPU seconds of all runs, of the original and of one candidate. It
            excludes neither ordinary inputs at two bindings, nor zeros and special values at one.

    Attributes:
        cases: the cases so far.
        has_further: whether there are further distributions whose cases are not added.
        sample: the cases of :meth:`sampled`; ``None`` until they are needed.
    """

    def __init__(
        self,
        inputs: Inputs,
        original: Runner,
        *,
        random: bool,
        seconds: float,
        quick: float = QUICK,
        is_single: bool = False,
        cost: Callable[[Mapping[str, int]], float] = lambda sizes: 0.0,
        work: float = math.inf,
    ) -> None:
        self.cases = Cases(is_single=is_single)
        self.has_further = False
        self.sample: list[Case] | None = None
        self._inputs, self._original, self._quick, self._cost = inputs, original, quick, cost
        self._maker = CaseMaker(inputs, original, random)
        self._plan = ComparisonPlan(cost, work)
        self._limit = _TimeLimit(original, seconds)
        self._stopped: dict[Distribution, str] = {}

    def add_ordinary(self) -> None:
        """Find bindings, and add a case of ordinary inputs for each of them.

        Raises:
            SystemExhausted: memory or threads do not suffice for a single run.
        """
        cases = self.cases
        try:
            self._original.load("off")
        except NoProcess as failure:  # programs may not allow processes at all
            cases.refusal = str(failure)
            return
        except SystemExhausted:
            raise
        except (RuntimeFailure, ResourceLimit) as failure:
            cases.refusal = str(failure)
            cases.crash = failure if isinstance(failure, ProcessCrashed) else None
            return
        search, attempts = self._find_bindings()
        cases.valid = search.valid
        if attempts.exhausted is not None:
            if not search.valid:
                raise attempts.exhausted
            self._skip("other sizes", "memory", str(attempts.exhausted))
        if not search.valid:
            cases.refusal = search.refusal or "no inputs could be generated"
            cases.slow = attempts.timeouts > 0
            return
        for valid, (feeds, off), levels in zip(
            search.valid, attempts.runs, self._ordinary_levels(), strict=True
        ):
            default = "default" in levels
            case = self._maker.complete(cases, valid, "normal", feeds, off, default=default)
            case.compares_off = "off" in levels or case.default is None
            cases.found.append(case)
            if not (default and case.compares_off):
                level = "off" if default else "default"
                self._skip(f"{inputs_text(valid, 'normal')}, optimizations {level}", "time")
        if (reason := _default_crash(self._original)) is not None:
            self._skip("default sessions", ORIGINAL_FAILS, reason)
        self.has_further = True

    def add_further(self) -> None:
        """Add the cases of all further distributions, unless they are added already."""
        if not self.has_further:
            return
        self.has_further = False
        for distribution, valid in _in_order(self._plan.sorted_for_values(self.cases.valid)):
            if not self._plan.repeats_values and distribution in self._plan.admitted:
                continue
            if distribution == "overridden" and not self._inputs.has_overridable:
                continue
            self._add_or_skip(valid, distribution)

    def sampled(self) -> list[Case]:
        """Cases of zeros and special values at the smallest sizes, without default sessions.

        They are not added to the other cases.
        """
        if self.sample is None:
            cases = self.cases
            smallest = min(cases.valid, key=lambda one: (self._cost(one.binding), sum(one.binding.values())))
            known = len(cases.found)
            for distribution in _SAMPLE:
                self._maker.add_to(cases, smallest, distribution, default=False)
            self.sample = cases.found[known:]
            del cases.found[known:]
        return self.sample

    def _find_bindings(self) -> tuple[BindingSearch, _Attempts]:
        """The search for bindings, in short runs if the original has any, and its runs."""
        original = self._original

        def clock() -> float:
            return original.spent + time.process_time()

        patience, original.seconds = original.seconds, self._quick
        attempts = _Attempts(original, self._stop_run, min(_TIMEOUTS, int(_LOST / self._quick)))
        search = find_valid_bindings(
            self._inputs, attempts, seconds=_SEARCH, clock=clock, admits=self._plan.admits
        )
        if not search.valid and attempts.crashes and len(attempts.crashes) == attempts.timeouts:
            # no run is quick: use a single binding with the full time limit
            original.seconds = patience
            attempts = _Attempts(original, self._stop_run, 1)
            search = find_valid_bindings(self._inputs, attempts, wanted=1, seconds=_SEARCH, clock=clock)
        return search, attempts

    def _ordinary_levels(self) -> list[tuple[Optimizations, ...]]:
        """The levels at which the ordinary inputs of each binding are compared; their runs are counted."""
        valid = self.cases.valid
        if not self.cases.is_single:
            return self._plan.ordinary_levels(valid)
        levels: list[tuple[Optimizations, ...]] = [("off",) for _ in valid]
        levels[0] = ("off", "default")
        for one, some in zip(valid, levels, strict=True):
            self._plan.charge(one.binding, "normal", len(some))
        return levels

    def _add_or_skip(self, valid: ValidBinding, distribution: Distribution) -> None:
        """Add a case of a further distribution, unless it exceeds a limit."""
        where = inputs_text(valid, distribution)
        levels = self._plan.affordable(valid.binding, distribution)
        if distribution in self._stopped:
            self._skip(where, self._stopped[distribution], "stopped at other sizes", distribution)
        elif sum(case.nbytes for case in self.cases.found) > _MEMORY:
            self._skip(where, "memory", "", distribution)
        elif self._limit.is_over or not levels:
            self._skip(where, "time", "", distribution)
        else:
            known, default = len(self.cases.found), levels == LEVELS and not self.cases.is_single
            fault = self._maker.add_to(self.cases, valid, distribution, default=default)
            if isinstance(fault, ResourceLimit):
                self._stopped[distribution] = cause_of(fault)
                if not isinstance(fault, SystemExhausted):
                    self._stop_run()
            elif fault is None:
                added = len(self.cases.found) > known
                self._plan.charge(valid.binding, distribution, levels if added else 0)
                if added and levels < LEVELS:
                    self._skip(f"{where}, optimizations default", "time", "", distribution)

    def _skip(
        self, what: str, cause: str, detail: str = "", distribution: Distribution | None = None
    ) -> None:
        self.cases.skipped.append(Skipped(what, cause, detail, distribution))

    def _stop_run(self) -> None:
        """Do not count the time of a stopped run."""
        self._limit.extend(self._quick)


class _TimeLimit:
    """A limit on the CPU seconds of runs of ``original``, and a much larger one on wall-clock time."""

    def __init__(self, original: Runner, seconds: float) -> None:
        self._original, self._seconds, self._begin = original, seconds, original.spent
        self._end = time.monotonic() + SLACK * seconds

    def extend(self, seconds: float) -> None:
        self._begin += seconds
        self._end += SLACK * seconds

    @property
    def is_over(self) -> bool:
        return self._original.spent - self._begin > self._seconds or time.monotonic() > self._end


class _Attempts:
    """Runs of an original in a search for bindings; after several crashes or timeouts, it runs no more.

    Args:
        original: runs the original.
        stopped: called after each timeout.
        most: number of timeouts after which it runs no more.

    Attributes:
        runs: inputs on which it ran, and the outputs.
        crashes: its crashes and timeouts.
        timeouts: number of its timeouts.
        exhausted: the last failure for lack of memory or threads, if any.
    """

    def __init__(self, original: Runner, stopped: Callable[[], None], most: int) -> None:
        self.runs: list[tuple[Feeds, list[Any]]] = []
        self.crashes: list[str] = []
        self.timeouts = 0
        self.exhausted: SystemExhausted | None = None
        self._original, self._stopped, self._most = original, stopped, most

    def __call__(self, feeds: Feeds) -> str | None:
        """Run the original on ``feeds``; returns the error, or ``None``."""
        if len(self.crashes) >= _CRASHES or self.timeouts >= self._most:
            return self.crashes[0]
        try:
            self.runs.append((feeds, self._original.run("off", feeds)))
        except (RuntimeFailure, ResourceLimit) as failure:
            if isinstance(failure, ProcessCrashed | ResourceLimit):
                self.crashes.append(str(failure))
            if isinstance(failure, SystemExhausted):
                self.exhausted = failure
            elif isinstance(failure, ResourceLimit):
                self.timeouts += 1
                self._stopped()
            return str(failure)
        return None


def _in_order(found: Sequence[ValidBinding]) -> Iterator[tuple[Distribution, ValidBinding]]:
    """Each further distribution at the last binding, and then at the other ones."""
    yield from ((distribution, found[-1]) for distribution in DISTRIBUTIONS[1:])
    for distribution in DISTRIBUTIONS[1:]:
        if distribution not in _ONCE:
            yield from ((distribution, valid) for valid in reversed(found[:-1]))


def _default_crash(original: Runner) -> str | None:
    """The crash of a default session of ``original``, if any."""
    try:
        original.load("default")
    except ProcessCrashed as crash:
        return str(crash)
    except (RuntimeFailure, ResourceLimit):
        pass
    return None
