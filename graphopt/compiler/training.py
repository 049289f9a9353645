"""Models that do a step of training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from graphopt.compiler.environment import Environment
from graphopt.models import ModelLike
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    from graphopt.autodiff.losses import Loss
    from graphopt.training.optimizers import Optimizer
    from graphopt.training.step import TrainingStep


@checked
def train_step(
    env: Environment,
    /,
    model: ModelLike,
    loss: str | Loss,
    optimizer: str | Optimizer = "adam",
    wrt: str | Iterable[str] = "params",
    *,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    no_decay: Iterable[str] = (),
    outputs: str = "loss",
    **settings: Any,
) -> TrainingStep:
    """A model that does a step of training: parameters and state in, the loss and new ones out.

    >>> step = graphopt.train_step("model.onnx", "cross_entropy:logits,labels", "adamw")
    >>> trainer = graphopt.Trainer(step)
    >>> for batch in [{"x": x, "labels": labels}]:
    ...     loss = trainer.step(batch)

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        loss: an output or inner value with one element; or a loss function, such as
            ``cross_entropy:logits,labels`` or ``mse:prediction,target``.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``, which do what those of ``torch.optim`` do; or
            one of :mod:`graphopt.training.optimizers`.
        wrt: ``params``, or names of initializers to train.
        learning_rate: the default of the input; 0.01, or 0.001 for ``adam`` and ``adamw``.
        clip_norm: scale the gradients such that their common norm is at most this.
        accumulate: average the gradients of so many steps for one update.
        no_decay: names of parameters without weight decay, or patterns such as ``*.bias``.
        outputs: ``loss``, or ``all`` for the model's own outputs too.
        settings: those of the optimizer: ``weight_decay``, ``momentum``, ``nesterov``, ``betas``, ``eps``.

    Raises:
        UsageError: a setting is out of its range, a name is unknown or taken, or there is nothing to train.
        NoGradient: a gradient leads through an operator without one.
        UnsupportedModel: the model can't be converted to an opset that gradients are written for.
    """
    from graphopt.autodiff.losses import Loss
    from graphopt.training.optimizers import make
    from graphopt.training.step import write_step

    found = env.load(model)
    if isinstance(loss, str) and Loss.is_meant(loss, found):
        loss = Loss.parse(loss)
    return write_step(
        found,
        loss,
        make(optimizer, **settings) if isinstance(optimizer, str) else optimizer,
        wrt,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        accumulate=accumulate,
        no_decay=no_decay,
        outputs=outputs,
    )
