"""What became of each specialization that a profile called for, for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphopt.util.tables import counted

if TYPE_CHECKING:
    from graphopt.profile import Variant


@dataclass(frozen=True)
class VariantReport:
    """What became of a specialization.

    Attributes:
        variant: what was called for.
        nodes: how many it has; 0 if it failed.
        general: how many the general model has.
        left_out: why the result does not hold it; ``None`` if it does.
        dropped: rewrites that were left out of it because they did harm.
    """

    variant: Variant
    nodes: int
    general: int
    left_out: str | None = None
    dropped: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.variant.name,
            "guard": self.variant.guard.to_dict(),
            "runs": self.variant.runs,
            "nodes": self.nodes,
            "left_out": self.left_out,
            "dropped": list(self.dropped),
        }


def variant_lines(variants: Sequence[VariantReport], runs: int) -> Iterator[str]:
    """A line for each variant, or two."""
    for told in variants:
        serves = f"{told.variant.runs} of {counted(runs, 'run')}"
        if told.left_out is None:
            nodes = f"{told.nodes:,} nodes instead of {told.general:,}"
            yield f"variant   {told.variant.name}: {nodes}, for {serves}"
            yield f"          where {told.variant.guard}"
        else:
            yield f"variant   {told.variant.name}, for {serves}, left out: {told.left_out}"
        yield from (f"          dropped {drop}" for drop in told.dropped)
