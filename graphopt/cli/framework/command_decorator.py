"""The decorator of all commands: their common options, settings and reproducer.

:func:`command` creates a command, adds the common options (``--json``, ``-v``, ``-q``, ``--trace``,
``--debug``, ``--set``, ``--save-repro``), and passes it a :class:`graphopt.cli.invocation.Run` as its first
argument.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from graphopt import config, publish
from graphopt.cli.files import sample_model
from graphopt.cli.framework import names_in_other_tools
from graphopt.cli.framework.help import CONTEXT_SETTINGS, HelpedCommand
from graphopt.cli.invocation import Invocation, Run, Sources
from graphopt.cli.options import completion_values, option_relations
from graphopt.cli.options.cuda_flags import collect_flags
from graphopt.cli.options.parameter_types import ReadsData, writes, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.cli.output.console import Console
from graphopt.diagnostics.observation import observed
from graphopt.errors import ConvertedInput, UsageError, nearest_names
from graphopt.optimize_options import OPTIONS
from graphopt.process.memory import Libraries, check_limits

Function = Callable[..., Any]


class Command(HelpedCommand):
    """A command that suggests its own options in place of the options of other tools."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse; the error for an unknown option of another tool names graphopt's equivalent."""
        words = list(args)  # a copy, because the parser removes the arguments
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            known = [name for item in self.params for name in (*item.opts, *item.secondary_opts)]
            option = error.option_name
            hint = (
                names_in_other_tools.for_file_like_option(option, words)
                or names_in_other_tools.for_option(option, known)
                or _of_optimize(context, option)
                or _nearest(context, option, known)
            )
            raise UsageError(f"no such option {error.option_name!r}", hint=hint) from error


def _of_optimize(context: click.Context, option: str) -> str | None:
    """The hint for an option that only ``optimize`` has; ``None`` for others."""
    group = context.parent.command if context.parent is not None else None
    optimize = group.get_command(context, "optimize") if isinstance(group, click.Group) else None
    if optimize is None or not any(option in item.opts for item in optimize.params):
        return None
    return f"{option} is an option of graphopt optimize; {context.command_path} --help lists the options here"


def _nearest(context: click.Context, option: str, known: Iterable[str]) -> str:
    """The hint for an option that no command has: the nearest options of this command."""
    names = {name.lstrip("-"): name for name in known}
    nearest = [names[name] for name in nearest_names(option.lstrip("-"), names)[:3]]
    usage = f"{context.command_path} --help"
    return f"nearest: {', '.join(nearest)}  ({usage})" if nearest else usage


def command(
    name: str,
    *,
    example: str,
    everyday: str = "",
    needs_settings: bool = True,
    has_details: bool = True,
    libraries: Libraries | None = "onnxruntime",
) -> Callable[[Function], click.Command]:
    """Turn a function into a command, which prints the returned :class:`.Output`.

    Args:
        name: its name, as in :data:`graphopt.cli.framework.command_list.COMMANDS`.
        example: command lines for its help, the most useful ones first.
        everyday: the options that ``--help`` describes, separated by spaces; ``--help-all`` describes all.
        needs_settings: report unreadable settings as an error; otherwise, the defaults apply.
        has_details: ``-v`` shows more; otherwise ``-v`` is accepted, but not listed in the help.
        libraries: the largest library that it imports; ``None`` if it imports none. The command is refused if
            limits on memory do not admit this library.
    """

    def make(function: Function) -> click.Command:
        @functools.wraps(function)
        @click.pass_context
        def call(context: click.Context, /, **values: Any) -> int:
            from graphopt.cli.options.path_conflicts import (
                check_apart,
                check_kept_weights,
                check_writable,
                written_paths,
            )
            from graphopt.cli.options.resolve_options import check_cuda_flag, move_options

            if libraries is not None:
                check_limits(libraries)
            run = _start(context, values, needs_settings=needs_settings)
            option_relations.check(context)
            check_apart(context)
            check_writable(context)
            run.invocation.watch(written_paths(context))
            publish.remove_abandoned_scratch()
            with config.using(run.settings):
                move_options(run, context, values)
                check_cuda_flag(run)
                check_kept_weights(context, run.settings.weights)

                def call_function() -> int:
                    watched = observed("command", name, run.settings, run.console.warn, run.record)
                    with watched, run.console.noting(ConvertedInput), run.console.separate_prints():
                        output: Output = function(run, **values)
                    output.show(run.console)
                    return output.status

                try:
                    if run.save_repro is None:
                        return call_function()
                    return _recorded(context, run, run.save_repro, call_function)
                except UsageError as error:
                    _name_source(error, run)
                    raise

        for option in reversed(_common_options(has_details)):
            call = option(call)
        return click.command(
            name,
            cls=Command,
            examples=example.strip().splitlines(),
            everyday=everyday.split(),
            context_settings=CONTEXT_SETTINGS,
        )(call)

    return make


def _common_options(has_details: bool) -> Sequence[Callable[[Any], Any]]:
    """The options of all commands; the help lists ``-v`` only if the command has details."""
    return (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text."),
        click.option(
            "-v",
            "--verbose",
            count=True,
            hidden=not has_details,
            help="Show more detail; -vv shows everything.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Print only results and errors."),
        click.option(
            "--set",
            "assignments",
            shell_complete=completion_values.settings,
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a setting (docs/cli.md).",
        ),
        click.option(
            "--trace",
            type=writes_file,
            metavar="FILE",
            help="Append events with times to this file: .json for Perfetto, else JSON lines"
            " (docs/diagnostics.md).",
        ),
        click.option(
            "--trace-format",
            type=click.Choice(["auto", "lines", "chrome"]),
            help="Format of --trace.  [default: auto, by the suffix]",
        ),
        click.option(
            "--config",
            "config_file",
            type=ReadsData(path_type=Path, replaceable=True),
            metavar="FILE|RESULT",
            help="Read settings from this file, or the settings and options that a result records, instead of"
            " graphopt.toml (docs/settings.md).",
        ),
        click.option("--debug", is_flag=True, default=None, help="Show the traceback of an error."),
        click.option(
            "--save-repro",
            type=writes,
            metavar="FOLDER",
            help="Record the command and its files for graphopt replay, even if it fails.",
        ),
    )


def _start(context: click.Context, values: dict[str, Any], *, needs_settings: bool) -> Run:
    """Remove the common options and the settings from ``values``."""
    invocation = context.ensure_object(Invocation)
    invocation.debug = bool(values["debug"])
    as_json, verbose, quiet = values.pop("as_json"), values.pop("verbose"), values.pop("quiet")
    assignments, save_repro = tuple(values.pop("assignments")), values.pop("save_repro")
    config_file = values.pop("config_file")
    cuda_flag = collect_flags(values)
    given = {key: values.pop(key) for key in list(values) if key in _SETTINGS}
    given = {key: None if value == () else value for key, value in given.items()}
    fault, record = None, None
    file: bool | config.Origins = True
    try:
        if config_file is not None:
            from graphopt.recorded_settings.sources import applied

            others = config.origins(invocation.environ, assignments=assignments, file=False)
            file, record = applied(
                config_file, [*others, *(name for name, value in given.items() if value is not None)]
            )
        settings = config.load(invocation.environ, overrides=given, assignments=assignments, file=file)
    except UsageError as error:
        if needs_settings:
            raise
        fault, settings = error, config.defaults()
    sources = Sources(invocation.environ, assignments, file, given, config_file, record)
    invocation.debug, invocation.color = settings.debug, settings.color
    typed = {
        name
        for name, opt in OPTIONS.items()
        if opt.flag and given.get(name, values.get(name)) not in (None, False, (), {})
    }

    def label(name: str) -> str:
        """The flag of an option, or the source of a switch that only settings turn on."""
        source, value = ("", False) if name in typed else sources.origins().get(name, ("", False))
        return source if value else OPTIONS[name].flag.partition("/")[0]

    settings.check(typed, label)
    console = Console(color=settings.color, quiet=quiet, as_json=as_json)
    if str(sample_model.PATH) in invocation.names:
        console.note(f"  {sample_model.NOTE}")
    return Run(
        settings, console, verbose, invocation, save_repro, fault, sources=sources, cuda_flag=cuda_flag
    )


def _name_source(error: UsageError, run: Run) -> None:
    """Prepend the source of a setting to the message of ``error``, if the message quotes its value."""
    if run.settings_fault is not None:
        return
    for name, (source, value) in run.sources.origins().items():
        texts = [text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)]
        words = [word for text in texts for word in re.findall(r"[\w.:-]+", text)]
        if value == getattr(run.settings, name) and any(repr(word) in error.message for word in words):
            error.message = f"{source}: {error.message}"


def _recorded(context: click.Context, run: Run, folder: Path, call: Callable[[], int]) -> int:
    """The exit status or exception of ``call``, recorded in a reproducer together with the command."""
    from graphopt.cli.files.check_output_paths import check_empty_folder
    from graphopt.cli.output.error_messages import Failure
    from graphopt.cli.reproducer.recorded_command import Outcome
    from graphopt.cli.reproducer.recording import Recording

    invocation = run.invocation
    check_empty_folder(folder, "--save-repro")
    recording = Recording(
        *(folder, context, run.settings, invocation.command, run.recorded),
        names_pipeline=run.sources.sets("pipeline"),
    )
    invocation.reproducer = folder
    try:
        status = call()
    except Exception as error:
        failure = Failure.of(error, debug=True)
        recording.ended(Outcome.of(failure.status, failure.message, invocation.written))
        raise
    recording.ended(Outcome.of(int(status), None, invocation.written))
    return status


_SETTINGS = frozenset(config.Settings.__dataclass_fields__)
