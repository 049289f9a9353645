"""``--weights``, the file of the large weights of a result, and its former names."""

from __future__ import annotations

import click

from graphopt.cli.options.table_options import Decorator
from graphopt.errors import UsageError
from graphopt.util.weight_placement import PLACES

#: Former options for values of ``--weights``, accepted for one release.
_FORMER_WEIGHTS = {"--external-data": "beside", "--no-external-data": "inside"}
_FORMER_KEY = "graphopt.former_weights"


def _former_weights(flag: str) -> Decorator:
    def keep(context: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[_FORMER_KEY] = value

    return click.option(
        flag,
        "former_weights",
        flag_value=flag,
        default=None,
        hidden=True,
        is_eager=True,  # processed before --weights, whose value it sets
        expose_value=False,
        callback=keep,
        help=f"The former name of --weights {_FORMER_WEIGHTS[flag]}.",
    )


def _place_of_weights(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    former = context.meta.get(_FORMER_KEY)
    if former is None:
        return value
    if value is not None:
        raise UsageError(
            f"--weights and {former} exclude each other",
            hint=f"{former} is the former name of --weights {_FORMER_WEIGHTS[former]}; leave one of them out",
        )
    return _FORMER_WEIGHTS[former]


#: The options of commands that write models.
OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--weights",
        type=click.Choice(PLACES),
        default=None,
        callback=_place_of_weights,
        help="Keep unchanged weights in IN's data files, copy them, or store all inside OUT or in a file"
        " beside it (docs/cli.md).  [default: keep in IN's folder, else copy]",
    ),
    *map(_former_weights, _FORMER_WEIGHTS),
)
