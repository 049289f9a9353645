"""Measure variants by the timing harness."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from graphopt.errors import GraphoptError
from graphopt.timing.alternating_runs import RaceLimits, Setup
from graphopt.timing.compare_speed import compare_speed
from graphopt.timing.ratios import Band, Comparison, claims_are_nearly_final
from graphopt.tuning.measurements import Measurement, Size
from graphopt.tuning.search_space import Group, Variant
from graphopt.tuning.variant_builder import VariantBuilder

#: (seconds of a run, bytes of weights, number of models): this many models are measured together if a run
#: takes longer, or the weights are larger.
_SLOW = ((1.0, 1 << 31, 1), (0.2, 1 << 29, 2), (0.05, 1 << 27, 4))
_MANY = 8
#: Rounds, processes and warm-up runs of a screening, and of a measurement that supports claims.
_SCREENING, _THOROUGH = (12, 3, 2), (40, 7, 3)
#: Minimum seconds of a thorough measurement over all shapes, regardless of the remaining budget.
_LEAST_SECONDS = 30.0

_REFERENCE = "reference"

#: Receives a description of the current measurement, and the spent share of the budget.
Progress = Callable[[str, float], None]


class HarnessMeasurer:
    """Builds and measures variants; see :class:`graphopt.tuning.measurements.Measurer`.

    Args:
        setups: settings of the sessions for each set of shapes.
        seconds: seconds of one run of the original.
        budget: seconds for all measurements.
        excluded: seconds until now that do not count, because kernels were built.

    Attributes:
        measured: number of measured variants.
    """

    def __init__(
        self,
        builder: VariantBuilder,
        setups: Sequence[Setup],
        seconds: float,
        budget: float,
        progress: Progress,
        excluded: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._builder = builder
        self._setups = list(setups)
        size = builder.size(Variant(original=True))[1]
        self._together = next((most for slow, large, most in _SLOW if seconds > slow or size > large), _MANY)
        self._budget = max(budget, 1e-3)  # the smallest budget still measures the result
        self._report = progress
        self._excluded = excluded
        self._excluded_before = excluded()
        self._begin = time.monotonic()
        self.measured = 0

    def spent(self) -> float:
        excluded = self._excluded() - self._excluded_before
        return (time.monotonic() - self._begin - excluded) / self._budget

    def __call__(self, reference: Variant, others: list[Variant], *, thorough: bool) -> list[Measurement]:
        measurements: list[Measurement | None] = [self.known(reference, other) for other in others]
        waiting = [index for index, measurement in enumerate(measurements) if measurement is None]
        for start in range(0, len(waiting), self._together):
            batch = waiting[start : start + self._together]
            found = self._measure(reference, [others[index] for index in batch], thorough)
            for index, measurement in zip(batch, found, strict=True):
                measurements[index] = measurement
        return [measurement for measurement in measurements if measurement is not None]

    def known(self, reference: Variant, other: Variant) -> Measurement | None:
        self._report("making variants", self.spent())
        try:
            return Measurement(same=True) if self._builder.same(reference, other) else None
        except GraphoptError as error:
            return Measurement.failed(error.message)

    def size(self, variant: Variant) -> Size:
        try:
            return self._builder.size(variant)
        except GraphoptError:
            return (0, 0, 0)

    def single_rewrite_groups(self, variant: Variant) -> list[Group] | None:
        try:
            return self._builder.kernels(variant)
        except GraphoptError:
            return None

    def _measure(self, reference: Variant, others: Sequence[Variant], thorough: bool) -> list[Measurement]:
        rounds, processes, warmup = _THOROUGH if thorough else _SCREENING
        left = self._budget * max(0.0, 1 - self.spent())
        seconds = max(left / 2, _LEAST_SECONDS) if thorough else self._budget / 4
        limits = RaceLimits(rounds, processes, warmup, seconds / len(self._setups))
        variants = {_REFERENCE: reference, **{str(number): other for number, other in enumerate(others)}}
        sources = {name: self._builder.path(variant) for name, variant in variants.items()}
        choices = {name: self._builder.choice(variant) for name, variant in variants.items()}
        text = f"timing {len(others)} × {'thoroughly' if thorough else 'briefly'}"
        self._report(text, self.spent())
        found: list[list[tuple[Comparison, Band]]] = [[] for _ in others]
        try:
            for setup in self._setups:
                compared = self._compare(sources, replace(setup, choices=choices), limits, text)
                for series, comparison in zip(found, compared, strict=True):
                    series.append(comparison)
        except GraphoptError as error:
            if len(others) == 1:
                return [Measurement.failed(error.message)]
            return [self._measure(reference, [other], thorough)[0] for other in others]
        self.measured += len(others)
        return [Measurement.of(series) for series in found]

    def _compare(
        self, sources: dict[str, Path], setup: Setup, limits: RaceLimits, text: str
    ) -> list[tuple[Comparison, Band]]:
        timing = compare_speed(
            sources,
            setup,
            limits,
            lambda done: self._report(text, self.spent()),
            enough=claims_are_nearly_final,
        )
        comparisons = [timing.speeds[name].comparison for name in sources if name != _REFERENCE]
        return [(comparison, timing.band) for comparison in comparisons if comparison is not None]
