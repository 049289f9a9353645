"""Where output goes: results to stdout, narration and progress to stderr.

On a terminal tables and progress bars come from rich; piped, the same facts are plain aligned
text without colour codes.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from graphopt.tables import Table

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from graphopt.runtime.oracle.verdict import Verdict

#: What lies between two columns of rich's tables.
_RICH_GAP = 3
_PLAIN = str.maketrans({"Δ": "d", "×": "x", "−": "-", "→": "->", "…": "...", "─": "-"})

#: Called with how far it is (0 to 1, or ``None`` for unknown) and what is being done.
Advance = Callable[[float | None, str], None]


class Console:
    """Prints for people, or JSON for programs.

    Args:
        color: force colours on or off; by default they appear on terminals.
        quiet: no narration.
        as_json: results are one JSON object; what people would read is left out.
    """

    def __init__(self, *, color: bool | None = None, quiet: bool = False, as_json: bool = False) -> None:
        self.color = color
        self.quiet = quiet
        self.as_json = as_json
        self._on_stderr = False

    def use_stderr(self) -> None:
        """Print results on stderr, because stdout is for something else."""
        self._on_stderr = True

    # Results ------------------------------------------------------------------------------

    def print(self, text: str = "", **style: Any) -> None:
        """A line of results; ``style`` as for :func:`click.style`."""
        if not self.as_json:
            text = _encodable(text, self._stream)
            click.echo(click.style(text, **style) if style else text, file=self._stream, color=self.color)

    def table(self, table: Table, indent: str = "  ") -> None:
        """A table of results."""
        if self.as_json:
            return
        if _is_terminal(self._stream):
            rich = self._rich(self._stream)
            fitted = table.fitted(rich.width - len(indent), gap=_RICH_GAP, wraps=True)
            rich.print(_rich_table(fitted, indent))
        else:
            for line in table.lines(indent):  # whole: programs read it, too
                click.echo(_encodable(line, self._stream), file=self._stream)

    def json(self, result: Any) -> None:
        """The result for programs; printed only if that is what was asked for."""
        if self.as_json:
            text = json.dumps(result, indent=2, ensure_ascii=False, default=str)
            click.echo(text, file=self._stream)

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._on_stderr else sys.stdout

    # Narration ----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A line about what is going on."""
        if not self.quiet:
            click.echo(text, err=True, color=self.color)

    @contextlib.contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        """Print what the ``with`` block warns of, a line each."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for item in caught:
            self.note(f"  warning: {item.message}")

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[Advance]:
        """A progress bar named ``what`` while the ``with`` block runs; nothing where nobody watches."""
        if self.quiet or not _is_terminal(sys.stderr):
            yield lambda done, text: None
            return
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("  {task.description}"), BarColumn(24), TextColumn("{task.fields[text]}")
        with Progress(*columns, console=self._rich(sys.stderr), transient=True) as progress:
            task = progress.add_task(what, total=None, text="")

            def advance(done: float | None, text: str) -> None:
                progress.update(task, total=None if done is None else 1.0, completed=done or 0, text=text)

            yield advance

    def _rich(self, stream: TextIO) -> RichConsole:
        from rich.console import Console as RichConsole

        return RichConsole(file=stream, no_color=self.color is False, highlight=False, soft_wrap=True)


def warn_unverified(verdict: Verdict, about: str = "", hint: str = "") -> None:
    """Warn on stderr that nothing could be compared, if so.

    Args:
        about: the model, with a colon behind it.
        hint: what helps where no inputs were found.
    """
    if verdict.unverifiable is not None:
        click.echo(f"graphopt: warning: {about}not verified: {verdict.unverifiable}", err=True)
    if verdict.lacks_inputs and hint:
        click.echo(f"hint: {hint}", err=True)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def _encodable(text: str, stream: TextIO) -> str:
    """``text`` with plainer signs where ``stream`` can't write it."""
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_PLAIN)
    return text


def _rich_table(table: Table, indent: str) -> Any:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    rich = RichTable(
        box=box.SIMPLE_HEAD if any(table.columns) else None,
        show_header=any(table.columns),
        header_style="bold",
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
    )
    for column, align in zip(table.columns, table.align, strict=True):
        rich.add_column(column, justify="right" if align == ">" else "left", no_wrap=align == ">")
    for row in table.rows:
        rich.add_row(*map(Text, row))  # as it is: brackets in a plain string would be markup
    return Padding(rich, (0, 0, 0, len(indent)))
