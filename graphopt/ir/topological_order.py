"""Topological order of graphs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from graphopt.errors import InvalidModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import bodies, in_order, with_bodies
from graphopt.ir.provenance import label

T = TypeVar("T", bound=Hashable)

#: Maximum number of nodes named in a message about a cycle.
_NAMED = 6


def sort_model(model: onnx_ir.Model) -> None:
    """Sort every graph that is not in topological order; sorted graphs are unchanged.

    Exporters write unsorted graphs, and onnxruntime loads them.

    Raises:
        InvalidModel: a graph has a cycle; the message names its nodes.
    """
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        if is_sorted(graph):
            continue
        cycle = find_cycle(graph)
        if cycle:
            names = [label(node) for node in cycle[:_NAMED]]
            names.append(names[0] if len(cycle) <= _NAMED else "…")
            raise InvalidModel(f"graph {graph.name or '(unnamed)'!r} has a cycle: {' → '.join(names)}")
        graph.sort()


def is_sorted(graph: onnx_ir.Graph) -> bool:
    """Whether each value in ``graph`` and its bodies is produced before it is read.

    A body reads outer values at the position of its node.
    """
    done: set[onnx_ir.Node] = set()
    for step, _, node in in_order(graph):
        if node is None:
            continue
        if step == "define":
            done.add(node)
        elif step == "read":
            for value in node.inputs:
                producer = value.producer() if value is not None else None
                if producer is not None and producer not in done and producer.graph is not None:
                    return False
    return True


def find_cycle(graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """Nodes of one graph that form a cycle, in order; empty without a cycle."""
    for nested in with_bodies(graph):
        cycle = cycle_of({node: _producers(node) for node in nested})
        if cycle:
            return cycle[::-1]
    return []


def feed_order(needs: Mapping[T, Sequence[T]]) -> list[T]:
    """Sort the items topologically by their ``needs``; items in or after a cycle are omitted."""
    waits = {item: sum(1 for need in found if need in needs) for item, found in needs.items()}
    served: dict[T, list[T]] = {item: [] for item in needs}
    for item, found in needs.items():
        for need in found:
            if need in needs:
                served[need].append(item)
    ordered = [item for item, count in waits.items() if not count]
    for need in ordered:  # ``ordered`` grows during the iteration
        for item in served[need]:
            waits[item] -= 1
            if not waits[item]:
                ordered.append(item)
    return ordered


def cycle_of(edges: Mapping[T, Sequence[T]]) -> list[T]:
    """Items that form a cycle, in order; empty without a cycle."""
    done = frozenset(feed_order(edges))
    # every unsorted item has an edge to an unsorted item, so following edges reaches a cycle
    at = next((item for item in edges if item not in done), None)
    path: dict[T, None] = {}
    while at is not None and at not in path:
        path[at] = None
        at = next(target for target in edges[at] if target in edges and target not in done)
    cycle = list(path)
    return cycle[cycle.index(at) :] if at is not None else []


def _producers(node: onnx_ir.Node) -> list[onnx_ir.Node]:
    """The nodes whose outputs ``node`` or a body of it reads."""
    readers = [node]
    for body in bodies(node):
        for nested in with_bodies(body):
            readers += nested
    values = [value for reader in readers for value in reader.inputs if value is not None]
    return list(dict.fromkeys(producer for value in values if (producer := value.producer()) is not None))
