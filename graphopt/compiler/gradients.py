"""Gradients of models, as models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.fuse_gradient_models import fuse
from graphopt.compiler.record_settings import record_of, write_record
from graphopt.model_arguments import ModelLike
from graphopt.optimize_options import DeviceOptions, RunOptions
from graphopt.ort.session_options import SessionChoice
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.autodiff.joint_graph import Joint
    from graphopt.autodiff.losses import Loss
    from graphopt.autodiff.split_joint import Split
    from graphopt.autodiff.value_and_grad import ValueAndGrad
    from graphopt.verification.verdict import Verdict


@checked
def differentiate(
    env: Environment,
    model: ModelLike,
    loss: str | Loss,
    wrt: str | Iterable[str] = "params",
    *,
    outputs: str = "all",
    optimize: bool = True,
    fuser: str | None = None,
    by_group: bool = False,
) -> Joint:
    """The joint graph: a model that also returns the gradients of a loss, built from ordinary operators.

    >>> joint = graphopt.differentiate("model.onnx", "cross_entropy:logits,labels")
    >>> joint.gradients
    {'weight': 'grad.weight', 'bias': 'grad.bias'}
    >>> graphopt.save(joint.model, "joint.onnx")
    [PosixPath('joint.onnx')]

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed. Functions are inlined, and
            models below opset 13 are converted to opset 13.
        loss: an output or inner value with one element; or a loss function, as text or
            :class:`graphopt.autodiff.losses.Loss`: ``cross_entropy:logits,labels`` or
            ``mse:prediction,target``. For cross_entropy, ``,axis=-1`` sets the axis of the classes if there
            are more than two axes, and ``,ignore_index=-100`` excludes a label. If the model has no value for
            the labels or the target, they become an input.
        wrt: ``params``, ``inputs``, and names of inputs, initializers and inner values.
        outputs: ``all`` to return also the model's own outputs; ``loss`` to return only the loss and
            gradients.
        optimize: run the pipeline ``joint`` over the result.
        fuser: fuse nodes, and verify the result: ``builtin`` for fused operators of onnxruntime, ``native``
            also for groups with compiled kernels. By default, nothing is fused.
        by_group: differentiate groups of nodes, as :func:`partition` finds them. Each becomes a forward and a
            backward function, which are inlined before nodes are fused. If the gradient of a member of
            ``params`` or ``inputs`` depends on an operator without a gradient, the member is omitted, which
            is no error; ``excluded`` of the result has the reasons.

    Raises:
        UsageError: a name is unknown, or the loss may have several elements.
        NoGradient: a requested gradient depends on an operator without a gradient.
        UnsupportedModel: the model can't be converted to an opset that gradients support.
    """
    from graphopt.autodiff import differentiate_by_group as groups
    from graphopt.autodiff import joint_graph
    from graphopt.autodiff.losses import parse_loss

    found = env.load(model)
    function = groups.differentiate if by_group else joint_graph.differentiate
    joint = function(found, parse_loss(loss, found), wrt, outputs=outputs, optimize=optimize)
    fused = fuse(env, joint.model, fuser, joint.variables)
    joint = joint if fused is None else replace(joint, model=fused.model)
    arguments = {"outputs": outputs, "optimize": optimize, "fuser": fuser, "by_group": by_group}
    write_record(record_of(env, differentiate, loss=_text(loss), wrt=_text(wrt), **arguments), joint.model)
    env.created_graph("optimized-graph", joint.model)
    return joint


@checked
def split(
    env: Environment,
    model: ModelLike,
    loss: str | Loss | Sequence[str],
    wrt: str | Iterable[str] = "params",
    *,
    outputs: str = "all",
    memory_budget: float = 1.0,
    save_everything: bool = False,
    dims: Mapping[str, int] | None = None,
    fuser: str | None = None,
    by_group: bool = False,
) -> Split:
    """A forward model, which also returns residuals, and a backward model from residuals to gradients.

    >>> found = graphopt.split("model.onnx", "cross_entropy:logits,labels")
    >>> found.handed
    [...]
    >>> graphopt.save(found.forward, "forward.onnx")
    [PosixPath('forward.onnx')]

    Args:
        model, wrt, outputs: as for :func:`differentiate`.
        loss: as for :func:`differentiate`; or a list of outputs, whose cotangents the backward model accepts
            as the inputs ``cotangent.<name>``. The cotangent of a loss is 1 by default.
        memory_budget: the permitted fraction, from 0 to 1, of the bytes of all residuals: 1 minimizes bytes
            and recomputation together, 0 minimizes the bytes.
        save_everything: recompute nothing.
        dims: sizes of dynamic dims for estimates, by default 16. Both models remain dynamic.
        fuser: as for :func:`differentiate`, for each of the two models.
        by_group: as for :func:`differentiate`; residuals are selected in each group, and between groups.

    Raises:
        UsageError: the budget is not between 0 and 1, or a dim is unknown; or as for :func:`differentiate`.
        NoGradient, UnsupportedModel: as for :func:`differentiate`.
    """
    from graphopt.autodiff import differentiate_by_group as groups
    from graphopt.autodiff import split_joint
    from graphopt.autodiff.losses import parse_loss

    found = env.load(model)
    function = groups.split if by_group else split_joint.split
    halves = function(
        found,
        parse_loss(loss, found),
        wrt,
        outputs=outputs,
        memory_budget=memory_budget,
        save_all=save_everything,
        dims=dims,
    )
    variables = halves.joint.variables
    forward, backward = (fuse(env, half, fuser, variables) for half in (halves.forward, halves.backward))
    if forward is not None and backward is not None:
        halves = replace(halves, forward=forward.model, backward=backward.model)
    record = record_of(
        env,
        split,
        loss=_text(loss),
        wrt=_text(wrt),
        outputs=outputs,
        memory_budget=memory_budget,
        save_everything=save_everything,
        dims=dims or None,
        fuser=fuser,
        by_group=by_group,
    )
    write_record(record, halves.forward, halves.backward)
    env.created_graph("forward-graph", halves.forward)
    env.created_graph("backward-graph", halves.backward)
    return halves


def _text(names: str | Loss | Iterable[str]) -> str | list[str]:
    """A loss or names as plain data; a single name has one form."""
    if isinstance(names, Iterable) and not isinstance(names, str):
        found = list(names)
        return found[0] if len(found) == 1 else found
    return str(names)


@checked
def verify_split(env: Environment, found: Split, **options: Unpack[RunOptions]) -> Verdict:
    """Run the forward model, the backward model and the joint graph, and compare the results.

    Args:
        found: the models, as :func:`split` returns them.
        options: as for :func:`graphopt.optimize`.

    Raises:
        VerificationFailed: the results differ.
    """
    from graphopt.autodiff.rejoin_split import rejoin
    from graphopt.ort import preflight
    from graphopt.ort.loadable_model import Artifact

    env = env.having(options)
    for half in (found.forward, found.backward):  # onnxruntime may refuse either model
        with contextlib.closing(Artifact(half)) as artifact:
            preflight.try_load(artifact.source)
    subject = "the results of the two models differ from those of the joint graph"
    return env.compared(found.joint.model, [rejoin(found)], subject, signature=False)


@checked
def value_and_grad(
    env: Environment,
    model: ModelLike,
    loss: str | Loss,
    wrt: str | Iterable[str] = "params",
    *,
    outputs: Iterable[str] = (),
    threads: int | None = None,
    fuser: str | None = None,
    by_group: bool = False,
    **options: Unpack[DeviceOptions],
) -> ValueAndGrad:
    """A function from inputs to a loss and its gradients, evaluated by onnxruntime.

    >>> f = graphopt.value_and_grad("model.onnx", "cross_entropy:logits,labels")
    >>> loss, gradients = f({"x": x, "labels": labels})
    >>> for name, gradient in gradients.items():
    ...     f.parameters[name] -= 0.1 * gradient

    The attribute ``parameters`` has the parameters, numpy arrays by name, which may be changed between calls.
    The attribute ``state`` has the running statistics of BatchNormalization in training; each call updates
    them.

    Args:
        model, loss, wrt: as for :func:`differentiate`.
        outputs: names of outputs of the model, such as logits, that each call stores in ``f.outputs``.
        threads: threads inside one operator; by default one per core.
        fuser, by_group: as for :func:`differentiate`.
        options: as for :func:`graphopt.optimize`.

    Raises:
        UsageError, NoGradient, UnsupportedModel: as for :func:`differentiate`.
        RuntimeFailure: onnxruntime can't load the joint graph, or the device can't be used.
    """
    from graphopt.autodiff.value_and_grad import ValueAndGrad

    kept = list(outputs)
    env = env.having(options)
    joint = differentiate(
        env.without("fuser"), model, loss, wrt, outputs="all" if kept else "loss", by_group=by_group
    )

    def prepare(model: ir.Model) -> tuple[ir.Model, SessionChoice]:
        fused = fuse(env, model, fuser)
        if fused is None:
            return model, SessionChoice()
        env.created_graph("optimized-graph", fused.model)
        return fused.model, env.toolchain.libraries(fused.model).choice

    return ValueAndGrad(joint, env.device, threads, kept, prepare)
