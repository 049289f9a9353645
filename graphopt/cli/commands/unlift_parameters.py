"""graphopt unlift-parameters: put parameters from a file into a model."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.framework.help import Section
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_data, reads_model

EXAMPLE = """
graphopt unlift-parameters lifted.onnx weights.safetensors -o model.onnx
graphopt unlift-parameters model.onnx finetuned.safetensors -o finetuned.onnx
"""


@command_decorator.command(
    "unlift-parameters", example=EXAMPLE, section=Section.TRAINING, rank=4, has_details=False
)
@click.argument("model", type=reads_model, metavar="MODEL")
@click.argument("parameters", type=reads_data, metavar="PARAMETERS")
@shared_options.model_output
@shared_options.output_options
@shared_options.model_options
def command(run: Run, model: Path, parameters: Path, output: Path) -> None:
    """Put parameters from a file into a model.

    PARAMETERS is a .safetensors or .npz file. Its tensors are matched by name: with inputs, which become
    initializers, and with initializers, whose contents they replace; shapes and element types must match.
    New contents are refused for a parameter from which MODEL, optimized, has folded constants.
    """
    from graphopt import api, ir
    from graphopt.cli.files.output_paths import check_model_file, check_told
    from graphopt.util.text_tables import counted, human_bytes

    check_model_file(output)
    check_told(model, output)
    whole, found = api.unlift_parameters(model, parameters)
    sizes = run.invocation.wrote(ir.save(whole, output, external_data=run.settings.external_data))
    run.console.json(
        {
            "model": str(model),
            "output": str(output),
            "placed": found.placed,
            "unused": found.unused,
            "open": found.open,
            "files": sizes,
        }
    )
    if run.console.quiet:
        return
    run.console.print(f"  {counted(len(found.placed), 'parameter')} of {parameters}")
    if found.unused:
        run.console.print(f"  not used: {', '.join(found.unused)}, which the model has not")
    run.console.print(f"  inputs that are left: {', '.join(found.open) or 'none'}")
    for path, size in sizes.items():
        run.console.print(f"  wrote     {path}   {human_bytes(size)}")
