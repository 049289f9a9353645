"""The outcome of each specialization that a profile requested, for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

if TYPE_CHECKING:
    from graphopt.profile import Variant


@dataclass(frozen=True)
class VariantReport:
    """The outcome of a specialization.

    Attributes:
        nodes: its number of nodes; 0 if it failed.
        general: the number of nodes of the general model.
        left_out: the reason for its absence from the result; ``None`` if it is part of the result.
        dropped: harmful rewrites that were removed from the variant.
        ratio: its measured time over that of the general model; ``None`` without ``tune``.
        kernels: names of its native kernels.
    """

    variant: Variant
    nodes: int
    general: int
    left_out: str | None = None
    dropped: tuple[str, ...] = ()
    ratio: float | None = None
    kernels: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.variant.name,
            "guard": self.variant.guard.to_dict(),
            "runs": self.variant.runs,
            "nodes": self.nodes,
            "left_out": self.left_out,
            "dropped": list(self.dropped),
            **({} if self.ratio is None else {"ratio": self.ratio}),
        }


def variant_lines(variants: Sequence[VariantReport], runs: int) -> Iterator[str]:
    """One or two lines per variant."""
    for report in variants:
        serves = f"{report.variant.runs} of {counted(runs, 'run')}"
        if report.left_out is None:
            nodes = f"{counted(report.nodes, 'node')} instead of {report.general:,}"
            speed = "" if report.ratio is None else f", {report.ratio:.2f} × its time"
            yield f"variant   {report.variant.name}: {nodes}{speed}, for {serves}"
            yield f"          where {report.variant.guard}"
        else:
            yield f"variant   {report.variant.name}, for {serves}, left out: {report.left_out}"
        yield from (f"          dropped {drop}" for drop in report.dropped)
