"""Snapshots of the state of an executor, for inspection."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from graphopt.diagnostics.hint import Hint
from graphopt.executor.plan import Plan
from graphopt.profile import Guard
from graphopt.specialization.guard_counts import GuardCount
from graphopt.util.html_blocks import html_of
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, Table, counted, human_seconds

#: Maximum length of the text of a pipeline, in characters.
_PIPELINE = 60
#: Number of reasons against guarding nodes that the text lists, for each plan.
_REASONS = 3


@dataclass(frozen=True)
class PlanState:
    """The state of one plan.

    Attributes:
        name: its name, such as ``static-1``, ``general`` or ``fallback``.
        kind: ``fallback``, ``general``, ``profiled`` or ``optimized``.
        guard: its assumptions, as text.
        hits: the number of its runs.
        nodes: its number of nodes.
        kernels: names of its native kernels.
        id: the number of its compilation, which the compile log also has.
        pipeline: the name of its pipeline, or the text of its passes.
        compile_seconds: the duration of its compilation.
        guards: how often the assumptions of its guarded groups of nodes held.
        not_guarded: numbers of nodes that are in no guarded group although profiled, by reason.
    """

    name: str
    kind: str
    guard: str
    hits: int
    nodes: int
    kernels: tuple[str, ...] = ()
    id: int = 0
    pipeline: str = ""
    compile_seconds: float = 0.0
    guards: tuple[GuardCount, ...] = ()
    not_guarded: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, hits: int) -> PlanState:
        """The state of ``plan`` with this number of runs."""
        guard = "" if plan.guard == Guard() else str(plan.guard)
        made = plan.compilation
        return cls(
            plan.name,
            plan.kind,
            guard,
            hits,
            plan.kept.nodes,
            plan.kernels,
            made.id,
            made.pipeline,
            made.seconds,
            () if plan.guards is None else plan.guards.counts,
            dict(made.not_guarded.most_common()),
        )


@dataclass(frozen=True)
class GradientState:
    """The state of the gradients for one set of requested values.

    Attributes:
        requires_grad: the names of the inputs and initializers whose gradients are requested.
        runs: the numbers of backward runs, by the outputs whose cotangents were absent.
    """

    requires_grad: tuple[str, ...]
    runs: tuple[tuple[tuple[str, ...], int], ...]

    def __str__(self) -> str:
        counts = []
        for absent, count in self.runs:
            which = f"without cotangents of {', '.join(absent)}" if absent else "with all cotangents"
            counts.append(f"{counted(count, 'run')} {which}")
        return f"gradients by {', '.join(self.requires_grad)}: {'; '.join(counts) or 'no backward run'}"


@dataclass(frozen=True)
class DebugState:
    """The state of an executor at one moment.

    Attributes:
        strategy: the fusion strategy.
        depth: the number of remaining specializations.
        plans: the plans, the optimized ones first, in the order in which their guards are checked.
        reasons: numbers of runs of the general or the profiled plan, by reason. For the first runs of each
            reason, the text includes the first violated assumption of the nearest plan.
        profiled: the number of runs profiled for the next specialization.
        compiling: whether a specialization is in progress.
        released: whether the original was released.
        kept: the reason why the last attempt to release the original failed.
        evicted: the number of evicted plans.
        runs: the number of successful runs, including those of evicted plans.
        failures: failed specializations, with the reasons.
        remarks: the reasons why plans run without some native kernels, or why values are not watched.
        watched: the number of watched intermediate values.
        left_out: the number of candidates that are not watched.
        watch_runs: the number of additional runs that observed watched values.
        watch_seconds: the total duration of these runs.
        nested_hits: how often the assumptions of guarded groups held, in all plans, including evicted ones.
        nested_misses: how often they did not, so that the general version of the group ran.
        gradients: the state of the gradients for each set of requested values.
        hints: hints about the model, the device and the inputs.
        counters: numbers of events that hints concern, by name.
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
    watched: int = 0
    left_out: int = 0
    watch_runs: int = 0
    watch_seconds: float = 0.0
    runs: int = 0
    nested_hits: int = 0
    nested_misses: int = 0
    gradients: tuple[GradientState, ...] = ()
    hints: tuple[Hint, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def misses(self) -> int:
        """The number of runs that satisfied no guard of a plan."""
        return self.hits("general") + self.hits("profiled")

    @property
    def compiled(self) -> int:
        """The number of optimized plans."""
        return sum(plan.kind == "optimized" for plan in self.plans)

    def hits(self, name: str) -> int:
        """The number of runs of the plan ``name``."""
        return sum(plan.hits for plan in self.plans if plan.name == name)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return html_of(self.blocks())

    def blocks(self) -> Iterator[Block]:
        """The state as a table of plans and lines."""
        yield self._strategy_line
        table = Table(["plan", "runs", "nodes", "native kernels", "compilation", "where"], "<>>>><")
        for plan in self.plans:
            seconds = human_seconds(plan.compile_seconds)
            table.add(plan.name, plan.hits, f"{plan.nodes:,}", len(plan.kernels), seconds, plan.guard)
        if table.rows:
            yield table
        yield from self._rest()

    @property
    def _strategy_line(self) -> str:
        return f"strategy {self.strategy}, {counted(self.depth, 'specialization')} left"

    def lines(self) -> Iterator[str]:
        """The state as lines of text."""
        yield self._strategy_line
        for plan in self.plans:
            guard = f", where {plan.guard}" if plan.guard else ""
            kernels = f", {counted(len(plan.kernels), 'native kernel')}" if plan.kernels else ""
            runs, nodes = counted(plan.hits, "run"), counted(plan.nodes, "node")
            yield f"{plan.name}: {runs}, {nodes}{kernels}{guard}"
            pipeline = textwrap.shorten(plan.pipeline, _PIPELINE, placeholder="…")
            yield f"  compilation {plan.id} by {pipeline} in {human_seconds(plan.compile_seconds)}"
            for inner in plan.guards:
                hits, misses = counted(inner.hits, "hit"), counted(inner.misses, "miss", "misses")
                yield f"  guarded group of {inner.group}: {hits}, {misses}"
            for reason, count in list(plan.not_guarded.items())[:_REASONS]:
                yield f"  {counted(count, 'node')} in no guarded group: {reason}"
        yield from self._rest()

    def _rest(self) -> Iterator[str]:
        """The lines about everything but the plans."""
        if self.nested_hits or self.nested_misses:
            nested = counted(self.nested_misses, "nested miss", "nested misses")
            yield f"all guarded groups: {counted(self.nested_hits, 'nested hit')}, {nested}"
        yield from map(str, self.gradients)
        for reason, count in self.reasons.items():
            yield f"{counted(count, 'run')} without specialization: {reason}"
        yield from (f"not specialized: {failure}" for failure in self.failures)
        yield from self.remarks
        if self.watched or self.left_out or self.watch_runs:
            values = f"{counted(self.watched, 'intermediate value')} watched, {self.left_out} left out"
            runs = f"{counted(self.watch_runs, 'additional run')} in {human_seconds(self.watch_seconds)}"
            yield f"{values}: {runs}" if self.watch_runs else values
        if self.evicted:
            past = counted(self.runs - sum(plan.hits for plan in self.plans), "run")
            yield f"{counted(self.evicted, 'plan')} evicted as least recently used, after {past}"
        if self.compiling:
            yield "a specialization is being made"
        if self.released:
            yield "the original was released"
        if self.kept is not None:
            yield f"the original could not be released: {self.kept}"
        for name, count in self.counters.items():
            yield f"{name}: {count}"
        for hint in self.hints:
            yield f"{hint.message} [{hint.code}]: {hint.remedy}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            **vars(self),
            "misses": self.misses,
            "plans": [
                {**vars(plan), "guards": [vars(inner) for inner in plan.guards]} for plan in self.plans
            ],
            "gradients": [vars(gradient) for gradient in self.gradients],
            "hints": [hint.to_dict() for hint in self.hints],
            "counters": dict(self.counters),
            "reasons": dict(self.reasons),
            "failures": list(self.failures),
            "remarks": list(self.remarks),
        }
