"""The views in and next to each group, and the reasons why they are in the group or not.

PyTorch's JIT keeps views out of differentiable groups, because the results of views share memory. Values of
ONNX models share no memory, so that a policy may include views; this choice is part of the report of each
group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.partitioning.propose_groups import Partition, Proposal
from graphopt.util.lazy_dataclass import dataclass

#: Operators that move or relabel elements.
_VIEWS = traits.VIEW - {"Identity"}
_BETWEEN = "it lies between members of the group"


@dataclass(frozen=True)
class ViewMembership:
    """The membership of one view in a group.

    Attributes:
        node, op: the name of the node, and its operator.
        included: whether the group contains the view; otherwise a member reads the view, or the view reads a
        member.
        reason: the reason.
    """

    node: str
    op: str
    included: bool
    reason: str

    def __str__(self) -> str:
        return f"{'with' if self.included else 'without'} {self.node} ({self.op}): {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def membership_reason(node: ir.Node, proposal: Proposal, default: str) -> str:
    """The reason why ``node`` is in its group."""
    passthrough = proposal.passthrough.get(node)
    return default if passthrough is None else f"{_BETWEEN}; {passthrough}"


def view_memberships(proposal: Proposal, default: str) -> Mapping[Partition, Sequence[ViewMembership]]:
    """The memberships of views for each group of ``proposal``, in the order of the graph.

    Args:
        proposal: the groups of one graph.
        default: the reason why a member is in its group.
    """
    group_of = {node: group for group in proposal.groups for node in group.nodes}
    found: dict[Partition, list[ViewMembership]] = {group: [] for group in proposal.groups}
    for node in (*group_of, *proposal.ungrouped):
        if node.op_type not in _VIEWS or node.domain:
            continue
        group = group_of.get(node)
        if group is not None:
            reason = membership_reason(node, proposal, default)
            found[group].append(ViewMembership(ir.label(node), node.op_type, True, reason))
            continue
        next_to = dict.fromkeys(group_of[other] for other in _neighbours(node) if other in group_of)
        for neighbour in next_to:
            reason = proposal.ungrouped[node]
            found[neighbour].append(ViewMembership(ir.label(node), node.op_type, False, reason))
    return found


def remark_on_views(group: str, views: Sequence[ViewMembership], cx: Context, owner: str) -> None:
    """Offer a remark on the views of ``group``, if there are any, to the observers of ``cx``."""
    if views:
        cx.say(owner, lambda: f"{group}: {'; '.join(map(str, views))}")


def _neighbours(node: ir.Node) -> Iterator[ir.Node]:
    """The producer of the operand of a view, and the readers of its result."""
    producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if producer is not None:
        yield producer
    for output in node.outputs:
        yield from ir.readers(output)
