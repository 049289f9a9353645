"""graphopt grad: a model that also returns gradients."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli import command_line, options
from graphopt.cli.command_line import Run
from graphopt.cli.parameters import reads_model, writes_model

EXAMPLE = """
graphopt grad model.onnx --loss loss -o joint.onnx
graphopt grad model.onnx --loss-fn cross_entropy:logits,labels -o joint.onnx
graphopt grad model.onnx --loss-fn mse:prediction,target --wrt fc.weight,fc.bias -o joint.onnx
graphopt grad joint.onnx --loss grad.x --wrt inputs -o second.onnx
"""


@command_line.command("grad", example=EXAMPLE)
@click.argument("model", type=reads_model, metavar="MODEL")
@options.group(
    "Gradients",
    click.option("--loss", metavar="NAME", help="An output or inner value with one element."),
    click.option(
        "--loss-fn",
        metavar="FUNCTION",
        help="A loss of two values: cross_entropy:LOGITS,LABELS[,axis=N], mse:A,B. The second becomes an"
        " input if the model has no such value.",
    ),
    click.option(
        "--wrt",
        default="params",
        metavar="params|inputs|NAMES",
        help="What to differentiate by: parameters, inputs, or names with commas between.  [default: params]",
    ),
    click.option(
        "--only-loss", is_flag=True, help="Return the loss and gradients, none of the model's outputs."
    ),
)
@options.group("Files", click.option("-o", "--output", type=writes_model, required=True, metavar="OUT"))
@options.output_options
@options.model_options
def command(
    run: Run, model: Path, loss: str | None, loss_fn: str | None, wrt: str, only_loss: bool, output: Path
) -> None:
    """Write a model that also returns gradients of a loss.

    The gradient of w is the output grad.w. It is made of ordinary operators, for any onnxruntime to run
    (docs/gradients.md). Functions are inlined, and models below opset 13 converted to it.
    """
    from graphopt import api, ir
    from graphopt.cli.outputs import check_model_file, check_told
    from graphopt.errors import UsageError
    from graphopt.tables import counted, human_bytes

    if (loss is None) == (loss_fn is None):
        raise UsageError(
            "give either --loss or --loss-fn", hint="such as --loss-fn cross_entropy:logits,labels"
        )
    check_model_file(output)
    check_told(model, output)
    with run.console.progress("differentiating"):
        from graphopt.autodiff.losses import Loss

        asked = loss if loss is not None else Loss.parse(loss_fn or "")
        joint = api.grad(model, asked, wrt, outputs="loss" if only_loss else "all")
    written = ir.save(joint.model, output, external_data=run.settings.external_data)
    run.invocation.written += written
    nodes = ir.count_nodes(joint.model.graph)
    run.console.json(
        {
            "model": str(model),
            "output": str(output),
            "loss": joint.loss,
            "gradients": joint.gradients,
            "unrelated": joint.unrelated,
            "state": joint.state,
            "stopped": [{"op": item.op, "node": item.node, "reason": item.reason} for item in joint.stopped],
            "opset": joint.opset,
            "nodes": nodes,
            "files": {str(path): path.stat().st_size for path in written},
        }
    )
    if run.console.quiet:
        return
    run.console.print(f"  loss      {joint.loss}")
    if not joint.gradients:
        none = {"params": "parameters", "inputs": "inputs of real numbers"}.get(wrt, wrt)
        run.console.print(f"  it depends on no {none}: --wrt says what else to differentiate by")
    run.console.print(f"  {counted(len(joint.gradients), 'gradient')}, {counted(nodes, 'node')}")
    if joint.opset is not None:
        run.console.print(f"  converted to opset {joint.opset}")
    for held, name in joint.state.items():
        run.console.print(f"  state     {name} is what training makes of {held}")
    if joint.unrelated:
        run.console.print(f"  the loss does not depend on {', '.join(joint.unrelated)}")
    for item in joint.stopped:
        run.console.print(f"  no gradient through {item.op} {item.node}: {item.reason}")
    for path in written:
        run.console.print(f"  wrote     {path}   {human_bytes(path.stat().st_size)}")
