"""Groups of all nodes with kernels, profitable or not."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.fusion.group_functions import kernels_of, note_signatures
from graphopt.fusion.group_signature import Signature
from graphopt.fusion.kernel_policy import FusionPolicy
from graphopt.fusion.loops.ir import Kernel
from graphopt.fusion.propose_kernels import propose_kernels
from graphopt.transforms.fusion.fuse_groups import make_groups


@dataclass(eq=False)
class AllNodes(FusionPolicy):
    """Each node with a kernel is in a group, even alone."""

    minimum: int = 1

    def unprofitability(self, *_: object) -> str | None:
        return None

    def overlap(self, node: ir.Node) -> str | None:
        return None


@dataclass(frozen=True)
class Grouped:
    """A model with groups.

    Attributes:
        reasons: for nodes without a group, by node.
    """

    model: ir.Model
    kernels: list[Kernel]
    reasons: dict[str, str]


def grouped(proto: onnx.ModelProto) -> Grouped:
    """A copy of the model with groups of all nodes that have kernels."""
    model = ir.from_proto(proto)
    with context_for(model) as cx:
        reasons = _group(model, cx)
    return Grouped(model, kernels_of(model), reasons)


def _group(model: ir.Model, cx: Context) -> dict[str, str]:
    policy, signatures, reasons = AllNodes(cx), dict[str, Signature](), {}
    for proposal in propose_kernels(model.graph, policy):
        reasons |= {ir.label(node): reason for node, reason in proposal.ungrouped.items()}
        make_groups(cx, proposal.groups, policy, signatures)
    note_signatures(model, signatures, cx)
    return reasons
