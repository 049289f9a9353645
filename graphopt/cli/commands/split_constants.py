"""graphopt split-constants: optimize a model for weights that are replaced later."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_data, reads_model
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import counted

EXAMPLE = """
graphopt split-constants model.onnx -o model.split
graphopt split-constants model.onnx -o model.split -O3 --framework state_dict.safetensors
graphopt update-weights model.split finetuned.safetensors
"""


@command_decorator.command(
    "split-constants", example=EXAMPLE, everyday="-o -O --weights --framework --exact --verify"
)
@click.argument("model", type=reads_model, metavar="MODEL")
@shared_options.group(
    "Files",
    shared_options.output_option(
        "Write both models to this folder, which is new, empty, or was written by this command.",
        metavar="FOLDER",
        required=True,
    ),
    click.option(
        "--framework",
        type=reads_data,
        metavar="FILE",
        help="The weights of MODEL under the names of the framework: .safetensors, .npz or a model. New"
        " weights may then have these names.",
    ),
)
@shared_options.group(
    "Weights",
    click.option(
        "--weights",
        "names",  # weights is a setting
        multiple=True,
        metavar="NAMES",
        help="Initializers and Constant nodes that are replaced later, comma-separated.  [default: all"
        " parameters and running statistics]",
    ),
)
@shared_options.record_option
@shared_options.model_options
@shared_options.pipeline_options
@shared_options.of_section("Verification")
@shared_options.dim_options
@shared_options.input_options
@shared_options.device_options
@shared_options.log_options
def command(
    run: Run,
    model: Path,
    output: Path,
    framework: Path | None,
    names: tuple[str, ...],
) -> Output:
    """Optimize a model for weights that are replaced later.

    FOLDER contains main.onnx, the optimized model, and constants.onnx, which computes constants of main.onnx
    from the weights of MODEL. Rewrites whose results depend on the contents of weights are not made.
    update-weights replaces weights without optimizing again.
    """
    from graphopt.cli.files.check_output_paths import check_folder
    from graphopt.parameters.split_constants import check_replaceable

    check_folder(output)
    check_replaceable(output)
    with run.console.progress("optimizing"):
        models, report = run.compiler.split_constants(model, names or None, framework=framework)
    sizes = run.invocation.wrote(models.save(output))
    description = models.description
    computed = counted(len(description["computed"]), "constant")
    text = [
        f"  {report.headline()}",
        f"  {counted(len(models.weights), 'weight')}, and {computed} computed from weights",
    ]
    if models.names.unmatched:
        text.append(f"  not in {framework}: {', '.join(models.names.unmatched)}")
    data = {"model": str(model), "output": str(output), **description, "report": report.to_dict()}
    return Output(data, text, sizes)
