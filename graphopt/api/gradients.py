"""Gradients of models, as models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.assembly import PathLike, choose_device, loaded

if TYPE_CHECKING:
    from graphopt.autodiff.joint import Joint
    from graphopt.autodiff.losses import Loss
    from graphopt.autodiff.value_and_grad import ValueAndGrad
    from graphopt.runtime.devices import Device


def grad(
    model: ir.Model | PathLike,
    loss: str | Loss,
    wrt: str | Iterable[str] = "params",
    *,
    outputs: str = "all",
    optimize: bool = True,
) -> Joint:
    """The joint graph: a model that also returns the gradients of a loss, made of ordinary operators.

    >>> joint = grad("model.onnx", "cross_entropy:logits,labels")        # doctest: +SKIP
    >>> joint.gradients                                                  # doctest: +SKIP
    {'fc.weight': 'grad.fc.weight', 'fc.bias': 'grad.fc.bias'}
    >>> graphopt.save(joint.model, "joint.onnx")                         # doctest: +SKIP

    Args:
        model: a model, which is left as it is, or the path of one. Functions are inlined, and models below
            opset 13 are converted to it.
        loss: an output or inner value with one element; or a loss function, as text or
            :class:`graphopt.autodiff.losses.Loss`: ``cross_entropy:logits,labels``, where ``,axis=-1`` says
            along which of more than two axes classes are, and ``,ignore_index=-100`` which label does not
            count; ``mse:prediction,target``. What they compare with becomes an input where the model has no
            such value.
        wrt: ``params``, ``inputs``, and names of inputs, initializers and inner values.
        outputs: ``all`` for the model's own outputs too, ``loss`` for the loss and gradients alone.
        optimize: run the pipeline ``joint`` over the result.

    Raises:
        UsageError: a name is unknown, or the loss may have several elements.
        NoGradient: a gradient that is asked for leads through an operator without one.
        UnsupportedModel: the model can't be converted to an opset that gradients are written for.
    """
    from graphopt.autodiff.joint import differentiate
    from graphopt.autodiff.losses import Loss

    found = loaded(model)
    if isinstance(loss, str) and Loss.is_meant(loss, found):
        loss = Loss.parse(loss)
    return differentiate(found, loss, wrt, outputs=outputs, optimize=optimize)


def value_and_grad(
    model: ir.Model | PathLike,
    loss: str | Loss,
    wrt: str | Iterable[str] = "params",
    *,
    outputs: Iterable[str] = (),
    device: str | Device | None = None,
    threads: int | None = None,
) -> ValueAndGrad:
    """A function from inputs to a loss and its gradients, which runs through onnxruntime.

    >>> f = value_and_grad("model.onnx", "mse:y,target")                 # doctest: +SKIP
    >>> loss, gradients = f({"x": x, "target": target})                  # doctest: +SKIP
    >>> for name, gradient in gradients.items():                         # doctest: +SKIP
    ...     f.parameters[name] -= 0.1 * gradient

    The parameters are its attribute ``parameters``, numpy arrays by name, which may be changed between calls.
    Running statistics of BatchNormalization in training are ``state``, which each call updates.

    Args:
        model, loss, wrt: as for :func:`grad`.
        outputs: names of outputs of the model that ``f.outputs`` holds after each call, such as logits.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        threads: threads inside one operator; by default one a core.

    Raises:
        UsageError, NoGradient, UnsupportedModel: as for :func:`grad`.
        RuntimeFailure: onnxruntime can't load the joint graph, or the device can't be used.
    """
    from graphopt.autodiff.value_and_grad import ValueAndGrad

    kept = list(outputs)
    joint = grad(model, loss, wrt, outputs="all" if kept else "loss")
    return ValueAndGrad(joint, choose_device(device)[0], threads, kept)
