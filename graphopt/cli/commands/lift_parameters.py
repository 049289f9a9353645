"""graphopt lift-parameters: turn parameters into inputs, and store their values in a file."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model, writes
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import counted, human_bytes

EXAMPLE = """
graphopt lift-parameters model.onnx -o lifted.onnx --parameters weights.safetensors
graphopt lift-parameters joint.onnx -o lifted.onnx --which params,bn.running_mean --parameters weights.npz
graphopt unlift-parameters lifted.onnx weights.safetensors -o model.onnx
"""


@command_decorator.command("lift-parameters", example=EXAMPLE, has_details=False)
@click.argument("model", type=reads_model, metavar="MODEL")
@shared_options.model_output
@shared_options.group(
    "Files",
    click.option(
        "--parameters",
        type=writes,
        metavar="FILE",
        help="Write the values of the parameters to this file: .safetensors or .npz.",
    ),
)
@shared_options.group(
    "Parameters",
    click.option(
        "--which",
        default=("params",),
        multiple=True,
        metavar="params|NAMES",
        help="Parameters to lift, comma-separated. params: floating-point initializers and constants with at"
        " least one axis, except running statistics; or, in a model that returns gradients, their parameters."
        "  [default: params]",
    ),
)
@shared_options.output_options
@shared_options.model_options
def command(run: Run, model: Path, output: Path, parameters: Path | None, which: tuple[str, ...]) -> Output:
    """Turn parameters into inputs, after the model's own inputs.

    --parameters stores their values by name; parameters that share their bytes are stored once in a
    .safetensors file, whose metadata lists them. unlift-parameters does the reverse.
    """
    from graphopt import api, ir
    from graphopt.cli.files.check_output_paths import check_file, check_target
    from graphopt.parameters import parameter_files

    check_file(parameters, parameter_files.SUFFIXES)
    check_target(model, output)
    lifted, found = api.lift_parameters(model, which)
    with ir.saving(lifted, output, weights=run.settings.weights) as written:
        if parameters is not None:
            parameter_files.write(parameters, found)
    sizes = run.invocation.wrote([*([] if parameters is None else [parameters]), *written])
    notes = []
    if not found.tensors:
        notes.append(
            "  the model has no initializers or Constant nodes of floating-point numbers with an axis"
        )
    elif parameters is None:
        notes.append("  no file has the values of the parameters: --parameters FILE writes it")
    data = {
        "model": str(model),
        "output": str(output),
        "parameters": list(found.tensors),
        "tied": found.tied,
        "bytes": found.nbytes,
    }
    text = [f"  {counted(len(found.tensors), 'parameter')}, {human_bytes(found.nbytes)}"]
    text += [f"  {name} is {other}" for name, other in found.tied.items()]
    return Output(data, text, sizes, notes=notes)
