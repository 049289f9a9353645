"""graphopt grad: a model that also returns gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups.gradient_options import by_group_option, gradient_fuser_option
from graphopt.cli.option_groups.gradient_split import group_lines, groups_of
from graphopt.cli.option_groups.loss import chosen_loss, loss_options
from graphopt.cli.options import option_relations, shared_options
from graphopt.cli.options.parameter_types import Number, reads_model
from graphopt.cli.options.table_options import parsed_by
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.parse_values import parse_sizes
from graphopt.util.text_tables import counted

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


@command_decorator.command(
    "grad",
    example=EXAMPLE,
    everyday="--loss --loss-fn --wrt -o --only-loss --by-group --fuser --split --memory-budget --no-verify",
)
@click.argument("model", type=reads_model, metavar="MODEL")
@loss_options("Gradients")
@shared_options.group(
    "Gradients",
    shared_options.wrt_option(default="params"),
    click.option(
        "--only-loss", is_flag=True, help="Return only the loss and gradients, without the model's outputs."
    ),
    by_group_option(),
    gradient_fuser_option(),
)
@shared_options.group(
    "Splitting",
    click.option("--split", is_flag=True, help="Write a forward and a backward model into the folder OUT."),
    option_relations.option(
        "--memory-budget",
        type=Number(0, 1),
        requires="--split",
        hint=_WHOLE,
        metavar="FRACTION",
        help="Maximum saved bytes, as a fraction of those without recomputation.  [default: 1]",
    ),
    option_relations.option(
        "--save-everything",
        is_flag=True,
        requires="--split",
        excludes=("--memory-budget",),
        hint=_WHOLE,
        help="Recompute nothing in the backward model.",
    ),
    option_relations.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=SIZE",
        callback=parsed_by(parse_sizes),
        requires="--split",
        hint=_WHOLE,
        help="Assume this size of a dynamic dim in memory estimates; the models stay dynamic.  [default: 16]",
    ),
    click.option(
        "--no-verify",
        is_flag=True,
        help="Do not compare the two models of --split, or the result of --fuser, with the joint graph.",
    ),
)
@shared_options.group(
    "Files",
    shared_options.output_option(
        "Write the model to this file, or with --split two models to this folder.", required=True
    ),
)
@shared_options.output_options
@shared_options.record_option
@shared_options.model_options
@shared_options.log_options
def command(
    run: Run,
    model: Path,
    loss: str | None,
    loss_fn: str | None,
    wrt: tuple[str, ...],
    only_loss: bool,
    by_group: bool,
    split: bool,
    fuser: str | None,
    output: Path,
    **values: Any,
) -> Output:
    """Write a model that also returns gradients of a loss.

    The gradient of w is the output grad.w. The model consists of ordinary operators that any onnxruntime runs
    (docs/gradients.md). Functions are inlined. Models below opset 13 are converted to opset 13, or to a newer
    opset if a gradient requires it.

    With --split, OUT/forward.onnx returns the model's outputs and saved values, OUT/backward.onnx computes
    gradients from these, and OUT/plan.json describes their inputs (docs/split.md).
    """
    from graphopt import ir
    from graphopt.cli.files.check_output_paths import check_target
    from graphopt.cli.files.write_kernel_libraries import writing_kernels
    from graphopt.cli.option_groups.gradient_split import write_split

    loss_value = chosen_loss(loss, loss_fn)
    outputs = "loss" if only_loss else "all"
    if values["no_verify"] and not split and fuser is None:
        raise UsageError("--no-verify requires --split or --fuser", hint="nothing else is verified")
    if split:
        return write_split(
            run, model, loss_value, wrt, outputs, output, fuser=fuser, by_group=by_group, **values
        )
    check_target(model, output)
    with run.console.warnings_as_notes(), run.console.progress("differentiating"):
        compiler = run.compiler.having({"verify": not values["no_verify"]})
        joint = compiler.differentiate(
            model, loss_value, wrt, outputs=outputs, fuser=fuser, by_group=by_group
        )
        with writing_kernels(joint.model, output, run.settings) as libraries:
            sizes = run.save(joint.model, output)
    nodes = ir.count_nodes(joint.model.graph)
    data = {
        "model": str(model),
        "output": str(output),
        "loss": joint.loss,
        "inputs": {value.name: ir.declared_type(value) for value in joint.model.graph.inputs},
        "gradients": joint.gradients,
        "unrelated": joint.unrelated,
        "state": joint.state,
        "stopped": [asdict(item) for item in joint.stopped],
        "opset": joint.opset,
        **groups_of(joint),
        "nodes": nodes,
    }
    return Output(data, _text(joint, nodes, run.verbose), sizes | run.invocation.wrote(libraries))


def _text(joint: Joint, nodes: int, verbose: int) -> Iterator[str]:
    from graphopt import ir

    yield f"  loss      {joint.loss}"
    if joint.target is not None:
        added = next(value for value in joint.model.graph.inputs if value.name == joint.target)
        yield f"  input     {added.name} {ir.declared_type(added)}, which the loss compares with"
    first, *_, last = [*joint.gradients.values(), *joint.gradients.values()]
    names = first if len(joint.gradients) == 1 else f"{first} ... {last}"
    yield f"  gradients {len(joint.gradients)}: {names}"
    yield f"  nodes     {nodes}"
    if joint.opset is not None:
        yield f"  converted to opset {joint.opset}"
    for statistic, name in joint.state.items():
        yield f"  state     {name} is the value of {statistic} after the training step"
    yield from group_lines(joint)
    if joint.unrelated:
        names = ", ".join(joint.unrelated) if verbose else counted(len(joint.unrelated), "value")
        yield f"  no gradient reaches {names}"
    stopped = [item for item in joint.stopped if not item.partly]
    if verbose:
        yield from (f"  no gradient through {item.op} {item.node}: {item.reason}" for item in stopped)
    elif stopped:
        ops = ", ".join(dict.fromkeys(item.op for item in stopped))
        yield f"  no gradient through {counted(len(stopped), 'node')}: {ops}  (-v lists them)"
