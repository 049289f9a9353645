"""graphopt explain: the fusions of -O3 in a model, and the reasons for places left unfused."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.framework.help import Section
from graphopt.cli.invocation import Run
from graphopt.cli.options import completion, shared_options
from graphopt.cli.options.parameter_types import split_some
from graphopt.util.text_tables import shortened

if TYPE_CHECKING:
    from graphopt.rewrite.explain import Explanation, Missed

Item = TypeVar("Item")

EXAMPLE = """
graphopt explain model.onnx
graphopt explain model.onnx --pattern attention
graphopt explain model.onnx --node /encoder/layer.0/attention --json
graphopt explain model.onnx --target-opset 20 --dim batch=1
"""

#: Names of nodes that are shown without -v.
_NAMES = 3


@command_decorator.command("explain", example=EXAMPLE, section=Section.INSIDE, rank=2)
@shared_options.model_argument()
@shared_options.group(
    "Explain",
    click.option(
        "--pattern",
        "patterns",
        shell_complete=completion.patterns,
        multiple=True,
        callback=split_some,
        metavar="A,B",
        help="Only these patterns: rules such as layer-norm, or families such as attention.",
    ),
    click.option("--node", metavar="NAME", help="Only this node of MODEL, or nodes with this name prefix."),
)
@shared_options.named("Passes", "skip", "portable", "target_opset")
@shared_options.model_options
@shared_options.target_options
@shared_options.dim_options
def command(run: Run, model: Path, patterns: tuple[str, ...], node: str | None) -> None:
    """Show what -O3 fuses, and why the rest is left.

    Lists the nodes in each fused operator. For nodes that are not fused: the nearest pattern, the first
    condition that failed, the value that it failed for, and the next step. Nothing is written.
    """
    with run.console.progress(model.name) as advance:
        advance(None, "fusing")
        found = run.compiler.explain(model, patterns, node=node)
    run.console.json(
        {
            "model": str(model),
            "fused": [one.to_dict() for one in found.fused],
            "missed": [one.to_dict() for one in found.missed],
        }
    )
    _print(run, found, everything=bool(run.verbose or node))


def _print(run: Run, found: Explanation, *, everything: bool) -> None:
    show = run.console.print
    for ones in _grouped(found.fused, lambda one: (one.rules, one.op)):
        show(f"fused {len(ones)} × {', '.join(ones[0].rules)}: {ones[0].op}", bold=True)
        for one in ones if everything else ones[:1]:
            show(f"  {one.node} for {shortened(one.origins, len(one.origins) if everything else _NAMES)}")
    for places in _grouped(found.missed, lambda place: (place.rule, place.kind)):
        why = places[0].reason if len(places) == 1 else places[0].kind
        show(f"not fused {len(places)} × {places[0].rule}: {why}", bold=True)
        for place in places if everything else places[:1]:
            _print_place(run, place)
        if len(places) > 1 and not everything:
            show(f"  and at {len(places) - 1} more (-v lists them)")
    if not found.fused and not found.missed:
        show("no fusion pattern matches these nodes")


def _print_place(run: Run, place: Missed) -> None:
    show = run.console.print
    part = f": {place.matched} of the {place.nodes} nodes of the pattern are there"
    show(f"  at     {place.anchor}{part if place.matched < place.nodes else ''}")
    if place.value is not None:
        show(f"  value  {place.value}{'' if place.about is None else f': {place.about}'}")
    if place.hint is not None:
        show(f"  do     {place.hint}")


def _grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
