"""graphopt bailout: stop a run of a model midway, and compute the rest in another graph."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.framework.help import Section
from graphopt.cli.invocation import Run
from graphopt.cli.options import relations, shared_options
from graphopt.cli.options.parameter_types import Count, reads_data, reads_model, writes
from graphopt.errors import UsageError
from graphopt.util.text_tables import Table, counted

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.profile import Profile
    from graphopt.verification.verdict import Verdict

EXAMPLE = """
graphopt bailout model.onnx --list
graphopt bailout model.onnx --at 3 -o rest.onnx --prefix prefix.onnx
graphopt bailout model.onnx --at /decoder/NonZero_output_0 -o rest.onnx
graphopt bailout model.onnx --profile profile.json --list
graphopt bailout model.onnx --profile profile.json --all -o model.bailouts.onnx
"""

_MODES = "--list shows the exit points, --at cuts at one, --all handles all of them"

#: The options that --help describes.
_EVERYDAY = ["--list", "--at", "--all", "-o", "--prefix", "--profile", "--input", "--input-shape"]


@command_decorator.command("bailout", example=EXAMPLE, section=Section.EXPERT, everyday=_EVERYDAY)
@click.argument("source", type=reads_model, metavar="MODEL")
@shared_options.group(
    "Exit points",
    click.option("--list", "listing", is_flag=True, help="List the exit points, and write nothing."),
    relations.option(
        "--at",
        metavar="N|NAME",
        excludes=("--list",),
        hint=_MODES,
        help="Cut at the exit point of this number, or after this value. If a value is called 3, '#3' is the"
        " exit point.",
    ),
    relations.option(
        "--all",
        "every",
        is_flag=True,
        excludes=("--list", "--at"),
        hint=_MODES,
        help="Handle all exit points in one model, which relies on the profile.",
    ),
    relations.option(
        "--most",
        type=Count(1),
        metavar="N",
        goes_with="--all",
        hint="--at N cuts at one exit point",
        help="With --all: only the first N exit points.  [default: 8]",
    ),
    click.option(
        "--profile",
        "profile_path",
        type=reads_data,
        metavar="FILE.json",
        help="Cut at the guards that this profile requires, instead of at data-dependent shapes.",
    ),
)
@shared_options.group(
    "Files",
    click.option("-o", "--output", type=writes, metavar="OUT", help="Write the result to this file."),
    relations.option(
        "--prefix",
        type=writes,
        metavar="PREFIX",
        goes_with="--at",
        hint="--at N selects the exit point",
        help="With --at: also write the model that runs up to the exit point.",
    ),
)
@shared_options.output_options
@shared_options.model_options
@shared_options.verify_options
@shared_options.input_options
@shared_options.device_options
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
) -> None:
    """Cut a model in two, also within a Loop or an If.

    The prefix runs up to an exit point, and the rest from there. The inputs of the rest (-o) are the value at
    the exit point, then all other values computed before and read after it; its outputs are those of the
    model. The prefix returns these values, and whether the exit point was reached; in a loop, the input
    `occurrence` selects the iteration of the exit. Both together are compared with the model before anything
    is written.

    With --all, one model relies on the values that the profile recorded within the model; where a run
    differs, it continues without these assumptions (docs/bailouts.md).
    """
    from graphopt import api
    from graphopt.cli.files.output_paths import check_model_file
    from graphopt.profile import Profile

    _check(listing, at, every, profile_path, output)
    for path in (output, prefix):
        if path is not None:
            check_model_file(path, source)
    if output is not None and prefix is not None and os.path.realpath(output) == os.path.realpath(prefix):
        raise UsageError("-o and --prefix name the same file", hint="give each a name of its own")
    profile = None if profile_path is None else Profile.read(profile_path)
    if listing:
        _list(run, api.load_model(source), profile)
    elif every and profile is not None and output is not None:
        _insert(run, source, profile, output, most)
    elif at is not None and output is not None:
        _cut(run, source, at, profile, output, prefix)


def _check(listing: bool, at: str | None, every: bool, profile: Path | None, output: Path | None) -> None:
    """Refuse options without the options that they require."""
    if not (listing or every or at is not None):
        raise UsageError("nothing is asked for", hint=_MODES)
    if listing and output is not None:
        raise UsageError("--list writes nothing", hint="--at N selects the exit point")
    if not listing and output is None:
        raise UsageError(f"{'--all' if every else '--at'} needs -o", hint="-o OUT.onnx")
    if every and profile is None:
        raise UsageError("--all needs --profile", hint="graphopt profile MODEL -o FILE.json makes one")


def _list(run: Run, model: ir.Model, profile: Profile | None) -> None:
    from graphopt.cli.views.exit_points import told

    found = told(model, profile)
    run.console.json({"places": found})
    table = Table(["exit point", "value", "where", "what"], "><<<")
    for place in found:
        what = place["refused"] or place["seen"] or place["type"]
        table.add(place["number"], place["value"], place["where"], what)
    if found:
        run.console.table(table)
    else:
        why = "no shape depends on data" if profile is None else "the profile requires no guard"
        run.console.print(f"  there are no exit points: {why}")
        run.console.note("  --at takes the name of any value, too")


def _cut(
    run: Run,
    source: Path,
    at: str,
    profile: Profile | None,
    output: Path,
    prefix: Path | None,
) -> None:
    from graphopt import ir

    with run.console.progress(source.name) as advance:
        advance(None, "cutting")
        found, verdict = run.compiler.bailout(source, at, profile=profile)
    external = run.settings.external_data
    with contextlib.ExitStack() as stack:
        written = [stack.enter_context(ir.saving(found.rest, output, external_data=external))]
        if prefix is not None:
            written.append(stack.enter_context(ir.saving(found.prefix, prefix, external_data=external)))
    sizes = run.invocation.wrote([file for files in written for file in files])
    takes = [value.name or "" for value in found.rest.graph.inputs]
    told = {
        "source": str(source),
        "place": found.point.number,
        "value": found.point.value.name,
        "inputs": takes,
        "handed": list(found.handed),
        "occurrence": found.occurrence,
        "reached": found.reached,
        "files": sizes,
    }
    run.console.json(told | _verdict(verdict))
    show = run.console.print
    if run.console.quiet:
        return
    number = "" if found.point.number is None else f"{found.point.number}, "
    show(f"  exit      {number}behind {found.point.value.name}")
    show(f"  takes     {', '.join(takes)}")
    if found.occurrence is not None:
        show(f"  loops     the input {found.occurrence!r} selects the iteration of the exit, from 0")
    _print_outcome(run, verdict, sizes)


def _insert(
    run: Run,
    source: Path,
    profile: Profile,
    output: Path,
    most: int | None,
) -> None:
    from graphopt import ir
    from graphopt.compiler.bailouts import MOST

    with run.console.progress(source.name) as advance:
        advance(None, "inserting bailouts")
        found = run.compiler.with_bailouts(source, profile, most=most or MOST)
    sizes = run.invocation.wrote(ir.save(found.model, output, external_data=run.settings.external_data))
    before, after = found.report.original.nodes, found.report.optimized.nodes
    places = [
        {"value": place.value.name, "seen": str(place.assertion)} for place in found.inserted.exit_points
    ]
    left = [{"value": place.value.name, "why": reason} for place, reason in found.inserted.refused]
    verdict = found.report.verdict
    told = {"source": str(source), "places": places, "left_out": left, "nodes": [before, after]}
    run.console.json(told | {"files": sizes} | _verdict(verdict))
    show = run.console.print
    if run.console.quiet:
        return
    for place in places:
        show(f"  bailout   {place['value']}: {place['seen']}")
    for place in left:
        show(f"  left out  {place['value']}: {place['why']}")
    if not places and not left:
        show("  the profile requires no guard: --list without --profile shows the exit points")
    show(f"  nodes     {after:,}, with the rest behind {counted(len(places), 'exit point')}")
    _print_outcome(run, verdict, sizes)


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    from graphopt.instrument.report import verdict_dict

    return {"verification": None if verdict is None else verdict_dict(verdict)}


def _print_outcome(run: Run, verdict: Verdict | None, sizes: dict[str, int]) -> None:
    from graphopt.instrument.report import verdict_lines
    from graphopt.util.text_tables import human_bytes

    if verdict is not None:
        run.console.blocks(verdict_lines(verdict))
    for path, size in sizes.items():
        run.console.print(f"  wrote     {path}   {human_bytes(size)}")
