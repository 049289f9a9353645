"""graphopt train-step: a model that performs a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups.gradient_options import by_group_option, gradient_fuser_option
from graphopt.cli.option_groups.gradient_split import group_lines, groups_of
from graphopt.cli.option_groups.loss import chosen_loss, loss_options
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import Count, reads_model, split_names, writes
from graphopt.cli.output.command_output import Output

EXAMPLE = """
graphopt train-step model.onnx --loss-fn cross_entropy:logits,labels --optimizer adam -o step.onnx
graphopt train-step model.onnx --loss loss --optimizer momentum --learning-rate 0.1 --nesterov -o step.onnx
graphopt train-step model.onnx --loss loss --optimizer adamw --clip-norm 1 --accumulate 4 -o step.onnx
graphopt unlift-parameters model.onnx checkpoint.safetensors -o trained.onnx
"""


@command_decorator.command(
    "train-step",
    example=EXAMPLE,
    everyday="--optimizer --learning-rate --loss --loss-fn --wrt"
    " -o --state --weight-decay --clip-norm --accumulate",
    has_details=False,
)
@click.argument("model", type=reads_model, metavar="MODEL")
@loss_options("Training")
@shared_options.group(
    "Training",
    click.option(
        "--optimizer",
        required=True,
        metavar="sgd|momentum|adam|adamw",
        help="Optimizer, with the semantics of torch.optim.",
    ),
    click.option(
        "--wrt",
        default="params",
        metavar="params|NAMES",
        help="Train the parameters, or initializers with these comma-separated names.  [default: params]",
    ),
    click.option(
        "--learning-rate",
        type=float,
        metavar="X",
        help="Learning rate recorded in the plan.  [default: 0.01, or 0.001 for adam and adamw]",
    ),
    click.option(
        "--momentum", type=float, metavar="X", help="For momentum: its coefficient.  [default: 0.9]"
    ),
    click.option("--nesterov", is_flag=True, default=None, help="For momentum: use Nesterov momentum."),
    click.option(
        "--betas", metavar="X,Y", help="For adam and adamw: decay rates of the moments.  [default: 0.9,0.999]"
    ),
    click.option(
        "--eps",
        type=float,
        metavar="X",
        help="For adam and adamw: added to the denominator.  [default: 1e-8]",
    ),
    click.option(
        "--weight-decay",
        type=float,
        metavar="X",
        help="Weight decay, decoupled for adamw.  [default: 0, or 0.01 for adamw]",
    ),
    click.option(
        "--no-decay",
        multiple=True,
        callback=split_names,
        metavar="A,B",
        help="Parameters without weight decay, or patterns such as '*.bias'.",
    ),
    click.option(
        "--clip-norm",
        type=float,
        metavar="X",
        help="Scale gradients so that their global norm is at most X.",
    ),
    click.option(
        "--accumulate",
        type=Count(1),
        default=1,
        metavar="N",
        help="Average the gradients of N steps for one update.  [default: 1]",
    ),
    click.option("--with-outputs", is_flag=True, help="Also return the model's own outputs."),
    by_group_option(),
    gradient_fuser_option(),
)
@shared_options.model_output
@shared_options.group(
    "Files",
    click.option(
        "--state",
        type=writes,
        metavar="FILE",
        help="Write the initial parameters and optimizer state to this file."
        "  [default: OUT as *.safetensors]",
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
    optimizer: str,
    wrt: str,
    learning_rate: float | None,
    no_decay: tuple[str, ...],
    clip_norm: float | None,
    accumulate: int,
    with_outputs: bool,
    output: Path,
    state: Path | None,
    betas: str | None,
    by_group: bool,
    fuser: str | None,
    **settings: Any,
) -> Output:
    """Write a model that performs one training step.

    Its inputs are those of MODEL, the targets of the loss, learning_rate, the parameters and the optimizer's
    state. Its outputs are the loss and, for each parameter or state w, new.w: the input w of the next step.
    The step consists of ordinary operators that any onnxruntime runs (docs/training.md). The initial
    parameters and state are written to a separate file; unlift-parameters puts trained parameters into MODEL.
    """
    from graphopt import api, ir
    from graphopt.cli.files.check_output_paths import check_file, check_target
    from graphopt.cli.files.write_kernel_libraries import writing_kernels
    from graphopt.training.training_step import plan_file, state_file
    from graphopt.util.text_tables import counted, human_bytes

    loss_value = chosen_loss(loss, loss_fn)
    check_file(state or state_file(output), (".safetensors",))
    check_file(plan_file(output))
    check_target(model, output)
    with run.console.warnings_as_notes(), run.console.progress("differentiating"):
        step = api.train_step(
            model,
            loss_value,
            optimizer,
            wrt,
            learning_rate=learning_rate,
            clip_norm=clip_norm,
            accumulate=accumulate,
            no_decay=no_decay,
            outputs="all" if with_outputs else "loss",
            betas=_numbers(betas),
            fuser=fuser,
            by_group=by_group,
            **settings,
        )
        with writing_kernels(step.model, output, run.settings) as libraries:
            written = step.save(output, state, weights=run.settings.weights)
    nodes, plan = ir.count_nodes(step.model.graph), step.plan
    carried = sum(step.initial[name].nbytes for name in plan.carried)
    kinds = [("parameter", plan.parameters), ("running statistic", plan.statistics), ("state", plan.state)]
    counts = ", ".join(counted(len(names), kind) for kind, names in kinds if names)
    text = [
        f"  loss      {plan.loss}",
        f"  feed      {', '.join([*plan.inputs, 'learning_rate'])}",
        f"  carries   {counts}: {human_bytes(carried)}",
        *group_lines(step),
        f"  {counted(nodes, 'node')}",
    ]
    data = {
        "model": str(model),
        "output": str(output),
        **plan.to_dict(),
        **groups_of(step),
        "nodes": nodes,
    }
    return Output(data, text, run.invocation.wrote([*written, *libraries]))


def _numbers(text: str | None) -> tuple[float, ...] | None:
    """Numbers separated by commas.

    Raises:
        UsageError: the text is malformed.
    """
    from graphopt.errors import UsageError

    try:
        return None if text is None else tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise UsageError(f"no numbers: {text!r}", hint="such as --betas 0.9,0.999") from error
