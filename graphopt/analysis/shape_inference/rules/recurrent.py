"""RNN, GRU and LSTM."""

from __future__ import annotations

from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import Dim


@shape_rule("GRU", "LSTM", "RNN")
def recurrent(node: NodeFacts) -> list[Fact]:
    """Y, Y_h and, for LSTM, Y_c; R is [directions, gates · hidden, hidden]."""
    recurrence = node.shape(2)
    return recurrent_facts(node, None if recurrence is None else recurrence[2])


def recurrent_facts(node: NodeFacts, width: Dim | None) -> list[Fact]:
    """The facts of a recurrent operator's outputs.

    Y is [sequence, directions, batch, hidden]; with ``layout`` 1, the batch dim is first. The states have
    no sequence dim.

    Args:
        width: the hidden size of the weights, for nodes without the attribute.
    """
    dtype = node.dtype(0)
    directions = 2 if node.attr_str("direction", "forward") == "bidirectional" else 1
    hidden: Dim = node.attr_int("hidden_size", 0)
    if not hidden:
        hidden = node.fresh("hidden") if width is None else width
    x = node.shape(0) or node.fresh_shape(3)
    if node.attr_int("layout", 0):
        batch, sequence = x[:2]
        return [
            Fact(dtype, (batch, sequence, directions, hidden)),
            *(Fact(dtype, (batch, directions, hidden)) for _ in range(2)),
        ]
    sequence, batch = x[:2]
    return [
        Fact(dtype, (sequence, directions, batch, hidden)),
        *(Fact(dtype, (directions, batch, hidden)) for _ in range(2)),
    ]
