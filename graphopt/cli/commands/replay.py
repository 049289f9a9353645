"""graphopt replay: rerun a reproducer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_folder
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus, UsageError
from graphopt.util.text_tables import Line

EXAMPLE = """
graphopt replay model.repro
graphopt replay model.repro --allow-command
"""

_SOURCES = "reproducers are written by graphopt bisect, and by other commands with --save-repro FOLDER"


@command_decorator.command("replay", example=EXAMPLE, has_details=False)
@click.argument("folder", type=reads_folder, metavar="FOLDER")
@shared_options.group(
    "Reproducer",
    click.option("--allow-command", is_flag=True, help="Run commands that are part of this reproducer."),
)
def command(run: Run, folder: Path, allow_command: bool) -> Output:
    """Rerun a reproducer of bisect or --save-repro.

    For a fault that bisect found: exit status 1 as long as the check fails, 0 once it passes. For a recorded
    command: exit status 0 if the exit status and the bytes of written models are as recorded, 1 if not.
    """
    from graphopt.cli.reproducer.recorded_command import COMMAND
    from graphopt.debug.reproducer import CASE

    if folder.is_file():
        raise UsageError(f"{folder} is a file, and reproducers are folders", hint="name the folder it is in")
    if not folder.exists():
        raise UsageError(f"there is no folder {folder}", hint=_SOURCES)
    if (folder / COMMAND).exists():
        return _rerun(run, folder, allow_command)
    if not (folder / CASE).exists():
        raise UsageError(f"{folder} is not a reproducer: it has neither {COMMAND} nor {CASE}", hint=_SOURCES)
    return _reproduce(run, folder, allow_command)


def _rerun(run: Run, folder: Path, allow_command: bool) -> Output:
    """Run a whole command again."""
    from graphopt.cli.reproducer.recorded_command import Recorded
    from graphopt.cli.reproducer.rerun import rerun

    recorded = Recorded.load(folder)
    with run.console.progress("replaying"):
        application = click.get_current_context().find_root().command
        assert isinstance(application, click.Group)
        now = rerun(folder, application, allow_command=allow_command)
    then = recorded.outcome
    differences = now.differences(then)
    ending = f"  ends with status {now.status}{f': {now.error}' if now.error else ''}"
    text = [Line(f"  graphopt {recorded.arguments[0]}", "title"), Line(ending)]
    return Output(
        {
            "command": recorded.command,
            "recorded": None if then is None else asdict(then),
            "replayed": asdict(now),
            "differences": differences,
            "versions": recorded.versions,
        },
        [*text, *([Line(f"  {one}", "bad") for one in differences] or [Line("  as recorded", "good")])],
        status=ExitStatus.VERIFICATION_FAILED if differences else ExitStatus.OK,
    )


def _reproduce(run: Run, folder: Path, allow_command: bool) -> Output:
    """Reproduce a fault that bisect found."""
    from graphopt.debug.reproducer import load, replay

    case = load(folder)
    with run.console.progress("replaying"):
        reason = replay(folder, allow_command=allow_command)
    text = [Line(f"  {case.what}", "title")]
    if reason is None:
        text.append(Line("  holds now", "good"))
    else:
        text.append(Line(f"  fails: {reason}", "bad"))
        text += [Line(line) for line in ("", *(f"    {line}" for line in case.lines)) if case.lines]
    return Output(
        {"what": case.what, "fails": reason, "failed": case.reason, "versions": case.versions},
        text,
        status=ExitStatus.OK if reason is None else ExitStatus.VERIFICATION_FAILED,
    )
