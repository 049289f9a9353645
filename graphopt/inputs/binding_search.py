"""Search for bindings and values with which a model runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from graphopt.errors import ResourceLimit, SystemExhausted
from graphopt.inputs.dim_bindings import RANKS
from graphopt.inputs.feeds import Feeds, Inputs
from graphopt.util.lazy_dataclass import dataclass

#: Runs a model on feeds; returns the error, or ``None``.
Attempt = Callable[[Feeds], str | None]

#: Number of input elements beyond which unlikely bindings are not tried.
_LARGEST = 1 << 22
#: Number of the user's example bindings that are tried, in addition to more discriminating ones.
_KNOWN = 2
#: Number of errors from which constraints are derived: for one binding, and in a whole search.
_ERRORS_PER_BINDING, _ERRORS_PER_SEARCH = 8, 32
#: Limit on wall-clock time, as a multiple of the CPU time, because runs may be in other processes, or wait.
_WAITING = 8


@dataclass(frozen=True)
class ValidBinding:
    """A binding that the model accepts, with the lowest restriction level at which the model accepts it."""

    binding: dict[str, int]
    restriction: int


@dataclass
class BindingSearch:
    """The result of a search.

    Attributes:
        valid: bindings with which the model runs.
        refusal: the error for the most plausible binding that failed, if any.
        tries: number of runs.
    """

    valid: list[ValidBinding] = field(default_factory=list)
    refusal: str | None = None
    tries: int = 0


def find_valid_bindings(
    inputs: Inputs,
    attempt: Attempt,
    *,
    wanted: int = 3,
    seconds: float = 10,
    typical: bool = False,
    clock: Callable[[], float] = time.process_time,
    admits: Callable[[Mapping[str, int], int], bool] = lambda binding, found: True,
) -> BindingSearch:
    """Up to ``wanted`` bindings with which ``attempt`` succeeds, none of them with a size of 0.

    The user's example bindings are tried first, then discriminating ones. After the first error, constraints
    are derived from the graph and from onnxruntime's error messages.

    Args:
        inputs: generates the feeds; keeps a rank with which the model runs.
        attempt: runs the model.
        wanted: maximum number of bindings. Two further bindings may be at the ends of given ranges, and one
            may have larger sizes of dims that have the same size in all other bindings.
        seconds: CPU seconds after which no further try begins; the wall-clock limit is several times this
            value.
        typical: try production sizes first (a batch of 1, long sequences) instead of discriminating ones.
        clock: CPU time in seconds, by default of this process.
        admits: whether there is time for runs of a binding, given the number of bindings found before it.
    """
    search = _Search(inputs, attempt, seconds, clock, admits)
    ranks = RANKS if inputs.open_ranks else RANKS[:1]
    for rank in ranks:
        inputs.use_rank(rank)
        search.try_all(inputs.known_bindings(), 0, min(wanted, _KNOWN))
        if typical:
            search.try_all(inputs.dimensions.typical_tries(), 0, wanted, _LARGEST)
        search.try_all(inputs.dimensions.first_tries(), 0, wanted)
        if search.found.valid:
            break
    for rank in ranks:
        if search.found.valid:
            break
        inputs.use_rank(rank)
        search.try_restricted()
    if search.found.valid:
        first = search.found.valid[0]
        search.try_all(inputs.dimensions.variations(first.binding), first.restriction, wanted)
        if wanted > 1 and (symbols := search.constant_sizes()):  # these may be the smallest valid sizes
            others = inputs.dimensions.larger(first.binding, symbols)
            search.try_all(others, first.restriction, len(search.found.valid) + 1, _LARGEST)
        # range-dependent rewrites most often fail at the ends of a range
        ends = len(search.found.valid) + 2
        search.try_all(inputs.ends(first.binding), first.restriction, ends, _LARGEST)
    return search.found


class _Search:
    def __init__(
        self,
        inputs: Inputs,
        attempt: Attempt,
        seconds: float,
        clock: Callable[[], float],
        admits: Callable[[Mapping[str, int], int], bool],
    ) -> None:
        self._inputs = inputs
        self._attempt = attempt
        self._clock = clock
        self._admits = admits
        self._stop = (clock() + seconds, time.monotonic() + _WAITING * seconds)
        self._tried: set[tuple[object, ...]] = set()
        self._remaining_errors = _ERRORS_PER_SEARCH
        self._is_constrained = False
        self.found = BindingSearch()

    def try_all(
        self, bindings: Iterable[dict[str, int]], restriction: int, wanted: int, elements: int | None = None
    ) -> None:
        """Try ``bindings`` with at most ``elements`` input elements until ``wanted`` are found."""
        for wanted_binding in bindings:
            for _ in range(_ERRORS_PER_BINDING):
                if len(self.found.valid) >= wanted or self._late():
                    return
                binding = self._inputs.binding(wanted_binding)
                key = (restriction, *binding.items())
                if key in self._tried or (elements is not None and self._inputs.elements(binding) > elements):
                    break
                if self.found.valid and not self._admits(binding, len(self.found.valid)):
                    break
                self._tried.add(key)
                self.found.tries += 1
                reason = self._try(binding, restriction)
                if reason is None:
                    self.found.valid.append(ValidBinding(binding, restriction))
                    break
                self._note_refusal(reason)
                if self._remaining_errors == 0 or not self._inputs.learn_from(reason, binding):
                    break
                self._remaining_errors -= 1

    def constant_sizes(self) -> list[str]:
        """The symbols above 1 that have the same size in all bindings, if several bindings were found."""
        bindings = [valid.binding for valid in self.found.valid]
        return [
            symbol
            for symbol, size in bindings[0].items()
            if len(bindings) > 1 and size > 1 and all(one[symbol] == size for one in bindings)
        ]

    def try_restricted(self) -> None:
        """Find one binding with more restricted values and more probable sizes."""
        self._try_likelier()
        if not self.found.valid and self._inputs.drop_constraints():
            self._remaining_errors = 0
            self._try_likelier()

    def _try_likelier(self) -> None:
        dimensions = self._inputs.dimensions
        for bindings in ([*dimensions.first_tries()], [*dimensions.more_tries(self._inputs.options.seed)]):
            for restriction in range(4 if self._inputs.restrictable else 1):
                self.try_all(bindings, restriction, 1, _LARGEST)

    def _note_refusal(self, reason: str) -> None:
        """Keep the first error, preferably the first error for sizes that satisfy the graph's constraints."""
        is_constrained = self._inputs.constraints is not None
        if self.found.refusal is None or (is_constrained and not self._is_constrained):
            self.found.refusal, self._is_constrained = reason, is_constrained

    def _late(self) -> bool:
        return self._clock() > self._stop[0] or time.monotonic() > self._stop[1]

    def _try(self, binding: dict[str, int], restriction: int) -> str | None:
        try:
            return self._attempt(self._inputs.feeds(binding, "normal", restriction))
        except SystemExhausted:
            raise
        except ResourceLimit as limit:
            return str(limit)
