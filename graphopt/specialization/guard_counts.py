"""Count how often the guards inside of a model hold, by an additional output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphopt import ir
from graphopt.model_arguments import copy
from graphopt.ops import graphopt_operators
from graphopt.specialization.export_body_values import export_body_value
from graphopt.util.fork_safe_lock import ForkSafeLock
from graphopt.util.lazy_dataclass import dataclass

#: Operators whose nodes can return values of their bodies as outputs.
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


@dataclass(frozen=True)
class GuardCount:
    """The checks of one guarded group.

    Attributes:
        group: the name of the first result of the group.
        hits: how often its assumptions held, so that the specialized version ran.
        misses: how often they did not.
    """

    group: str
    hits: int
    misses: int


class GuardCounter:
    """The counts of the guards of one model, in runs with an additional output. Thread-safe.

    Attributes:
        output: the name of that output, the last one: a vector with the hits and the checks of each guard in
            a run.
    """

    def __init__(self, output: str, groups: list[str]) -> None:
        self.output = output
        self._groups = groups
        self._totals = np.zeros((len(groups), 2), np.int64)
        self._lock = ForkSafeLock()

    def add(self, counts: np.ndarray) -> None:
        """Add the value of the output of one run."""
        with self._lock:
            self._totals += counts.reshape(-1, 2)

    @property
    def counts(self) -> tuple[GuardCount, ...]:
        """The counts of all runs, in the order of the guards."""
        with self._lock:
            totals = self._totals.tolist()
        return tuple(
            GuardCount(group, hits, checks - hits)
            for group, (hits, checks) in zip(self._groups, totals, strict=True)
        )


class CountedModel(NamedTuple):
    """A model with the additional output of ``counter``."""

    model: ir.Model
    counter: GuardCounter


def count_guards(model: ir.Model) -> CountedModel | None:
    """A copy of ``model`` that counts its guards; ``None`` if it has no guards outside of functions."""
    if next(_guards(model), None) is None:
        return None
    counted = copy(model)
    edit, groups, vectors = ir.Editor(counted), list[str](), list[ir.Value]()
    for graph, node in list(_guards(counted)):
        condition = node.inputs[0]
        assert condition is not None
        groups.append(node.outputs[0].name or "")
        vectors.append(export_body_value(edit, _vector(edit, condition, graph), graph, 2, total=True))
    whole = edit.make_node("Concat", vectors, {"axis": 0}, name="guard_counts")
    edit.append(counted.graph, whole)
    found = whole.outputs[0]
    found.type, found.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([2 * len(groups)])
    edit.add_output(counted.graph, found)
    return CountedModel(counted, GuardCounter(found.name or "", groups))


def _guards(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node]]:
    """The Ifs that choose versions of groups, with their graphs."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        for node in graph:
            if graphopt_operators.guarded_branch(node) is not None:
                yield graph, node
            if node.domain == "" and node.op_type in _CONTROL_FLOW and _returns_all(node):
                pending.extend(ir.bodies(node))


def _returns_all(node: ir.Node) -> bool:
    """Whether ``node`` has an output for each output of its bodies, and one can be appended."""
    missing = 1 if node.op_type == "Loop" else 0
    return all(len(body.outputs) - missing == len(node.outputs) for body in ir.bodies(node))


def _vector(edit: ir.Editor, condition: ir.Value, graph: ir.Graph) -> ir.Value:
    """A vector: 1 if ``condition`` is true, else 0; and 1 for the check itself."""
    one = edit.constant(graph, np.array([1]), "one_check")
    number = edit.make_node("Cast", [condition], {"to": ir.DataType.INT64}, name="guard_holds")
    vector = edit.make_node("Reshape", [number.outputs[0], one], name="guard_holds_vector")
    both = edit.make_node("Concat", [vector.outputs[0], one], {"axis": 0}, name="guard_count")
    for node in (number, vector, both):
        edit.append(graph, node)
    return both.outputs[0]
