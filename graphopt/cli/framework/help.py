"""The help of commands: the most used options by default, all options with ``--help-all``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import click

from graphopt.cli.output.console import columns
from graphopt.cli.output.fit_to_width import wrapped

#: Maximum width of the help in columns.
_WIDEST = 110
#: Number of examples in the short help.
_EXAMPLES = 4
_OTHERS = "Other options"
_ALL = "graphopt.help_all"

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


class HelpContext(click.Context):
    """A context whose help fits the stream that it is printed on."""

    def make_formatter(self) -> click.HelpFormatter:
        """A formatter for the width of the terminal."""
        return click.HelpFormatter(width=max(min(columns(sys.stdout), _WIDEST) - 2, 20))


class HelpedCommand(click.Command):
    """A command with a short help and a long one.

    Args:
        examples: command lines, the most useful ones first.
        everyday: the options in the short help, in this order; all options if empty.
    """

    context_class = HelpContext

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str] = (),
        everyday: Sequence[str] = (),
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.examples, self.everyday = tuple(examples), tuple(everyday)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, and ``--help-all`` if it shows more than ``--help``."""
        return [*super().get_params(ctx), _help_all if self.everyday else _no_more_help]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, summary and examples; then the rest of the text and the options."""
        is_long = not self.everyday or ctx.meta.get(_ALL, False)
        summary, _, rest = inspect.cleandoc(self.help or "").partition("\n\n")
        self.format_usage(ctx, formatter)
        _write_text(formatter, summary)
        with formatter.section("Examples"):
            for example in self.examples if is_long else self.examples[:_EXAMPLES]:
                for line in _shell_lines(example, formatter.current_indent, formatter.width):
                    formatter.write(f"{line}\n")
        if not is_long:
            self._write_everyday(ctx, formatter)
            return
        if rest:
            _write_text(formatter, rest)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group of options, the common options last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", _OTHERS), []).append(record)
        for title, records in sorted(sections.items(), key=lambda item: item[0] == _OTHERS):
            with formatter.section(title):
                formatter.write_dl(records)

    def _write_everyday(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [item for item in self.get_params(ctx) if isinstance(item, click.Option)]
        by_name = {name: option for option in options for name in option.opts}
        shown = [by_name[name] for name in self.everyday]
        with formatter.section("Options"):
            records = [option.get_help_record(ctx) for option in shown]
            formatter.write_dl([record for record in records if record is not None])
        listed = [item for item in options if not item.hidden and item is not _help_all]
        common = [item for item in listed if not hasattr(item, "section")]
        more = len(listed) - len(shown) - len(common)
        names = " ".join(option.opts[0] for option in common)
        _write_text(formatter, f"In all commands: {names}")
        with formatter.indentation():
            formatter.write_text(f"{ctx.command_path} --help-all lists {more} more options.")


def _shell_lines(command: str, indent: int, width: int) -> list[str]:
    """A command line in shell notation, continued with backslashes if it is too long."""
    lead = " " * indent
    *lines, last = wrapped(lead + command, width)
    if lines:
        *lines, last = wrapped(lead + command, width - len(" \\"), indent + 2)
    return [*(f"{line} \\" for line in lines), last]


def write_examples(examples: Sequence[tuple[str, str]], formatter: click.HelpFormatter) -> None:
    """Write command lines, each with a remark, which may be empty."""
    widest = max(len(command) for command, _ in examples)
    with formatter.indentation(), formatter.section("Examples"):
        for command, remark in examples:
            line = f"{'':{formatter.current_indent}}{command:{widest}}  {remark}".rstrip()
            if len(line) > formatter.width:
                line = f"{'':{formatter.current_indent}}{command}  {remark}"
            for part in wrapped(line, formatter.width):
                formatter.write(f"{part}\n")


def _write_text(formatter: click.HelpFormatter, text: str) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(text)


def _show_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _make_help_all(hidden: bool) -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_show_all,
        help="Show all options, and exit.",
    )


_help_all, _no_more_help = _make_help_all(hidden=False), _make_help_all(hidden=True)
