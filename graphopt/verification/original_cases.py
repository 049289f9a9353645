"""The cases of a verifier's original, each kind gathered on first use."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from graphopt.inputs.feeds import Inputs
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.model_runs import Runner
from graphopt.verification.case import Case, Cases
from graphopt.verification.case_gatherer import QUICK, CaseGatherer
from graphopt.verification.empty_cases import empty_cases
from graphopt.verification.numeric_traits import Randomness
from graphopt.verification.random_outputs import share_random_outputs
from graphopt.verification.runners import DIVERGENT_QUICK, Runners


class OriginalCases:
    """The cases of an original.

    Args:
        artifact: the original.
        inputs: generates the feeds; ``None`` if that is impossible.
        original: runs the original.
        runners: creates runners.
        random: the outputs that depend on random numbers.
        seconds: CPU seconds for runs.
        refusal: the reason if the original can't be run.
        limits: ``cost`` and ``work`` as for :class:`~graphopt.verification.case_gatherer.CaseGatherer`.
    """

    def __init__(
        self,
        artifact: Artifact,
        inputs: Inputs | None,
        original: Runner,
        runners: Runners,
        random: Randomness,
        seconds: float,
        refusal: str | None,
        limits: dict[str, Any],
    ) -> None:
        self._artifact, self._inputs, self._original, self._runners = artifact, inputs, original, runners
        self._random, self._seconds, self._refusal, self._limits = random, seconds, refusal, limits
        self._gatherer: CaseGatherer | None = None
        self._cases: Cases | None = None
        self._empty: Cases | None = None
        self._empty_runner: Runner | None = None
        self._of_parts: dict[tuple[str, str], Case] = {}

    def gathered(self) -> Cases:
        """The cases with sizes of at least 1 so far; ordinary inputs at first."""
        if self._cases is None:
            if self._inputs is None or self._refusal is not None:
                self._cases = Cases(refusal=self._refusal)
            else:
                plan = self._runners.memory_plan
                gatherer = CaseGatherer(
                    self._inputs,
                    self._original,
                    random=self._random.varies,
                    seconds=self._seconds,
                    quick=DIVERGENT_QUICK if self._runners.is_divergent else QUICK,
                    is_single=plan.sessions.is_single,
                    **self._limits,
                )
                gatherer.add_ordinary()
                self._gatherer, self._cases = gatherer, gatherer.cases
                share_random_outputs(self._cases.found, self._random)
                if self._cases.found:
                    self._cases.skipped += plan.left_out
        return self._cases

    @property
    def has_further(self) -> bool:
        """Whether there are further distributions whose cases are not added."""
        return self._gatherer is not None and self._gatherer.has_further

    def add_further(self) -> None:
        """Add the cases of further distributions, unless they are added already."""
        if self._gatherer is not None and self._gatherer.has_further:
            self._gatherer.add_further()
            share_random_outputs(self._gatherer.cases.found, self._random)

    def sampled(self) -> list[Case]:
        """Cases of zeros and special values at the smallest sizes, which are not added to the others."""
        return [] if self._gatherer is None else self._gatherer.sampled()

    def empty(self) -> Cases:
        """The cases with dims of size 0."""
        if self._empty is None:
            assert self._inputs is not None
            self._empty = empty_cases(
                self._inputs, self.empty_original(), self.gathered(), random=self._random.varies
            )
        return self._empty

    def empty_original(self) -> Runner:
        """The original for dims of size 0, in a child."""
        if self._empty_runner is None:
            isolated = self._runners.isolated
            source = self._artifact.source
            self._empty_runner = self._original if isolated else self._runners.runner(source, isolated=True)
        return self._empty_runner

    def keep_cases_of_parts(self, cases: Sequence[Case]) -> None:
        """Add the cases of a comparison in parts to :meth:`all`."""
        self._of_parts |= {(case.binding, case.distribution): case for case in cases}

    @property
    def known(self) -> list[Cases]:
        """The cases with sizes of at least 1, and those with dims of size 0, as far as they are gathered."""
        return [cases for cases in (self._cases, self._empty) if cases is not None]

    def all(self) -> list[Case]:
        """All cases of all kinds so far."""
        sample = (self._gatherer and self._gatherer.sample) or []
        return [*chain(*(cases.found for cases in self.known)), *sample, *self._of_parts.values()]
