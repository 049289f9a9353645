"""graphopt sample: the default model of commands."""

from __future__ import annotations

from pathlib import Path

from graphopt import publish
from graphopt.cli.files import sample_model
from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import writes_file
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import human_bytes

EXAMPLE = """
graphopt sample -o sample.onnx
"""


@command_decorator.command("sample", example=EXAMPLE, has_details=False)
@shared_options.group(
    "Files",
    shared_options.output_option(
        "Write the model to this file; without it, only its size is shown.", metavar="FILE", kind=writes_file
    ),
)
def command(run: Run, output: Path | None) -> Output:
    """Write the sample model to a file.

    Commands use this model if none is given: a BERT-like encoder in the form that PyTorch exports, with two
    layers, dynamic batch and sequence, and random weights.
    """
    from graphopt import api, ir
    from graphopt.cli.files.check_output_paths import check_model_file

    size = sample_model.PATH.stat().st_size
    data = {"nodes": sample_model.NODES, "bytes": size, "output": None if output is None else str(output)}
    if output is None:
        text = [f"  {sample_model.NAME}: {sample_model.NODES} nodes, {human_bytes(size)}"]
        return Output(data, [*text, "  graphopt sample -o FILE writes it"])
    check_model_file(output, sample_model.PATH)
    if ir.codec_of(output) is ir.codec_of(sample_model.PATH):
        publish.write(output, sample_model.PATH.read_bytes())
    else:
        api.save(api.load_model(sample_model.PATH), output)
    text = [f"  wrote     {output}   {sample_model.NAME}, {sample_model.NODES} nodes"]
    return Output(data, [*text, f"  graphopt optimize {output} optimizes it"])
