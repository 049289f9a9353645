"""Gradients of models, as models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.assembly import PathLike, loaded

if TYPE_CHECKING:
    from graphopt.autodiff.joint import Joint
    from graphopt.autodiff.losses import Loss


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
            :class:`graphopt.autodiff.losses.Loss`: ``cross_entropy:logits,labels`` (``,axis=-1`` if classes
            are not along axis 1), ``mse:prediction,target``. What they compare with becomes an input where
            the model has no such value.
        wrt: ``params``, ``inputs``, or names of inputs, initializers and inner values.
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
