"""What a measurement says about variants, and what becomes of a group because of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from graphopt.timing.ratios import Band, Comparison
from graphopt.tuning.search_space import Group, Variant

#: Why there is no measurement.
LATE = "not measured: no time was left"
#: Bands that reach further hide what one would want to see.
_ROUGH = 1.05
#: Nodes, bytes of weights, and constants; compared in this order.
Size = tuple[int, int, int]


@dataclass(frozen=True)
class Measurement:
    """How a variant compares with the variant of reference, over all shapes.

    Attributes:
        ratio: its time over the other's, the geometric mean over the shapes.
        band: the widest of the bands inside which nothing is claimed.
        faster, slower: it is claimed to be, in some shape; both may be true.
        unsure: there were too few processes to claim what the ratio suggests.
        same: both are the same graph to onnxruntime; nothing was measured.
        failure: why it does not run.
    """

    ratio: float = 1.0
    band: Band = field(default_factory=lambda: Band(1.0, 1.0))
    faster: bool = False
    slower: bool = False
    unsure: bool = False
    same: bool = False
    failure: str | None = None

    @classmethod
    def failed(cls, why: str) -> Measurement:
        """That of a variant that does not run: it counts as slower."""
        return cls(math.inf, slower=True, failure=why)

    @classmethod
    def of(cls, found: Sequence[tuple[Comparison, Band]]) -> Measurement:
        """What the comparisons in several shapes come to."""
        mean = math.exp(sum(math.log(told.ratio) for told, _ in found) / len(found))
        band = Band(min(band.low for _, band in found), max(band.high for _, band in found))
        said = {told.conclusion for told, _ in found}
        return cls(mean, band, "faster" in said, "slower" in said, "too few processes" in said)

    @property
    def claims(self) -> bool:
        """Whether it says, or suggests, that there is a difference."""
        return self.faster or self.slower or self.unsure

    @property
    def rough(self) -> bool:
        """Whether the band is so wide that much could hide in it."""
        return not self.same and self.band.high > _ROUGH

    @property
    def suspicious(self) -> bool:
        """Whether the variant seems slower, though not surely."""
        return not self.slower and not self.same and self.ratio > self.band.high

    def inverse(self) -> Measurement:
        """The same seen from the other side; of a variant without something, what that something does."""
        band = Band(1 / self.band.high, 1 / self.band.low)
        ratio = 0.0 if math.isinf(self.ratio) else 1 / self.ratio
        return Measurement(ratio, band, self.slower, self.faster, self.unsure, self.same, self.failure)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        found = asdict(self)
        found["band"] = [self.band.low, self.band.high]
        return found | {"ratio": self.ratio if math.isfinite(self.ratio) else None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measurement:
        """Read what :meth:`to_dict` made."""
        ratio = math.inf if data["ratio"] is None else data["ratio"]
        return cls(**{**data, "ratio": ratio, "band": Band(*data["band"])})


class Measurer(Protocol):
    """Measures variants; the search knows of models and clocks only through it."""

    def __call__(self, reference: Variant, others: list[Variant], *, thorough: bool) -> list[Measurement]:
        """One measurement for each of ``others``; only ``thorough`` ones claim anything."""

    def known(self, reference: Variant, other: Variant) -> Measurement | None:
        """A measurement that takes no measuring: they are the same, or ``other`` can't be made."""

    def size(self, variant: Variant) -> Size:
        """How large the model is; all zeros if it can't be made."""

    def single(self, variant: Variant) -> list[Group] | None:
        """The groups of single rewrites in a variant; ``None`` if it can't be made."""

    def spent(self) -> float:
        """The share of the budget that is gone, from 0."""


@dataclass(frozen=True)
class Finding:
    """What a group, or a choice of session options, gave.

    Attributes:
        name: what it is called.
        rewrites: how many rewrites; ``None`` for session options.
        measurement: the model with it against the model without it; ``None`` if there was no time for it.
        kept: it is part of the result.
        reason: why, or why not.
        reverted: the rules and passes that are switched off because of it.
    """

    name: str
    rewrites: int | None
    measurement: Measurement | None
    kept: bool
    reason: str
    reverted: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
        """Read what :meth:`to_dict` made."""
        measurement = None if data["reading"] is None else Measurement.from_dict(data["reading"])
        name, rewrites, kept, reason = (data[key] for key in ("name", "rewrites", "kept", "reason"))
        return cls(name, rewrites, measurement, kept, reason, tuple(data["reverted"]))
