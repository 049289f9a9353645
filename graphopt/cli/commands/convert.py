"""graphopt convert: write a model in another form."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import Size, reads_model, writes_model
from graphopt.cli.output.command_output import Output

EXAMPLE = """
graphopt convert model.onnx model.json
graphopt convert edited.json model.onnx
graphopt convert model.onnx model.json --threshold 64KiB
graphopt convert model.onnx model.onnxtxt
graphopt convert model.onnx newer.onnx --target-opset 21
"""


@command_decorator.command(
    "convert",
    example=EXAMPLE,
    everyday="--threshold --target-opset --verify --require-verified --device --weights",
)
@click.argument("source", type=reads_model, metavar="IN")
@click.argument("target", type=writes_model, metavar="OUT")
@shared_options.group(
    "Files",
    click.option(
        "--threshold",
        type=Size(),
        default=1024,
        metavar="SIZE",
        help="Keep weights below this size in OUT if larger ones are in a separate file.  [default: 1024]",
    ),
)
@shared_options.named("Passes", "target_opset")
@shared_options.verify_options
@shared_options.device_options
@shared_options.output_options
@shared_options.model_options
def command(run: Run, source: Path, target: Path, threshold: int) -> Output:
    """Convert a model to another file format, by suffix.

    .onnx is ONNX, .json the JSON IR (docs/json-ir.md), .onnxjson onnx's own JSON, .onnxtxt and
    .txt are ONNX text. All formats can be converted into each other, and every command reads all of them.
    With --target-opset, the result is compared with IN in onnxruntime before it is written.
    """
    from graphopt import api, ir
    from graphopt.cli.files.check_output_paths import check_model_file, check_representable
    from graphopt.instrument.report import verdict_dict, verdict_lines

    check_model_file(target)
    remarks, verdict = [], None
    if "target_opset" not in run.options:
        model = api.load_model(source)
    else:
        check_representable(source, target)
        model, report = run.compiler.optimize(source, pipeline="O0")
        remarks, verdict = [f"  {note}" for note in report.notes()], report.verdict
        if verdict is not None:
            run.console.warn_unverified(verdict)
    files = run.save(model, target, threshold=threshold)
    return Output(
        {
            "source": str(source),
            "target": str(target),
            "form": ir.codec_of(target).name,
            "verification": verdict_dict(verdict),
        },
        [*remarks, *verdict_lines(verdict, warned=True)],
        files,
    )
