"""Models that perform a training step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphopt.compiler.environment import Environment
from graphopt.compiler.fuse_gradient_models import fuse
from graphopt.compiler.record_settings import record_of, write_record
from graphopt.model_arguments import ModelLike
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.autodiff.losses import Loss
    from graphopt.training.optimizers import Optimizer
    from graphopt.training.training_step import TrainingStep


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
    fuser: str | None = None,
    by_group: bool = False,
    **settings: Any,
) -> TrainingStep:
    """A model that performs a training step: its outputs are the loss and the next parameters and state.

    >>> step = graphopt.train_step("model.onnx", "cross_entropy:logits,labels", "adamw")
    >>> trainer = graphopt.Trainer(step)
    >>> for batch in [{"x": x, "labels": labels}]:
    ...     loss = trainer.step(batch)

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        loss: an output or inner value with one element; or a loss function, such as
            ``cross_entropy:logits,labels`` or ``mse:prediction,target``.
        optimizer: ``sgd``, ``momentum``, ``adam`` or ``adamw``, as in ``torch.optim``; or one of
            :mod:`graphopt.training.optimizers`.
        wrt: ``params``, or names of initializers to train.
        learning_rate: the default of the input; 0.01, or 0.001 for ``adam`` and ``adamw``.
        clip_norm: maximum global norm of the gradients, which are scaled down if necessary.
        accumulate: number of steps whose gradients are averaged for one update.
        no_decay: names of parameters without weight decay, or patterns such as ``*.bias``.
        outputs: ``loss``, or ``all`` to also return the model's own outputs.
        fuser: fuse nodes of the step, and verify the result: ``builtin`` for fused operators of onnxruntime,
            ``native`` also for compiled kernels. By default, nothing is fused.
        by_group: differentiate groups of nodes, as for :func:`differentiate`. A member of ``params`` whose
            gradient depends on an operator without a gradient is not trained; ``excluded`` of the result has
            the reasons.
        settings: settings of the optimizer: ``weight_decay``, ``momentum``, ``nesterov``, ``betas``, ``eps``.

    Raises:
        UsageError: a setting is out of its range, a name is unknown or already used, or the model has no
            parameters to train.
        NoGradient: a requested gradient depends on an operator without a gradient.
        UnsupportedModel: the model can't be converted to an opset that gradients support.
        VerificationFailed: the fused step computes different values.
    """
    from graphopt.autodiff.losses import parse_loss
    from graphopt.training.optimizers import make
    from graphopt.training.training_step import write_step

    found = env.load(model)
    step = write_step(
        found,
        parse_loss(loss, found),
        make(optimizer, **settings) if isinstance(optimizer, str) else optimizer,
        wrt,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        accumulate=accumulate,
        no_decay=no_decay,
        outputs=outputs,
        by_group=by_group,
    )
    fused = fuse(env, step.model, fuser)
    step = step if fused is None else replace(step, model=fused.model)
    record = record_of(
        env,
        train_step,
        loss=str(loss),
        optimizer=optimizer if isinstance(optimizer, str) else None,
        wrt=wrt if isinstance(wrt, str) else list(wrt),
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        accumulate=accumulate,
        no_decay=tuple(no_decay),
        outputs=outputs,
        fuser=fuser,
        by_group=by_group,
        **settings,
    )
    write_record(record, step.model)
    env.created_graph("optimized-graph", step.model)
    return step
