"""Options that go with others, or exclude them: told where they are declared, checked of all commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from graphopt.errors import UsageError


class Option(click.Option):
    """An option that stands in relations to others of its command.

    Args:
        goes_with: another that has to be given, too.
        excludes: others of which none may be given.
        where: another option, and the value that it has to have.
        hint: what to do where that is not so.
    """

    def __init__(
        self,
        *arguments: Any,
        goes_with: str | None = None,
        excludes: Sequence[str] = (),
        where: tuple[str, str] | None = None,
        hint: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.goes_with = goes_with
        self.excludes = excludes
        self.where = where
        self.hint = hint

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.opts[0]


def option(*arguments: Any, **more: Any) -> Any:
    """As ``click.option``, with the relations of :class:`Option`."""
    return click.option(*arguments, cls=Option, **more)


def named(command: click.Command, text: str) -> click.Parameter:
    """The option of ``command`` that ``text`` names, such as ``--tune``; raises KeyError for others."""
    return {name: param for param in command.params for name in param.opts}[text]


def check(context: click.Context) -> None:
    """Check that the options that were given go together.

    Raises:
        UsageError: they do not.
    """
    command = context.command
    given = [param for param in command.params if _is_given(context, param)]
    for param in given:
        if not isinstance(param, Option):
            continue
        if param.goes_with is not None and named(command, param.goes_with) not in given:
            hint = param.hint or f"add {param.goes_with}, or leave {param.label} out"
            raise UsageError(f"{param.label} goes with {param.goes_with}", hint=hint)
        if param.where is not None:
            other, value = param.where
            if context.params.get(named(command, other).name or "") != value:
                hint = param.hint or f"add {other} {value}, or leave {param.label} out"
                raise UsageError(f"{param.label} goes with {other} {value}", hint=hint)
        for other in param.excludes:
            if named(command, other) in given:
                raise UsageError(
                    f"{other} and {param.label} exclude each other",
                    hint=param.hint or "leave one of them out",
                )


def _is_given(context: click.Context, param: click.Parameter) -> bool:
    return context.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
