"""graphopt reduce: shrink a model on which a check fails."""

from __future__ import annotations

from pathlib import Path

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups import failing_check
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import Line, counted

EXAMPLE = """
graphopt reduce model.onnx -o small.onnx
graphopt reduce model.onnx -o small.onnx --check crash
graphopt reduce model.onnx -o small.onnx -O0 --check 'python still_fails.py {model}'
"""


@command_decorator.command(
    "reduce",
    example=EXAMPLE,
    everyday="-o --check --seconds -O --passes --dim --input-shape --input --device",
)
@click.argument("model", type=reads_model, metavar="MODEL")
@shared_options.model_output
@shared_options.output_options
@shared_options.model_options
@failing_check.check_options
@shared_options.pipeline_options
@shared_options.dim_options
@shared_options.input_options
@shared_options.device_options
def command(run: Run, model: Path, output: Path, chosen: failing_check.CheckValues) -> Output:
    """Shrink a model as long as a check of its result fails.

    Nodes and outputs are removed, functions inlined and sizes reduced. With -O0, the check is a command on
    the model itself. Inputs are generated for each candidate. Inputs that show the fault on the result are
    written next to OUT, with its name and the suffix .inputs.npz.
    """
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_model_file
    from graphopt.debug.bisect import Bisection
    from graphopt.debug.checks import make_check
    from graphopt.debug.reduce_model import StillFails, reduce
    from graphopt.debug.reproducer import helper, isolated
    from graphopt.rewrite.rewrite_filter import RewriteLimit
    from graphopt.util import npz

    check_model_file(output, model)
    attempt, check = failing_check.prepare(run, model, chosen)
    culprit = None
    with run.console.progress(model.name) as advance, helper() as child:
        with make_check(check, attempt.model) as judge:
            if attempt.pipeline.steps:
                advance(None, "looking for the rewrite at fault")
                culprit = Bisection(isolated(attempt, check, child), judge).find()
            if culprit is None:
                failing_check.check_compared(judge)
        limits = culprit.limits if culprit is not None and culprit.masked_by is not None else RewriteLimit()
        around = culprit.place.node if culprit is not None and culprit.place is not None else None
        fails = StillFails(attempt, check, limits, child)
        result = reduce(attempt.model, fails, around=around, progress=lambda text: advance(None, text))
    placement = run.settings.weights
    # a reduced model is passed on without the original
    run.invocation.written += api.save(
        result.model, output, weights="copy" if placement == "auto" else placement
    )
    inputs = None
    if fails.feeds and npz.first_other(fails.feeds) is None:
        inputs = output.with_name(f"{output.stem}.inputs.npz")
        if any(file.exists() and inputs.exists() and inputs.samefile(file) for _, file in check.inputs.files):
            inputs = output.with_name(f"{output.name}.inputs.npz")
        npz.write(inputs, fails.feeds)
    before, after = result.nodes
    text = [*(() if culprit is None else failing_check.lines(culprit))]
    text.append(Line(f"  wrote      {output}: {counted(after, 'node')} of {before:,}"))
    if inputs is not None:
        text.append(Line(f"             {inputs}: inputs that show the fault"))
    data = {
        "nodes": [before, after],
        "tries": result.tries,
        "culprit": failing_check.as_dict(culprit),
        "target": str(output),
        "inputs": None if inputs is None else str(inputs),
    }
    return Output(data, text, notes=[f"  {counted(result.tries, 'model')} tried"])
