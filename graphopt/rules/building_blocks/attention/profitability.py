"""Profitability of fused attention: the operator of least cost (docs/cost.md), and the nodes saved."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Dim
from graphopt.cost import Decision
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.axes import perm_of
from graphopt.util.lazy_dataclass import dataclass

MULTI_HEAD, STANDARD, GROUPED = "MultiHeadAttention", "Attention", "GroupQueryAttention"


@dataclass(frozen=True)
class Workload:
    """The properties of an attention that determine its cost.

    Attributes:
        keys: the number of keys.
        dtype: the type of queries, keys and values.
        masked: whether the scores have a bias or mask, other than a causal one.
        causal: whether the causal flag of the operators is set.
        shared: whether several heads share keys and values.
        heads: the number of query heads.
        capped: whether scores are capped by Tanh, for several queries.
    """

    keys: Dim
    dtype: ir.DataType | None
    masked: bool
    causal: bool
    shared: bool
    heads: Dim | None = None
    capped: bool = False

    @property
    def case(self) -> str:
        """The closest case in the table of costs."""
        if self.capped:
            return "capped"
        if self.shared:
            return "grouped"
        if self.heads == 1:
            return "one head"
        return "mask" if self.masked else "causal" if self.causal else ""


def choose(m: Match, at: ir.Value, possible: Sequence[str], work: Workload) -> Decision:
    """The fastest of the operators ``possible``, or none if the existing nodes are faster.

    If native kernels for the CPU are built later, masked float attention without a causal flag becomes
    the operator that has a kernel. Other masked attention remains separate nodes: in the softmax of the
    CPU's operators, the exponentials of masked scores underflow, which makes it nine times slower.

    Args:
        at: the value named in reports.
    """
    is_host = m.cx.options.device.capabilities.is_host
    if is_host and m.cx.options.kernels and work.masked and not work.shared:
        if MULTI_HEAD in possible and work.dtype is ir.DataType.FLOAT and not work.causal:
            return Decision(MULTI_HEAD, None, "a native kernel computes it in blocks of keys")
        return Decision(None, None, "a native kernel adds the mask and computes the softmax faster")
    return m.cx.weigh(*possible, by=m.rule, at=[at], case=work.case, dtype=work.dtype, length=work.keys)


#: Number of nodes: a Reshape and a Transpose split rows into heads, and two more merge the heads again.
_SPLIT_AND_MERGE_NODES = 4


def nodes_saved(m: Match, made: Sequence[ir.Node]) -> int:
    """The number of nodes saved if ``made`` replace the root of ``m``."""
    kept = {value for node in made for value in node.inputs if value is not None}
    removed: dict[ir.Node, None] = {}
    pending = list(m.nodes)
    while pending:
        node = pending.pop()
        if node in removed or (node is not m.root and not _becomes_unused(node, removed, kept)):
            continue
        removed[node] = None
        producers = [value.producer() for value in node.inputs if value is not None]
        pending += [producer for producer in producers if producer is not None]
    counted = [node for node in (*removed, *made) if node.op_type != "Constant"]
    return (
        2 * sum(node in removed for node in counted)
        - len(counted)
        + (_SPLIT_AND_MERGE_NODES if _is_merged_again(m) else 0)
    )


def _becomes_unused(node: ir.Node, removed: dict[ir.Node, None], kept: set[ir.Value]) -> bool:
    """Whether all readers of ``node`` are removed."""
    return not any(
        value in kept or value.is_graph_output() or any(reader not in removed for reader in ir.readers(value))
        for value in node.outputs
    )


def _is_merged_again(m: Match) -> bool:
    """Whether the only reader merges the heads into rows, which cancels their split."""
    result = m.root.outputs[0]
    reader = ir.only_reader(result)
    if reader is None or reader.op_type != "Transpose" or reader.domain or result.is_graph_output():
        return False
    return perm_of(m, reader) == (0, 2, 1, 3)
