"""What an executor has done so far, for those who look into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphopt import ir
from graphopt.executor.plan import Plan
from graphopt.profile import Guard
from graphopt.util.tables import counted


@dataclass(frozen=True)
class PlanState:
    """One plan.

    Attributes:
        name: such as ``static-1``, ``general`` or ``fallback``.
        kind: ``fallback``, ``general`` or ``optimized``.
        guard: what it assumes, in words.
        hits: how often it ran.
        nodes: how many it has.
        kernels: names of the native kernels that it runs.
    """

    name: str
    kind: str
    guard: str
    hits: int
    nodes: int
    kernels: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan, hits: int) -> PlanState:
        """The state of ``plan``, which ran so often."""
        guard = "" if plan.guard == Guard() else str(plan.guard)
        return cls(plan.name, plan.kind, guard, hits, ir.count_nodes(plan.model.graph), plan.kernels)


@dataclass(frozen=True)
class DebugState:
    """An executor at one moment.

    Attributes:
        strategy: how many specializations it makes, and how.
        depth: how many it may still make.
        plans: what can run, the optimized ones in the order in which their guards are asked.
        reasons: why runs took the general plan, and how often; of the first ones also what kept them from the
            plan that was nearest.
        profiled: runs that were recorded for the next specialization.
        compiling: a specialization is being made.
        released: the original was let go.
        kept: why it could not be let go when it was time.
        evicted: how many plans were let go because there were too many.
        failures: specializations that could not be made, and why.
        remarks: why plans run without kernels that they could have.
    """

    strategy: str
    depth: int
    plans: tuple[PlanState, ...]
    reasons: Mapping[str, int]
    profiled: int
    compiling: bool
    released: bool
    kept: str | None
    evicted: int
    failures: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def compiled(self) -> int:
        """How many optimized plans there are."""
        return sum(plan.kind == "optimized" for plan in self.plans)

    def hits(self, name: str) -> int:
        """How often the plan ``name`` ran."""
        return sum(plan.hits for plan in self.plans if plan.name == name)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """In words."""
        yield f"strategy {self.strategy}, {counted(self.depth, 'specialization')} left"
        for plan in self.plans:
            guard = f", where {plan.guard}" if plan.guard else ""
            kernels = f", {counted(len(plan.kernels), 'native kernel')}" if plan.kernels else ""
            runs, nodes = counted(plan.hits, "run"), counted(plan.nodes, "node")
            yield f"{plan.name}: {runs}, {nodes}{kernels}{guard}"
        for reason, count in self.reasons.items():
            yield f"general {count} ×: {reason}"
        yield from (f"not specialized: {failure}" for failure in self.failures)
        yield from self.remarks
        if self.evicted:
            yield f"{counted(self.evicted, 'plan')} let go, whose last run was longest ago"
        if self.compiling:
            yield "a specialization is being made"
        if self.released:
            yield "the original was released"
        if self.kept is not None:
            yield f"the original could not be released: {self.kept}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "strategy": self.strategy,
            "depth": self.depth,
            "plans": [vars(plan) for plan in self.plans],
            "reasons": dict(self.reasons),
            "profiled": self.profiled,
            "compiling": self.compiling,
            "released": self.released,
            "kept": self.kept,
            "evicted": self.evicted,
            "failures": list(self.failures),
            "remarks": list(self.remarks),
        }
