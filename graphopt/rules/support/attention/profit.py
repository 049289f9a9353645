"""Whether fused attention pays: the operator chosen by cost (docs/cost.md), and the nodes that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt import ir
from graphopt.context import Dim
from graphopt.cost import Decision
from graphopt.rewrite import Match
from graphopt.rules.support.axes import perm_of

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
    heads: Dim | None = None

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


#: Two that part rows into heads again, and two that join the heads after them.
_JOINED = 4


def saved_by(m: Match, made: Sequence[ir.Node]) -> int:
    """How many nodes fewer there are once ``made`` stand for the root of ``m``."""
    kept = {value for node in made for value in node.inputs if value is not None}
    gone: dict[ir.Node, None] = {}
    pending = list(m.nodes)
    while pending:
        node = pending.pop()
        if node in gone or (node is not m.root and not _is_idle(node, gone, kept)):
            continue
        gone[node] = None
        producers = [value.producer() for value in node.inputs if value is not None]
        pending += [producer for producer in producers if producer is not None]
    counted = [node for node in (*gone, *made) if node.op_type != "Constant"]
    return 2 * sum(node in gone for node in counted) - len(counted) + (_JOINED if _is_joined(m) else 0)


def _is_idle(node: ir.Node, gone: dict[ir.Node, None], kept: set[ir.Value]) -> bool:
    """Whether only nodes that go read ``node``."""
    return not any(
        value in kept or value.is_graph_output() or any(reader not in gone for reader in ir.readers(value))
        for value in node.outputs
    )


def _is_joined(m: Match) -> bool:
    """Whether the result is only read to be made rows again, which cancels what made heads of it."""
    result = m.root.outputs[0]
    reader = ir.only_reader(result)
    if reader is None or reader.op_type != "Transpose" or reader.domain or result.is_graph_output():
        return False
    return perm_of(m, reader) == (0, 2, 1, 3)
