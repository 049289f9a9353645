"""RNN, GRU and LSTM."""

from __future__ import annotations

from graphopt.analysis.dims import Dim
from graphopt.analysis.facts import Fact
from graphopt.analysis.node_facts import NodeFacts, shape_rule


@shape_rule("GRU", "LSTM", "RNN")
def recurrent(given: NodeFacts) -> list[Fact]:
    """Y, Y_h and, for LSTM, Y_c.

    Y is sequence, directions, batch, hidden; with ``layout`` 1 batch comes first. The states have
    no sequence dim.
    """
    dtype = given.dtype(0)
    directions = 2 if given.attr_str("direction", "forward") == "bidirectional" else 1
    recurrence = given.shape(2)
    hidden: Dim = given.attr_int("hidden_size", 0)
    if not hidden:
        hidden = given.fresh("hidden") if recurrence is None else recurrence[2]
    x = given.shape(0) or given.fresh_shape(3)
    if given.attr_int("layout", 0):
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
