"""graphopt partition: groups of nodes that can be handled as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt import publish
from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import option_relations, resolve_options, shared_options
from graphopt.cli.options.parameter_types import Count, reads_data, split_some, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import Block, Line, Table

if TYPE_CHECKING:
    from graphopt.partitioning.group_report import Group, Partitioned

EXAMPLE = """
graphopt partition model.onnx --policy autodiff
graphopt partition model.onnx --wrt fc.weight,fc.bias --explain
graphopt partition model.onnx --no-grad /encoder -o groups.onnx
graphopt partition model.onnx --plot groups.svg
graphopt partition model.onnx --policy fusion --explain
"""

_DRAWINGS = (".svg", ".dot")
_AUTODIFF, _FUSION = ("--policy", "autodiff"), ("--policy", "fusion")


@command_decorator.command(
    "partition",
    example=EXAMPLE,
    everyday="--policy --wrt --minimum --explain -o --plot --shapes --profile --device",
)
@shared_options.model_argument()
@shared_options.group(
    "Groups",
    click.option(
        "--policy",
        type=click.Choice(["autodiff", "fusion"]),
        default="autodiff",
        help="Purpose of groups: gradients of whole groups, or one kernel for each.  [default: autodiff]",
    ),
    shared_options.wrt_option(default="all", where=_AUTODIFF),
    click.option(
        "--minimum", type=Count(1), default=2, metavar="N", help="Minimum group size, in nodes.  [default: 2]"
    ),
    option_relations.option(
        "--views/--no-views",
        where=_AUTODIFF,
        default=True,
        help="Allow Reshape, Transpose and other views in groups.  [default: views]",
    ),
    option_relations.option(
        "--no-grad",
        where=_AUTODIFF,
        multiple=True,
        callback=split_some,
        metavar="A,B",
        help="Nodes, or scopes of nodes, that need no gradient.",
    ),
    option_relations.option(
        "--profile",
        "profile_path",
        where=_AUTODIFF,
        type=reads_data,
        metavar="FILE.json",
        help="Profile that records the inputs that need gradients.",
    ),
    option_relations.option(
        "--shapes",
        where=_FUSION,
        type=click.Choice(["any", "static"]),
        default="any",
        help="Shapes in groups: any, or static ones only.  [default: any]",
    ),
    click.option(
        "--explain", is_flag=True, help="Report the reason why each node is in a group, or in none."
    ),
)
@shared_options.group(
    "Files",
    shared_options.output_option("Write the model with functions for groups."),
    click.option("--plot", type=writes_file, metavar="FILE.svg|.dot", help="Draw the groups."),
)
@shared_options.output_options
@shared_options.model_options
@shared_options.verify_options
@shared_options.input_options
@shared_options.device_options
@shared_options.log_options
def command(
    run: Run,
    model: Path,
    policy: str,
    wrt: tuple[str, ...],
    minimum: int,
    views: bool,
    no_grad: tuple[str, ...],
    profile_path: Path | None,
    shapes: str,
    explain: bool,
    output: Path | None,
    plot: Path | None,
) -> Output:
    """Find groups of nodes that can be handled as one.

    Groups do not depend on each other in cycles. A group for autodiff contains nodes that have gradients and
    depend on a value of --wrt; a group for fusion contains nodes that one loop nest computes in one pass over
    memory. With -o, each group becomes a function of the domain graphopt.autodiff, or graphopt.native, and
    the model is compared with the original before it is written (docs/partition.md).
    """
    from graphopt.cli.files.check_output_paths import check_file, check_target
    from graphopt.instrument.report import verdict_dict, verdict_lines
    from graphopt.profile import Profile

    if output is None:
        resolve_options.check_idle(
            ["Verification", "Inputs", "Device"],
            "has no effect without -o: nothing is compared",
            "-o OUT.onnx",
        )
    else:
        check_target(model, output)
    check_file(plot, _DRAWINGS)
    profile = None if profile_path is None else Profile.read(profile_path)
    with run.console.progress(model.name) as advance:
        advance(None, "finding groups")
        found = run.compiler.partition(
            model,
            policy,
            minimum=minimum,
            wrt=wrt,
            views=views,
            no_grad=no_grad,
            profile=profile,
            shapes=shapes,
        )
        obstacles = found.obstacles() if explain else {}
        verdict, sizes = None, {}
        if output is not None:
            advance(None, "comparing")
            outlined, verdict = run.compiler.with_groups(found)
            sizes = run.save(outlined, output)
    if plot is not None:
        _draw(found, plot)
    data = {
        "model": str(model),
        "policy": policy,
        "groups": [group.to_dict() for group in found.groups],
        **({"inlined": list(found.inlined)} if found.inlined else {}),
        **({"reasons": list(map(asdict, found.reasons)), "obstacles": obstacles} if explain else {}),
        "verification": verdict_dict(verdict),
    }
    text = [
        *_text(found, explain, run.verbose),
        *_obstacle_lines(obstacles),
        *verdict_lines(verdict, run.verbose),
    ]
    return Output(data, [*text, *([] if plot is None else [f"  drew      {plot}"])], sizes)


def _text(found: Partitioned, explain: bool, verbose: int) -> Iterator[Block]:
    from graphopt.partitioning.group_table import group_blocks

    yield from group_blocks(found, everything=verbose > 0)
    inside = sum(reason.group is not None for reason in found.reasons)
    if explain:
        reasons = Table(["node", "operator", "group", "because"], "<<<<")
        for one in found.reasons:
            reasons.add(one.node, one.op, one.group or "none", one.reason)
        yield reasons
        if any(group.views for group in found.groups):
            yield "  views, which only move or relabel elements, in and next to each group:"
            yield _views(found.groups)
    elif inside < len(found.reasons):
        yield Line("  hint: --explain gives the reason for each other node", "hint")
    if found.policy == "fusion":
        yield "  groups of the unmodified model; graphopt kernels MODEL shows those after -O3"


def _obstacle_lines(obstacles: Mapping[str, str]) -> Iterator[str]:
    for group, reason in obstacles.items():
        yield f"  {group} is inlined before differentiation: {reason}"


def _views(groups: Sequence[Group]) -> Table:
    table = Table(["group", "view", "operator", "in the group", "because"], "<<<<<")
    for group in groups:
        for view in group.views:
            table.add(group.name, view.node, view.op, "yes" if view.included else "no", view.reason)
    return table


def _draw(found: Partitioned, path: Path) -> None:
    from graphopt.partitioning.draw_groups import to_dot, to_svg

    text = to_svg(found) if path.suffix == ".svg" else to_dot(found)
    publish.write(path, text)
