"""Messages and exit statuses of errors."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from graphopt.cli.output.console import say
from graphopt.errors import FULL, MEMORY_HINT, ExitStatus, GraphoptError, blamed, exhausted
from graphopt.util.lazy_dataclass import dataclass

#: Maximum length of a printed message, in characters.
_LONGEST = 600

#: Texts of the system about paths that are invalid or missing.
_NO_PLACE = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
)


@dataclass(frozen=True)
class Failure:
    """An error as the command line reports it: one line, a hint, an exit status."""

    status: int
    message: str
    hint: str | None
    details: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: Exception, *, debug: bool, kept: bool = False) -> Failure:
        """Describe ``error``; an exception that graphopt does not declare is an internal error.

        Args:
            debug: whether the traceback is shown in any case.
            kept: whether a reproducer of the error already exists.
        """
        advice = {
            "--debug shows the traceback": debug,
            "--save-repro FOLDER records the command and its files": kept,
        }
        hint = "; ".join(text for text, is_done in advice.items() if not is_done) or None
        if (found := blamed(error)) is not None:
            owner, place = found
            at = f" at {place}" if place else ""
            message = f"{owner} raised {type(error).__name__}{at}: {' '.join(str(error).split())}"
            return cls(
                ExitStatus.USAGE, _in_one_line(message), None if debug else "--debug shows the traceback"
            )
        if isinstance(error, GraphoptError):
            is_ours = error.status == ExitStatus.INTERNAL
            hint = error.hint or (hint if is_ours else None)
            return cls(
                error.status, _in_one_line(error.message), hint, tuple(map(_in_one_line, error.details))
            )
        if isinstance(error, click.ClickException):
            context = getattr(error, "ctx", None)
            usage = f"{context.command_path} --help" if context is not None else None
            examples = getattr(context and context.command, "examples", ())
            if isinstance(error, click.MissingParameter) and examples:
                usage = f"such as: {examples[0]}  ({usage})"
            return cls(ExitStatus.USAGE, _as_ours(error.format_message()), usage)
        if isinstance(error, OSError) and error.errno in (*FULL, errno.EIO):
            status = ExitStatus.RESOURCE_LIMIT if error.errno in FULL else ExitStatus.USAGE
            return cls(status, f"can't write the output: {error.strerror}", None)
        if isinstance(error, OSError) and error.errno in _NO_PLACE and error.filename is not None:
            return cls(ExitStatus.USAGE, _in_one_line(f"can't use {error.filename}: {error.strerror}"), None)
        limit = exhausted(error)
        if limit is not None:
            is_memory = not isinstance(error, OSError) or error.errno == errno.ENOMEM
            return cls(ExitStatus.RESOURCE_LIMIT, limit, MEMORY_HINT if is_memory else None)
        text = " ".join(str(error).split())[:300]
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        return cls(ExitStatus.INTERNAL, f"internal error: {type(error).__name__}: {text}{notes}", hint)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        fields = {"message": self.message, "hint": self.hint, "status": int(self.status)}
        return {**fields, "details": list(self.details)} if self.details else fields

    def print(self, about: str = "", color: bool | None = None) -> None:
        """Print the error to stderr; ``about`` names the object at fault, unless the message names it."""
        start = "" if about in self.message else f"{about}: "
        with contextlib.suppress(OSError):  # a full stderr can't be reported anywhere
            say(f"graphopt: {start}{self.message}", "bad", stream=sys.stderr, color=color)
            for line in self.details:
                say(f"  {line}", stream=sys.stderr, color=color)
            if self.hint:
                say(f"hint: {self.hint}", "hint", stream=sys.stderr, color=color)


def report_error(
    error: Exception,
    *,
    debug: bool,
    kept: bool = False,
    about: str = "",
    files: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
    color: bool | None = None,
) -> Failure:
    """Print ``error`` on stderr, after its traceback if requested; returns the printed message.

    Args:
        about: the object at fault, printed unless the message names it.
        color: force colours on or off.
        debug, kept, files, names: as for :func:`failure_of`.
    """
    if debug:
        import traceback

        traceback.print_exception(error)
    failure = failure_of(error, debug=debug, kept=kept, files=files, names=names)
    failure.print(about, color)
    return failure


def failure_of(
    error: Exception,
    *,
    debug: bool,
    kept: bool = False,
    files: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
) -> Failure:
    """The message for ``error``.

    Args:
        debug, kept: as for :meth:`Failure.of`.
        files: paths that may name models. If one of these models violates the ONNX specification, an internal
            error is reported as that violation: neither loading nor onnxruntime checks all rules.
        names: names for messages, by path, for files that the user did not name by path.
    """
    failure = Failure.of(error, debug=debug, kept=kept)
    if failure.status == ExitStatus.INTERNAL:
        misuse = _misuse(files)
        if misuse is not None:
            message = _in_one_line(f"the model breaks the rules of ONNX: {misuse}")
            failure = Failure(ExitStatus.INVALID_MODEL, message, None)
    for path, name in (names or {}).items():
        hint = failure.hint and failure.hint.replace(path, name)
        failure = replace(failure, message=failure.message.replace(path, name), hint=hint)
    return failure


def _misuse(files: Iterable[str]) -> str | None:
    """The first node in the models ``files`` that violates the schema of its operator, and the reason."""
    for name in files:
        with contextlib.suppress(Exception):  # not a file, not a model, or too large for this process
            from graphopt import ir

            misuse = ir.find_misuse(ir.load(name)) if Path(name).is_file() else None
            if misuse is not None:
                return misuse
    return None


def _in_one_line(message: str) -> str:
    """``message`` in one line: names in models may have any length and contain any character."""
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in message[: 2 * _LONGEST])
    if len(message) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"


def _as_ours(message: str) -> str:
    """A message of click in the style of graphopt: one line, no capital, no full stop."""
    text = " ".join(message.split()).rstrip(".")
    return text[:1].lower() + text[1:]
