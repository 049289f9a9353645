"""The cases of a verifier: inputs, and the original's outputs for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.inputs.binding_search import BindingSearch, ValidBinding, find_valid_bindings
from graphopt.inputs.dim_bindings import describe
from graphopt.inputs.feeds import Feeds, Inputs
from graphopt.inputs.value_generator import Distribution
from graphopt.ort.model_runs import SLACK, Runner
from graphopt.process.child import ProcessCrashed
from graphopt.verification.empty_tensor_faults import Unreliable
from graphopt.verification.numeric_traits import Randomness
from graphopt.verification.output_comparison import Deviation, identical, largest_deviations, nbytes
from graphopt.verification.verdict import ORIGINAL_FAILS, Skipped

#: Distributions, the most informative first; ``special``, ``large`` and ``huge`` are compared more leniently.
DISTRIBUTIONS: tuple[Distribution, ...] = (
    *("normal", "zero", "negative", "special", "large", "overridden"),
    *("tiny", "huge"),
)
#: Distributions that are tried with one binding only, because the faults that they reveal do not depend on
#: sizes.
_ONCE: tuple[Distribution, ...] = ("tiny", "huge")
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
#: Additional runs that detect random outputs; numbers drawn from few values may agree by chance.
_AGAIN = 10
#: Number of elements below which even this number of runs may agree by chance.
_FEW = 64


@dataclass
class Case:
    """One set of inputs with the original's outputs.

    Attributes:
        binding: sizes of the dynamic dims, as text.
        distribution: distribution of the inputs.
        feeds: inputs by name.
        off: outputs without onnxruntime's optimizations.
        default: outputs of a default session; ``None`` if the original fails in it.
        noise: per output and tensor, the largest deviation of ``default`` from ``off``.
        random: indices of outputs that change from run to run.
        random_shapes: indices of outputs whose shapes also change.
        varying: indices of outputs that differed in every run. Random numbers that are drawn from few values,
            or in small tensors, may repeat.
        input_sensitivity: per output and tensor, the deviation from ``off`` with differently rounded inputs;
            ``None`` until computed.
        rounding_sensitivity: the same with differently rounded inputs or intermediate results.
        empty: whether a dynamic dim has size 0.
        unreliable: outputs that empty tensors make unreliable; ``None`` until computed.
    """

    binding: str
    distribution: Distribution
    feeds: Feeds
    off: list[Any]
    default: list[Any] | None
    noise: list[list[float]]
    random: frozenset[int] = frozenset()
    random_shapes: frozenset[int] = frozenset()
    varying: frozenset[int] = frozenset()
    input_sensitivity: list[list[Deviation]] | None = None
    rounding_sensitivity: list[list[Deviation]] | None = None
    empty: bool = False
    unreliable: Unreliable | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the feeds and the outputs."""
        return nbytes([*self.feeds.values(), self.off, *([] if self.default is self.off else [self.default])])


@dataclass
class Cases:
    """All cases of one original, and the inputs on which it fails.

    Attributes:
        found: cases with sizes of at least 1.
        skipped: inputs that fail or were not tried, with reasons.
        refusal: the reason why the original runs on no inputs.
        crash: the crash of the process that loaded the original.
        slow: whether no run of the original ended in time.
        valid: bindings that the original accepts.
        is_single: whether only the first case has a default session.
    """

    found: list[Case] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    refusal: str | None = None
    crash: ProcessCrashed | None = None
    slow: bool = False
    valid: list[ValidBinding] = field(default_factory=list)
    is_single: bool = False


def gather_cases(
    inputs: Inputs,
    original: Runner,
    *,
    random: bool,
    seconds: float,
    quick: float = QUICK,
    is_single: bool = False,
) -> Cases:
    """Find bindings that ``original`` accepts and make cases: at least one for each binding.

    Args:
        inputs: generates the feeds.
        original: runs the original.
        random: whether the model contains operators that draw random numbers.
        seconds: CPU time of runs after which only the cases of one distribution are created; stopped runs do
            not count. Wall-clock time also has a bound, so large that a loaded machine does not reach it.
        quick: seconds of CPU time for one run, unless no run ends in that time.
        is_single: whether only one session fits into memory: only the first case has a default session,
            because each change of the session costs the time of its creation.
    """
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
    search: BindingSearch = find_valid_bindings(inputs, attempt, seconds=_SEARCH, clock=clock)
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
    for valid, (feeds, off) in zip(search.valid, ran, strict=True):
        first = not cases.found
        cases.found.append(
            _complete(
                valid,
                "normal",
                feeds,
                off,
                original,
                again=_AGAIN if random else int(first),
                default=first or not is_single,
            )
        )
    if (reason := _default_crash(original)) is not None:
        cases.skipped.append(Skipped("default sessions", ORIGINAL_FAILS, reason))
    timed_out: list[Distribution] = []
    for distribution, valid in _in_order(search.valid):
        late = original.spent - begin > seconds or time.monotonic() > stop
        cause = "time" if late else ""
        if sum(case.nbytes for case in cases.found) > _MEMORY:
            cause = "memory"
        if distribution in timed_out:
            cases.skipped.append(
                Skipped(_where(valid, distribution), ORIGINAL_FAILS, "stopped at other sizes")
            )
        elif not cause:
            if isinstance(
                _add(cases, inputs, original, valid, distribution, random, default=not is_single),
                ResourceLimit,
            ):
                timed_out.append(distribution)
                stopped()
        else:
            cases.skipped.append(Skipped(_where(valid, distribution), cause))
    return cases


def _in_order(found: Sequence[ValidBinding]) -> Iterator[tuple[Distribution, ValidBinding]]:
    """The cases after the first distribution: each further distribution, at the last binding first."""
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


def share_random_outputs(cases: Sequence[Case], randomness: Randomness) -> None:
    """Treat small outputs that are random, or depend on random numbers, as random in all cases.

    A few random numbers, such as the zeros of a Dropout, may agree in all runs by chance: onnxruntime's
    generators start from seeds that depend on the place of the operator, and may give equal first numbers.

    If no random numbers are drawn, outputs that change from run to run in one case count as random in all:
    they contain unwritten memory or a state, and may be equal in two runs by chance.
    """
    if not randomness.draws:
        _share_unreproducible_outputs(cases)
        return
    drawn = sorted(randomness.indices.union(*(case.random for case in cases)))
    for case in cases:
        small = [place for place in drawn if getattr(case.off[place], "size", 0) < _FEW]
        case.random |= frozenset(small)


def _share_unreproducible_outputs(cases: Sequence[Case]) -> None:
    garbage = frozenset[int]().union(*(case.random for case in cases))
    shapes = frozenset[int]().union(*(case.random_shapes for case in cases))
    for case in cases:
        case.random, case.random_shapes = garbage, shapes


def empty_cases(inputs: Inputs, original: Runner, known: Cases, *, random: bool) -> Cases:
    """Cases with a dynamic dim of size 0 that ``original`` (in a child) accepts, like those of ``known``."""
    cases = Cases()
    if not known.valid:
        return cases
    base = known.valid[-1]
    original.seconds = QUICK
    for binding in inputs.bindings(inputs.dimensions.empty(base.binding)):
        if 0 in binding.values():
            # some kernels leave results for empty inputs uninitialized: run more than once
            valid_binding = ValidBinding(binding, base.restriction)
            failure = _add(
                cases, inputs, original, valid_binding, "normal", True, default=not known.is_single
            )
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
        case = _complete(
            valid, distribution, feeds, off, original, again=_AGAIN if random else 0, default=default
        )
    except (RuntimeFailure, ResourceLimit) as failure:
        cases.skipped.append(Skipped(_where(valid, distribution), ORIGINAL_FAILS, str(failure)))
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
    previous = off
    for _ in range(again):
        try:
            other = original.run("off", feeds)
        except ResourceLimit:  # the first run took almost all of the time limit
            return case
        changed = _differing(off, other)
        case.random |= frozenset(changed)
        case.varying &= frozenset(changed) & frozenset(_differing(previous, other))
        previous = other
        case.random_shapes |= frozenset(
            place for place in changed if float("inf") in largest_deviations(off[place], other[place])
        )
    return case


def _differing(one: Sequence[Any], other: Sequence[Any]) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(one, other, strict=True)) if not identical(a, b)]


def _same_feeds(a: Feeds, b: Feeds) -> bool:
    return list(a) == list(b) and all(identical(a[name], b[name]) for name in a)
