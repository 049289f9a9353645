"""Forward and backward models of gradients: ``graphopt grad --split``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.cli.invocation import Run
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import Block, Table, counted, human_bytes

if TYPE_CHECKING:
    from graphopt.autodiff.joint_graph import Joint
    from graphopt.autodiff.losses import Loss
    from graphopt.autodiff.split_joint import Split
    from graphopt.training.training_step import TrainingStep

#: Number of saved values listed without -v.
_LISTED = 10


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
    fuser: str | None,
    by_group: bool,
) -> Output:
    """Split the joint graph, and write both halves and the plan to the folder ``output``."""
    from graphopt import api
    from graphopt.autodiff.split_files import BACKWARD, FORWARD, plan_of, save_split
    from graphopt.cli.files.check_output_paths import check_empty_folder
    from graphopt.cli.files.write_kernel_libraries import writing_kernels
    from graphopt.instrument.report import verdict_dict, verdict_lines

    check_empty_folder(output, "--split")
    with run.console.warnings_as_notes(), run.console.progress("differentiating"):
        found = run.compiler.having({"verify": not no_verify}).split(
            model,
            loss,
            wrt,
            outputs=outputs,
            memory_budget=1.0 if memory_budget is None else memory_budget,
            save_everything=save_everything,
            dims=dims,
            fuser=fuser,
            by_group=by_group,
        )
    verdict = None
    if not no_verify:
        with run.console.progress("verifying"):
            verdict = api.verify_split(found)
    written = save_split(found, output)
    for half, name in ((found.forward, FORWARD), (found.backward, BACKWARD)):
        with writing_kernels(half, output / name, run.settings) as libraries:
            written += libraries
    sizes = run.invocation.wrote(written)
    data = {
        "model": str(model),
        **plan_of(found),
        "excluded": found.joint.excluded,
        "verification": verdict_dict(verdict),
    }
    return Output(data, [*_text(found, run.verbose), *verdict_lines(verdict)], sizes)


def groups_of(joint: Joint | TrainingStep) -> dict[str, Any]:
    """Groups, inlined groups and excluded parameters of a model differentiated by group, for JSON."""
    if joint.groups is None:
        return {}
    return {"groups": joint.groups, "inlined": joint.inlined, "excluded": joint.excluded}


def group_lines(joint: Joint | TrainingStep) -> Iterator[str]:
    """Lines about groups, and about parameters that are left out."""
    if joint.groups is not None:
        yield f"  groups    {joint.groups}"
    for name, reason in joint.inlined.items():
        yield f"  inlined   {name}: {reason}"
    for name, reason in joint.excluded.items():
        yield f"  left out  {name}: {reason}"


def _text(found: Split, verbose: int) -> Iterator[Block]:
    report = found.report
    yield from group_lines(found.joint)
    table = Table(["saved", "bytes", "type", "of"], "<><<")
    for item in sorted(found.saved, key=lambda item: -item.bytes)[: None if verbose else _LISTED]:
        table.add(item.value, human_bytes(item.bytes), item.type, item.op)
    if found.saved:
        yield table
    if len(found.saved) > _LISTED and not verbose:
        yield f"  and {len(found.saved) - _LISTED} more: -v shows all"
    everything = human_bytes(report.everything)
    yield f"  saved     {human_bytes(report.saved)}, {report.ratio:.0%} of {everything} for everything"
    again = sum(report.recomputed.values())
    part = report.recomputed_flops / max(report.flops, 1)
    yield f"  twice     {counted(again, 'node')}, {part:.1%} of operations"
    sizes = [f"{name}={size}" for name, size in report.dims.items()]
    sizes += [f"{name}={size} (assumed)" for name, size in report.assumed.items()]
    if sizes:
        yield f"  at        {' '.join(sizes)}"
    if report.budget < 1 and report.saved > report.budget * report.everything:
        yield f"  this is the minimum: {report.budget:.0%} can't be reached"
