"""Printed lines on stdout: marks and rules in colour, and a pager for long output."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from graphopt.cli.output.console import Console, columns
from graphopt.cli.output.fit_to_width import wrapped

if TYPE_CHECKING:
    from graphopt.modeldiff.print_changes import Printed

_COLOURS = {"+": "green", "-": "red", "~": "yellow", "─": "cyan"}


def print_line(console: Console, line: Printed) -> None:
    """Print one line of results."""
    console.print(_styled(line))


def page(console: Console, lines: Sequence[Printed], *, pager: bool = True) -> None:
    """Print ``lines``, on a terminal through ``$PAGER`` if they do not fit the screen."""
    if console.as_json:
        return
    if pager and _is_interactive() and len(lines) >= shutil.get_terminal_size().lines:
        width = columns(sys.stdout)
        shown = (part for line in lines for part in wrapped(_styled(line), width))
        click.echo_via_pager((f"{line}\n" for line in shown), color=console.color)
        return
    for line in lines:
        print_line(console, line)


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _styled(line: Printed) -> str:
    """``line`` with its mark or its rules in colour, for terminals."""
    text = str(line)
    colour = _COLOURS.get(line.mark)
    if line.mark in "+-~" and colour is not None:
        text = click.style(text[0], fg=colour) + text[1:]
        if line.note:
            text = text.removesuffix(line.note) + click.style(line.note, fg="cyan")
    elif colour is not None and text.startswith("──"):
        dashes, _, rest = text.partition(" ")
        title, _, tail = rest.partition(" ─")
        text = f"{click.style(dashes, fg=colour)} {click.style(title, bold=True)} ─{tail}"
    return text
