"""graphopt update-weights: replace weights of an optimized model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_data
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.text_tables import counted

if TYPE_CHECKING:
    from graphopt.parameters.lifting import Parameters

EXAMPLE = """
graphopt update-weights model.split finetuned.safetensors
graphopt update-weights model.onnx finetuned.safetensors -o finetuned.onnx
graphopt update-weights model.split finetuned.safetensors -o finetuned.split
"""


@command_decorator.command("update-weights", example=EXAMPLE, has_details=False)
@click.argument("source", type=reads_data, metavar="FOLDER|MODEL")
@click.argument("contents", type=reads_data, metavar="WEIGHTS")
@shared_options.group(
    "Files",
    shared_options.output_option(
        "Write the result to this folder or file.  [default: replace FOLDER]", metavar="FOLDER|MODEL"
    ),
)
@shared_options.group(
    "Weights",
    click.option(
        "--partial",
        is_flag=True,
        help="Accept tensors that the model lacks although weights of the model are missing in WEIGHTS.",
    ),
)
@shared_options.output_options
@shared_options.model_options
def command(run: Run, source: Path, contents: Path, output: Path | None, partial: bool) -> Output:
    """Replace weights of an optimized model.

    FOLDER was written by split-constants. WEIGHTS has new contents by name: .safetensors, .npz or a model,
    with the names of the model or of the framework (split-constants --framework). The constants model
    computes all constants that depend on weights. Weights that are missing in WEIGHTS keep their contents.

    If a MODEL is given, only its initializers are replaced; constants that were folded from old contents are
    an error.
    """
    from graphopt.compiler.constants import as_weights
    from graphopt.parameters.split_constants import SplitConstants, check_replaceable

    new = as_weights(contents)
    if source.is_file():
        return _of_model(run, source, new, contents, output)
    from graphopt.cli.files.check_output_paths import check_folder

    before = SplitConstants.load(source)
    target = source if output is None else output
    run.invocation.watch([target])
    check_folder(target)
    check_replaceable(target)
    models = before.having(new, partial=partial)
    sizes = run.invocation.wrote(models.save(target))
    given = before.named(new).tensors
    placed = [name for name in models.weights if name in given]
    kept = [name for name in models.weights if name not in given]
    text = [f"  {counted(len(placed), 'weight')} of {contents}"]
    if kept:
        text.append(f"  unchanged, because {contents} lacks them: {', '.join(kept)}")
    if ignored := before.ignored(new):
        text.append(f"  not used, because the model lacks them: {', '.join(ignored)}")
    data = {
        "source": str(source),
        "output": str(target),
        "placed": placed,
        "unchanged": kept,
        "ignored": ignored,
    }
    return Output(data, text, sizes)


def _of_model(run: Run, source: Path, new: Parameters, weights: Path, output: Path | None) -> Output:
    """Replace weights of one model."""
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_target

    if output is None:
        raise UsageError("a model is not replaced", hint="-o OUT.onnx")
    check_target(source, output)
    model, found = api.unlift_parameters(source, new)
    data = {"source": str(source), "output": str(output), "placed": found.placed, "unchanged": found.open}
    return Output(data, [f"  {counted(len(found.placed), 'weight')} of {weights}"], run.save(model, output))
