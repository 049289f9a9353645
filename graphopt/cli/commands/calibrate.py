"""graphopt calibrate: measure what fused operators cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli import command_line, options
from graphopt.cli.command_line import Run
from graphopt.cli.parameters import Count, Seconds, writes
from graphopt.errors import UsageError
from graphopt.tables import Table

if TYPE_CHECKING:
    from graphopt.cost import Costs, Grid

EXAMPLE = """
graphopt calibrate
graphopt calibrate --device cpu --budget 3m --threads 4
graphopt calibrate --show
graphopt calibrate -o costs.json --no-store
"""


@command_line.command("calibrate", example=EXAMPLE)
@options.group(
    "Measurement",
    click.option(
        "--budget",
        type=Seconds(positive=True),
        default=60.0,
        metavar="TIME",
        help="Measure for about so long; everything is measured once in any case.  [default: 60s]",
    ),
    click.option("--threads", type=Count(1), default=1, help="Threads in one operator.  [default: 1]"),
    click.option("--show", is_flag=True, help="Measure nothing: show the figures in force."),
)
@options.group(
    "Result",
    click.option("-o", "--output", type=writes, metavar="FILE.json", help="Write the figures there too."),
    click.option(
        "--store/--no-store",
        default=True,
        help="Let optimize use them on this machine from now on.  [default: store]",
    ),
)
@options.device_options
def command(run: Run, budget: float, threads: int, show: bool, output: Path | None, store: bool) -> None:
    """Measure what fused operators cost on this machine.

    Fused operators and the nodes that they replace are timed in turns, in small models that are made
    up, in fresh processes. With -O3, optimize then uses a fused operator only where these figures say
    that it is faster, by more than noise. They hold for this processor, device and version of
    onnxruntime; without them, shipped ones do (docs/cost.md).
    """
    from graphopt.cli.outputs import check_file
    from graphopt.cost.calibrate import calibrate
    from graphopt.cost.sources import costs_for, keep
    from graphopt.store import Store

    check_file(output, [".json"])
    device = options.chosen_device(run)
    if show:
        costs = costs_for(run.settings.costs, device, run.settings.cache_dir)
    else:
        with run.console.progress("calibrating") as advance:
            costs = calibrate(
                device, budget=budget, threads=threads, say=lambda text, spent: advance(spent, text)
            )
        if store:
            keep(Store(run.settings.cache_dir), device, costs)
    if output is not None:
        _write(output, costs)
    run.console.json(costs.to_dict())
    run.console.print(f"  {costs.name} ({costs.where})")
    run.console.table(_points(costs) if run.verbose else _overview(costs))
    if not show:
        run.console.print(f"  {'optimize uses them from now on' if store else 'not stored'}")


def _overview(costs: Costs) -> Table:
    """One line for each operator."""
    table = Table(["operator", "case", "least", "most", "faster"], "<<>><")
    for grid in costs.grids:
        low, high = f"{min(grid.ratios):.2f}", f"{max(grid.ratios):.2f}"
        table.add(grid.op, grid.case, low, high, _where_it_pays(grid))
    return table


def _where_it_pays(grid: Grid) -> str:
    paying = [sizes for sizes, figure in grid.points() if figure.pays]
    if len(paying) in (0, len(grid.ratios)):
        return "everywhere" if paying else "nowhere"
    if len(grid.axes) > 1:
        return f"at {len(paying)} of {len(grid.ratios)} sizes"
    (axis,) = grid.axes
    return f"at {axis.name} {', '.join(f'{sizes[axis.name]:,}' for sizes in paying)}"


def _points(costs: Costs) -> Table:
    """One line for each figure."""
    table = Table(["operator", "case", "at", "ratio", "band", ""], "<<<>><")
    for grid in costs.grids:
        for sizes, figure in grid.points():
            at = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            faster = "faster" if figure.pays else ""
            table.add(grid.op, grid.case, at, f"{figure.ratio:.2f}", f"{figure.band:.2f}", faster)
    return table


def _write(path: Path, costs: Costs) -> None:
    try:
        path.write_text(costs.text(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from error
