"""graphopt convert: write a model in another form."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.framework.help import Section
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import Size, reads_model, writes_model

EXAMPLE = """
graphopt convert model.onnx model.json
graphopt convert edited.json model.onnx
graphopt convert model.onnx model.json --threshold 64KiB
graphopt convert model.onnx model.onnxtxt
graphopt convert model.onnx newer.onnx --target-opset 21
"""


@command_decorator.command("convert", example=EXAMPLE, section=Section.EVERYDAY, rank=6)
@click.argument("source", type=reads_model, metavar="IN")
@click.argument("target", type=writes_model, metavar="OUT")
@shared_options.group(
    "Files",
    click.option(
        "--threshold",
        type=Size(),
        default=1024,
        metavar="SIZE",
        help="Keep smaller weights in OUT when others are in a separate file.  [default: 1024]",
    ),
)
@shared_options.named("Passes", "target_opset")
@shared_options.verify_options
@shared_options.device_options
@shared_options.output_options
@shared_options.model_options
def command(run: Run, source: Path, target: Path, threshold: int) -> None:
    """Convert a model to another file format, by suffix.

    .onnx is ONNX, .json the JSON IR (docs/json-ir.md), .onnxjson onnx's own JSON, .onnxtxt and
    .txt are ONNX text. All of them can be converted into each other, and every command reads all.
    With --target-opset, the result is compared with IN in onnxruntime before it is written.
    """
    from graphopt import api, ir
    from graphopt.cli.files.output_paths import check_model_file, check_told
    from graphopt.instrument.report import verdict_dict, verdict_lines
    from graphopt.util.text_tables import human_bytes

    check_model_file(target)
    remarks: list[str] = []
    verdict = None
    if "target_opset" not in run.options:
        model = api.load_model(source)
    else:
        check_told(source, target)
        model, report = run.compiler.optimize(source, pipeline="O0")
        remarks = list(report.notes())
        verdict = report.verdict
        if verdict is not None:
            run.console.warn_unverified(verdict)
    written = ir.save(model, target, external_data=run.settings.external_data, threshold=threshold)
    sizes = run.invocation.wrote(written)
    form = ir.codec_of(target).name
    told = {"source": str(source), "target": str(target), "form": form, "files": sizes}
    run.console.json(told | {"verification": None if verdict is None else verdict_dict(verdict)})
    if not run.console.quiet:
        for remark in remarks:
            run.console.print(f"  {remark}")
        if verdict is not None:
            run.console.blocks(verdict_lines(verdict, warned=True))
        for path, size in sizes.items():
            run.console.print(f"  wrote     {path}   {human_bytes(size)}")
