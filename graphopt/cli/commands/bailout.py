"""graphopt bailout: stop a run of a model midway, and compute the rest in another graph."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import option_relations, shared_options
from graphopt.cli.options.parameter_types import Count, reads_data, reads_model, writes
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.text_tables import Block, Table, counted

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.compiler.bailouts import Bailed
    from graphopt.profile import Profile
    from graphopt.specialization.deopt.split_model import Bailout

EXAMPLE = """
graphopt bailout model.onnx --list
graphopt bailout model.onnx --at 3 -o rest.onnx --prefix prefix.onnx
graphopt bailout model.onnx --at /decoder/NonZero_output_0 -o rest.onnx
graphopt bailout model.onnx --profile profile.json --list
graphopt bailout model.onnx --profile profile.json --all -o model.bailouts.onnx
"""

_MODES = "--list shows the exit points, --at N cuts at one, --all inserts a bailout at each"


@command_decorator.command(
    "bailout",
    example=EXAMPLE,
    everyday="--list --at --all -o --prefix --profile --input --input-shape",
)
@click.argument("source", type=reads_model, metavar="MODEL")
@shared_options.group(
    "Exit points",
    click.option("--list", "listing", is_flag=True, help="List the exit points, and write nothing."),
    option_relations.option(
        "--at",
        metavar="N|NAME",
        excludes=("--list",),
        hint=_MODES,
        help="Cut at the exit point with this number, or after this value. Use '#3' for the number if a"
        " value is called 3.",
    ),
    option_relations.option(
        "--all",
        "every",
        is_flag=True,
        excludes=("--list", "--at"),
        hint=_MODES,
        help="Write one model that assumes the values of the profile, with a bailout at every exit point.",
    ),
    option_relations.option(
        "--most",
        type=Count(1),
        metavar="N",
        requires="--all",
        hint="--at N cuts at one exit point",
        help="With --all: maximum number of bailouts.  [default: 8]",
    ),
    click.option(
        "--profile",
        "profile_path",
        type=reads_data,
        metavar="FILE.json",
        help="Exit points are the guards that this profile requires, instead of data-dependent shapes.",
    ),
)
@shared_options.group(
    "Files",
    shared_options.output_option("Write the result to this file."),
    option_relations.option(
        "--prefix",
        type=writes,
        metavar="PREFIX",
        requires="--at",
        hint="--at N chooses the exit point",
        help="With --at: also write the model that runs up to the exit point.",
    ),
)
@shared_options.output_options
@shared_options.record_option
@shared_options.model_options
@shared_options.verify_options
@shared_options.input_options
@shared_options.device_options
@shared_options.log_options
def command(
    run: Run,
    source: Path,
    listing: bool,
    at: str | None,
    every: bool,
    most: int | None,
    profile_path: Path | None,
    output: Path | None,
    prefix: Path | None,
) -> Output:
    """Cut a model in two, also within a Loop or an If.

    The prefix runs up to an exit point, and the rest continues from this point. The inputs of the rest (-o)
    are the value at the exit point and all other values that are computed before it and read after it; its
    outputs are those of the model. The prefix returns these values, and whether the exit point was reached;
    in a loop, its input `occurrence` selects the iteration. Prefix and rest are compared with the model
    before any file is written.

    With --all, one model assumes the inner values that the profile recorded; a run with another value
    continues without these assumptions (docs/bailouts.md).
    """
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_model_file
    from graphopt.profile import Profile

    _check_option_pairs(listing, at, every, profile_path, output)
    for path in (output, prefix):
        if path is not None:
            check_model_file(path, source)
    if output is not None and prefix is not None and os.path.realpath(output) == os.path.realpath(prefix):
        raise UsageError("-o and --prefix name the same file", hint="name two files")
    profile = None if profile_path is None else Profile.read(profile_path)
    if output is None:
        return _list(api.load_model(source), profile)
    if at is not None:
        return _write_split(run, source, at, profile, output, prefix)
    assert profile is not None
    return _insert(run, source, profile, output, most)


def _check_option_pairs(
    listing: bool, at: str | None, every: bool, profile: Path | None, output: Path | None
) -> None:
    """Refuse options without the options that they require."""
    if not (listing or every or at is not None):
        raise UsageError("one of --list, --at and --all is required", hint=_MODES)
    if listing and output is not None:
        raise UsageError("--list writes nothing", hint="leave out -o; --at N cuts a model")
    if not listing and output is None:
        raise UsageError(f"{'--all' if every else '--at'} needs -o", hint="-o OUT.onnx")
    if every and profile is None:
        raise UsageError("--all needs --profile", hint="graphopt profile MODEL -o FILE.json records one")


def _list(model: ir.Model, profile: Profile | None) -> Output:
    from graphopt.cli.views.exit_points import described

    found = described(model, profile)
    if found:
        table = Table(["exit point", "value", "where", "what"], "><<<")
        for point in found:
            what = point["refused"] or point["seen"] or point["type"]
            table.add(point["number"], point["value"], point["where"], what)
        return Output({"places": found}, [table])
    why = "no shape depends on data" if profile is None else "the profile requires no guard"
    return Output({"places": found}, [f"  no exit points: {why}"], notes=["  --at NAME cuts after any value"])


def _write_split(
    run: Run, source: Path, at: str, profile: Profile | None, output: Path, prefix: Path | None
) -> Output:
    from graphopt import ir
    from graphopt.instrument.report import verdict_dict, verdict_lines

    with run.console.progress(source.name) as advance:
        advance(None, "cutting")
        found, verdict = run.compiler.bailout(source, at, profile=profile)
    weights = run.settings.weights
    with contextlib.ExitStack() as stack:
        written = [stack.enter_context(ir.saving(found.rest, output, weights=weights))]
        if prefix is not None:
            written.append(stack.enter_context(ir.saving(found.prefix, prefix, weights=weights)))
    data = {
        "source": str(source),
        "place": found.point.number,
        "value": found.point.value.name,
        "inputs": [value.name or "" for value in found.rest.graph.inputs],
        "handed": list(found.handed),
        "occurrence": found.occurrence,
        "reached": found.reached,
        "verification": verdict_dict(verdict),
    }
    sizes = run.invocation.wrote([file for files in written for file in files])
    return Output(data, [*_cut_text(found), *verdict_lines(verdict)], sizes)


def _cut_text(found: Bailout) -> Iterator[Block]:
    number = "" if found.point.number is None else f"{found.point.number}, "
    yield f"  exit at   {number}after {found.point.value.name}"
    yield f"  inputs    {', '.join(value.name or '' for value in found.rest.graph.inputs)}"
    if found.occurrence is not None:
        yield f"  loops     the input {found.occurrence!r} selects the iteration of the exit, from 0"


def _insert(run: Run, source: Path, profile: Profile, output: Path, most: int | None) -> Output:
    from graphopt.compiler.bailouts import MOST
    from graphopt.instrument.report import verdict_dict, verdict_lines

    with run.console.progress(source.name) as advance:
        advance(None, "inserting bailouts")
        found = run.compiler.with_bailouts(source, profile, most=most or MOST)
    report, inserted = found.report, found.inserted
    data = {
        "source": str(source),
        "places": [{"value": one.value.name, "seen": str(one.assertion)} for one in inserted.exit_points],
        "left_out": [{"value": one.value.name, "why": reason} for one, reason in inserted.refused],
        "nodes": [report.original.nodes, report.optimized.nodes],
        "verification": verdict_dict(report.verdict),
    }
    text = [*_insert_text(found), *verdict_lines(report.verdict)]
    return Output(data, text, run.save(found.model, output))


def _insert_text(found: Bailed) -> Iterator[Block]:
    inserted = found.inserted
    for point in inserted.exit_points:
        yield f"  bailout   {point.value.name}: {point.assertion}"
    for point, reason in inserted.refused:
        yield f"  left out  {point.value.name}: {reason}"
    if not inserted.exit_points and not inserted.refused:
        yield "  the profile requires no guard; --list without --profile shows other exit points"
    count = counted(len(inserted.exit_points), "bailout")
    yield f"  nodes     {found.report.optimized.nodes:,}, with {count}"
