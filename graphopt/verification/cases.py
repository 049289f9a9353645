"""Gather the cases of a verifier: find inputs, and run the original on them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.inputs.binding_search import BindingSearch, ValidBinding, find_valid_bindings
from graphopt.inputs.dim_bindings import describe
from graphopt.inputs.feeds import Feeds, Inputs
from graphopt.inputs.value_generator import Distribution
from graphopt.ort.model_runs import SLACK, Runner
from graphopt.ort.session import Optimizations
from graphopt.process.child import ProcessCrashed
from graphopt.verification.case import Case, Cases
from graphopt.verification.comparison_plan import LEVELS, ComparisonPlan
from graphopt.verification.output_comparison import identical, largest_deviations
from graphopt.verification.random_outputs import AGAIN, repeat
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


def gather_cases(
    inputs: Inputs,
    original: Runner,
    *,
    random: bool,
    seconds: float,
    quick: float = QUICK,
    is_single: bool = False,
    cost: Callable[[Mapping[str, int]], float] = lambda sizes: 0.0,
    work: float = math.inf,
) -> Cases:
    """Find bindings that ``original`` accepts, and create a case of ordinary inputs for each binding.

    :meth:`Cases.add_further` of the result adds the cases of the other distributions.

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
    """
    plan = ComparisonPlan(cost, work)
    begin = original.spent
    stop = time.monotonic() + SLACK * seconds
    try:
        original.load("off")
    except ProcessCrashed as crash:
        return Cases(refusal=str(crash), crash=crash)
    except (RuntimeFailure, ResourceLimit) as failure:
        return Cases(refusal=str(failure))
    ran: list[tuple[Feeds, list[Any]]] = []
    crashes: list[str] = []
    out_of_time: list[str] = []
    most = min(_TIMEOUTS, int(_LOST / quick))

    def stopped() -> None:
        """Do not count the time of a stopped run."""
        nonlocal begin, stop
        begin += quick
        stop += SLACK * quick

    def attempt(feeds: Feeds) -> str | None:
        if len(crashes) >= _CRASHES or len(out_of_time) >= most:
            return crashes[0]
        try:
            ran.append((feeds, original.run("off", feeds)))
        except (RuntimeFailure, ResourceLimit) as failure:
            if isinstance(failure, ProcessCrashed | ResourceLimit):
                crashes.append(str(failure))
            if isinstance(failure, ResourceLimit):
                out_of_time.append(str(failure))
                stopped()
            return str(failure)
        return None

    def clock() -> float:
        return original.spent + time.process_time()

    patience, original.seconds = original.seconds, quick
    search: BindingSearch = find_valid_bindings(
        inputs, attempt, seconds=_SEARCH, clock=clock, admits=plan.admits
    )
    if not search.valid and crashes and crashes == out_of_time:
        # no run is quick: use a single binding with the full time limit
        original.seconds = patience
        most = 1
        crashes.clear()
        out_of_time.clear()
        search = find_valid_bindings(inputs, attempt, wanted=1, seconds=_SEARCH, clock=clock)
    cases = Cases(valid=search.valid, is_single=is_single)
    if not search.valid:
        cases.refusal = search.refusal or "no inputs could be generated"
        cases.slow = bool(out_of_time)
        return cases
    if is_single:
        chosen: list[tuple[Optimizations, ...]] = [("off",) for _ in search.valid]
        chosen[0] = ("off", "default")
        for number, valid in enumerate(search.valid):
            plan.charge(valid.binding, "normal", len(chosen[number]))
    else:
        chosen = plan.ordinary_levels(search.valid)
    for valid, (feeds, off), levels in zip(search.valid, ran, chosen, strict=True):
        again, default = AGAIN if random else 0, "default" in levels
        case = _complete(valid, "normal", feeds, off, original, again=again, default=default)
        case.compares_off = "off" in levels or case.default is None
        cases.found.append(case)
        if not (default and case.compares_off):
            level = "off" if default else "default"
            cases.skipped.append(Skipped(f"{_where(valid, 'normal')}, optimizations {level}", "time"))
    if (reason := _default_crash(original)) is not None:
        cases.skipped.append(Skipped("default sessions", ORIGINAL_FAILS, reason))

    def add_further() -> None:
        """Add the cases of the further distributions."""
        timed_out: list[Distribution] = []
        for distribution, valid in _in_order(plan.sorted_for_values(search.valid)):
            if not plan.repeats_values and distribution in plan.admitted:
                continue
            if distribution == "overridden" and not inputs.has_overridable:
                continue
            late = original.spent - begin > seconds or time.monotonic() > stop
            levels = plan.affordable(valid.binding, distribution)
            cause = "time" if late or not levels else ""
            if sum(case.nbytes for case in cases.found) > _MEMORY:
                cause = "memory"
            if distribution in timed_out:
                cases.skipped.append(
                    Skipped(
                        _where(valid, distribution), ORIGINAL_FAILS, "stopped at other sizes", distribution
                    )
                )
            elif not cause:
                known, default = len(cases.found), levels == LEVELS and not is_single
                fault = _add(cases, inputs, original, valid, distribution, random, default=default)
                if isinstance(fault, ResourceLimit):
                    timed_out.append(distribution)
                    stopped()
                elif fault is None:
                    added = len(cases.found) > known
                    plan.charge(valid.binding, distribution, levels if added else 0)
                    if added and levels < LEVELS:
                        where = f"{_where(valid, distribution)}, optimizations default"
                        cases.skipped.append(Skipped(where, "time", distribution=distribution))
            else:
                cases.skipped.append(Skipped(_where(valid, distribution), cause, distribution=distribution))

    def find_sample() -> list[Case]:
        """Cases of zeros and special values at the smallest sizes, which are not added."""
        smallest = min(search.valid, key=lambda valid: (cost(valid.binding), sum(valid.binding.values())))
        known = len(cases.found)
        for distribution in _SAMPLE:
            _add(cases, inputs, original, smallest, distribution, random, default=False)
        sample = cases.found[known:]
        del cases.found[known:]
        return sample

    cases.further, cases.find_sample = add_further, find_sample
    return cases


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


def empty_cases(inputs: Inputs, original: Runner, known: Cases, *, random: bool) -> Cases:
    """Cases with a dynamic dim of size 0 that ``original`` (in a child) accepts, like those of ``known``."""
    cases = Cases()
    if not known.valid:
        return cases
    base = known.valid[-1]
    original.seconds = QUICK
    for binding in inputs.bindings(inputs.dimensions.empty(base.binding)):
        if 0 in binding.values():
            one = ValidBinding(binding, base.restriction)
            failure = _add(cases, inputs, original, one, "normal", random, default=not known.is_single)
            if isinstance(failure, ProcessCrashed | ResourceLimit):
                crashed = isinstance(failure, ProcessCrashed)
                cause = "a crash of the original" if crashed else "a limit on time or memory"
                cases.skipped.append(Skipped("more dims of size 0", cause, str(failure)))
                break
    for case in cases.found:
        case.empty = True
    return cases


def _add(
    cases: Cases,
    inputs: Inputs,
    original: Runner,
    valid: ValidBinding,
    distribution: Distribution,
    random: bool,
    *,
    default: bool = True,
) -> Exception | None:
    """Add a case unless its inputs exist already; returns the error if the original fails on them."""
    try:
        feeds = inputs.feeds(valid.binding, distribution, valid.restriction)
        if any(_same_feeds(feeds, case.feeds) for case in cases.found):
            return None
        off = original.run("off", feeds)
        again = AGAIN if random else 0
        case = _complete(valid, distribution, feeds, off, original, again=again, default=default)
    except (RuntimeFailure, ResourceLimit) as failure:
        cases.skipped.append(Skipped(_where(valid, distribution), ORIGINAL_FAILS, str(failure), distribution))
        return failure
    cases.found.append(case)
    return None


def _where(valid: ValidBinding, distribution: Distribution) -> str:
    return f"{distribution} inputs at {describe(valid.binding)}"


def _complete(
    valid: ValidBinding,
    distribution: Distribution,
    feeds: Feeds,
    off: list[Any],
    original: Runner,
    *,
    again: int,
    default: bool = True,
) -> Case:
    """Complete a case by a default session, if ``default``, and by more runs that detect random outputs.

    Raises:
        RuntimeFailure: ``original`` fails on some runs only.
    """
    optimized: list[Any] | None = None
    with contextlib.suppress(RuntimeFailure, ResourceLimit):
        optimized = original.run("default", feeds) if default else None
    other = off if optimized is None else optimized
    noise = [largest_deviations(a, b) for a, b in zip(off, other, strict=True)]
    if optimized is not None and all(map(identical, off, optimized)):
        optimized = off  # stored once
    case = Case(describe(valid.binding), distribution, feeds, off, optimized, noise)
    case.varying = frozenset(range(len(off)) if again else ())
    if again:
        repeat(case, original, again)
    return case


def _same_feeds(a: Feeds, b: Feeds) -> bool:
    return list(a) == list(b) and all(identical(a[name], b[name]) for name in a)
