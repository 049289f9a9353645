"""graphopt replay: show a fault again that a reproducer holds."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli import options
from graphopt.cli.options import Run
from graphopt.errors import ExitStatus

EXAMPLE = """
graphopt replay model.repro
graphopt replay model.repro --allow-command
"""


@options.command("replay", example=EXAMPLE)
@click.argument("folder", type=options.path, metavar="FOLDER")
@click.option("--allow-command", is_flag=True, help="Run the command that is the check of this reproducer.")
def command(run: Run, folder: Path, allow_command: bool) -> int:
    """Show again what bisect or optimize --save-repro wrote.

    Exit status 1 as long as the check fails, 0 once it holds.
    """
    from graphopt.debug.reproducer import load, replay

    case = load(folder)
    with run.console.progress("replaying"):
        reason = replay(folder, allow_command=allow_command)
    run.console.json({"what": case.what, "fails": reason, "failed": case.reason, "versions": case.versions})
    run.console.print(f"  {case.what}", bold=True)
    if reason is None:
        run.console.print("  holds now", fg="green")
        return ExitStatus.OK
    run.console.print(f"  fails: {reason}", fg="red")
    if case.lines:
        run.console.print()
    for line in case.lines:
        run.console.print(f"    {line}")
    return ExitStatus.VERIFICATION_FAILED
