"""graphopt dump: print a model, and the changes that each pass makes to it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import publish
from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.options.table_options import table_option
from graphopt.cli.output.command_output import Output
from graphopt.cli.output.pager import page, print_line
from graphopt.errors import UsageError
from graphopt.instrument.dump_formats import SUFFIXES, Format, format_by_suffix
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

if TYPE_CHECKING:
    from graphopt.instrument.dump import Dump
    from graphopt.modeldiff.print_changes import Printed

EXAMPLE = """
graphopt dump model.onnx
graphopt dump model.onnx --dim batch=4
graphopt dump model.onnx --pass-by-pass
graphopt dump model.onnx --pass-by-pass --filter 'layer.0/attention' -v
graphopt dump model.onnx --passes cse,dce --pass-by-pass --format onnx -o stages/
"""


@command_decorator.command(
    "dump",
    example=EXAMPLE,
    everyday="--pass-by-pass --full --filter --format -o -O --passes --skip --dim",
)
@shared_options.model_argument()
@shared_options.group(
    "Dump",
    click.option(
        "--pass-by-pass",
        is_flag=True,
        help="Run the pipeline, and print the changes of each pass after a summary.",
    ),
    click.option("--full", is_flag=True, help="Print the whole model after each pass, not only the changes."),
    click.option(
        "--changed", is_flag=True, help="Print only passes that changed something, and their new lines."
    ),
    click.option(
        "--diff", is_flag=True, help="Print removed (-), added (+) and changed (~) lines of every pass."
    ),
    click.option(
        "--format",
        "format_",
        type=click.Choice(tuple(SUFFIXES)),
        help="Text, loadable models, or graphs for Graphviz.  [default: by the suffix of -o; text]",
    ),
    click.option(
        "--filter",
        "filter_",
        metavar="REGEX",
        help="Print only lines that match as printed, or with their full names.",
    ),
    shared_options.output_option(
        "Write to a .txt, .diff, .dot or .onnx file instead, or NNN-after-PASS files to a folder.",
        metavar="PATH",
    ),
    shared_options.pager_option,
)
@shared_options.pipeline_options
@shared_options.group("Passes", table_option("stop_after"), shared_options.log_option)
@shared_options.target_options
@shared_options.dim_options
@shared_options.model_options
def command(
    run: Run,
    model: Path,
    pass_by_pass: bool,
    full: bool,
    changed: bool,
    diff: bool,
    format_: Format | None,
    filter_: str | None,
    output: Path | None,
    pager: bool,
) -> Output:
    """Print a model, or the changes of each pass.

    Types are inferred. Without --pass-by-pass, the unmodified model is printed. Names are shortened, and
    small constants are printed only where they are read; -v prints full names and all constants.
    """
    from graphopt import api, ir
    from graphopt.instrument.dump import Dump, DumpOptions

    _check(pass_by_pass, full=full, changed=changed, diff=diff)
    target = _Target.of(output, format_, pass_by_pass)
    if diff and target.format != "text":
        raise UsageError("--diff compares text; leave out --format")
    if pass_by_pass and target.folder is None and target.format == "text" and not (full or changed or diff):
        changed = diff = True
    options = DumpOptions(target.format, changed, diff, run.verbose > 0, _compiled(filter_))
    shown: list[Printed] = []
    streams = full and target.file is None and not run.console.as_json
    show = functools.partial(print_line, run.console) if streams else shown.append
    dump = Dump(options, show, target.folder)
    report: dict[str, Any] = {"model": run.invocation.name_of(model)}
    try:
        if not pass_by_pass:
            loaded = api.load_model(model)
            cx = api.context_for(loaded, run.compiler.vouched(loaded))
            if target.file is not None and target.format == "onnx":
                ir.save(loaded, target.file)
            else:
                dump.model(loaded, cx)
        else:
            _, result = run.compiler.optimize(model, verify=False, strict=True, instruments=[dump])
            report = result.to_dict()
            report["diffs"] = [stage.to_dict() for stage in dump.stages]
    finally:
        dump.finish()
        if target.file is not None and target.format != "onnx":
            publish.write(target.file, "".join(f"{line}\n" for line in shown))
        else:
            page(run.console, shown, pager=pager)
    return Output({"text": "\n".join(map(str, shown)), **report}, notes=[*_notes(dump, target)])


def _check(pass_by_pass: bool, **given: bool) -> None:
    for name, flag in given.items():
        if flag and not pass_by_pass:
            raise UsageError(f"--{name} needs --pass-by-pass")
    if given["full"] and given["diff"]:
        raise UsageError("--full and --diff exclude each other")
    if not pass_by_pass:
        hint = "without it, the unmodified model is printed"
        resolve_options.check_idle(["Passes"], "needs --pass-by-pass", hint)


@dataclass(frozen=True)
class _Target:
    """Destination and format of a dump; stdout if neither a file nor a folder is given."""

    format: Format
    file: Path | None = None
    folder: Path | None = None

    @classmethod
    def of(cls, output: Path | None, chosen: Format | None, pass_by_pass: bool) -> _Target:
        from graphopt.cli.files.check_output_paths import check_file, check_folder

        # -o with any other suffix names a folder
        by_suffix = None if output is None or output.is_dir() else format_by_suffix(output.suffix)
        form = chosen or by_suffix or "text"
        if form == "onnx" and output is None:
            raise UsageError("--format onnx needs -o", hint="name a folder, or an .onnx file")
        if by_suffix is None:
            check_folder(output)
            return cls(form, folder=output)
        if form == "onnx" and pass_by_pass:
            raise UsageError(
                f"--pass-by-pass writes several models, and {output} is one file", hint="name a folder"
            )
        check_file(output)
        return cls(form, file=output)


def _notes(dump: Dump, target: _Target) -> Iterator[str]:
    """Lines that name the written files, and that report a filter without matches."""
    if target.folder is not None:
        yield (f"  wrote     {counted(dump.files, 'file')} to {target.folder}")
    elif target.file is not None:
        yield f"  wrote     {target.file}"
    if dump.options.filter is not None and not dump.lines:
        yield (f"  no line matches --filter {dump.options.filter.pattern}")


def _compiled(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"--filter {text!r} is no regular expression: {error}") from error
