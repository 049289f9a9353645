"""The joint graph: a model that returns its outputs and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from graphopt import ir
from graphopt.autodiff.check_folded_initializers import check_folded_initializers
from graphopt.autodiff.drop_unproven_shapes import drop_unproven_shapes
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.losses import Loss, declared_dims
from graphopt.autodiff.return_running_statistics import return_state, statistics
from graphopt.autodiff.reverse_mode import ByRule, backward, may_be_float
from graphopt.autodiff.rule_registry import IncompleteGradient, NeedsOpset, Restart, StoppedGradient
from graphopt.autodiff.sequence_loop_builders import is_sequence
from graphopt.autodiff.wrt import expose_parameters, wrt_names, wrt_values
from graphopt.context import Context, context_for
from graphopt.errors import UsageError, unknown
from graphopt.model_arguments import copy
from graphopt.passes.pipelines import make_pipeline
from graphopt.util.lazy_dataclass import dataclass

#: The oldest opset that gradient rules support; older models are converted to it.
OLDEST = 13
#: Prefix of the names of gradient outputs; ``grad2.`` for gradients of gradients, and so on.
PREFIX = "grad"
#: Prefix of the names of inputs with cotangents.
COTANGENT = "cotangent."
_HINT = "name a value with one element, such as a mean or sum, or a loss function"
#: Pipeline run before differentiation; it removes dead branches and replaces sequences by tensors.
_PRIMAL = "fixpoint(constant-propagation,fold-if),pre-autodiff,lower-sequences"


@dataclass
class Joint:
    """A model with gradients.

    Attributes:
        model: the model, which returns the original's outputs, the loss and the gradients.
        loss: the name of the loss; ``None`` if cotangents are inputs.
        target: the name of the input with the target of the loss, if it was added.
        gradients: the name of each gradient, by the name of the differentiated value.
        cotangents: by the name of a value, the name of the input for its cotangent: ``cotangent.y`` for y, or
            similar. Includes the loss if it is scaled.
        unrelated: names of values that the loss does not depend on; explicitly requested ones have a gradient
            of zeros.
        stopped: active nodes through which the gradient flows only in part, or not at all, with reasons.
        state: the name of the output with the next value of each running statistic of BatchNormalization in
            training mode, by the name of the statistic.
        opset: the opset that the model was converted to; ``None`` if it was not converted.
        excluded: the reasons why members of groups of names, such as ``params``, have no gradient: an
            operator without a gradient separates them from the loss. Only if the model is differentiated by
            group.
        groups: the number of differentiated groups; ``None`` if the model is not differentiated by group.
        inlined: the reasons why groups were inlined, by name.
    """

    model: ir.Model = field(repr=False)
    loss: str | None = None
    target: str | None = None
    gradients: dict[str, str] = field(default_factory=dict)
    cotangents: dict[str, str] = field(default_factory=dict)
    unrelated: list[str] = field(default_factory=list)
    stopped: list[StoppedGradient] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    opset: int | None = None
    excluded: dict[str, str] = field(default_factory=dict)
    groups: int | None = None
    inlined: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> list[str]:
        """The names of differentiated values and running statistics, whose contents change in training."""
        return [*self.gradients, *self.state]


def differentiate(
    model: ir.Model,
    loss: str | Loss | Sequence[str],
    wrt: str | Iterable[str],
    *,
    outputs: str = "all",
    optimize: bool = True,
    scaled: bool = False,
    warn: bool = True,
    simplified: bool = False,
    by: ByRule | None = None,
) -> Joint:
    """The joint graph of ``model``, which is not modified.

    Args:
        loss: the name of the loss, an output or intermediate value with one element, or a loss function.
            A list of names selects no loss: the cotangents of these values become inputs
            ``cotangent.<name>``, of the shape and type of the values.
        wrt: names of inputs, initializers or intermediate values; ``params``, the initializers and Constant
            nodes that look like parameters; ``inputs``, the floating-point inputs; ``all``, both. Members of
            these groups that the loss does not depend on are omitted.
        outputs: ``all`` for the original's outputs and the loss, ``loss`` for the loss alone.
        optimize: run the pipeline ``joint`` over the result.
        scaled: whether the cotangent of the loss is an input ``cotangent.<loss>``, with default 1.
        warn: whether to warn about incomplete gradients.
        simplified: whether the model is simplified already.
        by: differentiates nodes, by default each by the rule of its operator.

    Warns:
        IncompleteGradient: only part of an operator's gradient flows; see ``stopped``.

    Raises:
        UsageError: a name is unknown, the loss may have several elements, or the loss depends on constants
            that were folded from a differentiated initializer.
        NoGradient: a requested gradient depends on an operator without a gradient.
        UnsupportedModel: the model can't be converted to an opset that gradient rules support.
    """
    if outputs not in ("all", "loss"):
        raise UsageError(f"outputs are 'all' or 'loss', not {outputs!r}")
    model = expose_parameters(model, wrt)
    names = wrt_names(model, wrt)
    needed, by = OLDEST, by or ByRule()
    while True:
        joint = Joint(copy(model))
        # training changes differentiated parameters and running statistics
        with ir.as_variables(joint.model.graph, [*names, *statistics(joint.model.graph)]):
            _prepare(joint, needed)
            if optimize and not simplified:
                _simplify(joint.model, loss, names)
            try:
                with context_for(joint.model) as cx:
                    check_folded_initializers(cx, _ends(loss), names, by)
                    _outline(cx, by, _ends(loss), names)
                    _add_gradients(joint, cx, loss, names, outputs, scaled, by)
            except NeedsOpset as error:
                needed = error.version
                continue
            except Restart:
                continue
            for pipeline in filter(None, (by.lowering, "joint" if optimize else "dce")):
                _run(pipeline, joint.model)
        fault = ir.find_fault(joint.model)
        if fault is not None:
            raise AssertionError(f"the joint graph is broken: {fault.sentence}")
        if warn:
            _warn(joint)
        return joint


def _warn(joint: Joint) -> None:
    """Warn about incomplete gradients, once for each operator and reason."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for item in joint.stopped:
        if item.partly:
            by_reason.setdefault((item.op, item.reason), []).append(item.node)
    for (op, reason), nodes in by_reason.items():
        where = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
        warnings.warn(
            f"gradients through {op} ({where}) are incomplete: {reason}", IncompleteGradient, stacklevel=3
        )


def _run(pipeline: str, model: ir.Model) -> None:
    with context_for(model) as cx:
        make_pipeline(pipeline).run(model, cx)


def _prepare(joint: Joint, opset: int) -> None:
    """Inline functions, and convert the model to ``opset`` if it is older."""
    model = joint.model
    imports = model.graph.opset_imports
    version = imports.get("", imports.get("ai.onnx"))
    if model.functions:
        _run("inline-functions", model)
    if version is None:  # no operator is of the standard domain
        imports[""] = opset
    elif version < opset:
        _run(f"convert-opset{{target={opset}}}", model)
        joint.opset = opset


def _simplify(model: ir.Model, loss: str | Loss | Sequence[str], wrt: Iterable[str]) -> None:
    """Simplify the model; the named values remain."""
    with context_for(model) as cx, _keeping(cx, [*_ends(loss), *wrt]):
        make_pipeline(_PRIMAL).run(model, cx)


def _ends(loss: str | Loss | Sequence[str]) -> list[str]:
    """The names of values that the loss, or cotangents, refer to."""
    if isinstance(loss, Loss):
        return [loss.prediction, loss.target]
    return [loss] if isinstance(loss, str) else list(loss)


@contextmanager
def _keeping(cx: Context, names: Iterable[str]) -> Iterator[None]:
    """Preserve the named values, with their names, by returning them within the block."""
    graph = cx.model.graph
    values, count = _values(graph), len(graph.outputs)
    for name in dict.fromkeys(names):
        value = values.get(name)
        if value is not None and not (value.is_graph_input() or value.is_graph_output()):
            cx.edit.add_output(graph, value)
    yield
    cx.edit.set_outputs(graph, list(graph.outputs)[:count])


def _outline(cx: Context, by: ByRule, ends: Sequence[str], wrt: Iterable[str]) -> None:
    """Prepare the model with ``by``; the values named in ``ends`` and ``wrt`` are kept."""
    wrt = list(wrt)
    with _keeping(cx, [*ends, *wrt]):
        values = _values(cx.model.graph)
        by.begin(cx, [name for name in ends if name in values], [name for name in wrt if name in values])


def _add_gradients(
    joint: Joint,
    cx: Context,
    loss: str | Loss | Sequence[str],
    wrt: Mapping[str, bool],
    outputs: str,
    scaled: bool,
    by: ByRule,
) -> None:
    graph = cx.model.graph
    output_copies = drop_unproven_shapes(cx)
    op = GraphBuilder(cx, graph)
    values = _values(graph, output_copies)
    before = list(graph.inputs)
    cotangents: dict[ir.Value, ir.Value] = {}
    op.prefix = "loss"
    if isinstance(loss, (str, Loss)):
        value = loss.write(op, values) if isinstance(loss, Loss) else _named(loss, values)
        if isinstance(loss, Loss):
            cx.edit.rename(value, "loss")
            values = _values(graph, output_copies)
        _check_loss(value, output_copies.get(value, value), cx)
        joint.loss = output_copies.get(value, value).name or ""
        joint.target = next((value.name for value in graph.inputs if value not in before), None)
        cotangents[value] = _scale(joint, value, values, op) if scaled else op.ones_like(value)
        _return(output_copies.get(value, value), outputs, cx)
    else:
        for name in loss:
            value = _named(name, values)
            if is_sequence(value, cx):
                raise UsageError(f"{name!r} is a sequence; only tensors can have cotangent inputs")
            input_name = _cotangent(name, values)
            cotangents[value] = cx.edit.add_input(input_name, op.dtype(value), declared_dims(cx, value))
            joint.cotangents[name] = input_name
    targets = wrt_values(wrt, values, cx)
    found = backward(op, graph, cotangents, targets, by)
    excluded = by.excluded(cx)
    joint.stopped = found.stopped
    order = _order(cx.model.graph)
    for value in targets:
        own = output_copies.get(value, value).name or ""
        if value in excluded:
            if wrt[own]:
                raise excluded[value]
            joint.excluded[own] = excluded[value].message
            continue
        gradient = found.gradients.get(value)
        if gradient is None:
            joint.unrelated.append(own)
            if not wrt[own]:
                continue
            op.prefix = f"{own}_grad"
            gradient = op.zeros_like(value)
        name = f"{PREFIX}{order}.{own}"
        joint.gradients[own] = name
        cx.edit.add_output(graph, _as_output(op, gradient, name, value))
    if not joint.gradients and excluded:
        raise next(iter(excluded.values()))
    if not joint.gradients:
        raise UsageError(
            "the loss depends on none of the values to differentiate by", hint=_independence_hint(joint)
        )
    joint.state = return_state(cx)
    op.drop_constants()


def _independence_hint(joint: Joint) -> str:
    if joint.stopped:
        item = joint.stopped[-1]
        return f"no gradient flows through {item.op} {item.node}: {item.reason}"
    return "--wrt accepts params, inputs (including the parameters of a lifted model) and names of values"


def _values(graph: ir.Graph, output_copies: Mapping[ir.Value, ir.Value] | None = None) -> dict[str, ir.Value]:
    """The values of the main graph by name.

    Args:
        output_copies: the graph output that copies a value; the value is listed under the output's name.
    """
    own = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    found = {value.name: value for value in own if value.name}
    return found | {output.name: value for value, output in (output_copies or {}).items() if output.name}


def _scale(joint: Joint, loss: ir.Value, values: Mapping[str, ir.Value], op: GraphBuilder) -> ir.Value:
    """An input for the cotangent of ``loss``, with default 1 if the IR version allows defaults."""
    name, dtype, rank = joint.loss or "", op.dtype(loss), op.cx.rank(loss) or 0
    input_name = joint.cotangents[name] = _cotangent(name, values)
    scale = op.cx.edit.add_input(input_name, dtype, [1] * rank)
    if op.cx.model.ir_version >= 4:
        op.cx.edit.set_default(scale, ir.tensor(np.ones([1] * rank, dtype.numpy()), dtype=dtype))
    return scale


def _named(name: str, values: Mapping[str, ir.Value]) -> ir.Value:
    if name not in values:
        raise unknown("value", name, values, "graphopt dump shows all")
    return values[name]


def _check_loss(value: ir.Value, declared: ir.Value, cx: Context) -> None:
    """Check that ``value``, with the declaration of ``declared``, can be a loss."""
    name = declared.name
    if not may_be_float(value, cx):
        raise UsageError(f"{name!r} holds no floating-point numbers and can't be a loss")
    shape: tuple[object, ...] | None = cx.shape(value)
    if shape is None and declared.shape is not None:  # a shape that is not inferred
        shape = tuple(dim if isinstance(dim, int) else str(dim) for dim in declared.shape)
    if shape is None:
        raise UsageError(f"{name!r} is of unknown shape, and a loss has one element", hint=_HINT)
    if any(dim != 1 for dim in shape):
        certain = any(isinstance(dim, int) and dim != 1 for dim in shape)
        dims = "x".join(map(str, shape))
        raise UsageError(
            f"{name!r} is no loss: it {'has' if certain else 'may have'} {dims} elements", hint=_HINT
        )


def _return(loss: ir.Value, outputs: str, cx: Context) -> None:
    """Make the graph return ``loss``, and nothing else if ``outputs`` is ``loss``."""
    graph = cx.model.graph
    if outputs == "loss":
        cx.edit.set_outputs(graph, [loss])
    elif not loss.is_graph_output():
        cx.edit.add_output(graph, loss)
    dtype = cx.dtype(loss)
    if dtype is not None and (loss.type is None or loss.shape is None):
        cx.edit.declare(loss, dtype, declared_dims(cx, loss))


def _cotangent(name: str, used: Container[str]) -> str:
    """An unused name for the cotangent of a value: ``cotangent.y``, or ``cotangent2.y`` and so on."""
    found, order = f"{COTANGENT}{name}", 1
    while found in used:
        order += 1
        found = f"cotangent{order}.{name}"
    return found


def _order(graph: ir.Graph) -> str:
    """The order of the gradients, if the model already returns gradients: ``2`` and so on, or empty."""
    names = [output.name or "" for output in graph.outputs]
    order = 1
    while any(name.startswith(f"{PREFIX}{order if order > 1 else ''}.") for name in names):
        order += 1
    return str(order) if order > 1 else ""


def _as_output(op: GraphBuilder, gradient: ir.Value, name: str, like: ir.Value) -> ir.Value:
    """``gradient`` renamed to ``name``, with the declared type of ``like``."""
    edit = op.cx.edit
    if gradient.producer() is None or gradient.is_graph_output() or not op.has_made(gradient):
        op.prefix = name
        gradient = op.Identity(gradient)
    edit.rename(gradient, name)
    if gradient.name != name:
        raise UsageError(f"the model already has a value {name!r}, the name of the gradient")
    if is_sequence(like, op.cx):
        gradient.type = op.cx.facts.type(like)
        return gradient
    edit.declare(gradient, op.dtype(like), declared_dims(op.cx, like))
    return gradient
