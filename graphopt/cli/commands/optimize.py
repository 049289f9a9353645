"""graphopt optimize: make models smaller and faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import config
from graphopt.cli import options
from graphopt.cli.options import Run
from graphopt.errors import UsageError

if TYPE_CHECKING:
    pass

EXAMPLE = """
graphopt optimize model.onnx -o model.opt.onnx
graphopt optimize a.onnx b.onnx -o folder/ --exact
graphopt optimize model.onnx -o out.onnx --passes dce,cse --report report.json
"""


@options.command("optimize", example=EXAMPLE)
@click.argument("sources", nargs=-1, required=True, type=options.path, metavar="IN...")
@click.option(
    "-o", "--output", required=True, type=options.path, metavar="OUT|FOLDER", help="Where the result goes."
)
@options.pipeline_options
@options.watch_options
@options.verify_options
@options.model_options
@options.output_options
@options.input_options
@options.device_options
def command(run: Run, sources: tuple[Path, ...], output: Path, **values: Any) -> int:
    """Make models smaller and faster.

    The result computes the same and is called the same; it is compared with the original and
    written only if they agree. With several models, OUT is a folder.
    """
    with config.using(run.settings):
        targets = _targets(sources, output)
        return max(
            _optimize(run, source, target, values) for source, target in zip(sources, targets, strict=True)
        )


def _targets(sources: tuple[Path, ...], output: Path) -> list[Path]:
    if len(sources) == 1 and not output.is_dir():
        return [output]
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file; several models need a folder")
    return [output / source.name for source in sources]


def _optimize(run: Run, source: Path, target: Path, values: dict[str, Any]) -> int:
    from graphopt import api

    model = api.load(source)
    _, report = api.optimize(model, pipeline=None if values["level"] is None else f"O{values['level']}")
    api.save(_, target)
    for line in report.lines(run.verbose):
        run.console.print(line)
    return 0
