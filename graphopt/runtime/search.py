"""Find bindings and values with which a model runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from graphopt.errors import ResourceLimit
from graphopt.runtime.bindings import RANKS
from graphopt.runtime.inputs import Feeds, Inputs

#: Runs a model on feeds; returns why it could not, or ``None``.
Attempt = Callable[[Feeds], str | None]


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


def find_legal(inputs: Inputs, attempt: Attempt, *, wanted: int = 3, seconds: float = 20) -> Found:
    """Up to ``wanted`` bindings with which ``attempt`` succeeds, none of them with a size of 0.

    Args:
        inputs: makes the feeds; left at the rank of inputs that works.
        attempt: runs the model.
        wanted: bindings to find; fewer if the model has fewer.
        seconds: after this time no further try is begun.
    """
    found = Found()
    stop = time.monotonic() + seconds
    tried: set[tuple[tuple[str, int], ...]] = set()

    def try_all(bindings: Iterable[dict[str, int]], caution: int, limit: int) -> None:
        for binding in inputs.bindings(bindings):
            key = (*binding.items(), ("caution", caution))
            if len(found.legal) >= limit or time.monotonic() > stop:
                return
            if key in tried:
                continue
            tried.add(key)
            reason = _try(inputs, binding, caution, attempt)
            found.tries += 1
            if reason is None:
                found.legal.append(Legal(binding, caution))
            elif found.refusal is None:
                found.refusal = reason

    for rank in RANKS if inputs.open_ranks else RANKS[:1]:
        inputs.use_rank(rank)
        tried.clear()
        dimensions = inputs.dimensions
        try_all(dimensions.first_tries(), 0, wanted)
        for bindings in (list(dimensions.first_tries()), list(dimensions.more_tries(inputs.options.seed))):
            for caution in range(4):
                if not found.legal:
                    try_all(bindings, caution, 1)
        if found.legal:
            first = found.legal[0]
            try_all(dimensions.variations(first.binding), first.caution, wanted)
            break
    return found


def _try(inputs: Inputs, binding: dict[str, int], caution: int, attempt: Attempt) -> str | None:
    try:
        return attempt(inputs.feeds(binding, "normal", caution))
    except ResourceLimit as limit:
        return str(limit)
