"""Comparison of a predicted placement with that of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from graphopt.ort.devices import CPU
from graphopt.placement.prediction import NodePlacement, Prediction
from graphopt.util.lazy_dataclass import dataclass

#: The session configuration entry that makes onnxruntime record the placement.
RECORDING = ("session.record_ep_graph_assignment_info", "1")

_Key = tuple[str, str]


@dataclass(frozen=True)
class Difference:
    """Nodes for which the prediction and the session differ.

    Attributes:
        node: the name of the nodes; ``""`` for all nodes of the operator that are not matched by name.
        op_type: their operator.
        predicted, found: the number of nodes on the CPU in the prediction and in the session.
        nodes: the number of nodes in the prediction and in the session.
    """

    node: str
    op_type: str
    predicted: int
    found: int
    nodes: tuple[int, int]

    def __str__(self) -> str:
        name = f"{self.op_type} {self.node}".rstrip()
        predicted, found = (
            f"{count} of {total}"
            for count, total in zip((self.predicted, self.found), self.nodes, strict=True)
        )
        return f"{name}: {predicted} predicted on the CPU, {found} found there"


def compare_placement(session: Any, prediction: Prediction, *, optimized: bool = False) -> list[Difference]:
    """The differences between ``prediction`` and the placement in ``session``.

    Nodes are paired by name and operator. All other nodes, such as those of inlined functions, are counted by
    operator.

    Args:
        session: an ``onnxruntime.InferenceSession`` with the configuration entry :data:`RECORDING`.
        prediction: the prediction for the same model.
        optimized: whether onnxruntime optimized the graph. Then only nodes with the same name and operator
            are compared, because it removes and adds nodes.
    """
    predicted, found = _by_name(_predicted(prediction)), _by_name(_found(session))
    differences: list[Difference] = []
    common = [
        key
        for key in predicted
        if key in found and predicted[key].total() == found[key].total() and (key[0] or not optimized)
    ]
    for key in common:
        differences += _difference(key, predicted.pop(key), found.pop(key))
    if optimized:
        return differences
    own, other = _by_operator(predicted), _by_operator(found)
    for op_type in dict.fromkeys([*own, *other]):
        differences += _difference(("", op_type), own.get(op_type, Counter()), other.get(op_type, Counter()))
    return differences


def _predicted(prediction: Prediction) -> Iterator[tuple[_Key, bool]]:
    for node in prediction.nodes:
        yield (_name(node), node.op_type), not node.on_device


def _name(node: NodePlacement) -> str:
    return "" if node.node.startswith(f"{node.op_type}(") else node.node


def _found(session: Any) -> Iterator[tuple[_Key, bool]]:
    for part in session.get_provider_graph_assignment_info():
        on_cpu = part.ep_name == CPU.capabilities.provider
        for node in part.get_nodes():
            yield (node.name, node.op_type), on_cpu


def _by_name(nodes: Iterator[tuple[_Key, bool]]) -> dict[_Key, Counter[bool]]:
    """The number of nodes by name and operator, on the CPU and elsewhere."""
    found: dict[_Key, Counter[bool]] = {}
    for key, on_cpu in nodes:
        found.setdefault(key, Counter())[on_cpu] += 1
    return found


def _by_operator(nodes: dict[_Key, Counter[bool]]) -> dict[str, Counter[bool]]:
    found: dict[str, Counter[bool]] = {}
    for (_, op_type), counts in nodes.items():
        found.setdefault(op_type, Counter()).update(counts)
    return found


def _difference(key: _Key, own: Counter[bool], other: Counter[bool]) -> Iterator[Difference]:
    if own != other:
        name, op_type = key
        yield Difference(name, op_type, own[True], other[True], (own.total(), other.total()))
