"""Forward and backward models of gradients: ``graphopt grad --split``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.cli.invocation import Run

if TYPE_CHECKING:
    from graphopt.autodiff.losses import Loss
    from graphopt.autodiff.split_joint import Split
    from graphopt.verification.verdict import Verdict


def write_split(
    run: Run,
    model: Path,
    loss: str | Loss,
    wrt: Sequence[str],
    outputs: str,
    output: Path,
    *,
    memory_budget: float | None,
    save_everything: bool,
    dims: dict[str, int],
    no_verify: bool,
) -> None:
    """Split the joint graph, and write both halves and the plan to the folder ``output``."""
    from graphopt import api
    from graphopt.autodiff.split_files import plan_of, save_split
    from graphopt.cli.files.output_paths import check_new
    from graphopt.instrument.report import verdict_dict

    check_new(output, "--split")
    with run.console.warnings_as_notes(), run.console.progress("differentiating"):
        found = api.split(
            model,
            loss,
            wrt,
            outputs=outputs,
            memory_budget=1.0 if memory_budget is None else memory_budget,
            save_everything=save_everything,
            dims=dims,
        )
    verdict = None
    if not no_verify:
        with run.console.progress("verifying"):
            verdict = api.verify_split(found)
    written = save_split(found, output)
    sizes = run.invocation.wrote(written)
    told = {"model": str(model), **plan_of(found), "files": sizes}
    run.console.json(told | {"verification": None if verdict is None else verdict_dict(verdict)})
    if not run.console.quiet:
        _print_split(run, found, verdict, sizes)


def _print_split(run: Run, found: Split, verdict: Verdict | None, sizes: dict[str, int]) -> None:
    from graphopt.instrument.report import verdict_lines
    from graphopt.util.text_tables import Table, counted, human_bytes

    report, show = found.report, run.console.print
    table = Table(["saved", "bytes", "type", "of"], "<><<")
    for item in sorted(found.saved, key=lambda item: -item.bytes)[: None if run.verbose else 10]:
        table.add(item.value, human_bytes(item.bytes), item.type, item.op)
    if found.saved:
        run.console.table(table)
    if len(found.saved) > 10 and not run.verbose:
        show(f"  and {len(found.saved) - 10} more: -v shows all")
    everything = human_bytes(report.everything)
    show(f"  saved     {human_bytes(report.saved)}, {report.ratio:.0%} of {everything} for everything")
    again = sum(report.recomputed.values())
    part = report.recomputed_flops / max(report.flops, 1)
    show(f"  twice     {counted(again, 'node')}, {part:.1%} of operations")
    sizes_of = [f"{name}={size}" for name, size in report.dims.items()]
    sizes_of += [f"{name}={size} (assumed)" for name, size in report.assumed.items()]
    if sizes_of:
        show(f"  at        {' '.join(sizes_of)}")
    if report.budget < 1 and report.saved > report.budget * report.everything:
        show(f"  this is the least: {report.budget:.0%} can't be reached")
    if verdict is not None:
        run.console.blocks(verdict_lines(verdict))
    for path, size in sizes.items():
        show(f"  wrote     {path}   {human_bytes(size)}")
