"""The console script: finds the command, and reports an error as one line and an exit status."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from graphopt import __version__, config
from graphopt.cli.framework import names_in_other_tools
from graphopt.cli.framework.command_list import COMMANDS, NAMES
from graphopt.cli.framework.help import CONTEXT_SETTINGS, HelpContext, write_examples
from graphopt.cli.framework.names_in_other_tools import expand_shorthands
from graphopt.cli.invocation import Invocation
from graphopt.cli.output.console import say
from graphopt.cli.output.error_messages import report_error
from graphopt.errors import ExitStatus, UsageError, is_interruption, unknown
from graphopt.process.fork_safety import claim_process

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EXAMPLES = (
    ("graphopt optimize model.onnx", "write model.opt.onnx"),
    ("graphopt model.onnx", "report only, nothing is written"),
    ("graphopt dump model.onnx --pass-by-pass", ""),
    ("graphopt help COMMAND", ""),
)


class LazyGroup(click.Group):
    """A group whose commands are the modules of a package, imported on demand."""

    context_class = HelpContext

    def list_commands(self, context: click.Context | None) -> list[str]:
        """The names of all commands."""
        return NAMES

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the module of command ``name``, if there is one."""
        if name not in NAMES:
            return None
        module = importlib.import_module(f"graphopt.cli.commands.{name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, or files if no command matches, because a model may be in place of a command."""
        from click.shell_completion import CompletionItem

        return super().shell_complete(ctx, incomplete) or [CompletionItem(incomplete, type="file")]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summary, and examples."""
        super().format_help_text(ctx, formatter)
        write_examples(_EXAMPLES, formatter)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, then the options."""
        for title, summaries in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([*summaries.items()], col_spacing=3)
        records = [item.get_help_record(context) for item in self.get_params(context)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; the error for an option that precedes its command explains the order."""
        words = list(args)  # a copy, because the parser removes the arguments
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            command = next((word for word in words if word in NAMES), None)
            name = command or "optimize"
            rest = [word for word in words if word != command]
            found = self.get_command(ctx, name)
            options = [
                option
                for param in (found.params if found is not None else ())
                for option in (*param.opts, *param.secondary_opts)
            ]
            hint = names_in_other_tools.for_file_like_option(error.option_name, words)
            if hint is None and error.option_name in options:
                hint = f"options follow the command: graphopt {shlex.join([name, *rest])}"
            raise UsageError(
                f"no such option {error.option_name!r} of graphopt itself",
                hint=hint or f"graphopt {name} --help",
            ) from error

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; the error for an unknown name suggests the nearest."""
        name, *rest = expand_shorthands(arguments, NAMES)
        if name not in NAMES and context.resilient_parsing:  # the shell requests completions
            return None, None, rest
        if name not in NAMES and not name.startswith("-"):
            hint = names_in_other_tools.for_command(name, rest)
            if hint is not None:
                raise UsageError(f"no command is called {name!r}", hint=hint)
            raise unknown("command", name, NAMES, "graphopt --help lists all")
        return super().resolve_command(context, [name, *rest])


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"graphopt {__version__}")
        context.exit()


@click.group(cls=LazyGroup, context_settings=CONTEXT_SETTINGS, invoke_without_command=True)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Make ONNX models smaller and faster, with the same results and the same interface."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; those of the process by default.
        environ: environment variables; those of the process by default.

    Returns:
        The exit status.
    """
    invocation = Invocation(environ, arguments=tuple(sys.argv[1:] if argv is None else argv))
    if argv is None:
        # The process runs only graphopt, and ends soon: graphs have many cycles, but few become garbage.
        gc.set_threshold(200_000, 10, 10)
        _open_closed_streams()
        config.prepare_libraries()
        claim_process()
        invocation.before = _process_age()
    try:
        status = call(invocation)
    except KeyboardInterrupt:  # a second one, or one after the end of the command
        status = _interrupted(invocation)
    if argv is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the status already describes the files on disk
        gc.freeze()  # otherwise, the interpreter searches all objects for garbage before it exits
    return status


def run() -> NoReturn:
    """The console script: run the command line, and end the process.

    The interpreter is not torn down, which would take a twentieth of the time of a short run. Streams are
    flushed and exit functions called, as in a regular exit. Threads of :mod:`graphopt.process.threads` end
    with the process, as daemons do; any other thread, such as one of a user's operators, requires the regular
    exit.
    """
    status = main()
    if threading.active_count() == 1:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.exit(status)  # the interpreter reports the lost output
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)  # waits for threads that are not daemons


def call(invocation: Invocation) -> int:
    """Run the command line of ``invocation``; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and "utf" not in (stream.encoding or "").lower():
            stream.reconfigure(errors="replace")
    try:
        invocation.arguments = expand_shorthands(invocation.arguments, known=NAMES)
        status = cli.main(
            list(invocation.arguments), prog_name="graphopt", standalone_mode=False, obj=invocation
        )
        sys.stdout.flush()
        return status if isinstance(status, int) else ExitStatus.OK
    except (BrokenPipeError, SystemExit):
        # the reader of stdout exited early, which click turns into SystemExit
        _abandon_stdout()
        return ExitStatus.OK
    except click.exceptions.Abort:
        return _interrupted(invocation)
    except Exception as error:
        if is_interruption(error):
            return _interrupted(invocation)
        failure = report_error(
            error,
            debug=invocation.debug,
            kept=invocation.reproducer is not None,
            files=(*invocation.arguments, *invocation.names),
            names=invocation.names,
            color=invocation.color,
        )
        invocation.error = failure.message
        try:
            if invocation.as_json:
                click.echo(json.dumps({"error": failure.to_dict()}, indent=2, ensure_ascii=False))
            sys.stdout.flush()
        except OSError:
            _abandon_stdout()
        return failure.status


def run_recorded(arguments: Sequence[str], outcome_file: str) -> None:
    """Run a recorded command line without environment variables; write its outcome to ``outcome_file``."""
    from graphopt.cli.reproducer.recorded_command import Outcome

    invocation = Invocation({}, arguments=tuple(arguments))
    status = call(invocation)
    outcome = Outcome.of(int(status), invocation.error, invocation.written)
    Path(outcome_file).write_text(json.dumps(asdict(outcome)), encoding="utf-8")


def _interrupted(invocation: Invocation) -> int:
    """Report the files that the interrupted command has written; returns the exit status."""
    changed = invocation.changed()
    # a folder is named by its files
    files = [path for path in changed if not any(path in other.parents for other in changed)]
    text = "graphopt: interrupted"
    if files:
        text += f"; wrote {', '.join(map(str, files))}"
    elif invocation.outputs:
        text += "; nothing was written"
    with contextlib.suppress(OSError):
        say(text, "caution", stream=sys.stderr, color=invocation.color)
    return ExitStatus.INTERRUPTED


def _process_age() -> float:
    """Seconds since the process began, to about 10 ms; 0 where the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # the second field is the name in brackets, and may contain any character
            started = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that was closed when the process started.

    Otherwise a new file or socket could have the number of the stream, and receive the printed output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _abandon_stdout() -> None:
    """Discard further output to stdout, so that the interpreter's flush at exit can't fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
