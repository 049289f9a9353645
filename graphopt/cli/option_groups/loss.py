"""Options that name a loss, and the loss that they select."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphopt.cli.options import option_relations, shared_options
from graphopt.cli.options.table_options import Decorator
from graphopt.errors import UsageError

if TYPE_CHECKING:
    from graphopt.autodiff.losses import Loss

_EXAMPLE = "such as --loss-fn cross_entropy:logits,labels"


def loss_options(title: str) -> Decorator:
    """``--loss`` and ``--loss-fn``, which the help lists under ``title``."""
    return shared_options.group(
        title,
        option_relations.option(
            "--loss", metavar="NAME", help="An output or inner value with one element, or a loss function."
        ),
        option_relations.option(
            "--loss-fn",
            metavar="FUNCTION",
            excludes=("--loss",),
            hint=_EXAMPLE,
            help="A loss of two values: cross_entropy:LOGITS,LABELS[,axis=N][,ignore_index=N] or mse:A,B. The"
            " second becomes an input if the model has no such value.",
        ),
    )


def chosen_loss(loss: str | None, loss_fn: str | None) -> str | Loss:
    """The loss that the options name.

    Raises:
        UsageError: neither option names a loss, or the function is unknown.
    """
    from graphopt.autodiff.losses import Loss

    if loss is not None:
        return loss
    if loss_fn is None:
        raise UsageError("give either --loss or --loss-fn", hint=_EXAMPLE)
    return Loss.parse(loss_fn)
