"""Find bindings and values with which a model runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from graphopt.errors import ResourceLimit
from graphopt.runtime.inputs.bindings import RANKS
from graphopt.runtime.inputs.feeds import Feeds, Inputs

#: Runs a model on feeds; returns why it could not, or ``None``.
Attempt = Callable[[Feeds], str | None]

#: Unlikely bindings are not tried if they make inputs of more elements than this.
_LARGEST = 1 << 22


@dataclass(frozen=True)
class Legal:
    """A binding that the model accepts, with the least caution that it takes."""

    binding: dict[str, int]
    caution: int


@dataclass
class Found:
    """What a search came to.

    Attributes:
        legal: bindings that work.
        refusal: why the first one that was tried did not work, if any failed.
        tries: how often the model was run.
    """

    legal: list[Legal] = field(default_factory=list)
    refusal: str | None = None
    tries: int = 0


def find_legal(
    inputs: Inputs, attempt: Attempt, *, wanted: int = 3, seconds: float = 20, typical: bool = False
) -> Found:
    """Up to ``wanted`` bindings with which ``attempt`` succeeds, none of them with a size of 0.

    Args:
        inputs: makes the feeds; left at the rank of inputs that works.
        attempt: runs the model.
        wanted: bindings to find; fewer if the model has fewer.
        seconds: after this time no further try is begun.
        typical: try first what users run (a batch of 1, long sequences), not what tells most.
    """
    search = _Search(inputs, attempt, time.monotonic() + seconds)
    ranks = RANKS if inputs.open_ranks else RANKS[:1]
    for rank in ranks:
        inputs.use_rank(rank)
        if typical:
            search.try_all(inputs.dimensions.typical_tries(), 0, wanted, _LARGEST)
        search.try_all(inputs.dimensions.first_tries(), 0, wanted)
        if search.found.legal:
            break
    for rank in ranks:
        if search.found.legal:
            break
        inputs.use_rank(rank)
        search.try_harder()
    if search.found.legal:
        first = search.found.legal[0]
        search.try_all(inputs.dimensions.variations(first.binding), first.caution, wanted)
        # what an optimizer makes of a range goes wrong at its ends, if anywhere
        ends = len(search.found.legal) + 2
        search.try_all(inputs.ends(first.binding), first.caution, ends, _LARGEST)
    return search.found


class _Search:
    def __init__(self, inputs: Inputs, attempt: Attempt, stop: float) -> None:
        self._inputs = inputs
        self._attempt = attempt
        self._stop = stop
        self._tried: set[tuple[object, ...]] = set()
        self.found = Found()

    def try_all(
        self, bindings: Iterable[dict[str, int]], caution: int, wanted: int, elements: int | None = None
    ) -> None:
        """Try ``bindings`` until ``wanted`` are found; those with more than ``elements`` inputs not."""
        for binding in self._inputs.bindings(bindings):
            if len(self.found.legal) >= wanted or time.monotonic() > self._stop:
                return
            key = (caution, *binding.items())
            if key in self._tried or (elements is not None and self._inputs.elements(binding) > elements):
                continue
            self._tried.add(key)
            self.found.tries += 1
            reason = self._try(binding, caution)
            if reason is None:
                self.found.legal.append(Legal(binding, caution))
            elif self.found.refusal is None:
                self.found.refusal = reason

    def try_harder(self) -> None:
        """Find one binding, with more caution and likelier sizes."""
        dimensions = self._inputs.dimensions
        for bindings in ([*dimensions.first_tries()], [*dimensions.more_tries(self._inputs.options.seed)]):
            for caution in range(4):
                self.try_all(bindings, caution, 1, _LARGEST)

    def _try(self, binding: dict[str, int], caution: int) -> str | None:
        try:
            return self._attempt(self._inputs.feeds(binding, "normal", caution))
        except ResourceLimit as limit:
            return str(limit)
