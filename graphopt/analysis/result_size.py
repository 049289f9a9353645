"""How much a model computes in one run, told without running it."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.dims import typical
from graphopt.analysis.shapes import ShapeFacts
from graphopt.util.budget import Budget

#: Seconds after which the rest of a model is taken to be small.
_PATIENCE = 5.0


def result_bytes(model: ir.Model) -> int:
    """Bytes of all results of one run together, dynamic dims taken as 16; what is unknown counts nothing."""
    facts = ShapeFacts(
        model, constant=ir.constant_of, version=ir.Scopes(model).version, budget=Budget(seconds=_PATIENCE)
    )
    facts.infer_all()
    total = 0
    for graph in ir.graphs_of(model):
        for node in graph:
            for output in node.outputs:
                size = facts.nbytes(output)
                if size is not None and not isinstance(size, int):
                    size = typical(size)
                total += max(0, size or 0)
    return total
