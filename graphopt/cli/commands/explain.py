"""graphopt explain: the fusions of -O3 in a model, and the reasons for unfused nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import completion_values, shared_options
from graphopt.cli.options.parameter_types import split_some
from graphopt.cli.options.table_options import table_option
from graphopt.cli.output.command_output import Output
from graphopt.cli.views.placement import placement_lines
from graphopt.errors import ExitStatus
from graphopt.util.grouping import grouped
from graphopt.util.text_tables import Line, shortened

if TYPE_CHECKING:
    from graphopt.rewrite.fusion_explanation import Explanation
    from graphopt.rewrite.missed_fusions import Missed

EXAMPLE = """
graphopt explain model.onnx
graphopt explain model.onnx -O3 --pattern attention
graphopt explain model.onnx --node /encoder/layer.0/attention --json
graphopt explain model.onnx --target-opset 20 --dim batch=1
graphopt explain model.onnx --fuser native --pattern fuse-groups
graphopt explain model.onnx --device cuda --pattern placement
"""

#: The preset that fuses operators.
_FUSING = "3"
#: Names of nodes that are shown without -v.
_NAMES = 3


@command_decorator.command(
    "explain",
    example=EXAMPLE,
    everyday="--pattern --fuser --check --node -O --fast-math --target-opset --device --dim",
)
@shared_options.model_argument()
@shared_options.group(
    "Explain",
    click.option(
        "--pattern",
        "patterns",
        shell_complete=completion_values.patterns,
        multiple=True,
        callback=split_some,
        metavar="A,B",
        help="Only these patterns: rules such as layer-norm, families such as attention, or placement.",
    ),
    click.option(
        "--fuser",
        type=click.Choice(["builtin", "native"]),
        default="builtin",
        help="native: also explain the groups of native kernels, under the pattern fuse-groups.",
    ),
    click.option(
        "--check",
        is_flag=True,
        help="With --device cuda: compare the placement with that of a session, which requires the GPU.",
    ),
    click.option("--node", metavar="NAME", help="Only this node of MODEL, or nodes with this name prefix."),
)
@shared_options.group(
    "Passes",
    shared_options.preset_option("preset", int(_FUSING)),
    *map(table_option, ("skip", "portable", "target_opset", "exact", "fast_math")),
)
@shared_options.model_options
@shared_options.target_options
@shared_options.dim_options
def command(
    run: Run,
    model: Path,
    patterns: tuple[str, ...],
    fuser: Literal["builtin", "native"],
    check: bool,
    node: str | None,
    preset: str | None,
) -> Output:
    """Show the fusions of -O3, and the reasons for unfused nodes.

    Lists the nodes in each fused operator. For an unfused node, shows the nearest pattern, the first
    condition that failed, the value responsible, and the next step. Nothing is written.

    With --device cuda, also lists the nodes that onnxruntime would run on the CPU, and the tensors that it
    would copy, with reasons and remedies. Only --check needs a GPU. With it, the exit status is 1
    if the placement of a session on the GPU differs.

    With --fuser native, lists also the groups of native kernels, and for each other node that a kernel may
    compute, the reason why onnxruntime runs it.
    """
    with run.console.progress(model.name) as advance:
        advance(None, "fusing")
        found = run.compiler.explain(model, patterns, node=node, fuser=fuser, check=check)
    data = {
        "model": str(model),
        "fused": [one.to_dict() for one in found.fused],
        "missed": [one.to_dict() for one in found.missed],
        "placement": None if found.placement is None else found.placement.to_dict(),
    }
    is_fusing = preset in (None, _FUSING)
    notes = (
        [] if is_fusing else [f"hint: -O{preset} fuses no operators; these are the fusions of -O{_FUSING}"]
    )
    differs = found.placement is not None and found.placement.differences
    status = ExitStatus.VERIFICATION_FAILED if differs else ExitStatus.OK
    return Output(data, _text(found, everything=bool(run.verbose or node)), notes=notes, status=status)


def _text(found: Explanation, *, everything: bool) -> Iterator[str]:
    if found.placement is not None:
        yield from placement_lines(found.placement, everything=everything)
    for ones in grouped(found.fused, lambda one: (one.rules, one.op)):
        yield Line(f"fused {len(ones)} × {', '.join(ones[0].rules)}: {ones[0].op}", "title")
        for one in ones if everything else ones[:1]:
            yield f"  {one.node} for {shortened(one.origins, len(one.origins) if everything else _NAMES)}"
    for sites in grouped(found.missed, lambda site: (site.rule, site.kind)):
        why = sites[0].reason if len(sites) == 1 else sites[0].kind
        yield Line(f"not fused {len(sites)} × {sites[0].rule}: {why}", "title")
        for site in sites if everything else sites[:1]:
            yield from _site_text(site)
        if len(sites) > 1 and not everything:
            yield f"  and at {len(sites) - 1} more (-v lists them)"
    if not found.fused and not found.missed and found.placement is None:
        yield "no fusion pattern matches these nodes"


def _site_text(site: Missed) -> Iterator[str]:
    part = f": {site.matched} of the {site.nodes} nodes of the pattern are there"
    yield f"  at     {site.anchor}{part if site.matched < site.nodes else ''}"
    if site.value is not None:
        yield f"  value  {site.value}{'' if site.about is None else f': {site.about}'}"
    if site.hint is not None:
        yield f"  do     {site.hint}"
