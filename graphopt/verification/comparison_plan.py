"""The comparisons that a limit on estimated time admits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from graphopt.inputs.binding_search import ValidBinding
from graphopt.inputs.value_generator import Distribution
from graphopt.ort.session import Optimizations
from graphopt.util.lazy_dataclass import dataclass

#: Number of onnxruntime's optimization levels that are compared.
LEVELS = 2
#: Number of bindings that are compared regardless of the estimated time.
_BINDINGS = 2
#: Number of distributions for which a binding should leave time.
_KINDS = 8
#: Distributions that are compared at one binding, without optimizations, regardless of the estimated time,
#: because they reveal faults that ordinary values do not: divisions by zero, and lost NaN and infinities.
_ALWAYS: frozenset[Distribution] = frozenset({"zero", "special"})


@dataclass
class ComparisonPlan:
    """The comparisons that a limit on estimated time admits.

    Attributes:
        cost, work: as for :class:`graphopt.verification.case_gatherer.CaseGatherer`.
        spent: estimated seconds of the comparisons so far.
        admitted: distributions of further cases that are compared.
    """

    cost: Callable[[Mapping[str, int]], float]
    work: float
    spent: float = 0.0
    admitted: set[Distribution] = field(default_factory=set)

    def charge(self, binding: Mapping[str, int], distribution: Distribution, levels: int) -> None:
        """Count the runs of both models for a case at a number of levels; 0 if its inputs exist already."""
        self.admitted.add(distribution)
        self.spent += 2 * levels * self.cost(binding)

    def admits(self, binding: Mapping[str, int], found: int) -> bool:
        """Whether to compare a further binding, after ``found`` ones.

        Two bindings are always admitted, and more of them if all together take at most half of the time.
        """
        needed = 2 * LEVELS * (found + 1) * self.cost(binding)
        return found < _BINDINGS or needed <= self.work / 2

    def ordinary_levels(self, found: Sequence[ValidBinding]) -> list[tuple[Optimizations, ...]]:
        """For each binding, the levels at which its ordinary inputs are compared, and count their runs.

        If both levels at all bindings take too long, the first binding is compared without optimizations, and
        the second one in default sessions. A fault of the graph appears at both levels; a fault that
        onnxruntime's optimizer causes is more likely at the second binding, which has no size of 1.
        """
        levels: list[tuple[Optimizations, ...]] = [("off", "default")] * len(found)
        needed = sum(2 * LEVELS * self.cost(valid.binding) for valid in found)
        if len(found) > 1 and needed > self.work:
            levels[:2] = [("off",), ("default",)]
        for valid, some in zip(found, levels, strict=True):
            self.charge(valid.binding, "normal", len(some))
        return levels

    def affordable(self, binding: Mapping[str, int], distribution: Distribution) -> int:
        """The number of levels at which one more case may be compared; a single one has no optimizations."""
        step = 2 * self.cost(binding)
        least = int(distribution in _ALWAYS - self.admitted)
        return next((levels for levels in (LEVELS, 1) if self.spent + levels * step <= self.work), least)

    @property
    def repeats_values(self) -> bool:
        """Whether further distributions are compared at more than one binding.

        They are, unless the time is limited: the faults that they reveal hardly depend on sizes.
        """
        return self.work == math.inf

    def sorted_for_values(self, found: Sequence[ValidBinding]) -> Sequence[ValidBinding]:
        """The bindings for further distributions, the preferred one last.

        That is the last one found if it leaves time for several distributions, otherwise the cheapest one.
        """
        if self.spent + 2 * _KINDS * self.cost(found[-1].binding) <= self.work:
            return found
        return sorted(found, key=lambda valid: -self.cost(valid.binding))
