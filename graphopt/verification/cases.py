"""The cases that a verifier compares: inputs, and what the original makes of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphopt.errors import ResourceLimit, RuntimeFailure
from graphopt.inputs.binding import describe
from graphopt.inputs.feeds import Feeds, Inputs
from graphopt.inputs.sampling import Distribution
from graphopt.inputs.search import BindingSearch, ValidBinding, find_valid_bindings
from graphopt.ort.probe import SLACK, Runner
from graphopt.process.child import ProcessCrashed
from graphopt.verification.compare import Deviation, identical, largest_deviations, nbytes
from graphopt.verification.empty_tensors import Unreliable
from graphopt.verification.verdict import ORIGINAL_FAILS, Skipped

#: In the order of what they tell; ``special``, ``large`` and ``huge`` are judged more leniently.
DISTRIBUTIONS: tuple[Distribution, ...] = (
    *("normal", "zero", "negative", "special", "large", "overridden"),
    *("tiny", "huge"),
)
#: Flavours that are tried with one binding: sizes do not matter for what they show.
_ONCE: tuple[Distribution, ...] = ("tiny", "huge")
#: A model that has killed so many processes is not tried further.
_CRASHES = 4
#: Seconds of CPU time that a run of the original may take, unless nothing runs in that time.
QUICK = 4.0
#: Seconds of CPU time after which no more bindings are tried.
_SEARCH = 12.0
#: How often that time may run out before no more bindings are tried.
_TIMEOUTS = 4
#: Seconds of CPU time that all of them may take.
_LOST = 8.0
#: Bytes that all cases may take before no more distributions are tried.
_MEMORY = 1 << 29
#: Runs more that tell what is random; what is drawn from few values may come out the same.
_AGAIN = 10
#: Elements below which even so many runs may agree by chance.
_FEW = 64


@dataclass
class Case:
    """One set of inputs with the original's outputs.

    Attributes:
        binding: sizes of the dynamic dims, in words.
        distribution: what kind of numbers.
        feeds: inputs by name.
        off: outputs with onnxruntime's optimizations off.
        default: outputs of a default session, ``None`` if the original fails there.
        noise: per output and tensor, how far ``default`` is from ``off``.
        random: indices of outputs that change from run to run.
        random_shapes: those among them that change their shapes too.
        varying: those among them that differed from run to run every time, as numbers drawn from few
            values or in small tensors do not.
        input_sensitivity: per output and tensor, how far rounding the inputs moves ``off``; ``None``
            until somebody asks.
        rounding_sensitivity: the same of rounding the inputs or the inner results.
        empty: a dynamic dim has size 0.
        unreliable: what onnxruntime gets wrong because of empty tensors; ``None`` until somebody asks.
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
        """Memory that the feeds and the outputs take."""
        return nbytes([*self.feeds.values(), self.off, *([] if self.default is self.off else [self.default])])


@dataclass
class Cases:
    """All cases of one original, and what could not become one.

    Attributes:
        found: cases with sizes of at least 1.
        skipped: what the original can't do, or was not tried, each with the reason.
        refusal: why the original runs on no inputs at all, if so.
        crash: how loading the original ended its process, if it did.
        slow: no run of the original ended in time.
        valid: bindings that the original accepts.
    """

    found: list[Case] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    refusal: str | None = None
    crash: ProcessCrashed | None = None
    slow: bool = False
    valid: list[ValidBinding] = field(default_factory=list)


def gather(inputs: Inputs, original: Runner, *, random: bool, seconds: float, quick: float = QUICK) -> Cases:
    """Find bindings that ``original`` accepts and make cases: at least one a binding.

    Args:
        inputs: makes the feeds.
        original: the model to ask.
        random: the model holds operators that draw random numbers.
        seconds: CPU time of runs after which only the cases of one distribution are made, not counting
            runs that were stopped. Wall-clock time has a bound too, which a loaded machine does not reach.
        quick: seconds of CPU time that a run may take, unless nothing runs in that time.
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
        """Let a run that does not end take no time from others."""
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
        # nothing runs quickly: one binding has to do, with all the time there is
        original.seconds = patience
        most = 1
        crashes.clear()
        out_of_time.clear()
        search = find_valid_bindings(inputs, attempt, wanted=1, seconds=_SEARCH, clock=clock)
    cases = Cases(valid=search.valid)
    if not search.valid:
        cases.refusal = search.refusal or "no inputs could be made up"
        cases.slow = bool(out_of_time)
        return cases
    for valid, (feeds, off) in zip(search.valid, ran, strict=True):
        first = not cases.found
        cases.found.append(
            _complete(valid, "normal", feeds, off, original, again=_AGAIN if random else int(first))
        )
    if (why := _default_crash(original)) is not None:
        cases.skipped.append(Skipped("default sessions", ORIGINAL_FAILS, why))
    endless: list[Distribution] = []
    for distribution, valid in _in_order(search.valid):
        late = original.spent - begin > seconds or time.monotonic() > stop
        cause = "time" if late else ""
        if sum(case.nbytes for case in cases.found) > _MEMORY:
            cause = "memory"
        if distribution in endless:
            cases.skipped.append(
                Skipped(_where(valid, distribution), ORIGINAL_FAILS, "stopped at other sizes")
            )
        elif not cause:
            if isinstance(_add(cases, inputs, original, valid, distribution, random), ResourceLimit):
                endless.append(distribution)
                stopped()
        else:
            cases.skipped.append(Skipped(_where(valid, distribution), cause))
    return cases


def _in_order(found: Sequence[ValidBinding]) -> Iterator[tuple[Distribution, ValidBinding]]:
    """The cases after the first distribution: each other one at the last binding, then at the others."""
    yield from ((distribution, found[-1]) for distribution in DISTRIBUTIONS[1:])
    for distribution in DISTRIBUTIONS[1:]:
        if distribution not in _ONCE:
            yield from ((distribution, valid) for valid in reversed(found[:-1]))


def _default_crash(original: Runner) -> str | None:
    """How a default session of ``original`` ends its process, if it does."""
    try:
        original.load("default")
    except ProcessCrashed as crash:
        return str(crash)
    except (RuntimeFailure, ResourceLimit):
        pass
    return None


def share_random_outputs(cases: Sequence[Case]) -> None:
    """Count small outputs that change from run to run in one case as random in all cases.

    A few random numbers, such as the zeros of a Dropout, may come out the same in all runs by chance.
    """
    drawn = sorted(frozenset[int]().union(*(case.random for case in cases)))
    for case in cases:
        small = [place for place in drawn if getattr(case.off[place], "size", 0) < _FEW]
        case.random |= frozenset(small)


def share_unreproducible_outputs(cases: Sequence[Case]) -> None:
    """Distrust in all cases what changes from run to run in one, though nothing draws random numbers.

    It is memory that nobody wrote, or a state, and may look the same twice by chance.
    """
    garbage = frozenset[int]().union(*(case.random for case in cases))
    shapes = frozenset[int]().union(*(case.random_shapes for case in cases))
    for case in cases:
        case.random, case.random_shapes = garbage, shapes


def empty_cases(inputs: Inputs, original: Runner, valid: Sequence[ValidBinding], *, random: bool) -> Cases:
    """Cases in which a dynamic dim has size 0, as far as ``original`` (in a child) accepts them."""
    cases = Cases()
    if not valid:
        return cases
    base = valid[-1]
    original.seconds = QUICK
    for binding in inputs.bindings(inputs.dimensions.empty(base.binding)):
        if 0 in binding.values():
            # some kernels leave the results of empty inputs uninitialized: run twice
            failure = _add(cases, inputs, original, ValidBinding(binding, base.restriction), "normal", True)
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
) -> Exception | None:
    """Add a case unless the inputs are not new; returns why the original fails on them, if so."""
    try:
        feeds = inputs.feeds(valid.binding, distribution, valid.restriction)
        if any(_same_feeds(feeds, case.feeds) for case in cases.found):
            return None
        off = original.run("off", feeds)
        case = _complete(valid, distribution, feeds, off, original, again=_AGAIN if random else 0)
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
) -> Case:
    """Run a default session too, and some more times for what is random.

    Raises:
        RuntimeFailure: ``original`` runs now and then only.
    """
    try:
        default: list[Any] | None = original.run("default", feeds)
    except (RuntimeFailure, ResourceLimit):
        default = None
    noise = [largest_deviations(a, b) for a, b in zip(off, off if default is None else default, strict=True)]
    if default is not None and all(map(identical, off, default)):
        default = off  # held once
    case = Case(describe(valid.binding), distribution, feeds, off, default, noise)
    case.varying = frozenset(range(len(off)) if again else ())
    previous = off
    for _ in range(again):
        try:
            other = original.run("off", feeds)
        except ResourceLimit:  # it took almost all of its time at first
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
