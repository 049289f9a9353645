"""Commands as checks of a model: the files that they name, and whether they ran."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from graphopt.errors import UsageError

#: Exit statuses of a shell for commands that are not executable, or not found.
_NOT_RUN = (126, 127)
_QUOTED = re.compile(r"\\.|'[^']*'|" + r'"(?:\\.|[^"\\])*"')
_SHELL = re.compile(r"[|&;<>]+|`|\$(?=[({\w?@*#!-])")


class CommandNotRun(UsageError):
    """A command could not run, and so checked nothing."""


def keep_files(command: str, keep: Callable[[Path], str]) -> str:
    """``command`` with each file of the current folder replaced by the result of ``keep`` for it."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if not any(_is_ours(word) for word in words):
        return command
    return shlex.join(keep(Path(word)) if _is_ours(word) else word for word in words)


def shell_symbol(command: str) -> str | None:
    """The first shell syntax in ``command`` outside quotes, such as ``&&``; programs receive it as a word."""
    found = _SHELL.search(_QUOTED.sub("''", command))
    return None if found is None else found[0]


def check_ran(words: Sequence[str], folder: Path, status: int, output: str) -> None:
    """Check that a failed command ran, by the conventions of shells and interpreters.

    Args:
        words: the command, without the model.

    Raises:
        CommandNotRun: the command, or a file that it names, was not found, or could not be executed.
    """
    files = [
        word for word in _words_within(words) if _looks_like_a_file(word) and not (folder / word).exists()
    ]
    lost = any(_reports_missing(output, word) for word in files)
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else None
    lost = lost or (module is not None and f"No module named {module}" in output.replace("'", ""))
    if status not in _NOT_RUN and not lost:
        return
    last = (output.strip().splitlines() or ["it was not found"])[-1][:200]
    raise CommandNotRun(
        f"the check could not run: {shlex.join(words)} ended with status {status}: {last}",
        hint=f"paths in it are relative to {folder}",
    )


def _words_within(words: Sequence[str]) -> list[str]:
    """``words``, and the words of each of them that is itself a shell command."""
    return [part for word in words for part in (word.split() if " " in word else [word])]


def _looks_like_a_file(word: str) -> bool:
    return bool(Path(word).suffix) or "/" in word


def _reports_missing(output: str, word: str) -> bool:
    """Whether a line of ``output`` that reports a missing file names ``word``."""
    missing = ("No such file", "can't open", "cannot open")
    return any(word in line and any(mark in line for mark in missing) for line in output.splitlines())


def _is_ours(word: str) -> bool:
    return not Path(word).is_absolute() and Path(word).is_file()
