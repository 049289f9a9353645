"""Groups of options that look the same in every command, and what becomes of them.

A command is made by :func:`command`, which gives it the common options (``--json``, ``-v``,
``-q``, ``--debug``, ``--set``) and hands it a :class:`Run` as its first argument. Options that
are settings too are ``None`` unless they were given.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import config
from graphopt.cli.console import Console
from graphopt.cli.parameters import Count, ReadsArrays, Seconds, Size, split_names, split_some, writes
from graphopt.errors import UsageError

if TYPE_CHECKING:
    from graphopt.runtime.devices import Device
    from graphopt.runtime.inputs.feeds import InputOptions

Function = Callable[..., Any]


@dataclass
class Invocation:
    """One call of the command line: what comes from outside, and whether to show tracebacks.

    Attributes:
        environ: the environment variables; the process's own if ``None``.
        debug: tracebacks are wanted.
        status: what the process will exit with, if nothing fails.
        arguments: those of the command line.
        reproducer: the folder that holds all it takes to repeat it, if there is one.
        error: what was said when it failed.
        written: the files of the models that were written.
        before: seconds that the process took before it came here.
        begin: when it came here, by :func:`time.perf_counter`.
    """

    environ: Mapping[str, str] | None = None
    debug: bool = False
    status: int = 0
    arguments: tuple[str, ...] = ()
    reproducer: Path | None = None
    error: str | None = None
    written: list[Path] = field(default_factory=list)
    before: float = 0.0
    begin: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since the process began, as far as that is known."""
        return self.before + time.perf_counter() - self.begin

    @property
    def as_json(self) -> bool:
        """Whether JSON is asked for; can be told before the options are parsed."""
        return "--json" in self.arguments

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command line."""
        return ("graphopt", *self.arguments)


@dataclass
class Run:
    """What a command is handed: its settings, where its output goes, and where to keep what can repeat it.

    ``settings_fault`` tells why settings could not be read, and the defaults are in force.
    """

    settings: config.Settings
    console: Console
    verbose: int = 0
    invocation: Invocation = field(default_factory=Invocation)
    save_repro: Path | None = None
    settings_fault: UsageError | None = None


class Command(click.Command):
    """A command whose help lists its options by group."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section a group, the common options last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", _OTHERS), []).append(record)
        for title, records in sorted(sections.items(), key=lambda item: item[0] == _OTHERS):
            with formatter.section(title):
                formatter.write_dl(records)


def command(name: str, *, example: str, needs_settings: bool = True) -> Callable[[Function], click.Command]:
    """Make a command of a function.

    Args:
        example: ends its help.
        needs_settings: settings that can't be read are an error; otherwise the defaults are in force.
    """

    def make(function: Function) -> click.Command:
        @functools.wraps(function)
        @click.pass_context
        def call(context: click.Context, /, **values: Any) -> Any:
            from graphopt.cli.outputs import check_apart

            run = _start(context, values, needs_settings=needs_settings)
            check_apart(context)
            with config.using(run.settings):
                if run.save_repro is None:
                    return function(run, **values)
                return _recorded(context, run, run.save_repro, lambda: function(run, **values))

        for option in reversed(_COMMON):
            call = option(call)
        epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in example.strip().splitlines())
        return click.command(name, cls=Command, epilog=epilog, context_settings=CONTEXT_SETTINGS)(call)

    return make


_OTHERS = "Other options"
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

_COMMON = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text."),
    click.option(
        "-v", "--verbose", count=True, help="Tell more: times by pass, what was left alone and why; -vv: all."
    ),
    click.option("-q", "--quiet", is_flag=True, help="Only results and errors."),
    click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set any setting (see docs/cli.md)."
    ),
    click.option("--debug", is_flag=True, default=None, help="Show the traceback of an error."),
    click.option(
        "--save-repro",
        type=writes,
        metavar="FOLDER",
        help="Keep all it takes to run this again, for graphopt replay; also where it fails.",
    ),
)


def _start(context: click.Context, values: dict[str, Any], *, needs_settings: bool) -> Run:
    """Take the common options and those that are settings out of ``values``."""
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
    invocation.debug = settings.debug
    if given.get("require_verified") and not settings.verify:
        raise UsageError("--no-verify and --require-verified exclude each other")
    console = Console(color=settings.color, quiet=quiet, as_json=as_json)
    return Run(settings, console, verbose, invocation, save_repro, fault)


def _recorded(context: click.Context, run: Run, folder: Path, call: Callable[[], Any]) -> Any:
    """What ``call`` returns or raises, kept in a reproducer with all that led there."""
    from graphopt.cli.failure import Failure
    from graphopt.cli.outputs import check_new
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


def parsed_dims(parser: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, Any]]:
    """A callback that reads what is said of dims by a function of :mod:`graphopt.runtime.inputs.dims`."""

    def read(context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
        if not values:
            return {}
        from graphopt.runtime.inputs import dims

        found: dict[str, Any] = getattr(dims, parser)(values)
        return found

    return read


def group(title: str, *options: Function) -> Function:
    """One decorator out of several options, which the help lists under ``title``."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        for parameter in function.__click_params__[-len(options) :]:  # type: ignore[attr-defined]
            parameter.section = title
        return function

    return decorate


model_options = group(
    "Files",
    click.option(
        "--allow-external",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FOLDER",
        help="Accept external data in this folder, outside the model's own.",
    ),
)

output_options = group(
    "Files",
    click.option(
        "--external-data/--no-external-data",
        default=None,
        help="Put weights into a file of their own.  [default: as they were]",
    ),
)

pipeline_options = group(
    "Passes",
    click.option(
        "-O",
        "level",
        type=click.Choice(["0", "1", "2", "3"]),
        help="Preset: 0 nothing, 1 every bit is kept, 2 sums may be reordered, 3 fused operators too."
        "  [default: 2]",
    ),
    click.option(
        "--pipeline", metavar="NAME|TEXT", help="A named pipeline, or text such as dce,fixpoint(cse,dce)."
    ),
    click.option(
        "--passes", multiple=True, callback=split_some, metavar="A,B", help="Only these passes, in order."
    ),
    click.option(
        "--skip",
        multiple=True,
        callback=split_names,
        metavar="A,B",
        help="Leave out these passes, rules or families of rules.",
    ),
    click.option(
        "--only",
        multiple=True,
        callback=split_some,
        metavar="A,B",
        help="Of the rewrite rules, only these, or these families.",
    ),
    click.option(
        "--exact",
        is_flag=True,
        default=None,
        help="Only rewrites that keep every bit (docs/cli.md tells of kernels that pack constants).",
    ),
    click.option(
        "--fast-math", is_flag=True, default=None, help="Also rewrites whose results are only close."
    ),
    click.option(
        "--portable",
        is_flag=True,
        default=None,
        help="With -O3: only operators of the ONNX standard, none of onnxruntime's own.",
    ),
    click.option(
        "--fold-limit",
        type=Size(),
        metavar="SIZE",
        help="What a folded constant may take, whatever it replaces.  [default: 64KiB]",
    ),
    click.option(
        "--time-limit",
        type=Seconds(),
        metavar="TIME",
        help="What folding and inference may take together; the rest stays as it is.  [default: 60s]",
    ),
    click.option(
        "--memory-limit",
        type=Size(),
        metavar="SIZE",
        help="What folding, and risky runs to verify, may take, such as 4GiB.  [default: 2GiB]",
    ),
    click.option(
        "--pre-pass", "pre_passes", multiple=True, metavar="PASS", help="Run first: a pass, or module:Class."
    ),
    click.option(
        "--post-pass", "post_passes", multiple=True, metavar="PASS", help="Run last: a pass, or module:Class."
    ),
)

dim_options = group(
    "Inputs",
    click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=SIZE",
        callback=parsed_dims("parse_sizes"),
        help="Fix a dynamic dim, also NAME@AXIS of an input, to this size.",
    ),
    click.option(
        "--dim-range",
        "dim_ranges",
        multiple=True,
        metavar="NAME=FIRST:LAST",
        callback=parsed_dims("parse_ranges"),
        help="Rely on a dynamic dim being within these sizes.",
    ),
)

version_options = group(
    "Passes",
    click.option(
        "--target-opset",
        type=Count(1),
        metavar="N",
        help="Write the model for this version of the standard's operators.",
    ),
)

#: What is written besides, and what it has to suit.
outcome_options = group(
    "Passes",
    click.option(
        "--strip-docs", is_flag=True, help="Remove doc strings, and exporters' notes on nodes (docs/cli.md)."
    ),
    click.option(
        "--share-buffers",
        multiple=True,
        metavar="IN=OUT",
        help="You write this output over this input: fail where that is not safe.",
    ),
)

watch_options = group(
    "Watching",
    click.option("--log", metavar="SPEC", help="Log passes or rule files: dce:>peephole:>>transpose."),
    click.option(
        "--dump-dir", type=writes, metavar="FOLDER", help="Write the model after each pass that changed it."
    ),
    click.option("--validate-each", is_flag=True, help="Check that the model is valid after each pass."),
    click.option("--verify-each", is_flag=True, help="Also compare its results with the original's."),
    click.option("--stop-after", type=Count(0), metavar="N", help="Make only the first N rewrites."),
)

verify_options = group(
    "Verification",
    click.option(
        "--verify/--no-verify", default=None, help="Compare the result with the original.  [default: verify]"
    ),
    click.option(
        "--require-verified",
        is_flag=True,
        default=None,
        help="Write nothing where IN does not run, so that nothing can be compared.",
    ),
)

input_options = group(
    "Inputs",
    click.option(
        "--input",
        "input_files",
        type=ReadsArrays(),
        multiple=True,
        metavar="NAME:FILE.npy|FILE.npz",
        help="Feed these arrays.",
    ),
    click.option(
        "--input-shape",
        "input_shapes",
        multiple=True,
        metavar="NAME:1,3,224,224",
        help="Shape of an input that is made up.",
    ),
    click.option(
        "--seed", type=Count(0, 2**63 - 1), metavar="N", help="Seed of made-up inputs.  [default: 0]"
    ),
)

device_options = group(
    "Device",
    click.option("--device", metavar="auto|cpu|cuda[:N]", help="Where models run.  [default: auto]"),
    click.option(
        "--allow-fallback",
        is_flag=True,
        default=None,
        help="Run on the CPU if the device can't be used, instead of failing.",
    ),
)

session_options = group(
    "Device",
    click.option(
        "--session-options/--no-session-options",
        default=True,
        help="Use the session options that the model recommends (docs/tune.md).  [default: use them]",
    ),
)


def check_idle(sections: Collection[str], why: str, hint: str) -> None:
    """Refuse options of these sections of the help, which would have no effect, if any is given.

    Raises:
        UsageError: one is given, as the message tells with ``why``.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and getattr(parameter, "section", None) in sections:
            raise UsageError(f"{parameter.opts[-1]} {why}", hint=hint)


def chosen_pipeline(values: dict[str, Any]) -> str | None:
    """What ``-O``, ``--pipeline`` and ``--passes`` say; takes ``level`` and ``passes`` out of ``values``.

    ``--pipeline`` is a setting, and has gone its own way.
    """
    level, passes = values.pop("level"), values.pop("passes")
    text = click.get_current_context().params.get("pipeline")
    choices = {"-O": level is not None, "--pipeline": text is not None, "--passes": bool(passes)}
    given = [option for option, is_given in choices.items() if is_given]
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} exclude each other",
            hint="--skip leaves out passes; --pre-pass and --post-pass add some at the ends",
        )
    chosen = f"O{level}" if level is not None else ",".join(passes) or None
    _tell_idle_portable(chosen, values)
    return chosen


def _tell_idle_portable(pipeline: str | None, values: dict[str, Any]) -> None:
    """Say so where ``--portable`` leaves nothing out."""
    context = click.get_current_context()
    if context.get_parameter_source("portable") is not click.core.ParameterSource.COMMANDLINE:
        return
    from graphopt.driver import make_pipeline
    from graphopt.passes.fuse_builtin import FuseBuiltin

    text = pipeline or config.current().pipeline
    passes = make_pipeline(text, values["pre_passes"], values["post_passes"]).passes()
    if not any(isinstance(step, FuseBuiltin) for step in passes):
        click.echo(
            "graphopt: warning: --portable leaves out nothing here: only -O3 fuses operators", err=True
        )


def chosen_device(run: Run) -> Device:
    """The device that the settings name; says so in one line where it can't be used.

    Where any device will do, only ``-v`` tells why it is not another.
    """
    from graphopt.api import choose_device

    device, remark = choose_device()
    if remark and (run.verbose or run.settings.device != "auto"):
        run.console.note(f"  {remark}")
    return device


def given_inputs(run: Run, values: dict[str, Any]) -> InputOptions | None:
    """What the user said about inputs, if anything; takes it out of ``values``."""
    shapes, files = values.pop("input_shapes"), values.pop("input_files")
    if not shapes and not files:
        return None
    from graphopt.runtime.inputs.feeds import InputOptions

    return InputOptions.parse(shapes, files, run.settings.seed)
