"""The result of tuning, as text, as JSON, and in the store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from graphopt.errors import ResourceLimit
from graphopt.ort.session_options import SessionChoice
from graphopt.transforms.fusion.fuse_groups import FuseGroups
from graphopt.tuning.measurements import ALONE, Finding, Measurement
from graphopt.tuning.search_space import Variant
from graphopt.tuning.variant_search import TuningDecision
from graphopt.util.disk_store import Store, key_of
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Block, Table, counted, flat, human_seconds, shortened

#: Kind of the entries in the store.
_KIND = "tunings"
#: Number of groups that are likely to be measured in a minute.
_GROUPS_PER_MINUTE = 8
#: Version of the entries and of the decisions.
_FORMAT = 4


@dataclass
class Tuning:
    """The decisions and their circumstances.

    Attributes:
        decision: the best variant, and findings about each group.
        where: device, runtime, processor, threads.
        shapes: the measured shapes, as text.
        measured: number of timed variants.
    """

    decision: TuningDecision
    where: str
    shapes: list[str]
    seconds: float
    measured: int
    stored: bool = False

    @property
    def choice(self) -> SessionChoice:
        """The recommended session options."""
        return self.decision.variant.choice

    @property
    def removed_kernels(self) -> bool:
        """Whether native groups were reverted, or the original model was chosen."""
        return bool(self.kernels_reverted) or self.decision.variant.original

    @property
    def kernels_reverted(self) -> list[Finding]:
        """The reverted native groups."""
        owner = f"{FuseGroups.name} at "
        return [
            finding
            for finding in self.decision.groups
            if any(reverted.startswith(owner) for reverted in finding.reverted)
        ]

    def is_hasty(self, budget: float) -> bool:
        """Whether some groups were not measured, and ``budget``, in seconds, allows more measurements."""
        return budget > 1.5 * self.seconds and any(
            finding.measurement is None for finding in self.decision.groups
        )

    def lines(self) -> Iterator[str]:
        """The result as text."""
        return flat(self._blocks())

    def blocks(self) -> Iterator[Block]:
        """The result as indented lines and a table, for a report."""
        return (f"  {block}" if isinstance(block, str) else block for block in self._blocks())

    def _blocks(self) -> Iterator[Block]:
        yield f"tuned for {self.where}"
        yield f"inputs {'; '.join(self.shapes)}"
        effort = f"{counted(self.measured, 'variant')} timed in {human_seconds(self.seconds)}"
        yield f"{effort}, now from the store (--fresh measures anew)" if self.stored else effort
        yield self.table()
        yield from self._busy()
        yield from self._unmeasured()
        if self.decision.fallback is not None:
            yield self.decision.fallback
        yield self._against_original()
        if not self.choice.plain:
            yield f"recommended session options: {self.choice} (in the metadata; run and bench use them)"
            yield from (f"  {line}" for line in self.choice.python())

    def table(self) -> Table:
        """The findings about each group and each choice of session options."""
        table = Table(["group", "rewrites", "ratio", "band", "", ""], "<>>><<")
        for finding in self._rows():
            measurement, ratio, band = finding.measurement, "–", ""
            if measurement is not None and not measurement.same and measurement.failure is None:
                ratio, band = f"{measurement.ratio:.2f}", _range(measurement)
            count = "" if finding.rewrites is None else f"{finding.rewrites:,}"
            verdict = "kept" if finding.kept else "not used" if finding.rewrites is None else "reverted"
            table.add(finding.name, count, ratio, band, verdict, finding.reason)
        return table

    def _rows(self) -> Iterator[Finding]:
        """The findings; unmeasured ones, and kernels that lost their races, are merged by conclusion."""
        late: dict[tuple[bool, bool, str], list[Finding]] = {}
        for finding in (*self.decision.groups, *self.decision.choices):
            if finding.measurement is not None and not finding.reason.endswith(ALONE):
                yield finding
            else:
                key = (finding.rewrites is None, finding.kept, finding.reason)
                late.setdefault(key, []).append(finding)
        for same in late.values():
            names = shortened((finding.name for finding in same), 3)
            rewrites = None if same[0].rewrites is None else sum(finding.rewrites or 0 for finding in same)
            yield replace(
                same[0],
                name=names,
                rewrites=rewrites,
                measurement=same[0].measurement if len(same) == 1 else None,
            )

    def _busy(self) -> Iterator[str]:
        """A line if measurements were too rough."""
        measurements = (finding.measurement for finding in self.decision.groups)
        widths = [each.band.high for each in measurements if each is not None and each.rough]
        if widths:
            noise = max(widths) - 1
            yield f"the machine is busy: differences up to {noise:.0%} could not be distinguished from noise"

    def _unmeasured(self) -> Iterator[str]:
        """A line with a sufficient budget, if no group was measured, or some kernel was not."""
        groups = self.decision.groups
        late = sum(finding.measurement is None for finding in self.kernels_reverted)
        minutes = max(math.ceil(len(groups) / _GROUPS_PER_MINUTE), int(self.seconds // 60) + 1)
        if groups and all(finding.measurement is None for finding in groups):
            yield f"no group was measured: --budget {minutes}m --fresh leaves time for that"
        elif late:
            kernels = "1 native kernel was" if late == 1 else f"{late} native kernels were"
            yield f"{kernels} not measured, so left out: --budget {minutes}m --fresh leaves time for that"

    def _against_original(self) -> str:
        final = self.decision.final
        if self.decision.variant.original or final is None:
            return "result: the original's own graph"
        if final.same:
            return "result: to onnxruntime the same as the original"
        claim = "faster" if final.pays else "no difference"
        return f"result: {final.ratio:.2f} of the original's time (band {_range(final)}): {claim}"

    def to_dict(self) -> dict[str, Any]:
        decision = self.decision
        return {
            "where": self.where,
            "inputs": self.shapes,
            "seconds": self.seconds,
            "measured": self.measured,
            "stored": self.stored,
            "reverted": sorted(decision.variant.off),
            "original": decision.variant.original,
            "opset": decision.variant.opset,
            "weighed": decision.variant.weighed,
            "groups": [finding.to_dict() for finding in decision.groups],
            "session": [finding.to_dict() for finding in decision.choices],
            "final": None if decision.final is None else decision.final.to_dict(),
            "fallback": decision.fallback,
            "session_options": self.choice.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Tuning:
        """Parse the result of :meth:`to_dict` from the store."""
        choice = SessionChoice.from_dict(data["session_options"])
        decision = TuningDecision(
            Variant(frozenset(data["reverted"]), data["original"], choice, data["opset"], data["weighed"]),
            [Finding.from_dict(item) for item in data["groups"]],
            [Finding.from_dict(item) for item in data["session"]],
            None if data["final"] is None else Measurement.from_dict(data["final"]),
            data["fallback"],
        )
        return cls(decision, data["where"], data["inputs"], data["seconds"], data["measured"], stored=True)


@dataclass(frozen=True)
class StoredTuning:
    """The entry of the store for one model under fixed circumstances.

    Attributes:
        parts: everything that determines the result.
    """

    store: Store
    parts: Sequence[str] = field(default_factory=tuple)

    def recall(self) -> Tuning | None:
        """The stored result; ``None`` without a readable result."""
        data = self.store.get(_KIND, self._key)
        if data is None:
            return None
        try:
            return Tuning.from_dict(json.loads(data))
        except (ValueError, KeyError, TypeError):
            self.store.remove(_KIND, self._key)
            return None

    def keep(self, tuning: Tuning) -> str | None:
        """Store ``tuning``; returns a remark if that fails."""
        try:
            self.store.put(_KIND, json.dumps(tuning.to_dict()).encode(), self._key)
        except ResourceLimit as error:
            return f"the measurements could not be stored: {error.message}"
        return None

    @property
    def _key(self) -> str:
        return key_of(_FORMAT, *self.parts)


def _range(measurement: Measurement) -> str:
    return f"{measurement.band.low:.2f} … {measurement.band.high:.2f}"


def describe(data: Any) -> str:
    """A dataclass as text for keys; equal dataclasses have identical text."""
    return json.dumps(asdict(data), sort_keys=True, default=_sorted)


def _sorted(value: Any) -> Any:
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)
