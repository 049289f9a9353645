"""graphopt diff: compare the graphs of two models."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model
from graphopt.cli.output.command_output import Output
from graphopt.cli.output.pager import page
from graphopt.errors import ExitStatus

EXAMPLE = """
graphopt diff model.onnx model.opt.onnx
graphopt diff a.onnx b.onnx -v
graphopt diff a.onnx b.onnx --json
"""


@command_decorator.command("diff", example=EXAMPLE)
@click.argument("before", type=reads_model, metavar="A")
@click.argument("after", type=reads_model, metavar="B")
@shared_options.group("Diff", shared_options.pager_option)
@shared_options.model_options
def command(run: Run, before: Path, after: Path, pager: bool) -> Output:
    """Show the differences between the graphs of two models.

    Nodes are matched by structure and by names, so that renamed nodes are equal. Differences of the interface
    come first, then counts by operator, then removed (-), added (+) and changed (~) nodes. Exit status 0 if
    the models are equal, 1 if they differ. The models are not run; graphopt verify compares results.
    """
    from graphopt import api
    from graphopt.modeldiff.model_diff import compare

    found = compare(api.load_model(before), api.load_model(after))
    page(run.console, list(found.lines((str(before), str(after)), is_full=run.verbose > 0)), pager=pager)
    status = ExitStatus.OK if found.is_empty else ExitStatus.VERIFICATION_FAILED
    return Output({"a": str(before), "b": str(after), **found.to_dict()}, status=status)
