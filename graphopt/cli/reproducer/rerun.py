"""Rerun a recorded command in a separate process, which can't write elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import click

from graphopt import config, publish
from graphopt.cli.options.parameter_types import ReadsArrays, ReadsFolder, ReadsModel, Runs, Writes
from graphopt.cli.reproducer.recorded_command import (
    COMMAND,
    IN,
    LEFT_OUT,
    OUT,
    PIPELINE,
    SETTINGS,
    Outcome,
    Recorded,
    given,
)
from graphopt.errors import UsageError

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from graphopt.cli.main import run_recorded; run_recorded(*json.loads(sys.argv[2]))"
)


def rerun(folder: Path, application: click.Group, *, allow_command: bool = False) -> Outcome:
    """Rerun the command in ``folder``, in a separate process and a temporary folder.

    Raises:
        UsageError: the folder has no command, or the command reads or writes files elsewhere, or runs a
            program although that is not allowed.
    """
    recorded = Recorded.load(folder)
    _check(recorded.arguments, folder, application, allow_command)
    with publish.ScratchFolder() as scratch:
        (scratch / OUT).mkdir()
        if (folder / IN).is_dir():
            if recorded.arguments[0] == "optimize" and "--output" not in recorded.arguments:
                # the results are written next to the models, and must not be added to the reproducer
                shutil.copytree(folder / IN, scratch / IN, copy_function=_link)
            else:
                (scratch / IN).symlink_to((folder / IN).absolute(), target_is_directory=True)
        (scratch / SETTINGS).write_text(_settings(folder, allow_command), encoding="utf-8")
        report = scratch / "outcome.json"
        words = [json.dumps(sys.path), json.dumps([recorded.arguments, str(report)])]
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *words], cwd=scratch, capture_output=True, text=True, check=False
        )
        if report.exists():
            return Outcome.from_dict(json.loads(report.read_text(encoding="utf-8")))
    lines = done.stderr.strip().splitlines()
    reason = f"the process died{f': {lines[-1][:200]}' if lines else ''}"
    return Outcome(done.returncode, reason, ended=False)


def _settings(folder: Path, allow_command: bool) -> str:
    """The settings in ``folder``, with the current store, because a store contains libraries that are loaded.

    A trace would be a file outside of the folder.

    Raises:
        UsageError: the settings name folders elsewhere, or a C compiler although programs are not allowed.
    """
    settings = config.load({}, folder)
    if settings.compiler != "auto" and not allow_command:
        raise UsageError(
            f"{folder} would run the C compiler {settings.compiler!r}",
            hint="--allow-command permits it, if you trust the folder",
        )
    if settings.allow_external:
        raise UsageError(f"{folder} would read {settings.allow_external[0]}, which is not in it")
    own = replace(settings.having({"cache": False}), cache_dir=config.current().cache_dir, trace=None)
    return config.as_toml(own, without={PIPELINE} - config.origins({}, folder).keys())


def _link(source: str, target: str) -> None:
    """Create ``target`` with the contents of ``source``, as a link if the file system allows."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _check(arguments: Sequence[str], folder: Path, application: click.Group, allow_command: bool) -> None:
    """Refuse commands that could do harm in a folder from an untrusted source."""
    from graphopt.debug.checks import KINDS

    command = application.get_command(click.Context(application), arguments[0]) if arguments else None
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
                hint="--allow-command permits it, if you trust the folder",
            )
