"""graphopt calibrate: measure the cost of fused operators on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt import publish
from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.options.parameter_types import Seconds, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.text_tables import Block, Table

if TYPE_CHECKING:
    from graphopt.cost import Costs, Grid
    from graphopt.cost.calibration_models import Subject
    from graphopt.ort.devices import Device

EXAMPLE = """
graphopt calibrate
graphopt calibrate --device cpu --budget 3m --threads 4
graphopt calibrate --device cuda --show
graphopt calibrate --show
graphopt calibrate --forget
graphopt calibrate -o costs.json --no-store
"""


@command_decorator.command(
    "calibrate",
    example=EXAMPLE,
    everyday="--budget --threads --show --forget -o --store --device",
)
@shared_options.group(
    "Measurement",
    click.option(
        "--budget",
        type=Seconds(positive=True),
        metavar="TIME",
        help="Approximate measuring time; the minimum is one pass over all operators, about three minutes."
        "  [default: five passes, about a quarter of an hour]",
    ),
    shared_options.threads_option("1", default=1),
    click.option(
        "--show",
        is_flag=True,
        help="Measure nothing: show the figures in force; the device need not be present.",
    ),
    click.option("--forget", is_flag=True, help="Measure nothing: restore the shipped figures."),
)
@shared_options.group(
    "Result",
    click.option(
        "-o", "--output", type=writes_file, metavar="FILE.json", help="Also write the figures to this file."
    ),
    click.option(
        "--store/--no-store",
        default=None,
        help="Use the figures on this machine from now on.  [default: store after five passes or more]",
    ),
)
@shared_options.device_options
def command(
    run: Run,
    budget: float | None,
    threads: int,
    show: bool,
    forget: bool,
    output: Path | None,
    store: bool | None,
) -> Output:
    """Measure the costs of fused operators on this machine.

    Fused operators and the nodes that they replace are timed alternately, in small generated models, in fresh
    processes. With -O3, optimize then uses a fused operator only if these figures show a gain beyond noise.
    The figures apply to attention, skip-norm, batch-mm and, with --fuser native, to kernels of single nodes
    and of products; normalizations and GELU are always fused, and --show marks them. The figures are valid
    for this processor, device and version of onnxruntime; for others, the shipped figures are used
    (docs/cost.md).
    """
    from graphopt.cli.files.check_output_paths import check_file
    from graphopt.cost.calibrate import calibrate
    from graphopt.cost.cost_model import ENOUGH_PASSES
    from graphopt.cost.select_table import costs_for, store_measured_table
    from graphopt.util.disk_store import Store
    from graphopt.util.text_tables import counted

    check_file(output, [".json"])
    if forget and (show or store is not None or budget is not None or output is not None):
        raise UsageError("--forget measures and shows nothing", hint="graphopt calibrate --forget")
    named = show and run.settings.device != "auto"
    device = run.compiler.target if named else resolve_options.chosen_device(run)
    if forget:
        return _forget(run, device)
    if show:
        costs = costs_for(run.settings.costs, device, run.settings.cache_dir)
    else:
        if budget is None:
            run.console.note(f"  {ENOUGH_PASSES} passes over all operators, of about three minutes each")
        with run.console.progress("calibrating") as advance:
            costs = calibrate(
                device,
                budget=budget,
                threads=threads,
                progress=lambda text, spent: advance(spent, text),
                subjects=_subjects(run, device),
            )
        store = not costs.rough if store is None else store
        if store:
            store_measured_table(Store(run.settings.cache_dir), device, costs)
    if output is not None:
        publish.write(output, costs.text())
    text: list[Block] = [f"  {costs}", _points(costs) if run.verbose else _overview(costs)]
    if store:
        text.append("  optimize uses these figures from now on; --forget restores the shipped ones")
    elif not show and costs.rough:
        passes = counted(costs.passes or 0, "pass", "passes")
        text.append(f"  not stored: after {passes}, gain and noise are of similar size")
        text.append(f"  (without --budget there are {ENOUGH_PASSES} passes; --store stores these figures)")
    elif not show:
        text.append("  not stored")
    return Output(costs.to_dict(), text)


def _subjects(run: Run, device: Device) -> list[Subject]:
    """The subjects; those of kernels only if the device has them, and a compiler is available."""
    from graphopt.cost.calibration_models import subjects_for
    from graphopt.errors import NoCompiler
    from graphopt.fusion.backend import backend_for
    from graphopt.tuning.kernel_subjects import kernel_subjects
    from graphopt.tuning.template_subjects import template_subjects
    from graphopt.util.disk_store import Store

    subjects = list(subjects_for(device))
    backend = backend_for(device)
    if backend is None or not device.capabilities.loads_libraries:
        return subjects
    try:
        backend.describe_compiler(run.settings.compiler)
    except NoCompiler as failure:
        run.console.note(f"  without kernels of single nodes and products: {failure}")
        return subjects
    store, compiler = Store(run.settings.cache_dir), run.settings.compiler
    kernels = [*kernel_subjects(backend, store, compiler), *template_subjects(backend, store, compiler)]
    return [*subjects, *kernels]


def _forget(run: Run, device: Device) -> Output:
    from graphopt.cost.select_table import remove_measured_table
    from graphopt.util.disk_store import Store

    forgotten = remove_measured_table(Store(run.settings.cache_dir), device)
    text = f"  removed {forgotten}; the shipped figures are in force"
    if forgotten is None:
        text = f"  nothing was stored for {device}: the shipped figures are in force"
    return Output({"forgotten": None if forgotten is None else str(forgotten)}, [text])


def _overview(costs: Costs) -> Table:
    """One line for each operator."""
    table = Table(["operator", "case", "least", "most", "faster", ""], "<<>><<")
    for grid in costs.grids:
        low, high = f"{min(grid.ratios):.2f}", f"{max(grid.ratios):.2f}"
        table.add(grid.op, grid.case, low, high, _where_it_pays(grid), _fixed_decision(grid))
    return table


def _fixed_decision(grid: Grid) -> str:
    """The fixed decision about an operator, if no figures affect it; empty otherwise."""
    from graphopt.cost.cost_model import UNUSED_FIGURES

    return UNUSED_FIGURES.get(grid.op, "")


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
    table = Table(["operator", "case", "at", "ratio", "band", "", ""], "<<<>><<")
    for grid in costs.grids:
        for sizes, figure in grid.points():
            at = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            faster = "faster" if figure.pays else ""
            table.add(
                grid.op,
                grid.case,
                at,
                f"{figure.ratio:.2f}",
                f"{figure.band:.2f}",
                faster,
                _fixed_decision(grid),
            )
    return table
