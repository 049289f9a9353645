"""Which fused operator attention becomes, if any: the table of costs decides (docs/cost.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Dim
from graphopt.cost import Decision
from graphopt.rewrite import Match

MULTI_HEAD, STANDARD, GROUPED = "MultiHeadAttention", "Attention", "GroupQueryAttention"


@dataclass(frozen=True)
class Workload:
    """What attention computes.

    Attributes:
        keys: how many.
        dtype: of queries, keys and values.
        masked: something is added to the scores, or hides some.
        causal: the keys behind each query are hidden, by what the operators know without a mask.
        shared: several heads share keys and values.
        heads: of queries.
    """

    keys: Dim
    dtype: ir.DataType | None
    masked: bool
    causal: bool
    shared: bool
    heads: Dim = None

    @property
    def case(self) -> str:
        """The case of the table that comes nearest."""
        if self.shared:
            return "grouped"
        if self.heads == 1:
            return "one head"
        return "mask" if self.masked else "causal" if self.causal else ""


def choose(m: Match, at: ir.Value, possible: Sequence[str], work: Workload) -> Decision:
    """The fastest of the operators that are possible, or none if none is faster than what is there.

    Where native kernels follow, scores that something is added to are left to them: the operators compute a
    softmax whose powers underflow where scores are masked, which takes nine times as long.

    Args:
        at: the value that reports name.
    """
    if m.cx.options.kernels and work.masked and not work.shared:
        return Decision(None, None, "a native kernel adds the mask and computes the softmax faster")
    return m.cx.weigh(*possible, by=m.rule, at=[at], case=work.case, dtype=work.dtype, length=work.keys)
