"""Estimated CPU time of runs of a model, from shapes alone.

A limit on estimated time admits the same comparisons on every machine and under any load. A limit on measured
time does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from graphopt import ir
from graphopt.analysis.cost import cost_of
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import TYPICAL, Dim, number, symbols
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.resource_budget import Budget

#: Operations and bytes per second of CPU time, and seconds per node: approximate figures for one core.
_OPERATIONS, _BYTES, _NODE = 60e9, 8e9, 3e-6
#: Bytes of inferred contents beyond which shapes count as unknown.
_MEMORY = 1 << 28


@dataclass(frozen=True)
class RunCost:
    """Estimated time of a run without optimizations, as a function of the sizes of dynamic dims.

    Attributes:
        operations, traffic: operations, and bytes read and written, of all nodes of known shapes.
        nodes: the number of nodes.
    """

    operations: Dim = 0
    traffic: Dim = 0
    nodes: int = 0

    @classmethod
    def of(cls, model: ir.Model) -> RunCost:
        """The cost of ``model``; every body counts once."""
        facts = ShapeFacts(
            model,
            constant=ir.constant_of,
            version=ir.Scopes(model).version,
            budget=Budget(nbytes=_MEMORY),
        )
        facts.infer_all()
        # equal expressions are added once, because sums of expressions are slow
        operations: Counter[Dim] = Counter()
        traffic: Counter[Dim] = Counter()
        nodes = 0
        for graph in ir.graphs_of(model):
            for node in graph:
                nodes += 1
                if (cost := cost_of(node, facts)) is not None:
                    operations[cost.flops] += 1
                    traffic[cost.bytes] += 1
        return cls(_total(operations), _total(traffic), nodes)

    def seconds(self, sizes: Mapping[str, int]) -> float:
        """The estimate for dynamic dims of these ``sizes``; sizes that depend on data count as typical."""
        found = []
        for amount in (self.operations, self.traffic):
            values = dict.fromkeys(symbols(amount), TYPICAL) | dict(sizes)
            try:
                found.append(max(number(amount, values), 0))
            except ZeroDivisionError:
                found.append(0)
        return found[0] / _OPERATIONS + found[1] / _BYTES + self.nodes * _NODE


def _total(amounts: Counter[Dim]) -> Dim:
    total: Dim = 0
    for amount, count in amounts.items():
        total += amount * count
    return total
