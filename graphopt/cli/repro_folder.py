"""A folder with everything needed to rerun a command, and its first outcome.

It contains ``command.json`` (the command line, versions, the outcome), ``graphopt.toml`` (every setting), the
files that the command reads, and a ``README.md``. The recorded command line runs in the folder: it reads its
inputs from ``in/`` and writes its outputs to ``out/``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import click

from graphopt import config, publish
from graphopt.cli.parameters import ReadsArrays, ReadsFolder, ReadsModel, Runs, Writes
from graphopt.errors import InvalidModel, UsageError

#: Options that a reproducer stores elsewhere, or omits.
LEFT_OUT = ("save_repro", "assignments", "allow_external")
_FORMAT = 1
COMMAND, SETTINGS, README = "command.json", "graphopt.toml", "README.md"
IN, OUT = "in", "out"
_AGAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from graphopt.cli.repro_folder import again; again(*json.loads(sys.argv[2]))"
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command.

    Attributes:
        status: its exit status.
        error: the reason for its failure, if it failed.
        written: name and SHA-256 of each model file that it wrote, in order.
        ended: the process did not crash.
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
        arguments: the same with the files in the folder; the first is the name of the command.
        pipeline: the passes written out, if it runs any.
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
            UsageError: it can't be read.
            InvalidModel: its description is damaged.
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


def rerun(folder: Path, *, allow_command: bool = False) -> Outcome:
    """Rerun the command in ``folder``, in a separate process and a temporary folder.

    Raises:
        UsageError: there is no command, it reads or writes files elsewhere, or it runs a program although
            that is not allowed.
    """
    recorded = Recorded.load(folder)
    _check(recorded.arguments, folder, allow_command)
    with publish.ScratchFolder() as place:
        (place / OUT).mkdir()
        if (folder / IN).is_dir():
            if recorded.arguments[0] == "optimize" and "--output" not in recorded.arguments:
                # the results are written next to the models, and must not get into the reproducer
                shutil.copytree(folder / IN, place / IN, copy_function=_link)
            else:
                (place / IN).symlink_to((folder / IN).absolute(), target_is_directory=True)
        (place / SETTINGS).write_text(_settings(folder, allow_command), encoding="utf-8")
        report = place / "outcome.json"
        words = [json.dumps(sys.path), json.dumps([recorded.arguments, str(report)])]
        done = subprocess.run(
            [sys.executable, "-c", _AGAIN, *words], cwd=place, capture_output=True, text=True, check=False
        )
        if report.exists():
            return Outcome.from_dict(json.loads(report.read_text(encoding="utf-8")))
    said = done.stderr.strip().splitlines()
    why = f"the process died{f': {said[-1][:200]}' if said else ''}"
    return Outcome(done.returncode, why, ended=False)


def _settings(folder: Path, allow_command: bool) -> str:
    """The settings in ``folder``, with the current store, because a store contains code that is loaded.

    Raises:
        UsageError: they name a C compiler although programs are not allowed, or folders elsewhere.
    """
    settings = config.load({}, folder)
    if settings.compiler != "auto" and not allow_command:
        raise UsageError(
            f"{folder} would run the C compiler {settings.compiler!r}",
            hint="--allow-command lets it, if you trust the folder",
        )
    if settings.allow_external:
        raise UsageError(f"{folder} would read {settings.allow_external[0]}, which is not in it")
    return config.as_toml(replace(settings, cache_dir=config.current().cache_dir))


def _link(source: str, target: str) -> None:
    """Create ``target`` with the contents of ``source``, as a link if the file system allows."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def again(arguments: Sequence[str], report: str) -> None:
    """Run a command line here, without environment variables, and write its outcome to ``report``."""
    from graphopt.cli.command_line import Invocation
    from graphopt.cli.main import call

    invocation = Invocation({}, arguments=tuple(arguments))
    status = call(invocation)
    outcome = Outcome.of(int(status), invocation.error, invocation.written)
    Path(report).write_text(json.dumps(asdict(outcome)), encoding="utf-8")


def _check(arguments: Sequence[str], folder: Path, allow_command: bool) -> None:
    """Refuse commands that could do harm in a folder from an untrusted source."""
    from graphopt.cli.main import cli
    from graphopt.debug.checks import KINDS

    command = cli.get_command(click.Context(cli), arguments[0]) if arguments else None
    if command is None:
        raise UsageError(f"{folder / COMMAND} names no command")
    words = list(arguments[1:])
    try:
        found = given(command, click.Context(command, info_name=arguments[0]), words)
    except click.ClickException:
        return  # the run reports the same error
    for parameter, value in found:
        kind, text = parameter.type, str(value)
        if parameter.name in LEFT_OUT:
            raise UsageError(f"{folder} would change settings: {max(parameter.opts, key=len)} {text}")
        if isinstance(kind, ReadsModel | ReadsFolder | ReadsArrays | Writes):
            path = PurePath(text.rpartition(":")[2] if isinstance(kind, ReadsArrays) else text)
            if path.is_absolute() or ".." in path.parts:
                raise UsageError(f"{folder} would read or write {path}, which is not in it")
        elif isinstance(kind, Runs) and text not in KINDS and not allow_command:
            raise UsageError(
                f"{folder} would run the command {text!r}",
                hint="--allow-command lets it, if you trust the folder",
            )


def given(
    command: click.Command, context: click.Context, words: Sequence[str]
) -> list[tuple[click.Parameter, Any]]:
    """The parameters in the command line ``words`` of ``command``, each with all its values.

    Values are text; flags are bools, and options that are counted ints.
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
