"""graphopt bisect: find the rewrite after which a check fails."""

from __future__ import annotations

from pathlib import Path

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups import failing_check
from graphopt.cli.options import shared_options
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus
from graphopt.util.text_tables import Line, counted

EXAMPLE = """
graphopt bisect model.onnx
graphopt bisect model.onnx --check size -O1
graphopt bisect model.onnx --check 'python check.py {model}' -o fault/
"""


@command_decorator.command(
    "bisect",
    example=EXAMPLE,
    everyday="--check -o --seconds -O --passes --skip --dim --input-shape --input --device",
)
@shared_options.model_argument()
@shared_options.group(
    "Files",
    shared_options.output_option(
        "A new or empty folder for the reproducer.  [default: MODEL.repro, or MODEL.repro-2, …]",
        metavar="FOLDER",
    ),
)
@shared_options.model_options
@failing_check.check_options
@shared_options.pipeline_options
@shared_options.dim_options
@shared_options.input_options
@shared_options.device_options
def command(run: Run, model: Path, output: Path | None, chosen: failing_check.CheckValues) -> Output:
    """Find the first rewrite after which a check fails.

    The pipeline runs about log2(rewrites) times. The rule, the node and its surroundings are printed, and
    a reproducer for graphopt replay is written. Exit status 1 if there is a fault, 0 if the check passes.
    """
    from graphopt.cli.files.check_output_paths import check_empty_folder, free_folder
    from graphopt.debug.bisect import Bisection
    from graphopt.debug.checks import make_check
    from graphopt.debug.reproducer import helper, isolated, save_culprit
    from graphopt.recorded_settings import SettingsRecord

    folder = output or free_folder(Path(f"{model.stem}.repro"))
    check_empty_folder(folder, "-o")
    attempt, check = failing_check.prepare(run, model, chosen)
    with run.console.progress(model.name) as advance, helper() as child:
        with make_check(check, attempt.model) as judge:
            bisection = Bisection(isolated(attempt, check, child), judge, lambda text: advance(None, text))
            culprit = bisection.find()
            if culprit is None:
                failing_check.check_compared(judge)
        if culprit is None:
            runs = counted(bisection.runs, "run of the pipeline", "runs of the pipeline")
            return Output(
                {"culprit": None, "runs": bisection.runs},
                [
                    Line(f"  no fault  after every rewrite that was tried, {check.promise}", "good"),
                    f"            {'; '.join(filter(None, (judge.scope(), runs)))}",
                ],
            )
        advance(None, "writing the reproducer")
        record = (
            SettingsRecord.of(run.settings, run.options).to_dict() if run.settings.record_settings else None
        )
        replays = save_culprit(folder, culprit, attempt, check, run.invocation.command, record)
    replay = f"graphopt replay {folder}{' --allow-command' if check.is_command else ''}"
    remark = replay if replays else "it did not show the fault again when replayed"
    return Output(
        {"culprit": failing_check.as_dict(culprit), "runs": bisection.runs, "reproducer": str(folder)},
        [*failing_check.lines(culprit), f"  wrote      {folder}: {remark}"],
        status=ExitStatus.VERIFICATION_FAILED,
        notes=[f"  {counted(bisection.runs, 'run')} of the pipeline"],
    )
