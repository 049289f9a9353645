"""Whether a fused operator, with what brings tensors into form for it, saves operators."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.rewrite import Match
from graphopt.rules.support import forms

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
    return forms.perm_of(m, reader) == (0, 2, 1, 3)
