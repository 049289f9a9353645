"""fuse-groups: what onnxruntime would compute in several passes over memory runs as one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.analysis.symbolic import declared_name
from graphopt.context import Context, Refusal
from graphopt.fusion.groups import name_of, note_kernel, note_signatures, signatures_of
from graphopt.fusion.normalize_axes import count_axes_from_front
from graphopt.fusion.policy import FusionPolicy, Shapes
from graphopt.fusion.propose import is_inside, propose_kernels
from graphopt.fusion.signature import Signature
from graphopt.ops import dialects
from graphopt.partitioning.outlining import FUNCTIONS_SINCE, outline_groups
from graphopt.partitioning.propose import Partition
from graphopt.passes.base import NATIVE_GROUPS, Pass
from graphopt.transforms.fusion.dissolve_groups import dissolve, why_no_groups


@dataclass(frozen=True)
class FuseGroups(Pass):
    """Put neighbouring nodes that one loop nest computes into functions of the domain ``graphopt.native``.

    Each is compiled to a kernel, an operator that onnxruntime runs where the library with it is registered;
    elsewhere it runs the nodes. What onnxruntime computes as well, or in a product or convolution, stays as
    it is. Groups that are there already are taken apart and made anew.

    The seed is ``FuseTensorExprs`` of PyTorch's JIT.

    Attributes:
        min: nodes of a group; each computation counts once, and moves that cost nothing do not.
        shapes: of which shapes groups are made: ``any``, or ``static``.
    """

    min: int = 2
    shapes: Shapes = Shapes.ANY

    name: ClassVar[str] = "fuse-groups"
    provides: ClassVar[frozenset[str]] = frozenset({NATIVE_GROUPS})
    for_speed: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Find all groups, then make functions of them, graph by graph."""
        reason = why_no_groups(model, cx)
        if reason is not None:
            cx.refuse(Refusal(self.name, "", reason))
            cx.remarks.append(f"no native groups: {reason}")
            cx.ungrouped |= {ir.label(node): reason for graph in ir.graphs_of(model) for node in graph}
            return
        dissolve(model, cx)
        cx.infer_afresh()  # groups depend on the model alone, so that the next run makes the same
        policy = FusionPolicy(cx, self.min, self.shapes)
        signatures = signatures_of(model)
        withheld = {(owner, node): why for owner, node, why in cx.options.withheld}
        made = False
        proposals = propose_kernels(model.graph, policy)
        if any(proposal.groups for proposal in proposals):
            count_axes_from_front(model, cx)
            cx.edit.resync(
                "names"
            )  # so that new names depend on the model alone, not on those of removed values
        for proposal in proposals:
            cx.ungrouped |= {ir.label(node): reason for node, reason in proposal.ungrouped.items()}
            asked = [(group, cx.begin_rewrite(self.name, group.nodes[0])) for group in proposal.groups]
            allowed = [(group, action) for group, action in asked if action is not None]
            for group in [group for group, action in asked if action is None]:
                why = withheld.get((self.name, ir.label(group.nodes[0])), "its group was left out")
                cx.ungrouped |= {ir.label(node): why for node in group.nodes}
            if allowed and model.ir_version < FUNCTIONS_SINCE:
                cx.remarks.append(f"IR version {model.ir_version} → {FUNCTIONS_SINCE}, for functions")
                cx.edit.raise_ir_version(FUNCTIONS_SINCE)
            calls = make_groups(cx, [group for group, _ in allowed], policy, signatures)
            for (group, action), call in zip(allowed, calls, strict=True):
                cx.edit.note_origin([call], group.nodes, self.name)
                ir.mark_fused(call)
                cx.end_rewrite(action, group.nodes[0], [call])
            made = made or bool(calls)
        if made:
            _forget_declarations(model)
            note_signatures(model, signatures, cx)
            cx.invalidate("outline")


def make_groups(
    cx: Context, groups: list[Partition], policy: FusionPolicy, signatures: dict[str, Signature]
) -> list[ir.Node]:
    """Make functions of ``groups``, all of one graph, and tell their types; returns the calls."""
    if not groups:
        return []
    variables = {
        value
        for group in groups
        for value in group.inputs
        if ir.constant_of(value) is not None and not is_inside(value, group)
    }
    calls = {}
    made = outline_groups(cx, groups, dialects.NATIVE_DOMAIN, policy, variables=variables)
    for group, (function, call) in made.items():
        inputs = [value for value in call.inputs if value is not None]
        signature = Signature.of(inputs, function.outputs, cx)
        name = name_of(function, signature)
        known = cx.model.functions.get((dialects.NATIVE_DOMAIN, name, ""))
        if known is None:
            cx.edit.rename_function(function, [call], name)
            lowered, kernel = policy.kernels[group]
            if lowered == signature:
                note_kernel(function, kernel)
        else:
            cx.edit.redirect(call, known)
            cx.edit.remove_function(function)
        signatures[name] = signature
        calls[group] = call
        for value in call.outputs:
            _declare(value, cx)
    return [calls[group] for group in groups]


def _declare(value: ir.Value, cx: Context) -> None:
    """Say what is known of a result: nobody tells onnxruntime what a kernel computes.

    What comes behind is fused only where its rank is known, and memory is shared only where sizes are.
    """
    dtype, shape = cx.dtype(value), cx.shape(value)
    if value.is_graph_output() or value.graph is not cx.model.graph or dtype is None or shape is None:
        return
    cx.edit.declare(value, dtype, [dim if isinstance(dim, int) else declared_name(dim) for dim in shape])


def _forget_declarations(model: ir.Model) -> None:
    """Declare no types inside of groups: signatures have those of the interface, and the rest follows."""
    for key, function in model.functions.items():
        if key[0] == dialects.NATIVE_DOMAIN:
            for value in (*function.inputs, *(output for node in function for output in node.outputs)):
                value.type = value.shape = None
