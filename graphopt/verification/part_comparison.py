"""Compare two models part by part, on the original's values, if they do not fit into memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from graphopt import ir
from graphopt.errors import ResourceLimit
from graphopt.inputs.feeds import Feeds, Inputs
from graphopt.numerics import Numerics
from graphopt.ort.model_runs import RemoteRuns, Runner, SessionMemory
from graphopt.ort.session import Optimizations
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted
from graphopt.verification.candidate_comparison import CandidateComparison, absolute_rounding
from graphopt.verification.case import Case
from graphopt.verification.case_gatherer import CaseGatherer
from graphopt.verification.model_parts import Part, Region, split_in_parts, types_of
from graphopt.verification.numeric_traits import numeric_traits_of, randomness_of
from graphopt.verification.output_comparison import largest_deviations, nbytes
from graphopt.verification.runners import Runners
from graphopt.verification.session_memory import Room
from graphopt.verification.verdict import Row, Skipped

#: Bytes of the values of all cases at all cuts, beyond which they are not kept.
_KEPT = 1 << 28

#: Creates the runner of a serialized part.
MakeRunner = Callable[[bytes, SessionMemory], Runner]


def compare_in_parts(
    original: ir.Model,
    candidate: ir.Model,
    inputs: Inputs | None,
    numerics: Numerics,
    seconds: float,
    runners: Runners,
    **limits: Any,
) -> PartsCompared:
    """Compare models whose sessions do not fit into memory, even without optimizations.

    Args:
        original, candidate: models with the same inputs and outputs.
        inputs: generates the feeds of the original; ``None`` if that is impossible.
        numerics: class of the rewrites.
        seconds: CPU seconds for runs of the original.
        runners: creates runners, and has the plan that refuses whole models.
        limits: ``cost`` and ``work`` as for :class:`~graphopt.verification.case_gatherer.CaseGatherer`.
    """
    plan = runners.memory_plan
    reason = plan.refusal or ""
    room = plan.room

    def make(source: bytes, memory: SessionMemory) -> Runner:
        return runners.runner(source, isolated=True, is_candidate=True, memory=memory)

    models = None if room is None else PartedModels.of(original, candidate, room, make)
    if inputs is None or models is None:
        return PartsCompared([], [], reason)
    return models.compare(inputs, numerics, seconds, reason, **limits)


def parts_refusal(original: ir.Model, inputs: Inputs | None, runners: Runners) -> str | None:
    """The reason why ``original`` can't be compared in parts with a model that has all its values."""
    plan = runners.memory_plan
    if inputs is None or plan.room is None or randomness_of(original).draws:
        return plan.refusal
    return plan.refusal if split_in_parts(original, original, plan.room.fits) is None else None


class PartsCompared(NamedTuple):
    """The comparisons, the skipped ones, the reason if nothing was compared, and the cases."""

    rows: list[Row]
    skipped: list[Skipped]
    refusal: str | None = None
    cases: Sequence[Case] = ()


@dataclass(frozen=True)
class PartedModels:
    """The original and a candidate, in parts that fit into memory one at a time.

    Attributes:
        parts: the parts.
        outputs: names of the models' outputs.
        room: memory for one session.
        make: creates runners; the start of one runner's process ends those of the others.
    """

    parts: Sequence[Part]
    outputs: Sequence[str]
    room: Room
    make: MakeRunner

    @classmethod
    def of(cls, original: ir.Model, candidate: ir.Model, room: Room, make: MakeRunner) -> PartedModels | None:
        """The parts; ``None`` if there are none that fit, or the original draws random numbers."""
        if randomness_of(original).draws:
            return None
        parts = split_in_parts(original, candidate, room.fits)
        if parts is None:
            return None
        return cls(parts, [value.name or "" for value in original.graph.outputs], room, make)

    def compare(
        self, inputs: Inputs, numerics: Numerics, seconds: float, reason: str, **limits: Any
    ) -> PartsCompared:
        """Compare all parts without onnxruntime's optimizations.

        Args:
            inputs: generates the feeds of the whole model.
            numerics: class of the rewrites.
            seconds: CPU seconds for runs of the original.
            reason: the reason why the models do not run as a whole.
            limits: ``cost`` and ``work`` as for :class:`~graphopt.verification.case_gatherer.CaseGatherer`.
        """
        original = _PartedOriginal(self)
        gatherer = CaseGatherer(inputs, original, random=False, seconds=seconds, is_single=True, **limits)
        gatherer.add_ordinary()
        gatherer.add_further()
        cases = gatherer.cases
        if cases.crash is not None:
            raise cases.crash
        if cases.refusal is not None:
            return PartsCompared([], cases.skipped, cases.refusal)
        rows = [Row(case.binding, case.distribution, "off", 0.0, "", True, None) for case in cases.found]
        rows = [replace(row, identical=True) for row in rows]
        for number, part in enumerate(self.parts, 1):
            compared = self._compare_part(part, cases.found, original, numerics)
            found = {(row.binding, row.distribution): row for row in compared}
            where = f"in part {number} of {len(self.parts)}, which computes {_listed(part.names)}"
            joined = [_joined(row, found.get((row.binding, row.distribution)), where) for row in rows]
            rows = [row for row in joined if row is not None]
        parts = counted(len(self.parts), "part")
        skipped = [
            Skipped("runs of whole models", "memory", f"{reason}; compared in {parts}"),
            Skipped("default sessions", "memory", "parts run without optimizations"),
        ]
        return PartsCompared(rows, [*cases.skipped, *skipped], cases=cases.found)

    def _compare_part(
        self, part: Part, cases: Sequence[Case], original: _PartedOriginal, numerics: Numerics
    ) -> list[Row]:
        fed = [original.values(case.feeds) for case in cases]
        own = []
        for case, values in zip(cases, fed, strict=True):
            off = [values[name] for name in part.names]
            noise = [largest_deviations(value, value) for value in off]
            own.append(Case(case.binding, case.distribution, {**case.feeds, **values}, off, None, noise))
        model = part.original.to_model(types_of(fed[0]))
        traits = numeric_traits_of(model)
        pairs = zip(model.graph.outputs, traits, strict=True)
        comparison = CandidateComparison(
            part.names,
            self.runner(part.candidate, fed[0]),
            numerics,
            traits,
            [absolute_rounding(value, trait.coarsest) for value, trait in pairs],
            self.runner(part.original, fed[0]),
            draws_random=False,
        )
        rows = comparison.rows(own)
        if isinstance(comparison.candidate, RemoteRuns):
            comparison.candidate.rest()
        return rows

    def runner(self, region: Region, values: Mapping[str, Any]) -> Runner:
        """Runs a region without optimizations; ``values`` has examples of the values at cuts."""
        source = region.to_source(types_of(values))
        memory = SessionMemory(True, self.room.prepacks(region.weights), "parts run without optimizations")
        return self.make(source, memory)


class _PartedOriginal:
    """Runs the original part by part, and keeps the values at cuts; a :class:`Runner`."""

    def __init__(self, models: PartedModels) -> None:
        self.seconds: float | None = None
        self.spent = 0.0
        self._models = models
        self._runners: list[Runner] = []
        self._known: list[tuple[Feeds, dict[str, Any]]] = []

    def load(self, level: Optimizations) -> None:
        """Sessions are created by the first run, because the types at cuts are unknown before."""
        if level != "off":
            raise ResourceLimit("parts run without optimizations")

    def run(self, level: Optimizations, feeds: Mapping[str, Any]) -> list[Any]:
        self.load(level)
        values = self.values(feeds)
        return [values[name] for name in self._models.outputs]

    def values(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The values at all cuts, and the outputs, by name; raises RuntimeFailure or ResourceLimit."""
        for given, known in self._known:
            if given is feeds:
                return known
        values: dict[str, Any] = {}
        for number, part in enumerate(self._models.parts):
            if number == len(self._runners):
                self._runners.append(self._models.runner(part.original, values))
            runner = self._runners[number]
            runner.seconds, before = self.seconds, runner.spent
            try:
                results = runner.run("off", {**feeds, **values})
            finally:
                self.spent += runner.spent - before
            values |= dict(zip(part.names, results, strict=True))
        if nbytes([list(known.values()) for _, known in self._known]) < _KEPT:
            self._known.append((dict(feeds) if not isinstance(feeds, dict) else feeds, values))
        return values


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(repr(name) for name in names[:3])
    return few if len(names) <= 3 else f"{few} and {len(names) - 3} more"


def _joined(row: Row, part: Row | None, where: str) -> Row | None:
    """The row of a whole case with the row of one more part.

    ``part`` is ``None`` if that part was not compared, after a crash or for huge inputs. If no fault is known
    from earlier parts, the case has no result.
    """
    if not row.ok:
        return row
    if part is None:
        return None
    if not part.ok:
        return replace(part, reason=f"{part.reason} {where}")
    larger = (part.delta or 0.0) > (row.delta or 0.0)
    return replace(
        part if larger else row,
        reason=row.reason or part.reason,
        identical=row.identical and part.identical,
    )
