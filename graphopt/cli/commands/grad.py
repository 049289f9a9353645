"""graphopt grad: a model that also returns gradients."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.framework.help import Section
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups.loss import chosen_loss, loss_options
from graphopt.cli.options import relations, shared_options
from graphopt.cli.options.parameter_types import reads_model, writes
from graphopt.util.parse_values import parse_sizes

if TYPE_CHECKING:
    from graphopt.autodiff.joint_graph import Joint

EXAMPLE = """
graphopt grad model.onnx --loss loss -o joint.onnx
graphopt grad model.onnx --loss-fn cross_entropy:logits,labels -o joint.onnx
graphopt grad model.onnx --loss-fn mse:prediction,target --wrt fc.weight,fc.bias -o joint.onnx
graphopt grad model.onnx --loss-fn cross_entropy:logits,labels,axis=-1,ignore_index=-100 -o joint.onnx
graphopt grad joint.onnx --loss-fn mse:grad.x,zero --wrt params -o second.onnx
graphopt grad model.onnx --loss loss --split --memory-budget 0.5 --dim N=32 -o step/
"""
#: The error for an option of splits without ``--split``.
_WHOLE = "without it, there is one joint graph, and nothing is saved"


@command_decorator.command("grad", example=EXAMPLE, section=Section.TRAINING, rank=1)
@click.argument("model", type=reads_model, metavar="MODEL")
@loss_options("Gradients")
@shared_options.group(
    "Gradients",
    shared_options.wrt_option(default="params"),
    click.option(
        "--only-loss", is_flag=True, help="Return the loss and gradients, none of the model's outputs."
    ),
)
@shared_options.group(
    "Splitting",
    click.option("--split", is_flag=True, help="Write a forward and a backward model into the folder OUT."),
    relations.option(
        "--memory-budget",
        type=click.FloatRange(0, 1),
        goes_with="--split",
        hint=_WHOLE,
        metavar="FRACTION",
        help="Save at most this fraction of the bytes that saving everything takes.  [default: 1]",
    ),
    relations.option(
        "--save-everything",
        is_flag=True,
        goes_with="--split",
        excludes=("--memory-budget",),
        hint=_WHOLE,
        help="Recompute nothing in the backward model.",
    ),
    relations.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=SIZE",
        callback=shared_options.parsed_by(parse_sizes),
        goes_with="--split",
        hint=_WHOLE,
        help="Assume this size of a dynamic dim in memory estimates; the models stay dynamic.  [default: 16]",
    ),
    relations.option(
        "--no-verify",
        is_flag=True,
        goes_with="--split",
        hint="only splits are verified",
        help="Do not compare the two models with the joint graph.",
    ),
)
@shared_options.group(
    "Files",
    click.option(
        "-o",
        "--output",
        type=writes,
        required=True,
        metavar="OUT",
        help="Write the model to this file, or with --split two models to this folder.",
    ),
)
@shared_options.output_options
@shared_options.model_options
def command(
    run: Run,
    model: Path,
    loss: str | None,
    loss_fn: str | None,
    wrt: tuple[str, ...],
    only_loss: bool,
    split: bool,
    output: Path,
    **values: Any,
) -> None:
    """Write a model that also returns gradients of a loss.

    The gradient of w is the output grad.w. It consists of ordinary operators that any onnxruntime runs
    (docs/gradients.md). Functions are inlined, and models of an opset below 13, or below the one that
    a gradient needs, are converted to it.

    With --split, OUT/forward.onnx returns the model's outputs and saved values, OUT/backward.onnx computes
    gradients from them, and OUT/plan.json describes their inputs (docs/split.md).
    """
    from graphopt import api, ir
    from graphopt.cli.files.output_paths import check_model_file, check_told
    from graphopt.cli.option_groups.gradient_split import write_split
    from graphopt.util.text_tables import human_bytes

    asked = chosen_loss(loss, loss_fn)
    outputs = "loss" if only_loss else "all"
    if split:
        return write_split(run, model, asked, wrt, outputs, output, **values)
    check_model_file(output)
    check_told(model, output)
    with run.console.warnings_as_notes(), run.console.progress("differentiating"):
        joint = api.differentiate(model, asked, wrt, outputs=outputs)
    written = ir.save(joint.model, output, external_data=run.settings.external_data)
    sizes = run.invocation.wrote(written)
    nodes = ir.count_nodes(joint.model.graph)
    run.console.json(
        {
            "model": str(model),
            "output": str(output),
            "loss": joint.loss,
            "inputs": {value.name: ir.declared_type(value) for value in joint.model.graph.inputs},
            "gradients": joint.gradients,
            "unrelated": joint.unrelated,
            "state": joint.state,
            "stopped": [asdict(item) for item in joint.stopped],
            "opset": joint.opset,
            "nodes": nodes,
            "files": sizes,
        }
    )
    if not run.console.quiet:
        _print(run, joint, nodes)
        for path, size in sizes.items():
            run.console.print(f"  wrote     {path}   {human_bytes(size)}")


def _print(run: Run, joint: Joint, nodes: int) -> None:
    from graphopt import ir
    from graphopt.util.text_tables import counted

    show, verbose = run.console.print, run.verbose > 0
    show(f"  loss      {joint.loss}")
    if joint.target is not None:
        added = next(value for value in joint.model.graph.inputs if value.name == joint.target)
        show(f"  input     {added.name} {ir.declared_type(added)}, which the loss compares with")
    first, *_, last = [*joint.gradients.values(), *joint.gradients.values()]
    names = first if len(joint.gradients) == 1 else f"{first} ... {last}"
    show(f"  gradients {len(joint.gradients)}: {names}")
    show(f"  nodes     {nodes}")
    if joint.opset is not None:
        show(f"  converted to opset {joint.opset}")
    for held, name in joint.state.items():
        show(f"  state     {name} is what training makes of {held}")
    if joint.unrelated:
        names = ", ".join(joint.unrelated) if verbose else counted(len(joint.unrelated), "value")
        show(f"  no gradient reaches {names}")
    stopped = [item for item in joint.stopped if not item.partly]
    for item in stopped if verbose else ():
        show(f"  no gradient through {item.op} {item.node}: {item.reason}")
    if stopped and not verbose:
        ops = ", ".join(dict.fromkeys(item.op for item in stopped))
        show(f"  no gradient through {counted(len(stopped), 'node')}: {ops}  (-v lists them)")
