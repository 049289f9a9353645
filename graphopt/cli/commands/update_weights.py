"""graphopt update-weights: replace weights of an optimized model."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_data, writes
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import counted

EXAMPLE = """
graphopt update-weights model.split finetuned.safetensors
graphopt update-weights model.split finetuned.safetensors -o finetuned.split
"""


@command_decorator.command("update-weights", example=EXAMPLE, has_details=False)
@click.argument("folder", type=reads_data, metavar="FOLDER")
@click.argument("weights", type=reads_data, metavar="WEIGHTS")
@shared_options.group(
    "Files",
    click.option(
        "-o",
        "--output",
        type=writes,
        metavar="FOLDER",
        help="Write the models to this folder.  [default: replace FOLDER]",
    ),
)
@shared_options.output_options
@shared_options.model_options
def command(run: Run, folder: Path, weights: Path, output: Path | None) -> Output:
    """Replace weights of an optimized model.

    FOLDER was written by split-constants. WEIGHTS has new contents by name: .safetensors, .npz or a model,
    with the names of the model or of the framework (split-constants --framework). The constants model
    computes all constants that depend on weights. Weights that are missing in WEIGHTS keep their contents.
    """
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_folder
    from graphopt.compiler.constants import as_weights
    from graphopt.parameters import split_folder

    target = folder if output is None else output
    check_folder(target)
    split_folder.check_replaceable(target)
    before = split_folder.load(folder)
    new = before.named(as_weights(weights))
    models = api.update_weights(before, new)
    sizes = run.invocation.wrote(split_folder.save(models, target))
    placed = [name for name in models.weights if name in new.tensors]
    kept = [name for name in models.weights if name not in new.tensors]
    text = [f"  {counted(len(placed), 'weight')} of {weights}"]
    if kept:
        text.append(f"  unchanged, because {weights} lacks them: {', '.join(kept)}")
    data = {"folder": str(folder), "output": str(target), "placed": placed, "unchanged": kept}
    return Output(data, text, sizes)
