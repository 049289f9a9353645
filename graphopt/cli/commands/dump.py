"""graphopt dump: print a model, and what each pass makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli import command_line, options
from graphopt.cli.command_line import Run
from graphopt.cli.help import Section
from graphopt.cli.parameters import Count, writes
from graphopt.errors import UsageError
from graphopt.tables import counted

if TYPE_CHECKING:
    from graphopt.instrument.dump import Dump

EXAMPLE = """
graphopt dump model.onnx
graphopt dump model.onnx --dim batch=4
graphopt dump model.onnx --pass-by-pass --changed --diff
graphopt dump model.onnx --passes cse,dce --pass-by-pass --format onnx -o stages/
"""

_FORMATS = ("text", "onnx", "dot")

#: The options that --help describes.
_EVERYDAY = (
    "--pass-by-pass",
    "--changed",
    "--diff",
    "--filter",
    "--format",
    "-o",
    "-O",
    "--passes",
    "--skip",
    "--dim",
)


@command_line.command("dump", example=EXAMPLE, section=Section.INSIDE, rank=1, everyday=_EVERYDAY)
@options.model_argument()
@options.group(
    "Dump",
    click.option(
        "--pass-by-pass", is_flag=True, help="Run the pipeline, and dump the model after each pass."
    ),
    click.option(
        "--changed", is_flag=True, help="Only passes that changed something, and only what changed."
    ),
    click.option("--diff", is_flag=True, help="Lines that went (-) and came (+)."),
    click.option(
        "--format",
        "format_",
        type=click.Choice(_FORMATS),
        default="text",
        help="Text, models that load again, or graphs for Graphviz.  [default: text]",
    ),
    click.option(
        "--filter", "filter_", metavar="REGEX", help="Only lines that match, or whose node's name does."
    ),
    click.option(
        "-o",
        "--output",
        type=writes,
        metavar="FOLDER",
        help="Write NNN-after-PASS files there instead.",
    ),
)
@options.pipeline_options
@options.version_options
@options.outcome_options
@options.group(
    "Passes",
    click.option("--stop-after", type=Count(0), metavar="N", help="Make only the first N rewrites."),
    click.option("--log", metavar="SPEC", help="Log passes or rule files: dce:>peephole:>>transpose."),
)
@options.target_options
@options.dim_options
@options.model_options
def command(
    run: Run,
    model: Path,
    pass_by_pass: bool,
    changed: bool,
    diff: bool,
    format_: Any,
    filter_: str | None,
    output: Path | None,
    **values: Any,
) -> None:
    """Print a model, or what each pass makes of it.

    Types are inferred ones. Without --pass-by-pass the model is printed as it is.
    """
    from graphopt import api
    from graphopt.cli.outputs import check_folder
    from graphopt.cli.watching import make_log
    from graphopt.instrument.dump import Dump, What
    from graphopt.passes.check_aliasing import pairs_of

    what = What(format_, changed, diff, _compiled(filter_))
    if format_ == "onnx" and output is None:
        raise UsageError("--format onnx needs -o FOLDER")
    if (diff or changed) and not pass_by_pass:
        raise UsageError(f"{'--diff' if diff else '--changed'} needs --pass-by-pass")
    if diff and format_ != "text":
        raise UsageError("--diff is of text; leave out --format")
    if not pass_by_pass:
        hint = "without it the model is printed as it is, untouched"
        options.check_idle(["Passes"], "needs --pass-by-pass", hint)
    check_folder(output)
    shown: list[str] = []
    show = shown.append if run.console.as_json else lambda line: _show(run, line)
    dump = Dump(what, show, output)
    loaded = api.load_model(model)
    if not pass_by_pass:
        choices = api.vouch(loaded, values["dims"], values["dim_ranges"])
        dump.model(loaded, api.context_for(loaded, choices))
        _tell(run, dump, output)
        run.console.json({"model": str(model), "text": "\n".join(shown)})
        return
    values["share_buffers"] = pairs_of(values["share_buffers"])
    watchers = [dump, make_log(run.settings.log)] if run.settings.log else [dump]
    pipeline = options.chosen_pipeline(values)
    _, report = api.optimize(
        model, pipeline=pipeline, verify=False, strict=True, instruments=watchers, **values
    )
    _tell(run, dump, output)
    run.console.json({"text": "\n".join(shown), **report.to_dict()})


def _tell(run: Run, dump: Dump, folder: Path | None) -> None:
    """Where the dump went, if nothing shows it."""
    if folder is not None:
        run.console.note(f"  wrote     {counted(dump.files, 'file')} to {folder}")
    if dump.what.filter is not None and not dump.lines:
        run.console.note(f"  no line matches --filter {dump.what.filter.pattern}")


def _show(run: Run, line: str) -> None:
    colour = {"+": "green", "-": "red", "─": "cyan"}.get(line[:1])
    if colour is None:
        run.console.print(line)
    else:
        run.console.print(line, fg=colour)


def _compiled(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"--filter {text!r} is no regular expression: {error}") from error
