"""graphopt report: write a page that shows an optimization, or two models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups import page_contents
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.text_tables import human_bytes

EXAMPLE = """
graphopt report model.onnx -o report.html
graphopt report model.onnx -O3 --device cuda -o report.html
graphopt report model.onnx -O3 --bench -o report.html
graphopt report model.onnx model.opt.onnx -o report.html
"""


@command_decorator.command(
    "report", example=EXAMPLE, everyday="-o -O --pipeline --passes --fuser --skip --exact --device --dim"
)
@click.argument("model", type=reads_model, metavar="MODEL")
@click.argument("other", type=reads_model, metavar="[OTHER]", required=False)
@shared_options.group(
    "Files",
    click.option(
        "-o",
        "--output",
        type=writes_file,
        metavar="FILE.html",
        help="File of the page.  [default: NAME.report.html beside MODEL]",
    ),
)
@page_contents.page_options
@shared_options.pipeline_options
@shared_options.of_section("Verification")
@shared_options.dim_options
@shared_options.device_options
@shared_options.model_options
def command(
    run: Run, model: Path, other: Path | None, output: Path | None, contents: page_contents.PageContents
) -> Output:
    """Write a page with the changes of an optimization.

    Optimizes MODEL, without writing the result, and shows both graphs in one HTML file that needs no network:
    the nodes by the rules that replaced them, each pass with its changes, types, statistics of constants, and
    the reasons why nodes were not rewritten. With OTHER, a model or a bundle of MODEL, compares both without
    optimizing; nodes are related by the lineage that optimize --provenance records, or by names. Requires the
    extra report.
    """
    from graphopt import publish
    from graphopt.cli.files.check_output_paths import check_page
    from graphopt.compiler.page_source import page_source
    from graphopt.page.graph_relations import relation_line
    from graphopt.page.render import page_of

    if output is None and model == run.invocation.stdin:
        raise UsageError("a model from standard input has no name for the page", hint="-o FILE.html")
    target = output or model.with_name(f"{model.stem}.report.html")
    check_page(target)
    name = run.invocation.name_of
    second = "result" if other is None else name(other)
    names = name(model), f"{second} (OTHER)" if other == model else second
    with run.console.progress(model.name) as advance:
        advance(None, "optimizing" if other is None else "comparing")
        source = page_source(run.compiler, model, other, names, run.invocation.command)
    models = dict(zip(names, source.models, strict=True))
    source = replace(source, **contents.measured(run, models, run.compiler.inputs))
    page = page_of(source)
    publish.write(target, page)
    data = {
        "model": names[0],
        "other": None if other is None else names[1],
        "page": str(target),
        "bytes": len(page),
        "report": None if source.report is None else source.report.to_dict(),
    }
    headline = relation_line(*source.graphs) if source.report is None else source.report.headline()
    return Output(data, [f"  {headline}", f"  wrote     {target}, {human_bytes(len(page))}"])
