"""fuse-groups: outline groups of nodes that become native kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from graphopt import ir
from graphopt.analysis.symbolic import declared_name
from graphopt.context import Context, Refusal
from graphopt.fusion.group_functions import name_of, note_kernel, note_signatures, signatures_of
from graphopt.fusion.group_signature import Signature
from graphopt.fusion.kernel_policy import MEMBER_REASON, FusionPolicy, Kernels, Shapes
from graphopt.fusion.lower_partition import is_inside
from graphopt.fusion.normalize_reduction_axes import normalize_reduction_axes
from graphopt.fusion.propose_kernels import propose_kernels
from graphopt.fusion.separate_dequantizers import separate_dequantizers
from graphopt.ops import graphopt_operators
from graphopt.partitioning.outline_groups import outline_groups
from graphopt.partitioning.propose_groups import Partition
from graphopt.partitioning.view_membership import remark_on_views, view_memberships
from graphopt.passes.base import NATIVE_GROUPS, Pass
from graphopt.transforms.fusion.dissolve_groups import dissolve, obstacle_to_groups
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class FuseGroups(Pass):
    """Outline nodes that one kernel computes, as functions of the domain ``graphopt.native``.

    The kernel of a function is a loop nest of connected nodes, or a template: an operator with a hand-written
    schedule, such as Conv, and the elementwise nodes after it. onnxruntime runs the kernel if its library is
    registered, and the nodes otherwise. Nodes that onnxruntime computes equally fast, or fuses into products
    or convolutions, are excluded. Existing groups are dissolved first.

    The counterpart in PyTorch's JIT is ``FuseTensorExprs``.

    Attributes:
        min: minimum number of nodes of a group; equal computations count once, moves of elements without cost
            do not count. A template needs one node.
        shapes: shapes of values in groups: ``any``, or ``static``.
        kernels: templates and single nodes in groups: those expected to be ``faster`` than onnxruntime;
            ``candidates`` for races, which are templates that figures do not rule out and nodes with figures;
            ``all`` templates and these nodes; or ``loops``, which is ``faster`` without templates.
    """

    min: int = 2
    shapes: Shapes = Shapes.ANY
    kernels: Kernels = Kernels.FASTER

    name: ClassVar[str] = "fuse-groups"
    provides: ClassVar[frozenset[str]] = frozenset({NATIVE_GROUPS})
    for_speed: ClassVar[bool] = True

    def eager(self) -> FuseGroups:
        """The same pass, with all templates and single nodes that may be faster, unless others are chosen."""
        return replace(self, kernels=Kernels.CANDIDATES) if self.kernels is Kernels.FASTER else self

    def run(self, model: ir.Model, cx: Context) -> None:
        """Propose all groups, then outline them, graph by graph."""
        reason = obstacle_to_groups(model, cx)
        if reason is not None:
            cx.refuse(Refusal(self.name, "", reason))
            cx.remarks.append(f"no native groups: {reason}")
            cx.ungrouped |= {ir.label(node): reason for graph in ir.graphs_of(model) for node in graph}
            return
        dissolve(model, cx)
        separate_dequantizers(model, cx)
        cx.infer_afresh()  # groups depend on the model only, so that the pass is idempotent
        policy = FusionPolicy(cx, self.min, self.shapes, self.kernels)
        signatures = signatures_of(model)
        withheld = {(owner, node): reason for owner, node, reason in cx.options.withheld}
        changed = False
        proposals = propose_kernels(model.graph, policy)
        groups = [group for proposal in proposals for group in proposal.groups]
        if groups:
            normalize_reduction_axes(model, groups, cx)
            cx.edit.resync("names")  # new names must not depend on names of removed values
        for proposal in proposals:
            cx.ungrouped |= {ir.label(node): reason for node, reason in proposal.ungrouped.items()}
            begun = [(group, cx.begin_rewrite(self.name, group.nodes[0])) for group in proposal.groups]
            allowed = [(group, action) for group, action in begun if action is not None]
            views = view_memberships(proposal, MEMBER_REASON)
            for group in [group for group, action in begun if action is None]:
                reason = withheld.get((self.name, ir.label(group.nodes[0])), "its group was excluded")
                cx.ungrouped |= {ir.label(node): reason for node in group.nodes}
            if allowed and model.ir_version < ir.FUNCTIONS_SINCE:
                cx.remarks.append(f"IR version {model.ir_version} → {ir.FUNCTIONS_SINCE}, for functions")
                cx.edit.raise_ir_version(ir.FUNCTIONS_SINCE)
            calls = make_groups(cx, [group for group, _ in allowed], policy, signatures)
            for (group, action), call in zip(allowed, calls, strict=True):
                cx.edit.note_origin([call], group.nodes, self.name)
                ir.mark_fused(call)
                remark_on_views(call.op_type, views[group], cx, self.name)
                cx.end_rewrite(action, group.nodes[0], [call])
            changed = changed or bool(calls)
        if changed:
            _forget_declarations(model)
            note_signatures(model, signatures, cx)
            cx.invalidate("outline")


def make_groups(
    cx: Context, groups: list[Partition], policy: FusionPolicy, signatures: dict[str, Signature]
) -> list[ir.Node]:
    """Outline ``groups``, all of one graph, and record their signatures; returns the calls."""
    if not groups:
        return []
    variables = {
        group: {
            value
            for value in group.inputs
            if ir.constant_of(value) is not None and not is_inside(value, group)
        }
        for group in groups
    }
    calls = {}
    outlined = outline_groups(cx, groups, graphopt_operators.NATIVE_DOMAIN, policy, variables=variables)
    for group, (function, call) in outlined.items():
        inputs = [value for value in call.inputs if value is not None]
        signature = Signature.of(inputs, function.outputs, cx)
        name = name_of(function, signature)
        known = cx.model.functions.get((graphopt_operators.NATIVE_DOMAIN, name, ""))
        if known is None:
            cx.edit.rename_function(function, [call], name)
            lowered, kernel = policy.kernels[group]
            # Copies and duplicates were removed from the group, which may change the order of its values.
            if lowered == signature and set(group.nodes) <= set(function):
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
    """Declare the type and shape of a result, which onnxruntime can't infer for a kernel.

    onnxruntime fuses readers only if the rank is known, and shares memory only if the size is known. The scan
    output of a Loop without iterations has the sizes that are known for the output of its body. In bodies,
    only known sizes are declared, and declarations of outputs remain.
    """
    dtype, shape = cx.dtype(value), cx.shape(value)
    if dtype is None or shape is None:
        return
    in_body = value.graph is not cx.model.graph
    if value.is_graph_output() and not (in_body and value.shape is None):
        return
    sizes = [dim if isinstance(dim, int) else None if in_body else declared_name(dim) for dim in shape]
    cx.edit.declare(value, dtype, sizes)


def _forget_declarations(model: ir.Model) -> None:
    """Remove types inside of groups: the interface has types in signatures, and others are inferred."""
    for key, function in model.functions.items():
        if key[0] == graphopt_operators.NATIVE_DOMAIN:
            for value in (*function.inputs, *(output for node in function for output in node.outputs)):
                value.type = value.shape = None
