"""The gradient of a group: a forward function, which also returns residuals, and a backward function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Literal

from graphopt import ir
from graphopt.autodiff.joint_graph import Joint, differentiate
from graphopt.autodiff.losses import dynamic_dims
from graphopt.autodiff.rule_registry import NeedsOpset, NoGradient, StoppedGradient
from graphopt.autodiff.split_joint import Split, SplitReport, split_joint
from graphopt.context import Context, context_for
from graphopt.ops import graphopt_operators
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Operand:
    """An input of a backward function.

    Attributes:
        kind: an input or output of the forward function, or the cotangent of an output.
        index: the index of the input or output.
    """

    kind: Literal["input", "output", "cotangent"]
    index: int


@dataclass(frozen=True)
class SplitOptions:
    """The options of a split; see :func:`graphopt.autodiff.split_joint.split`."""

    memory_budget: float = 1.0
    save_all: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupGradient:
    """The gradient of a group.

    Attributes:
        forward: the group's function; its outputs are those of the group, then residuals.
        backward: the function of domain ``graphopt.autodiff.backward`` with the name of the group.
        outputs: the number of outputs of the group.
        operands: the inputs of ``backward``.
        gradients: the inputs of ``forward`` whose gradients ``backward`` returns, by index.
        stopped: nodes of the group through which the gradient flows only in part, or not at all.
        report: sizes and costs.
    """

    forward: ir.Function
    backward: ir.Function
    outputs: int
    operands: tuple[Operand, ...]
    gradients: tuple[int, ...]
    stopped: tuple[StoppedGradient, ...]
    report: SplitReport

    @property
    def cotangents(self) -> tuple[int, ...]:
        """The outputs whose cotangents ``backward`` reads, by index."""
        return tuple(operand.index for operand in self.operands if operand.kind == "cotangent")


def group_gradient(
    function: ir.Function,
    calls: Sequence[ir.Node],
    cx: Context,
    *,
    outputs: Iterable[int],
    inputs: Iterable[int],
    options: SplitOptions,
) -> GroupGradient:
    """The gradient of the group ``function`` of the model of ``cx``, which is not modified.

    Facts about the inputs that hold in all calls are used.

    Args:
        calls: the calls of the group.
        outputs: the outputs with cotangents, by index.
        inputs: the inputs whose gradients are needed, by index.
        options: options of the split; dims that no input of the group has are ignored.

    Raises:
        NoGradient: an operator has no gradient, or no gradient flows through the group.
        NeedsOpset: a gradient rule needs a newer opset than the model's.
        UnsupportedModel: a value can neither be saved nor recomputed.
    """
    if function.attributes:
        raise NoGradient(function.name, function.name, "its operators refer to attributes of its calls")
    model = _as_model(function, calls, cx)
    wrt = [function.inputs[index].name or "" for index in inputs]
    ends = [function.outputs[index].name or "" for index in outputs]
    joint = differentiate(model, ends, wrt, scaled=True, warn=False, simplified=True)
    if joint.opset is not None:
        raise NeedsOpset(joint.opset)
    if len(joint.unrelated) == len(joint.gradients):
        reason = joint.stopped[-1].reason if joint.stopped else "no input is differentiable"
        raise NoGradient(function.name, function.name, f"no gradient flows through the group: {reason}")
    known = dynamic_dims(joint.model)
    found = split_joint(
        joint,
        memory_budget=options.memory_budget,
        save_all=options.save_all,
        dims={name: size for name, size in options.dims.items() if name in known},
    )
    return _gradient_of(function, joint, found)


def _as_model(function: ir.Function, calls: Sequence[ir.Node], cx: Context) -> ir.Model:
    """The function as a model whose inputs are declared as inferred from the calls.

    Outputs have the declared shapes of the graph outputs that they become. Such declarations may be wrong,
    and onnxruntime relies on them, so no gradient may depend on the shapes of these values.
    """
    returned = {
        formal: output.shape
        for call in calls
        for formal, output in zip(function.outputs, call.outputs, strict=False)
        if output.is_graph_output()
    }

    def declare(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        shape = cx.shape(value) if value.producer() is None else None
        dims = None if shape is None else [dim if isinstance(dim, int) else str(dim) for dim in shape]
        kind = cx.facts.type(value) or value.type
        return kind, returned.get(value) if dims is None else ir.Shape(dims)

    graph = ir.extract(list(function.graph), function.outputs, function.inputs, declare=declare)
    graph.name = function.name
    graph.opset_imports.update({"": ir.standard_version(cx.model.opset_imports), **function.opset_imports})
    empty = ir.Model(ir.Graph([], [], nodes=[]), ir_version=cx.model.ir_version)
    return ir.model_of(graph, empty)


def _gradient_of(function: ir.Function, joint: Joint, found: Split) -> GroupGradient:
    by_output = {output: name for name, output in joint.gradients.items() if name not in joint.unrelated}
    results = [value for value in found.backward.graph.outputs if value.name in by_output]
    forward = _as_function(
        found.forward, found.forward.graph.outputs, graphopt_operators.AUTODIFF_GROUPS, function
    )
    backward = _as_function(found.backward, results, graphopt_operators.AUTODIFF_BACKWARD, function)
    sources = {value.name: Operand("input", index) for index, value in enumerate(forward.inputs)}
    sources |= {value.name: Operand("output", index) for index, value in enumerate(forward.outputs)}
    for index, value in enumerate(function.outputs):
        cotangent = joint.cotangents.get(value.name or "")
        if cotangent is not None:
            sources[cotangent] = Operand("cotangent", index)
    place = {value.name: index for index, value in enumerate(function.inputs)}
    return GroupGradient(
        forward,
        backward,
        len(function.outputs),
        tuple(sources[value.name] for value in backward.inputs),
        tuple(place[by_output[value.name or ""]] for value in results),
        tuple(joint.stopped),
        found.report,
    )


def _as_function(model: ir.Model, outputs: Sequence[ir.Value], domain: str, like: ir.Function) -> ir.Function:
    """The main graph of ``model``, which is changed, as a function with the name of ``like``."""
    graph = model.graph
    with context_for(model) as cx:
        cx.edit.set_outputs(graph, outputs)
        make_pipeline("dce").run(model, cx)
        for value in list(graph.initializers.values()):
            assert value.const_value is not None
            constant = cx.edit.constant_node(graph, value.const_value, value.name or "constant")
            cx.edit.replace(value, constant)
            cx.edit.remove_initializer(value)
    kept = [
        value for value in graph.inputs if domain == graphopt_operators.AUTODIFF_GROUPS or ir.is_read(value)
    ]
    copier = ir.Cloner(declarations=False)
    formals = [ir.Value(name=value.name, metadata_props=dict(value.metadata_props)) for value in kept]
    copier.values.update(zip(kept, formals, strict=True))
    nodes = copier.nodes(graph)
    results = [copier.values[value] or value for value in outputs]
    for value in results:  # the calls determine the type
        value.type = value.shape = None
    used = {node.domain for node in ir.walk_nodes(graph)}
    body = ir.Graph(
        formals,
        results,
        nodes=nodes,
        opset_imports={name: version for name, version in graph.opset_imports.items() if name in used},
        name=like.name,
    )
    return ir.Function(domain, like.name, like.overload, graph=body, attributes=[])
