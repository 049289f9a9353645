"""Options of the command line that require or exclude others, with the same checks in all commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from graphopt.errors import UsageError
from graphopt.util import option_table


class Option(click.Option):
    """An option with relations to others of its command.

    Args:
        requires: another option that must also be given.
        excludes: options that must not be given.
        where: another option, and its required value.
        hint: the next step if a relation is violated.
    """

    def __init__(
        self,
        *arguments: Any,
        requires: str | None = None,
        excludes: Sequence[str] = (),
        where: tuple[str, str] | None = None,
        hint: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.requires = requires
        self.excludes = excludes
        self.needs = () if requires is None else (requires,)
        self.where = where
        self.hint = hint

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.opts[0]


def option(*arguments: Any, **more: Any) -> Any:
    """As ``click.option``, with the relations of :class:`Option`."""
    return click.option(*arguments, cls=Option, **more)


def named(command: click.Command, text: str) -> click.Parameter:
    """The option of ``command`` that ``text`` names, such as ``--tune``; raises KeyError for other text."""
    return {name: param for param in command.params for name in param.opts}[text]


def check(context: click.Context) -> None:
    """Check that the given options can be combined.

    Raises:
        UsageError: two options exclude each other, or one requires another.
    """
    command = context.command
    given = [param for param in command.params if _is_given(context, param)]
    related = {param.label: param for param in command.params if isinstance(param, Option)}
    option_table.check(related, {name for param in given for name in param.opts})
    for param in given:
        if isinstance(param, Option) and param.where is not None:
            other, value = param.where
            if context.params.get(named(command, other).name or "") != value:
                hint = param.hint or f"add {other} {value}, or leave {param.label} out"
                raise UsageError(f"{param.label} requires {other} {value}", hint=hint)


def _is_given(context: click.Context, param: click.Parameter) -> bool:
    return context.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
