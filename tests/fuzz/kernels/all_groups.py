"""Groups of all that kernels can compute, whether it pays or not."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.fusion.groups import kernels_of, note_signatures
from graphopt.fusion.loops.ir import Kernel
from graphopt.fusion.policy import FusionPolicy
from graphopt.fusion.propose import propose_kernels
from graphopt.fusion.signature import Signature
from graphopt.transforms.fusion.fuse_groups import make_groups


@dataclass(eq=False)
class Everything(FusionPolicy):
    """Whatever can be compiled is a group, even a single node."""

    minimum: int = 1

    def why_not(self, *_: object) -> str | None:
        return None

    def why_left(self, node: ir.Node) -> str | None:
        return None


@dataclass(frozen=True)
class Grouped:
    """A model with groups.

    Attributes:
        reasons: why nodes are in no group, by node.
    """

    model: ir.Model
    kernels: list[Kernel]
    reasons: dict[str, str]


def grouped(proto: onnx.ModelProto) -> Grouped:
    """A copy of the model in which all that can be is in groups."""
    model = ir.from_proto(proto)
    with context_for(model) as cx:
        reasons = _group(model, cx)
    return Grouped(model, kernels_of(model), reasons)


def _group(model: ir.Model, cx: Context) -> dict[str, str]:
    policy, signatures, reasons = Everything(cx), dict[str, Signature](), {}
    for proposal in propose_kernels(model.graph, policy):
        reasons |= {ir.label(node): reason for node, reason in proposal.ungrouped.items()}
        make_groups(cx, proposal.groups, policy, signatures)
    note_signatures(model, signatures, cx)
    return reasons
