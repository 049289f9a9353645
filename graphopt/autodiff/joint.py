"""The joint graph: a model that returns what it returned, and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphopt import ir
from graphopt.autodiff.builder import GraphBuilder
from graphopt.autodiff.declared_shapes import drop_unproven_shapes
from graphopt.autodiff.lib.sequences import is_sequence
from graphopt.autodiff.losses import Loss, declared_dims
from graphopt.autodiff.registry import IncompleteGradient, NeedsOpset, StoppedGradient
from graphopt.autodiff.reverse import backward, is_real
from graphopt.autodiff.running_statistics import return_state, statistics
from graphopt.autodiff.wrt import expose_parameters, wrt_names, wrt_values
from graphopt.context import Context
from graphopt.driver import context_for, copy, make_pipeline
from graphopt.errors import UsageError, unknown

#: The oldest opset that gradients are written for; older models are converted to it.
OLDEST = 13
#: Names of outputs that are gradients begin so; gradients of gradients with ``grad2.``, and so on.
PREFIX = "grad"
#: Names of inputs that are gradients of outputs begin so.
COTANGENT = "cotangent."
_HINT = "name a value with one element, such as a mean or sum, or a loss function"
#: What is done before differentiating: branches that are never taken go, and tensors are made of sequences.
_PRIMAL = "fixpoint(constant-propagation,fold-if),pre-autodiff,lower-sequences"


@dataclass
class Joint:
    """A model with gradients.

    Attributes:
        model: it returns the original's outputs, the loss, and the gradients.
        loss: the name of the loss; ``None`` if gradients are given from outside.
        target: the name of the input that the loss compares with, if it was added.
        gradients: by the name of what was differentiated by, the name of its gradient.
        cotangents: where gradients are given from outside, that of a loss included if it is scaled, by the
            name of a value, the input that takes its gradient: ``cotangent.y`` for y, or a name like it.
        unrelated: what the loss does not depend on; those asked for by name have a gradient of zeros.
        stopped: nodes on the way that let no gradient through, or only a part of it, and why.
        state: by the name of a running statistic of BatchNormalization in training, the name of the output
            that returns its new contents.
        opset: the opset that the model was written for, if it had to be converted.
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


def differentiate(
    model: ir.Model,
    loss: str | Loss | Sequence[str],
    wrt: str | Iterable[str],
    *,
    outputs: str = "all",
    optimize: bool = True,
    scaled: bool = False,
) -> Joint:
    """The joint graph of ``model``, which is left as it is.

    Args:
        loss: the name of the loss, an output or inner value with one element, or a loss function. For a
            list of names there is no loss: the gradients of these values become inputs ``cotangent.<name>``.
        wrt: names of inputs, initializers or inner values; ``params``, the initializers and Constant nodes
            that look like parameters; ``inputs``, those of floating-point numbers. Of these two, what the
            loss does not depend on is left out.
        outputs: ``all`` for the original's outputs besides the loss, ``loss`` for the loss alone.
        optimize: run the pipeline ``joint`` over the result.
        scaled: the gradient of the loss is an input, too, ``cotangent.<loss>``, which is 1 unless it is fed.

    Warns:
        IncompleteGradient: gradients flow through a part of what an operator does alone; see ``stopped``.

    Raises:
        UsageError: a name is unknown, or the loss may have several elements.
        NoGradient: a gradient that is asked for leads through an operator without one.
        UnsupportedModel: the model can't be converted to an opset that gradients are written for.
    """
    if outputs not in ("all", "loss"):
        raise UsageError(f"outputs are 'all' or 'loss', not {outputs!r}")
    model = expose_parameters(model, wrt)
    names = wrt_names(model, wrt)
    needed = OLDEST
    while True:
        joint = Joint(copy(model))
        # whoever asks for gradients of parameters is going to change them, and training updates statistics
        with ir.as_variables(joint.model.graph, [*names, *statistics(joint.model.graph)]):
            _prepare(joint, needed)
            if optimize:
                _simplify(joint.model, loss, names)
            try:
                _add_gradients(joint, loss, names, outputs, scaled)
            except NeedsOpset as error:
                needed = error.version
                continue
            _run("joint" if optimize else "dce", joint.model)
        fault = ir.find_fault(joint.model)
        if fault is not None:
            raise AssertionError(f"the joint graph is broken: {fault.sentence}")
        _warn(joint)
        return joint


def _warn(joint: Joint) -> None:
    """Warn of gradients that flow through a part of an operator alone."""
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
    """Inline functions, and write the model for ``opset`` at least."""
    model = joint.model
    imports = model.graph.opset_imports
    version = imports.get("", imports.get("ai.onnx"))
    if model.functions:
        _run("inline-functions", model)
    if version is None:  # all of its operators are of other domains
        imports[""] = opset
    elif version < opset:
        _run(f"convert-opset{{target={opset}}}", model)
        joint.opset = opset


def _simplify(model: ir.Model, loss: str | Loss | Sequence[str], wrt: Iterable[str]) -> None:
    """Simplify the model, but for the values that are named."""
    graph = model.graph
    values = _values(graph)
    if isinstance(loss, Loss):
        names = [loss.prediction, loss.target]
    else:
        names = [loss] if isinstance(loss, str) else list(loss)
    count = len(graph.outputs)
    with context_for(model) as cx:
        for name in dict.fromkeys([*names, *wrt]):
            value = values.get(name)
            if value is not None and not (value.is_graph_input() or value.is_graph_output()):
                cx.edit.add_output(graph, value)  # which keeps it, and its name
        make_pipeline(_PRIMAL).run(model, cx)
        cx.edit.set_outputs(graph, list(graph.outputs)[:count])


def _add_gradients(
    joint: Joint, loss: str | Loss | Sequence[str], wrt: Mapping[str, bool], outputs: str, scaled: bool
) -> None:
    with context_for(joint.model) as cx:
        _write_gradients(joint, cx, loss, wrt, outputs, scaled)


def _write_gradients(
    joint: Joint,
    cx: Context,
    loss: str | Loss | Sequence[str],
    wrt: Mapping[str, bool],
    outputs: str,
    scaled: bool,
) -> None:
    graph = cx.model.graph
    shown = {value: output for output, value in drop_unproven_shapes(cx).items()}
    op = GraphBuilder(cx, graph)
    values = _values(graph, shown)
    before = list(graph.inputs)
    given: dict[ir.Value, ir.Value] = {}
    op.prefix = "loss"
    if isinstance(loss, (str, Loss)):
        value = loss.write(op, values) if isinstance(loss, Loss) else _named(loss, values)
        if isinstance(loss, Loss):
            cx.edit.rename(value, "loss")
            values = _values(graph, shown)
        _check_loss(value, shown.get(value, value), cx)
        joint.loss = shown.get(value, value).name or ""
        joint.target = next((value.name for value in graph.inputs if value not in before), None)
        given[value] = _scale(joint, value, values, op) if scaled else op.ones_like(value)
        _return(shown.get(value, value), outputs, cx)
    else:
        for name in loss:
            value = _named(name, values)
            if is_sequence(value, cx):
                raise UsageError(f"{name!r} is a sequence; gradients are taken in for tensors alone")
            taker = _cotangent(name, values)
            given[value] = cx.edit.add_input(taker, op.dtype(value), declared_dims(cx, value))
            joint.cotangents[name] = taker
    by = wrt_values(wrt, values, cx)
    walk = backward(op, graph, given, by)
    joint.stopped = walk.stopped
    order = _order(cx.model.graph)
    for value in by:
        own = shown.get(value, value).name
        assert own is not None
        found = walk.gradients.get(value)
        if found is None:
            joint.unrelated.append(own)
            if not wrt[own]:
                continue
            op.prefix = f"{own}_grad"
            found = op.zeros_like(value)
        name = f"{PREFIX}{order}.{own}"
        joint.gradients[own] = name
        cx.edit.add_output(graph, _as_output(op, found, name, value))
    if not joint.gradients:
        raise UsageError("the loss depends on nothing that is asked for", hint=_why_nothing(joint))
    joint.state = return_state(cx)
    op.drop_constants()


def _why_nothing(joint: Joint) -> str:
    if joint.stopped:
        item = joint.stopped[-1]
        return f"no gradient goes through {item.op} {item.node}: {item.reason}"
    return "--wrt says what: params, inputs (which parameters of a lifted model are), or names of values"


def _values(graph: ir.Graph, shown: Mapping[ir.Value, ir.Value] | None = None) -> dict[str, ir.Value]:
    """The values of the main graph by name.

    Args:
        shown: values that a graph output copies; they are reported under the name of that output.
    """
    own = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    found = {value.name: value for value in own if value.name}
    return found | {output.name: value for value, output in (shown or {}).items() if output.name}


def _scale(joint: Joint, loss: ir.Value, values: Mapping[str, ir.Value], op: GraphBuilder) -> ir.Value:
    """An input that takes the gradient of ``loss``; 1 unless it is fed, where the IR version allows."""
    name, dtype, rank = joint.loss or "", op.dtype(loss), op.cx.rank(loss) or 0
    taker = joint.cotangents[name] = _cotangent(name, values)
    scale = op.cx.edit.add_input(taker, dtype, [1] * rank)
    if op.cx.model.ir_version >= 4:
        op.cx.edit.give_default(scale, ir.tensor(np.ones([1] * rank, dtype.numpy()), dtype=dtype))
    return scale


def _named(name: str, values: Mapping[str, ir.Value]) -> ir.Value:
    if name not in values:
        raise unknown("value", name, values, "graphopt dump shows all")
    return values[name]


def _check_loss(value: ir.Value, declared: ir.Value, cx: Context) -> None:
    """Check that ``value``, which is declared as ``declared`` is, can be a loss."""
    name = declared.name
    if not is_real(value, cx):
        raise UsageError(f"{name!r} holds no floating-point numbers, and can't be a loss")
    shape = cx.shape(value)
    if shape is None and declared.shape is not None:  # what nobody knows better is believed
        shape = tuple(dim if isinstance(dim, int) else str(dim) for dim in declared.shape)
    if shape is None:
        raise UsageError(f"it is not known whether {name!r} has one element, as losses do", hint=_HINT)
    if any(dim != 1 for dim in shape):
        sure = any(isinstance(dim, int) and dim != 1 for dim in shape)
        dims = "x".join(map(str, shape))
        raise UsageError(
            f"{name!r} is no loss: it {'has' if sure else 'may have'} {dims} elements", hint=_HINT
        )


def _return(loss: ir.Value, outputs: str, cx: Context) -> None:
    """Let the graph return ``loss``, and nothing else if ``outputs`` says so."""
    graph = cx.model.graph
    if outputs == "loss":
        cx.edit.set_outputs(graph, [loss])
    elif not loss.is_graph_output():
        cx.edit.add_output(graph, loss)
    dtype = cx.dtype(loss)
    if dtype is not None and (loss.type is None or loss.shape is None):
        cx.edit.declare(loss, dtype, declared_dims(cx, loss))


def _cotangent(name: str, taken: Container[str]) -> str:
    """The input that takes the gradient of a value: ``cotangent.y``, or ``cotangent2.y`` and so on."""
    found, order = f"{COTANGENT}{name}", 1
    while found in taken:
        order += 1
        found = f"cotangent{order}.{name}"
    return found


def _order(graph: ir.Graph) -> str:
    """What tells gradients of gradients from those that the model returns: nothing, or ``2`` and so on."""
    names = [output.name or "" for output in graph.outputs]
    order = 1
    while any(name.startswith(f"{PREFIX}{order if order > 1 else ''}.") for name in names):
        order += 1
    return str(order) if order > 1 else ""


def _as_output(op: GraphBuilder, gradient: ir.Value, name: str, like: ir.Value) -> ir.Value:
    """``gradient`` under ``name``, declared as what it is the gradient of."""
    edit = op.cx.edit
    if gradient.producer() is None or gradient.is_graph_output() or not op.has_made(gradient):
        op.prefix = name
        gradient = op.Identity(gradient)
    edit.rename(gradient, name)
    if gradient.name != name:
        raise UsageError(f"the model has a value {name!r} already, and the gradient is to be called so")
    if is_sequence(like, op.cx):
        gradient.type = op.cx.facts.type(like)
        return gradient
    edit.declare(gradient, op.dtype(like), declared_dims(op.cx, like))
    return gradient
