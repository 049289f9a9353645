"""graphopt unlift-parameters: put parameters from a file into a model."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_data, reads_model
from graphopt.cli.output.command_output import Output

EXAMPLE = """
graphopt unlift-parameters lifted.onnx weights.safetensors -o model.onnx
graphopt unlift-parameters model.onnx finetuned.safetensors -o finetuned.onnx
"""


@command_decorator.command("unlift-parameters", example=EXAMPLE, has_details=False)
@click.argument("model", type=reads_model, metavar="MODEL")
@click.argument("parameters", type=reads_data, metavar="PARAMETERS")
@shared_options.model_output
@shared_options.output_options
@shared_options.model_options
def command(run: Run, model: Path, parameters: Path, output: Path) -> Output:
    """Put parameters from a file into a model.

    PARAMETERS is a .safetensors or .npz file. A tensor with the name of an input turns the input into an
    initializer; a tensor with the name of an initializer replaces the initializer's contents; shapes and
    element types must match. New contents for a parameter are an error if constants in MODEL were folded from
    the parameter.
    """
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_target
    from graphopt.util.text_tables import counted

    check_target(model, output)
    whole, found = api.unlift_parameters(model, parameters)
    text = [f"  {counted(len(found.placed), 'parameter')} of {parameters}"]
    if found.unused:
        text.append(f"  not used: {', '.join(found.unused)}, which the model lacks")
    text.append(f"  remaining inputs: {', '.join(found.open) or 'none'}")
    data = {
        "model": str(model),
        "output": str(output),
        "placed": found.placed,
        "unused": found.unused,
        "open": found.open,
    }
    return Output(data, text, run.save(whole, output))
