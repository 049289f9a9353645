"""Groups of options that look the same in every command, and what becomes of them.

A command is made by :func:`command`, which gives it the common options (``--json``, ``-v``,
``-q``, ``--debug``, ``--set``) and hands it a :class:`Run` as its first argument. Options that
are settings too are ``None`` unless they were given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import config
from graphopt.cli.console import Console

if TYPE_CHECKING:
    from graphopt.api import InputOptions

Function = Callable[..., Any]


@dataclass
class Invocation:
    """One call of the command line: what comes from outside, and whether to show tracebacks.

    Attributes:
        environ: the environment variables; the process's own if ``None``.
        debug: tracebacks are wanted.
        status: what the process will exit with, if nothing fails.
    """

    environ: Mapping[str, str] | None = None
    debug: bool = False
    status: int = 0


@dataclass
class Run:
    """What a command is handed: its settings, and where its output goes."""

    settings: config.Settings
    console: Console
    verbose: int = 0
    invocation: Invocation = field(default_factory=Invocation)


def command(name: str, *, example: str) -> Callable[[Function], click.Command]:
    """Make a command of a function; ``example`` ends its help."""

    def make(function: Function) -> click.Command:
        @functools.wraps(function)
        @click.pass_context
        def call(context: click.Context, /, **values: Any) -> Any:
            return function(_start(context, values), **values)

        for option in reversed(_COMMON):
            call = option(call)
        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in example.strip().splitlines())
        return click.command(name, epilog=epilog, context_settings=CONTEXT_SETTINGS)(call)

    return make


CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

_COMMON = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text."),
    click.option("-v", "--verbose", count=True, help="Tell more; twice, everything."),
    click.option("-q", "--quiet", is_flag=True, help="No narration."),
    click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set any setting (see docs/cli.md)."
    ),
    click.option("--debug", is_flag=True, default=None, help="Show the traceback of an error."),
)


def _start(context: click.Context, values: dict[str, Any]) -> Run:
    """Take the common options and those that are settings out of ``values``."""
    invocation = context.ensure_object(Invocation)
    invocation.debug = bool(values["debug"])
    as_json, verbose, quiet = values.pop("as_json"), values.pop("verbose"), values.pop("quiet")
    assignments = values.pop("assignments")
    given = {key: values.pop(key) for key in list(values) if key in _SETTINGS}
    given = {key: None if value == () else value for key, value in given.items()}
    settings = config.load(invocation.environ, overrides=given, assignments=assignments)
    invocation.debug = settings.debug
    return Run(settings, Console(color=settings.color, quiet=quiet, as_json=as_json), verbose, invocation)


_SETTINGS = frozenset(config.Settings.__dataclass_fields__)


def group(*options: Function) -> Function:
    """One decorator out of several options."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


path = click.Path(path_type=Path)


class Size(click.ParamType):
    """Bytes, such as 65536, 64KiB or 1MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """Bytes as an int."""
        from graphopt.coerce import parse_size

        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError:
            self.fail(f"{value!r} is no size; write 65536, 64KiB or 1MB", param, context)


def split_names(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Names given one at a time or joined by commas."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


model_options = group(
    click.option(
        "--allow-external",
        "allow_external",
        type=path,
        multiple=True,
        metavar="FOLDER",
        help="Accept external data in this folder, outside the model's own.",
    ),
)

input_options = group(
    click.option(
        "--input", "input_files", multiple=True, metavar="NAME:FILE.npy|FILE.npz", help="Feed these arrays."
    ),
    click.option(
        "--input-shape",
        "input_shapes",
        multiple=True,
        metavar="NAME:1,3,224,224",
        help="Shape of an input that is made up.",
    ),
    click.option("--seed", type=int, help="Seed of made-up inputs.  [default: 0]"),
)

device_options = group(
    click.option("--device", metavar="auto|cpu|cuda[:N]", help="Where models run.  [default: auto]"),
    click.option(
        "--allow-fallback",
        is_flag=True,
        default=None,
        help="Run on the CPU if the device can't be used, instead of failing.",
    ),
)

#: What shapes the pipeline.
pipeline_options = group(
    click.option(
        "-O",
        "level",
        type=click.Choice(["0", "1", "2"]),
        help="Preset: 0 nothing, 1 exact, 2 all.  [default: 2]",
    ),
    click.option(
        "--pipeline", metavar="NAME|TEXT", help="A named pipeline, or passes such as dce,fixpoint(cse,dce)."
    ),
    click.option(
        "--passes", multiple=True, callback=split_names, metavar="A,B", help="Only these passes, in order."
    ),
    click.option(
        "--skip", multiple=True, callback=split_names, metavar="A,B", help="Leave out passes or rules."
    ),
    click.option(
        "--only", multiple=True, callback=split_names, metavar="A,B", help="Only these rewrite rules."
    ),
    click.option(
        "--exact", is_flag=True, default=None, help="Only rewrites that keep every bit of the results."
    ),
    click.option(
        "--fast-math", is_flag=True, default=None, help="Also rewrites whose results are only close."
    ),
    click.option(
        "--fold-limit", type=Size(), metavar="SIZE", help="What a folded constant may take.  [default: 64KiB]"
    ),
    click.option(
        "--pre-pass", multiple=True, metavar="PASS", help="A pass to run first: its name, or module:Class."
    ),
    click.option(
        "--post-pass", multiple=True, metavar="PASS", help="A pass to run last: its name, or module:Class."
    ),
    click.option("--stop-after", type=click.IntRange(0), metavar="N", help="Make only the first N rewrites."),
)


def given_inputs(values: dict[str, Any], settings: config.Settings) -> InputOptions:
    """What the user said about inputs; takes it out of ``values``."""
    from graphopt.api import InputOptions

    return InputOptions.parse(values.pop("input_shapes"), values.pop("input_files"), settings.seed)
