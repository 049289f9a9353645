"""graphopt config: settings with their sources, the records of results, and their differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus, UsageError, unknown

if TYPE_CHECKING:
    from graphopt.recorded_settings.sources import SourcedSettings

EXAMPLE = """
graphopt config show
graphopt config show --origin --set exact=true
graphopt config show model.opt.onnx
graphopt config diff model.opt.onnx current
graphopt config diff a.bundle report.json --json
graphopt optimize model.onnx -o again.onnx --config model.opt.onnx
"""

_ACTIONS = ("show", "diff")
_COMMAND_LINE = "command line"


@command_decorator.command("config", example=EXAMPLE, everyday="--origin -O --exact", has_details=True)
@click.argument("action", metavar="|".join(_ACTIONS))
@click.argument("subjects", nargs=-1, metavar="[FILE|RESULT...]")
@shared_options.group(
    "Settings",
    click.option(
        "--origin",
        is_flag=True,
        help="Also show the source of each value: file and line, environment variable, or command line.",
    ),
)
@shared_options.of_section("Cache")
@shared_options.result_options
def command(run: Run, action: str, subjects: tuple[str, ...], origin: bool) -> Output:
    """Show settings with their sources, or compare them.

    show lists the current settings, with the options given. show RESULT lists the settings and options that a
    result records: a model, a bundle, another folder of models, a report, or a reproducer.
    show FILE.toml lists the settings of a file.
    diff A B compares two of these; defaults and current are names of the default and the current settings.
    Exit status 0 if they are equal, 1 if they differ.
    """
    from graphopt.cli.views import settings as views

    if action not in _ACTIONS:
        raise unknown("action", action, _ACTIONS, f"known are {', '.join(_ACTIONS)}")
    if action == "show":
        if len(subjects) > 1:
            raise UsageError(
                f"show takes one file or result, not {len(subjects)}", hint="graphopt config diff A B"
            )
        found = _sourced(run, *(subjects or ("current",)))
        return Output(views.as_dict(found), views.shown(found, origin=origin, verbose=run.verbose))
    if len(subjects) != 2:
        raise UsageError(
            f"diff compares two files or results, not {len(subjects)}", hint="graphopt config diff A B"
        )
    a, b = (_sourced(run, subject) for subject in subjects)
    differences = a.differences(b)
    status = ExitStatus.VERIFICATION_FAILED if differences else ExitStatus.OK
    data = {"a": a.name, "b": b.name, "differences": [pair._asdict() for pair in differences]}
    return Output(data, views.differences(a, b, differences), status=status)


def _sourced(run: Run, subject: str) -> SourcedSettings:
    """The settings that ``subject`` names: a path, ``defaults`` or ``current``."""
    from graphopt.recorded_settings import sources

    if subject == sources.DEFAULTS:
        from graphopt import config

        return sources.current(config.defaults(), {}, {}, sources.DEFAULTS)
    if subject != sources.CURRENT:
        return sources.from_path(Path(subject))
    origins = {name: source for name, (source, _) in run.sources.origins().items()}
    origins |= {name: _COMMAND_LINE for name, value in run.sources.given.items() if value is not None}
    origins |= dict.fromkeys(run.options, _COMMAND_LINE)
    if run.sources.record is not None:
        origins |= dict.fromkeys(run.recorded, str(run.sources.config_file))
    return sources.current(run.settings, run.options, origins)
