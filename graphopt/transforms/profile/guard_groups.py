"""guard-groups: specialize groups of nodes for profiled types, each behind a guard."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from graphopt import ir
from graphopt.context import Action, Context, Refusal, context_for
from graphopt.control_flow.estimate_executed_nodes import GUARD_COST
from graphopt.fusion.group_functions import add_groups
from graphopt.ops import graphopt_operators
from graphopt.partitioning.outline_groups import in_rows
from graphopt.partitioning.policy_interface import Decision, Role
from graphopt.partitioning.propose_groups import Partition, edges, propose
from graphopt.passes.base import PROFILED_GROUPS, Pass
from graphopt.transforms.profile._assumed_facts import AssumedFacts, assumed_facts
from graphopt.transforms.profile._profiling_nodes import remove_profiling_nodes
from graphopt.transforms.profile._shared_branch_constants import share_branch_constants
from graphopt.transforms.profile._specialized_region import SpecializedRegion, specialize_region
from graphopt.transforms.profile._unguardable_groups import inline_unguardable_groups
from graphopt.util.lazy_dataclass import dataclass

#: First opset with the operators that guards need, and first IR version with initializers in branches.
_OPSET, _IR_VERSION = 11, 4


@dataclass(frozen=True)
class GuardGroups(Pass):
    """Specialize groups of nodes for the profile annotations, each behind a guard with a general version.

    A group ``f`` has the nodes about which the annotated shapes imply additional facts. It is replaced by
    ``If(TypeCheck(x)) {g(x)} else {f(x)}``, where ``g`` is ``f`` simplified for the shapes that the check
    names. ``g`` must save more executed nodes than the guard costs. Both branches share outer values, such as
    weights. Groups with native kernels may be parts of larger groups; their specialized versions have kernels
    for the known sizes. Bodies of ungrouped nodes, and functions that are autodiff groups, have separate
    groups. Nodes whose group is not guarded are unchanged, and the reason is reported. Guarded groups are not
    visited again. Functions that are autodiff groups, but can't be guarded, are inlined first: those with
    inputs of unknown rank, or with another opset.

    Facts are inferred from all annotations. For a value that a group reads, the fact at its first use
    applies; without one, the fact at its producer.

    Modelled on ``guardFusionGroups`` and ``guardDifferentiableGraph`` of PyTorch's JIT, which guard existing
    groups; here the gain determines the nodes of a group.

    Attributes:
        cost: the number of executed nodes that a guard costs; a specialized version has to save more.
        pin: declare checked shapes without symbols to onnxruntime, by a Reshape to the same shape in the
            specialized version, because onnxruntime ignores declarations of outer values.
    """

    cost: int = GUARD_COST
    pin: bool = False

    name: ClassVar[str] = "guard-groups"
    does: ClassVar[str] = "guarded"
    provides: ClassVar[frozenset[str]] = frozenset({PROFILED_GROUPS})

    def run(self, model: ir.Model, cx: Context) -> None:
        """Visit outer graphs first: a group may contain whole loops."""
        remove_profiling_nodes(
            model, cx, self.name, graphopt_operators.PROFILE, graphopt_operators.PROFILE_ZERO
        )
        reason = _obstacle_to_guards(model)
        with assumed_facts(cx) as facts:
            inlined = facts is not None and inline_unguardable_groups(facts, self.name, reason)
            if facts is not None and reason is not None:
                cx.refuse(Refusal(self.name, "", reason))
            elif facts is not None and not inlined:
                self._visit_all(facts)
        if inlined and reason is None:
            with assumed_facts(cx) as facts:
                if facts is not None:
                    self._visit_all(facts)

    def _visit_all(self, facts: AssumedFacts) -> None:
        for root in list(_roots(facts.cx.model)):
            self._visit(root, facts)

    def _visit(self, root: ir.Graph, facts: AssumedFacts) -> None:
        """Guard the groups of ``root`` and of the bodies in it."""
        cx, pending = facts.cx, [root]
        while pending:
            graph = pending.pop()
            proposal = propose(graph, _Policy(facts))
            for node, reason in proposal.ungrouped.items():
                if any(map(facts.is_sharper, node.outputs)):
                    cx.refuse(Refusal(self.name, ir.label(node), reason))
            outside = [
                node
                for node in graph
                if node.domain == "" and graphopt_operators.guarded_branch(node) is None
            ]
            begun = [
                (region, cx.begin_rewrite(self.name, region.group.nodes[0]))
                for region in self._profitable(proposal.groups, facts)
            ]
            regions = [(region, action) for region, action in begun if action is not None]
            if regions:
                feeds = edges(list(graph), _Policy(facts).is_ordered)
                rows = [region.group.nodes for region, _ in regions]
                cx.edit.reorder(graph, in_rows(graph, rows, feeds))
            replaced: dict[ir.Value, ir.Value] = {}
            for region, action in regions:
                self._guard(region, action, replaced, cx)
            pending += reversed([body for node in outside if node.graph is graph for body in ir.bodies(node)])

    def _profitable(self, groups: Sequence[Partition], facts: AssumedFacts) -> Iterator[SpecializedRegion]:
        """The profitable specialized versions of ``groups``, reduced to the nodes that change if possible."""
        for group in groups:
            whole = specialize_region(group, facts)
            reason = whole.shortfall(self.cost)
            if reason is not None:
                for node in group.nodes:
                    facts.cx.refuse(Refusal(self.name, ir.label(node), reason))
                continue
            changed = frozenset(whole.changed_nodes())
            if len(changed) == len(group.nodes):
                yield whole
                continue
            reduced = propose(group.graph, _Policy(facts, changed)).groups
            parts = [specialize_region(part, facts) for part in reduced]
            parts = [part for part in parts if part.shortfall(self.cost) is None]
            gain = sum(part.saved - self.cost for part in parts)
            yield from parts if gain >= whole.saved - self.cost else [whole]

    def _guard(
        self, region: SpecializedRegion, action: Action, replaced: dict[ir.Value, ir.Value], cx: Context
    ) -> None:
        """Replace the group, consecutive nodes, by an If of both versions.

        Args:
            region: the group.
            action: the rewrite.
            replaced: results of earlier groups, and the values that replace them; new ones are added.
            cx: the context.
        """
        edit, group = cx.edit, region.group
        graph, nodes = group.graph, group.nodes
        self._guard_within(region.model, cx)
        check = _check_of(region, replaced, cx)
        special, general = _branch_of(region, replaced, cx), ir.Graph([], [], nodes=[], name="general")
        choice = edit.make_node(
            "If",
            check.outputs,
            {"then_branch": special, "else_branch": general},
            outputs=len(group.outputs),
            name=f"{group.outputs[0].name}_guarded",
        )
        edit.insert_before(nodes[0], [check, choice])
        edit.import_domain(check)
        if self.pin:
            _pin(special, dict(zip(check.inputs, region.assumptions.shapes, strict=True)), cx)
        bodies = [body for node in nodes for body in ir.bodies(node)]
        inside = {*nodes, *(node for body in bodies for node in ir.walk_nodes(body))}
        for old, new in zip(group.outputs, choice.outputs, strict=True):
            type_, was_output = cx.facts.type(old) or old.type, old.is_graph_output()
            edit.replace(old, new, keep=inside)
            if not was_output:
                edit.transfer_name(new, old)
            new.type = new.type or type_
            replaced[old] = new
        moved = edit.split_off(graph, nodes, [], group.outputs, "moved", {})
        edit.set_outputs(general, edit.append_body(moved, general))
        for value in general.outputs:
            value.shape = None  # the shape may differ between branches; onnxruntime infers it
        share_branch_constants([special, general], graph, cx)
        edit.note_origin([check, choice], list(nodes), self.name)
        edit.resync("guard")
        if graphopt_operators.has_groups(region.model):
            add_groups(cx.model, [region.model])
        cx.end_rewrite(action, general[0], [check, choice])

    def _guard_within(self, model: ir.Model, cx: Context) -> None:
        """Guard groups in bodies of the specialized version ``model``."""
        if any(node.attributes and ir.bodies(node) for node in model.graph):
            with context_for(model, cx.options) as inner:
                self.run(model, inner)


def _check_of(region: SpecializedRegion, replaced: Mapping[ir.Value, ir.Value], cx: Context) -> ir.Node:
    """A node that checks the assumptions of ``region``."""
    checked, types = region.assumptions.checked, dict[str, graphopt_operators.CheckedType]()
    for value, dims in region.assumptions.dims.items():
        dtype = cx.dtype(value)
        if dtype is not None:
            types[replaced.get(value, value).name or ""] = dtype, None if dims is None else list(dims)
    check = cx.edit.make_node(
        graphopt_operators.TYPE_CHECK,
        [replaced.get(value, value) for value in checked],
        {graphopt_operators.SEEN: json.dumps([profile.to_dict() for profile in checked.values()])},
        domain=graphopt_operators.GUARD_DOMAIN,
        name=f"{region.group.outputs[0].name}_check",
    )
    check.outputs[0].type, check.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    cx.edit.note(check.outputs[0], graphopt_operators.CHECKED, graphopt_operators.checked_text(types))
    return check


def _obstacle_to_guards(model: ir.Model) -> str | None:
    """The reason why ``model`` can't have guards; ``None`` if it can."""
    if model.ir_version < _IR_VERSION:
        return f"IR version {model.ir_version} has no initializers in branches"
    version = ir.standard_version(model.opset_imports)
    return f"opset {version} lacks the operators that guards need" if version < _OPSET else None


def _roots(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, and the functions that are autodiff groups; all other functions have been inlined."""
    yield model.graph
    for function in model.functions.values():
        if function.domain == graphopt_operators.AUTODIFF_GROUPS:
            yield function.graph


@dataclass(frozen=True)
class _Policy:
    """Members are the nodes about which the annotations imply additional facts, and other nodes between them.

    Attributes:
        facts: the facts that the annotations imply.
        wanted: if given, only these nodes may be members.
    """

    facts: AssumedFacts
    wanted: Container[ir.Node] | None = None
    kind: str = "guarded"
    minimum: int = 1

    def size(self, nodes: Sequence[ir.Node]) -> int:
        """The number of nodes."""
        return len(nodes)

    def is_ordered(self, node: ir.Node) -> bool:
        """Whether ``node`` is random, stateful, unknown or a guard."""
        return self.facts.cx.has_to_run(node) or not self.facts.cx.is_deterministic(node)

    def decide(self, node: ir.Node) -> Decision:
        """The role of ``node``."""
        facts, cx = self.facts, self.facts.cx
        if not facts.guarded.isdisjoint(node.outputs):
            return Decision(Role.BOUNDARY, "its result is what a guard checks")
        if graphopt_operators.guarded_branch(node) is not None:
            return Decision(Role.BOUNDARY, "it is guarded")
        if self.is_ordered(node):
            return Decision(Role.BOUNDARY, "it is random or stateful, or its operator is unknown")
        if node.domain == graphopt_operators.AUTODIFF_GROUPS:
            return Decision(Role.BOUNDARY, "it calls a group for autodiff, whose nodes have their own groups")
        if node.op_identifier() in cx.model.functions and node.domain != graphopt_operators.NATIVE_DOMAIN:
            return Decision(Role.BOUNDARY, "it calls a function; run inline-functions first")
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return Decision(Role.BOUNDARY, "it refers to an attribute of its function")
        if any(output.name and not _is_tensor(output, cx) for output in node.outputs):
            return Decision(Role.BOUNDARY, "it returns a value that is not known to be a tensor")
        if self.wanted is not None:
            return Decision(Role.MEMBER if node in self.wanted else Role.PASSTHROUGH)
        if any(map(facts.is_sharper, (*ir.reads(node), *node.outputs))):
            return Decision(Role.MEMBER)
        return Decision(Role.PASSTHROUGH, "the profile implies nothing for it")


def _is_tensor(value: ir.Value, cx: Context) -> bool:
    return isinstance(cx.facts.type(value) or value.type, ir.TensorType)


def _branch_of(region: SpecializedRegion, replaced: Mapping[ir.Value, ir.Value], cx: Context) -> ir.Graph:
    """The specialized version as a branch, which reads the values that the group reads."""
    graph, edit = region.model.graph, cx.edit
    read = [replaced.get(value, value) for value in region.group.inputs]
    outer = {value.name: value for value in read}
    copier = ir.Cloner(
        value_name=lambda name: edit.fresh_name(f"{name}_special"),
        node_name=lambda name: edit.fresh_node_name(f"{name}_special"),
    )
    for value in graph.inputs:
        copier.values[value] = outer[value.name]
    for value in graph.initializers.values():
        same = outer.get(value.name)
        if same is not None and ir.constant_of(same) is value.const_value:
            copier.values[value] = same
    branch = copier.body(graph, graph.outputs)
    branch.name = "special"
    _rename_checked(branch, copier.values, edit)
    outputs: dict[ir.Value, None] = {}
    for value in branch.outputs:
        if value in outputs or value.producer() is None or value.graph is not branch:
            node = edit.make_node("Identity", [value], name=f"{value.name}_returned")
            node.outputs[0].type = value.type
            edit.append(branch, node)
            value = node.outputs[0]
        value.shape = None
        outputs[value] = None
    edit.set_outputs(branch, list(outputs))
    return branch


def _rename_checked(branch: ir.Graph, copies: Mapping[ir.Value, ir.Value | None], edit: ir.Editor) -> None:
    """Replace the names of tensors in the checks of ``branch`` by the names of their ``copies``."""
    names = {old.name or "": new.name or "" for old, new in copies.items() if new is not None}
    for node in ir.walk_nodes(branch):
        if graphopt_operators.is_type_check(node):
            ok = node.outputs[0]
            types = graphopt_operators.checked_types(ok)
            renamed = {names.get(name, name): type_ for name, type_ in types.items()}
            edit.note(ok, graphopt_operators.CHECKED, graphopt_operators.checked_text(renamed))


def _pin(branch: ir.Graph, shapes: Mapping[ir.Value | None, tuple[int, ...] | None], cx: Context) -> None:
    """Reshape the values that ``branch`` reads to their ``shapes``, which the check implies."""
    inside = dict.fromkeys(ir.walk_nodes(branch))
    for value, shape in shapes.items():
        users = [] if value is None else [(use.node, use.idx) for use in value.uses() if use.node in inside]
        first = next(iter(branch), None)
        if value is None or shape is None or first is None or not users:
            continue
        sizes = cx.edit.constant(branch, np.array(shape, np.int64), f"{value.name}_sizes")
        pinned = cx.edit.make_node("Reshape", [value, sizes], name=f"{value.name}_pinned")
        cx.edit.insert_before(first, [pinned])
        for node, index in users:
            cx.edit.set_input(node, index, pinned.outputs[0])
