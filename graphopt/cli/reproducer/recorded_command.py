"""A folder with everything needed to rerun a command, and its first outcome.

It contains ``command.json`` (the command line, versions, the outcome), ``graphopt.toml`` (the settings), the
files that the command reads, and a ``README.md``. The recorded command line runs in the folder: it reads its
inputs from ``in/`` and writes its outputs to ``out/``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import click

from graphopt import publish
from graphopt.errors import InvalidModel, UsageError
from graphopt.util.lazy_dataclass import dataclass

#: Options that a reproducer stores elsewhere, or omits.
LEFT_OUT = ("save_repro", "assignments", "allow_external", "config_file")
_FORMAT = 1
COMMAND, SETTINGS, README = "command.json", "graphopt.toml", "README.md"
#: The setting whose default depends on the command: it is omitted unless the user sets it.
PIPELINE = "pipeline"
IN, OUT = "in", "out"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command.

    Attributes:
        status: its exit status.
        error: the reason for its failure, if it failed.
        written: name and SHA-256 of each model file that it wrote, in order.
        ended: whether the process ended without a crash.
    """

    status: int
    error: str | None = None
    written: tuple[tuple[str, str], ...] = ()
    ended: bool = True

    @classmethod
    def of(cls, status: int, error: str | None, written: Sequence[Path]) -> Outcome:
        """The outcome of a command that wrote the files ``written``."""
        return cls(status, error, tuple((path.name, _digest(path)) for path in written if path.is_file()))

    def differences(self, recorded: Outcome | None) -> list[str]:
        """The differences from the outcome ``recorded``; versions in messages do not count."""
        if recorded is None:
            return ["when it was recorded, it did not end"] if self.ended else []
        found = []
        if self.status != recorded.status:
            found.append(f"when it was recorded, it ended with status {recorded.status}")
        if self.written != recorded.written:
            then, now = dict(recorded.written), dict(self.written)
            names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
            found.append(f"other bytes than recorded: {', '.join(names)}")
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outcome:
        """Read the output of :func:`dataclasses.asdict`."""
        return cls(data["status"], data["error"], tuple((name, digest) for name, digest in data["written"]))


@dataclass(frozen=True)
class Recorded:
    """A recorded command.

    Attributes:
        command: the command line as given.
        arguments: the command line with the paths of the files in the folder; the first is the name of the
            command.
        pipeline: the passes as pipeline text, with named pipelines expanded; ``None`` if the command runs
        none.
        versions: versions of Python and of the relevant packages.
        kept: the origin of each file under ``in/``.
        missing: files that could not be recorded.
        outcome: its outcome; ``None`` if it did not end.
    """

    command: tuple[str, ...]
    arguments: tuple[str, ...]
    pipeline: str | None
    versions: dict[str, str]
    kept: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    outcome: Outcome | None = None

    @classmethod
    def load(cls, folder: Path) -> Recorded:
        """Read the command in ``folder``.

        Raises:
            UsageError: the command can't be read.
            InvalidModel: the description of the command is damaged.
        """
        path = folder / COMMAND
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"can't read {path}: {error}") from error
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise UsageError(f"{path} is of another format than {_FORMAT}")
        try:
            outcome = None if data["outcome"] is None else Outcome.from_dict(data["outcome"])
            return cls(
                tuple(map(str, data["command"])),
                tuple(map(str, data["arguments"])),
                data["pipeline"],
                dict(data["versions"]),
                dict(data["kept"]),
                tuple(data["missing"]),
                outcome,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidModel(f"{path} is damaged: {type(error).__name__}: {error}") from error

    def save(self, folder: Path) -> None:
        """Write the command into ``folder``."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=2, ensure_ascii=False)
        publish.write(folder / COMMAND, (text + "\n").encode(errors="surrogateescape"))


def given(
    command: click.Command, context: click.Context, words: Sequence[str]
) -> list[tuple[click.Parameter, Any]]:
    """The parameters in the command line ``words`` of ``command``, each with all its values.

    Values are text; flags are bools, and counted options are ints.
    """
    values, _, _ = command.make_parser(context).parse_args(list(words))
    found: list[tuple[click.Parameter, Any]] = []
    for parameter in command.get_params(context):
        value = values.get(parameter.name or "")
        if isinstance(value, str | int):
            found.append((parameter, value))
        elif isinstance(value, list | tuple):
            found += [(parameter, item) for item in value]
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
