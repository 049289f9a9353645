"""Create single cases: run the original on inputs of one distribution at one binding."""

from __future__ import annotations

from typing import Any

from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.inputs.binding_search import ValidBinding
from graphopt.inputs.dim_bindings import describe
from graphopt.inputs.feeds import Feeds, Inputs
from graphopt.inputs.value_generator import Distribution
from graphopt.ort.model_runs import Runner
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.case import Case, Cases
from graphopt.verification.output_comparison import identical, largest_deviations
from graphopt.verification.random_outputs import AGAIN, repeat
from graphopt.verification.verdict import ORIGINAL_FAILS, Skipped


@dataclass(frozen=True)
class CaseMaker:
    """Creates cases from runs of an original.

    Attributes:
        inputs: generates the feeds.
        original: runs the original.
        random: whether the original contains operators that draw random numbers.
    """

    inputs: Inputs
    original: Runner
    random: bool

    def add_to(
        self, cases: Cases, valid: ValidBinding, distribution: Distribution, *, default: bool
    ) -> Exception | None:
        """Add a case to ``cases`` unless its inputs exist already.

        Args:
            default: whether the case has a default session.

        Returns:
            the error if the original fails on the inputs, which are then skipped.
        """
        try:
            feeds = self.inputs.feeds(valid.binding, distribution, valid.restriction)
            if any(_same_feeds(feeds, case.feeds) for case in cases.found):
                return None
            off = self.original.run("off", feeds)
            case = self.complete(cases, valid, distribution, feeds, off, default=default)
        except (RuntimeFailure, ResourceLimit) as failure:
            where, cause = inputs_text(valid, distribution), cause_of(failure)
            cases.skipped.append(Skipped(where, cause, str(failure), distribution))
            return failure
        cases.found.append(case)
        return None

    def complete(
        self,
        cases: Cases,
        valid: ValidBinding,
        distribution: Distribution,
        feeds: Feeds,
        off: list[Any],
        *,
        default: bool,
    ) -> Case:
        """The case of ``feeds`` and of the outputs ``off`` without optimizations.

        It has a default session, if ``default``, and more runs that detect random outputs. If memory does not
        suffice for a default session, it is listed in the skipped comparisons of ``cases``.

        Raises:
            RuntimeFailure: the original fails on some runs only.
            SystemExhausted: memory does not suffice for more runs.
        """
        optimized: list[Any] | None = None
        try:
            optimized = self.original.run("default", feeds) if default else None
        except SystemExhausted as failure:
            where = f"{inputs_text(valid, distribution)}, optimizations default"
            cases.skipped.append(Skipped(where, cause_of(failure), str(failure), distribution))
        except (RuntimeFailure, ResourceLimit):
            pass
        other = off if optimized is None else optimized
        noise = [largest_deviations(a, b) for a, b in zip(off, other, strict=True)]
        if optimized is not None and all(map(identical, off, optimized)):
            optimized = off  # stored once
        case = Case(describe(valid.binding), distribution, feeds, off, optimized, noise)
        if self.random:
            case.varying = frozenset(range(len(off)))
            repeat(case, self.original, AGAIN)
        return case


def cause_of(failure: Exception) -> str:
    """The cause of a comparison that was skipped because of ``failure``, in a word or two."""
    return "memory" if isinstance(failure, SystemExhausted) else ORIGINAL_FAILS


def inputs_text(valid: ValidBinding, distribution: Distribution) -> str:
    """The inputs of a case as text, for the list of skipped comparisons."""
    return f"{distribution} inputs at {describe(valid.binding)}"


def _same_feeds(a: Feeds, b: Feeds) -> bool:
    return list(a) == list(b) and all(identical(a[name], b[name]) for name in a)
