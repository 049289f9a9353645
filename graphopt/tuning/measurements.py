"""Measurements of variants, and findings about groups of rewrites."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, field
from typing import Any, Protocol

from graphopt.timing.ratios import Band, Comparison
from graphopt.tuning.search_space import Group, Variant
from graphopt.util.lazy_dataclass import dataclass

#: The reason for a missing measurement.
LATE = "not measured: no time was left"
#: The last word of a conclusion from the race of a single kernel.
ALONE = "alone"
#: Upper end of a band beyond which the band may hide relevant differences.
_ROUGH = 1.05
#: Number of nodes, bytes of weights, and number of constants; compared in this order.
Size = tuple[int, int, int]


@dataclass(frozen=True)
class Measurement:
    """The comparison of a variant with the reference variant over all shapes.

    Attributes:
        ratio: its time over the reference's, the geometric mean over the shapes.
        band: the widest of the bands inside which no difference is claimed.
        faster, slower: whether the difference is claimed for some shape; both may be true.
        unsure: whether there were too few processes for the claim that the ratio suggests.
        same: whether both models have the same graph in onnxruntime, so that nothing was measured.
        failure: the error of a variant that does not run.
    """

    ratio: float = 1.0
    band: Band = field(default_factory=lambda: Band(1.0, 1.0))
    faster: bool = False
    slower: bool = False
    unsure: bool = False
    same: bool = False
    failure: str | None = None

    @classmethod
    def failed(cls, error: str) -> Measurement:
        """The measurement of a variant that does not run, which counts as slower."""
        return cls(math.inf, slower=True, failure=error)

    @classmethod
    def of(cls, found: Sequence[tuple[Comparison, Band]]) -> Measurement:
        """The summary of the comparisons for several shapes."""
        mean = math.exp(sum(math.log(comparison.ratio) for comparison, _ in found) / len(found))
        band = Band(min(band.low for _, band in found), max(band.high for _, band in found))
        claims = {comparison.conclusion for comparison, _ in found}
        return cls(mean, band, "faster" in claims, "slower" in claims, "too few processes" in claims)

    @property
    def claims(self) -> bool:
        """Whether the measurement claims or suggests a difference."""
        return self.faster or self.slower or self.unsure

    @property
    def pays(self) -> bool:
        """Whether the variant is faster for some shape, and slower for none."""
        return self.faster and not self.slower

    @property
    def rough(self) -> bool:
        """Whether the band is so wide that it may hide relevant differences."""
        return not self.same and self.band.high > _ROUGH

    @property
    def suspicious(self) -> bool:
        """Whether the variant seems slower, without a claim."""
        return not self.slower and not self.same and self.ratio > self.band.high

    def inverse(self) -> Measurement:
        """The comparison of the reference with the variant: the effect of rewrites that the variant omits."""
        band = Band(1 / self.band.high, 1 / self.band.low)
        ratio = 0.0 if math.isinf(self.ratio) else 1 / self.ratio
        return Measurement(ratio, band, self.slower, self.faster, self.unsure, self.same, self.failure)

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["band"] = [self.band.low, self.band.high]
        return found | {"ratio": self.ratio if math.isfinite(self.ratio) else None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measurement:
        """Parse the result of :meth:`to_dict`."""
        ratio = math.inf if data["ratio"] is None else data["ratio"]
        return cls(**{**data, "ratio": ratio, "band": Band(*data["band"])})


def conclusion(measurement: Measurement | None) -> str:
    """The conclusion from a measurement, as text."""
    if measurement is None:
        return LATE
    if measurement.failure:
        return measurement.failure
    if measurement.same:
        return "onnxruntime runs the same with and without"
    if measurement.slower or measurement.faster:
        return "slower" if measurement.slower else "faster"
    if measurement.unsure:
        return f"seems {'slower' if measurement.ratio > 1 else 'faster'}, measured briefly"
    return "no difference"


class Measurer(Protocol):
    """Measures variants; the search has access to models and clocks only through it."""

    def __call__(self, reference: Variant, others: list[Variant], *, thorough: bool) -> list[Measurement]:
        """One measurement for each of ``others``; only ``thorough`` measurements claim differences."""

    def known(self, reference: Variant, other: Variant) -> Measurement | None:
        """A result without timing: both variants are the same, or ``other`` can't be built."""

    def size(self, variant: Variant) -> Size:
        """The size of the model; all zeros if it can't be built."""

    def single_rewrite_groups(self, variant: Variant) -> list[Group] | None:
        """The groups of single rewrites in a variant; ``None`` if it can't be built."""

    def spent(self) -> float:
        """The spent share of the budget, from 0."""


@dataclass(frozen=True)
class Finding:
    """The finding about a group, or about a choice of session options.

    Attributes:
        name: name of the group or choice.
        rewrites: number of rewrites; ``None`` for session options.
        measurement: the model with the group or choice against the model without it; ``None`` if the time did
            not suffice.
        kept: whether the group or choice is part of the result.
        reverted: the rules and passes that are disabled because of this finding.
    """

    name: str
    rewrites: int | None
    measurement: Measurement | None
    kept: bool
    reason: str
    reverted: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        measurement = None if self.measurement is None else self.measurement.to_dict()
        return {
            "name": self.name,
            "rewrites": self.rewrites,
            "reading": measurement,
            "kept": self.kept,
            "reason": self.reason,
            "reverted": list(self.reverted),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Finding:
        """Parse the result of :meth:`to_dict`."""
        measurement = None if data["reading"] is None else Measurement.from_dict(data["reading"])
        name, rewrites, kept, reason = (data[key] for key in ("name", "rewrites", "kept", "reason"))
        return cls(name, rewrites, measurement, kept, reason, tuple(data["reverted"]))
