"""Output: results on stdout, messages and progress on stderr.

On a terminal, lines and tables fit its width (:mod:`graphopt.cli.output.fit_to_width`), labels have
colours, and progress bars come from rich. In a pipe, the same contents are whole lines and aligned tables
without colour codes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from graphopt import config
from graphopt.cli.output.fit_to_width import fitted, heading_within, wrapped
from graphopt.errors import UsageError
from graphopt.util.text_tables import Block, Line, Table, Tone

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress

    from graphopt.verification.verdict import Verdict

_PLAIN = str.maketrans({"Δ": "d", "×": "x", "−": "-", "→": "->", "…": "...", "─": "-"})
#: Default width in columns, if neither the terminal nor ``COLUMNS`` defines it.
_COLUMNS = 80
#: The words of a line that a tone colours: those before a colon or two spaces.
_LABEL = re.compile(r"\s*(?:graphopt: )?[^\s:]+(?: [^\s:]+)*?(?=:(?:\s|$)|  |$)")
_STYLES: dict[Tone, dict[str, Any]] = {
    "plain": {},
    "title": {"bold": True},
    "good": {"fg": "green", "bold": True},
    "bad": {"fg": "red", "bold": True},
    "caution": {"fg": "yellow", "bold": True},
    "hint": {"dim": True},
}
_WHOLE: frozenset[Tone] = frozenset({"title", "hint"})

#: Indentation of tables.
_INDENT = "  "

#: Called with the completed fraction (0 to 1, or ``None`` for unknown) and the current activity.
Advance = Callable[[float | None, str], None]


class Console:
    """Prints text for people, or JSON for programs.

    Args:
        color: force colours on or off; by default they appear on terminals.
        quiet: omit messages about progress.
        as_json: print results as one JSON object, and no text for people.

    Attributes:
        stdout: standard output, also while printed text is redirected.
    """

    def __init__(self, *, color: bool | None = None, quiet: bool = False, as_json: bool = False) -> None:
        self.color = color
        self.quiet = quiet
        self.as_json = as_json
        self._progress: Progress | None = None
        self._on_stderr = False
        self._prints = contextlib.ExitStack()
        self.stdout = sys.stdout

    @contextlib.contextmanager
    def separate_prints(self) -> Iterator[None]:
        """Within the ``with`` block, text printed by passes appears on stderr if a program reads stdout."""
        with self._prints:
            if self.as_json:
                self._prints.enter_context(contextlib.redirect_stdout(sys.stderr))
            yield

    def use_stderr(self) -> None:
        """Print results on stderr, because :attr:`stdout` is used for other output.

        Raises:
            UsageError: stdout is a terminal.
        """
        if _is_terminal(self.stdout):
            raise UsageError("standard output is a terminal", hint="-o FILE, or redirect it: -o - > out.onnx")
        self._on_stderr = True
        self._prints.enter_context(contextlib.redirect_stdout(sys.stderr))

    # Results ------------------------------------------------------------------------------

    def print(self, *blocks: Block) -> None:
        """Print lines and tables of results; nothing if JSON was requested."""
        if self.as_json:
            return
        self._clear()
        for block in blocks:
            if isinstance(block, Table):
                self._table(block)
            else:
                tone = block.tone if isinstance(block, Line) else "plain"
                say(block, tone, stream=self._stream, color=self.color)

    def _table(self, table: Table) -> None:
        if _is_terminal(self._stream):
            head, body = fitted(table, columns(self._stream), _INDENT)
            for line in head:
                self._line(line, bold=True)
            for line in body:
                self._line(line)
        else:
            for line in table.lines(_INDENT):  # not wrapped: programs also read the lines
                self._line(line)

    def write(self, text: str) -> None:
        """Print ``text`` without changes, even if JSON was requested."""
        stream = self._stream
        raw = getattr(stream, "buffer", None)
        if not isinstance(raw, io.RawIOBase):
            click.echo(text, file=stream)
            return
        # without a buffer (python -u), a signal ends a write early, without an error
        stream.flush()
        rest = memoryview(f"{text}\n".encode(stream.encoding, stream.errors or "strict"))
        while rest:
            rest = rest[raw.write(rest) or 0 :]

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._on_stderr else self.stdout

    def _line(self, text: str, **style: Any) -> None:
        text = _encodable(text, self._stream)
        click.echo(click.style(text, **style) if style else text, file=self._stream, color=self.color)

    # Messages -----------------------------------------------------------------------------

    def note(self, text: str, tone: Tone = "plain") -> None:
        """Print a line about progress."""
        if not self.quiet:
            self._clear()
            say(text, "hint" if text.startswith("hint: ") else tone, stream=sys.stderr, color=self.color)

    def warn(self, text: str, hint: str = "") -> None:
        """Print a warning on stderr, even if ``quiet``."""
        self._clear()
        say(f"graphopt: warning: {text}", "caution", stream=sys.stderr, color=self.color)
        if hint:
            say(f"hint: {hint}", "hint", stream=sys.stderr, color=self.color)

    def warn_unverified(self, verdict: Verdict, about: str = "", hint: str = "") -> None:
        """Warn if nothing could be compared.

        Args:
            about: the model, followed by a colon.
            hint: the next step if no inputs were found.
        """
        if verdict.unverifiable is not None:
            self.warn(f"{about}not verified: {verdict.unverifiable}", hint if verdict.lacks_inputs else "")

    @contextlib.contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        """Print each warning of the ``with`` block as a line."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for item in caught:
            self.note(f"  warning: {item.message}", "caution")

    @contextlib.contextmanager
    def noting(self, kind: type[Warning]) -> Iterator[None]:
        """Print each warning of ``kind`` in the ``with`` block once, immediately."""
        with warnings.catch_warnings():
            others, noted = warnings.showwarning, set[str]()

            def show(
                message: Warning | str,
                category: type[Warning],
                filename: str,
                lineno: int,
                file: TextIO | None = None,
                line: str | None = None,
            ) -> None:
                if not issubclass(category, kind):
                    others(message, category, filename, lineno, file, line)
                elif str(message) not in noted:
                    noted.add(str(message))
                    self.note(f"  warning: {message}", "caution")

            warnings.showwarning = show
            warnings.simplefilter("always", kind)
            yield

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[Advance]:
        """A progress bar named ``what`` while the ``with`` block runs; nothing unless stderr is a terminal.

        The bar disappears before anything else is printed.
        """
        if self.quiet or not _is_terminal(sys.stderr):
            yield lambda done, text: None
            return
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("  {task.description}"), BarColumn(24), TextColumn("{task.fields[text]}")
        with Progress(*columns, console=self._rich(sys.stderr), transient=True) as progress:
            task = progress.add_task(what, total=None, text="")
            self._progress = progress

            def advance(done: float | None, text: str) -> None:
                progress.update(task, total=None if done is None else 1.0, completed=done or 0, text=text)

            try:
                yield advance
            finally:
                self._progress = None

    def _clear(self) -> None:
        """Remove the progress bar, if there is one."""
        if self._progress is not None:
            self._progress.stop()

    def _rich(self, stream: TextIO) -> RichConsole:
        from rich.console import Console as RichConsole

        return RichConsole(file=stream, no_color=self.color is False, highlight=False, soft_wrap=True)


def say(text: str, tone: Tone = "plain", *, stream: TextIO, color: bool | None = None) -> None:
    """Print ``text``, on terminals wrapped at their width.

    Args:
        tone: colours the label, or all of a title or hint.
    """
    if _is_terminal(stream):
        lines = wrapped(text, columns(stream))
    else:
        lines = [text if (width := _columns_variable()) is None else heading_within(text, width)]
    style = _STYLES[tone] if tone in _WHOLE else {}
    for number, line in enumerate(lines):
        line = _encodable(line, stream)
        if style:
            line = click.style(line, **style)
        elif number == 0 and _STYLES[tone]:
            end = label.end() if (label := _LABEL.match(line)) is not None else len(line)
            line = click.style(line[:end], **_STYLES[tone]) + line[end:]
        click.echo(line, file=stream, color=color)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def _columns_variable() -> int | None:
    """The variable ``COLUMNS``, if it is a number above 0."""
    text = config.variable("COLUMNS")
    return int(text) if text is not None and text.isdecimal() and int(text) else None


def columns(stream: TextIO) -> int:
    """The width of the terminal that ``stream`` writes to, or a default."""
    if (width := _columns_variable()) is not None:
        return width
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except OSError:  # no terminal, or no file number
        return _COLUMNS


def _encodable(text: str, stream: TextIO) -> str:
    """``text`` with characters that ``stream`` can write: plainer characters replace the others."""
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return text.translate(_PLAIN)
    return text
