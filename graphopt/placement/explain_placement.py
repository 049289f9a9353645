"""Remedies for nodes on the CPU and for copies: changes by graphopt's passes, opsets, and types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from graphopt import ir
from graphopt.placement.compare_placement import Difference
from graphopt.placement.operator_remedies import OPERATOR_REMEDIES
from graphopt.placement.prediction import Cause, Copy, NodePlacement, Prediction
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ExplainedCopy:
    """A copy, with its reason and remedy.

    Attributes:
        copy: the copy.
        reason: the property of the producer or of a reader that requires it.
        remedy: a change that removes it, if one is known.
    """

    copy: Copy
    reason: str
    remedy: str | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.copy.to_dict(), "reason": self.reason, "remedy": self.remedy}


@dataclass(frozen=True)
class PlacementExplanation:
    """The placement of a model on a device, before and after ``-O3``.

    Attributes:
        device: the name of the device.
        original: the predicted placement of the model.
        optimized: the one after ``-O3``.
        on_cpu: the nodes on the CPU, with remedies.
        copies: the copies.
        differences: the differences to a session; ``None`` without a session.
    """

    device: str
    original: Prediction
    optimized: Prediction
    on_cpu: tuple[NodePlacement, ...]
    copies: tuple[ExplainedCopy, ...]
    differences: tuple[Difference, ...] | None = None

    def within(self, scope: str) -> PlacementExplanation:
        """The nodes and copies of the node or scope ``scope``."""

        def concerns(name: str) -> bool:
            return ir.is_within(name, scope)

        return replace(
            self,
            on_cpu=tuple(node for node in self.on_cpu if any(map(concerns, (node.node, *node.origins)))),
            copies=tuple(one for one in self.copies if any(map(concerns, _ends(one.copy)))),
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        after = self.optimized
        return {
            "device": self.device,
            "onnxruntime": self.original.version,
            "nodes": len(self.original.nodes),
            "on_cpu": [node.to_dict() for node in self.on_cpu],
            "copies": [copy.to_dict() for copy in self.copies],
            "optimized": {
                "nodes": len(after.nodes),
                "on_cpu": len(after.on_cpu),
                "copies": len(after.copies),
            },
            "differences": None if self.differences is None else [str(one) for one in self.differences],
        }


def explain_placement(device: str, original: Prediction, optimized: Prediction) -> PlacementExplanation:
    """The nodes on the CPU and the copies of ``original``, with remedies.

    Nodes of the two predictions are paired by their origins.
    """
    after = {node.node: node for node in optimized.nodes}
    on_cpu = _names(optimized.on_cpu)
    on_device = _names(node for node in optimized.nodes if node.on_device)
    command = f"graphopt optimize MODEL -O3 --device {device.lower()}"

    def remedy(node: NodePlacement) -> str | None:
        if _has_own_remedy(node):
            return OPERATOR_REMEDIES[node.domain, node.op_type]
        if not on_cpu.isdisjoint(node.origins):
            return node.remedy
        return f"{command} {'removes it' if on_device.isdisjoint(node.origins) else 'runs it on the device'}"

    nodes = {node.node: node for node in original.nodes}
    remaining = {
        to_host: _names(
            after[name] for copy in optimized.copies if copy.to_host == to_host for name in _ends(copy)
        )
        for to_host in (False, True)
    }

    def explained(copy: Copy) -> ExplainedCopy:
        at_fault = next((nodes[name] for name in _ends(copy) if not nodes[name].on_device), None)
        origins = _names(nodes[name] for name in _ends(copy))
        how = None if at_fault is None else remedy(at_fault)
        if remaining[copy.to_host].isdisjoint(origins) and not _has_own_remedy(at_fault):
            how = f"{command} removes it"
        return ExplainedCopy(copy, _reason(copy, at_fault, nodes), how)

    return PlacementExplanation(
        device,
        original,
        optimized,
        tuple(replace(node, remedy=remedy(node)) for node in original.on_cpu),
        tuple(map(explained, original.copies)),
    )


def _has_own_remedy(node: NodePlacement | None) -> bool:
    return node is not None and (node.domain, node.op_type) in OPERATOR_REMEDIES


def _ends(copy: Copy) -> tuple[str, ...]:
    return (*(() if copy.producer is None else (copy.producer,)), *copy.readers, *copy.host_readers)


def _names(nodes: Iterable[NodePlacement]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in node.origins)


def _reason(copy: Copy, at_fault: NodePlacement | None, nodes: dict[str, NodePlacement]) -> str:
    if at_fault is None and copy.producer is not None and not copy.to_host:
        return f"the kernel of {nodes[copy.producer].op_type} keeps it in host memory"
    if at_fault is None:
        reader = copy.readers[0] if copy.to_host else copy.host_readers[0]
        return f"the kernel of {nodes[reader].op_type} reads it from host memory"
    if at_fault.cause is Cause.SIZES:
        return f"{at_fault.op_type} computes with sizes on the CPU"
    return f"{at_fault.op_type} runs on the CPU"
