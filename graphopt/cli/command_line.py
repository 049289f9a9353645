"""The frame of every command: its invocation, common options, settings and reproducer.

:func:`command` creates a command, adds the common options (``--json``, ``-v``, ``-q``, ``--debug``,
``--set``, ``--save-repro``), and passes it a :class:`Run` as its first argument.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import config, publish
from graphopt.cli import completion, relations, sample, synonyms
from graphopt.cli.console import Console
from graphopt.cli.help import HelpedCommand, Section
from graphopt.cli.parameters import writes
from graphopt.errors import UsageError
from graphopt.options import OPTIONS, OptimizeOptions

if TYPE_CHECKING:
    from graphopt.compiler import Compiler

Function = Callable[..., Any]


@dataclass
class Invocation:
    """One call of the command line.

    Attributes:
        environ: the environment variables; by default those of the process.
        debug: whether tracebacks are printed.
        status: the exit status of the process, if nothing fails.
        arguments: the arguments of the command line.
        reproducer: the folder with everything needed to repeat the call, if there is one.
        error: the message of its failure, if it failed.
        written: the files of models that it wrote.
        names: by path, the names in messages of files that the user did not name, such as standard input.
        stdin: the temporary copy of the model read from standard input, if there is one.
        before: seconds between the start of the process and ``begin``.
        begin: the start of the call, as :func:`time.perf_counter` returns it.
        color: force colours on or off; ``None``: on terminals.
        outputs: the paths that options name for output, with their modification times before the call.
    """

    environ: Mapping[str, str] | None = None
    debug: bool = False
    status: int = 0
    arguments: tuple[str, ...] = ()
    reproducer: Path | None = None
    error: str | None = None
    written: list[Path] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    stdin: Path | None = None
    before: float = 0.0
    begin: float = field(default_factory=time.perf_counter)
    color: bool | None = None
    outputs: dict[Path, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.color is None:
            self.color = config.wants_color(self.environ)

    @property
    def seconds(self) -> float:
        """Seconds since the process began, as far as the system reports them."""
        return self.before + time.perf_counter() - self.begin

    def wrote(self, files: Sequence[Path]) -> dict[str, int]:
        """Record files as written; returns their sizes in bytes, without files removed by another process."""
        self.written += files
        sizes = {}
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                sizes[str(file)] = file.stat().st_size
        return sizes

    def name_of(self, path: Path) -> str:
        """The name of the file ``path`` for the user."""
        return self.names.get(str(path), str(path))

    def watch(self, paths: Iterable[Path]) -> None:
        """Record the state of ``paths``, which may be written to."""
        self.outputs = {path: _changed(path) for path in paths}

    def changed(self) -> list[Path]:
        """The files and folders that were written so far."""
        named = [path for path, before in self.outputs.items() if _changed(path) != before]
        return list(dict.fromkeys([*self.written, *named]))

    @property
    def as_json(self) -> bool:
        """Whether JSON is requested; known before the options are parsed."""
        return "--json" in self.arguments

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command line."""
        return ("graphopt", *self.arguments)


def _changed(path: Path) -> int | None:
    """The modification time of ``path`` in nanoseconds; ``None`` if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@dataclass
class Run:
    """The context of one command.

    Attributes:
        settings: the settings in force.
        console: its output.
        verbose: number of ``-v`` options.
        invocation: the call of the command line.
        save_repro: the folder for its reproducer.
        settings_fault: the reason why the settings could not be read; the defaults are in force then.
        options: the given options of ``optimize`` that are not settings.
    """

    settings: config.Settings
    console: Console
    verbose: int = 0
    invocation: Invocation = field(default_factory=Invocation)
    save_repro: Path | None = None
    settings_fault: UsageError | None = None
    options: OptimizeOptions = field(default_factory=OptimizeOptions)

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler under the options that were given."""
        from graphopt.compiler import Compiler

        return Compiler(self.settings, **self.options)


class Command(HelpedCommand):
    """A command that suggests its own options for those of other tools."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse; the error for an unknown option of another tool names the equivalent here."""
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            known = [name for item in self.params for name in (*item.opts, *item.secondary_opts)]
            hint = synonyms.for_option(error.option_name, known)
            if hint is None:
                raise
            raise UsageError(f"no such option {error.option_name!r}", hint=hint) from error


def command(
    name: str,
    *,
    example: str,
    section: Section,
    rank: int = 0,
    everyday: Sequence[str] = (),
    needs_settings: bool = True,
    has_details: bool = True,
) -> Callable[[Function], click.Command]:
    """Turn a function into a command.

    Args:
        name: its name.
        example: command lines for its help, the most useful ones first.
        section: its group in the help of graphopt.
        rank: its place in the group; commands of the same rank are sorted by name.
        everyday: the options that ``--help`` describes; ``--help-all`` describes the others, too.
        needs_settings: report unreadable settings as an error; otherwise the defaults are in force.
        has_details: ``-v`` shows more; otherwise ``-v`` is accepted, but not listed in the help.
    """

    def make(function: Function) -> click.Command:
        @functools.wraps(function)
        @click.pass_context
        def call(context: click.Context, /, **values: Any) -> Any:
            from graphopt.cli.option_values import take_options
            from graphopt.cli.output_paths import check_apart, written_paths

            run = _start(context, values, needs_settings=needs_settings)
            relations.check(context)
            check_apart(context)
            run.invocation.watch(written_paths(context))
            publish.remove_abandoned_scratch()
            with config.using(run.settings):
                take_options(run, context, values)
                if run.save_repro is None:
                    return function(run, **values)
                return _recorded(context, run, run.save_repro, lambda: function(run, **values))

        for option in reversed(_common_options(has_details)):
            call = option(call)
        return click.command(
            name,
            cls=Command,
            section=section,
            rank=rank,
            examples=example.strip().splitlines(),
            everyday=everyday,
            context_settings=CONTEXT_SETTINGS,
        )(call)

    return make


CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


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
            shell_complete=completion.settings,
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a setting (docs/cli.md).",
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
    assignments, save_repro = values.pop("assignments"), values.pop("save_repro")
    given = {key: values.pop(key) for key in list(values) if key in _SETTINGS}
    given = {key: None if value == () else value for key, value in given.items()}
    fault = None
    try:
        settings = config.load(invocation.environ, overrides=given, assignments=assignments)
    except UsageError as error:
        if needs_settings:
            raise
        fault, settings = error, config.defaults()
    invocation.debug, invocation.color = settings.debug, settings.color
    settings.check(
        {
            name
            for name, opt in OPTIONS.items()
            if opt.flag and given.get(name, values.get(name)) not in (None, False, (), {})
        },
        lambda name: OPTIONS[name].flag.partition("/")[0],
    )
    console = Console(color=settings.color, quiet=quiet, as_json=as_json)
    if str(sample.PATH) in invocation.names:
        console.note(f"  {sample.NOTE}")
    return Run(settings, console, verbose, invocation, save_repro, fault)


def _recorded(context: click.Context, run: Run, folder: Path, call: Callable[[], Any]) -> Any:
    """The result or exception of ``call``, recorded in a reproducer together with the command."""
    from graphopt.cli.failure import Failure
    from graphopt.cli.output_paths import check_new
    from graphopt.cli.recording import Recording
    from graphopt.cli.repro_folder import Outcome

    invocation = run.invocation
    check_new(folder, "--save-repro")
    recording = Recording(folder, context, run.settings, invocation.command)
    invocation.reproducer = folder
    try:
        result = call()
    except Exception as error:
        failure = Failure.of(error, debug=True)
        recording.ended(Outcome.of(failure.status, failure.message, invocation.written))
        raise
    status = int(result) if isinstance(result, int) else invocation.status
    recording.ended(Outcome.of(status, None, invocation.written))
    return result


_SETTINGS = frozenset(config.Settings.__dataclass_fields__)
