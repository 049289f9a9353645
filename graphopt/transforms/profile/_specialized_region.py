"""Regions of a graph that are specialized for assumed facts about the values that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphopt import ir
from graphopt.analysis.symbolic import Dim, declared_name
from graphopt.context import Context, Options, context_for
from graphopt.control_flow.estimate_executed_nodes import estimate_executed_nodes
from graphopt.ops import graphopt_operators
from graphopt.partitioning.propose_groups import Partition
from graphopt.passes.pipelines import make_pipeline
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import is_annotation
from graphopt.profile.value_profile import ANY
from graphopt.profile.value_profile import Dim as ProfiledDim
from graphopt.transforms.profile._assumed_facts import AssumedFacts
from graphopt.util.lazy_dataclass import dataclass

#: Passes that use the facts; also applied to the general version, for the comparison.
_SIMPLIFY = (
    "fixpoint(canonicalize,constant-propagation,fold-if,unroll-loops{factor=1},peephole,"
    "constant-pooling,cse,dce)"
)

#: Declared dims by value; ``None`` for an unknown rank.
_Dims = Mapping[ir.Value, tuple[ProfiledDim | None, ...] | None]


@dataclass(frozen=True)
class Assumptions:
    """Assumptions about the values that a region reads.

    Attributes:
        dims: the dims of each value that is a tensor, as the specialized region declares them.
        checked: the values to check, with the properties to check; facts about the model imply the rest.
    """

    dims: _Dims
    checked: Mapping[ir.Value, ValueProfile]

    @property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """The shapes of the checked values; ``None`` for a shape with names."""
        return [ir.all_ints(self.dims[value]) for value in self.checked]

    @classmethod
    def of(cls, values: Sequence[ir.Value], facts: AssumedFacts) -> Assumptions:
        """The assumptions about ``values`` that ``facts`` provide.

        Each dim that is not a number has a name; equal dims have the same name. Equality is checked unless
        the model implies it.
        """
        cx = facts.cx
        plain = {value: cx.shape(value) for value in values}
        assumed = {value: facts.shape(value) for value in values}
        sites: dict[Dim, list[Dim | None]] = {}
        for value, shape in assumed.items():
            for dim, known in zip(shape or (), plain[value] or [None] * len(shape or ()), strict=True):
                if not isinstance(dim, int):
                    sites.setdefault(dim, []).append(known)
        unequal = {dim for dim, known in sites.items() if not _all_equal(known, cx)}
        taken = {*cx.options.dim_ranges, *(name for dim in sites if (name := declared_name(dim)))}
        names: dict[Dim, ProfiledDim] = {}
        for dim, known_dims in sites.items():
            own = declared_name(dim) if all(dim == known for known in known_dims) else None
            names[dim] = name = own or ir.fresh_dim("d0", taken)
            taken.add(name)
        dims: dict[ir.Value, tuple[ProfiledDim | None, ...] | None] = {}
        checked = {}
        for value, shape in assumed.items():
            if shape is None:
                dims[value] = None
                continue
            before = plain[value]
            dims[value] = tuple(dim if isinstance(dim, int) else names[dim] for dim in shape)
            wanted = [
                _checked(dim, None if before is None else before[axis], names, unequal)
                for axis, dim in enumerate(shape)
            ]
            if before is None or any(dim != ANY for dim in wanted):
                checked[value] = ValueProfile("", tuple(wanted))
        return cls(dims, checked)


def _all_equal(dims: Sequence[Dim | None], cx: Context) -> bool:
    """Whether the model implies that all ``dims`` are equal."""
    first, *rest = dims
    return all(first is not None and dim is not None and cx.facts.dim_equal(first, dim) for dim in rest)


def _checked(dim: Dim, known: Dim | None, names: Mapping[Dim, ProfiledDim], unequal: set[Dim]) -> ProfiledDim:
    """The check that ``dim`` requires, given that the model implies ``known``; ``ANY`` for none."""
    if isinstance(dim, int):
        return ANY if dim == known else dim
    return names[dim] if dim in unequal else ANY


@dataclass(frozen=True)
class SpecializedRegion:
    """A group of nodes, and its specialized version.

    Attributes:
        group: the nodes, with their interface.
        assumptions: the assumptions of the specialized version.
        model: the specialized version, whose inputs and initializers have the names of the values that it
            reads.
        before: the estimated number of nodes that a run of the general version executes, if the assumptions
            hold.
        after: the number for the specialized version.
    """

    group: Partition
    assumptions: Assumptions
    model: ir.Model
    before: int
    after: int

    @property
    def saved(self) -> int:
        """The estimated number of executed nodes that the specialized version saves."""
        return self.before - self.after

    def shortfall(self, cost: int) -> str | None:
        """The reason why the version saves less than a guard of ``cost`` nodes costs, or ``None``."""
        if not self.assumptions.checked:
            return "the profile implies nothing about the values that its group reads"
        if self.saved > cost:
            return None
        text = (
            "no executed node" if self.saved <= 0 else f"about {self.saved} of {self.before} executed nodes"
        )
        return f"specializing its group saves {text}, and a guard costs {cost}"

    def changed_nodes(self) -> list[ir.Node]:
        """The nodes of the group that the specialized version lacks, or has in another form."""
        kept = {_signature(node) for node in self.model.graph}
        return [node for node in self.group.nodes if _signature(node) not in kept]


def specialize_region(group: Partition, facts: AssumedFacts) -> SpecializedRegion:
    """Specialize ``group`` for ``facts`` about the values that it reads."""
    cx = facts.cx
    read = [value for value in group.inputs if ir.constant_of(value) is None]
    tensors = [value for value in read if isinstance(cx.facts.type(value), ir.TensorType)]
    assumptions = Assumptions.of(tensors, facts)
    general = _model_of(group, {value: _declared(cx.shape(value)) for value in tensors}, cx)
    special = _model_of(group, assumptions.dims, cx)
    counts, by_name = [], {value.name: value for value in tensors}
    for model in (general, special):
        with context_for(model, _options(cx)) as inner:
            make_pipeline(_pipeline(model, cx)).run(model, inner)
        for value in model.graph.inputs:
            dims = assumptions.dims[by_name[value.name]] if value.name in by_name else None
            value.shape = None if dims is None else ir.Shape(dims)
        with context_for(model, _options(cx)) as inner:
            counts.append(estimate_executed_nodes(model, inner))
    return SpecializedRegion(group, assumptions, special, *counts)


def _options(cx: Context) -> Options:
    return replace(cx.options, strict_fusion={}, share_buffers=())


def _pipeline(model: ir.Model, cx: Context) -> str:
    """The passes for a version of a region; kernels are chosen again if the model has any."""
    if cx.options.kernels and graphopt_operators.has_groups(model):
        return f"dissolve-groups,{_SIMPLIFY},fuse-groups"
    return _SIMPLIFY


def _declared(shape: tuple[Dim, ...] | None) -> tuple[ProfiledDim | None, ...] | None:
    return (
        None if shape is None else tuple(dim if isinstance(dim, int) else declared_name(dim) for dim in shape)
    )


def _model_of(group: Partition, dims: _Dims, cx: Context) -> ir.Model:
    """``group`` as a model whose inputs have these ``dims``."""

    def declare(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        shape = dims.get(value)
        return cx.facts.type(value) or value.type, None if shape is None else ir.Shape(shape)

    graph = ir.extract(group.nodes, group.outputs, declare=declare)
    graph.name = "region"
    graph.opset_imports.update(cx.edit.scopes.imports(group.graph))
    for value in graph.inputs:
        for key in [key for key in value.metadata_props if is_annotation(key)]:
            del value.metadata_props[key]
    for value in graph.outputs:
        value.shape = None
    model = ir.Model(
        graph,
        ir_version=cx.model.ir_version,
        functions=[ir.clone_function(function) for function in _called(graph, cx.model)],
        metadata_props=dict(cx.model.metadata_props),
    )
    return model


def _called(graph: ir.Graph, model: ir.Model) -> list[ir.Function]:
    """The functions of ``model`` that nodes of ``graph`` call, directly or not."""
    found: dict[tuple[str, str, str], ir.Function] = {}
    pending = [graph]
    while pending:
        for node in ir.walk_nodes(pending.pop()):
            function = model.functions.get(node.op_identifier())
            if function is not None and function.identifier() not in found:
                found[function.identifier()] = function
                pending.append(function.graph)
    return list(found.values())


def _signature(node: ir.Node) -> tuple[object, ...]:
    """A key that two nodes share if they compute the same outputs, by name."""
    attributes = [
        (name, item.type.name, tuple(map(ir.fingerprint, _graphs(item))) or ir.attribute_key(item))
        for name, item in node.attributes.items()
    ]
    return (
        node.op_identifier(),
        tuple(None if value is None else value.name for value in node.inputs),
        tuple(value.name for value in node.outputs),
        tuple(sorted(attributes, key=lambda item: item[0])),
    )


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.is_ref():
        return []
    match attribute.type:
        case ir.AttributeType.GRAPH:
            return [attribute.as_graph()]
        case ir.AttributeType.GRAPHS:
            return list(attribute.as_graphs())
    return []
