"""graphopt pipelines: the named pipelines."""

from __future__ import annotations

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import completion_values
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.text_tables import Table

EXAMPLE = """
graphopt pipelines
graphopt pipelines show O2
graphopt pipelines show 'noopt,fixpoint(cse,dce)'
"""


@command_decorator.command("pipelines", example=EXAMPLE, has_details=False, libraries="onnx")
@click.argument("action", required=False, metavar="[show]", shell_complete=completion_values.pipeline_text)
@click.argument("name", required=False, metavar="[NAME|TEXT]", shell_complete=completion_values.pipeline_text)
def command(run: Run, action: str | None, name: str | None) -> Output:
    """List the named pipelines, or show the steps of one.

    The word show is optional.
    Pipeline text names passes in order: dce,cse,fixpoint(peephole,constant-propagation{limit=1MiB}).
    """
    if action is None:
        return _list()
    if action != "show" and name is not None:
        raise UsageError(
            f"pipelines shows one pipeline, not {action!r} and {name!r}",
            hint="graphopt pipelines show NAME, or text in quotes",
        )
    text = action if name is None and action != "show" else name
    if not text:
        raise UsageError("which pipeline?", hint="graphopt pipelines lists the named ones")
    return _show(text)


def _list() -> Output:
    from graphopt.passes.pipelines import PIPELINES, SUMMARIES

    data = {name: {"summary": SUMMARIES.get(name, ""), "text": text} for name, text in PIPELINES.items()}
    table = Table(["pipeline", "purpose"], "<<")
    for name in PIPELINES:
        table.add(name, SUMMARIES.get(name, ""))
    return Output(data, [table, "\n  graphopt pipelines show NAME lists the steps"])


def _show(text: str) -> Output:
    from graphopt.passes.pipeline import Pipeline
    from graphopt.passes.pipeline_steps import SLOTS, Fixpoint, IfGradient, Slot, Step
    from graphopt.passes.pipelines import SUMMARIES, registry

    pipeline = Pipeline.parse(text, registry())
    table = Table(["", ""], "<<")
    pending: list[tuple[int, Step | str]] = [(0, step) for step in reversed(pipeline.steps)]
    while pending:
        depth, step = pending.pop()
        indent = "  " * depth
        if isinstance(step, Fixpoint):
            table.add(f"{indent}fixpoint", f"until nothing changes, at most {step.rounds} times:")
            pending += [(depth + 1, inner) for inner in reversed(step.steps)]
        elif isinstance(step, IfGradient):
            table.add(f"{indent}if-gradient", "if a value requires a gradient:")
            pending += [(depth + 1, inner) for inner in reversed(step.otherwise or ("(nothing)",))]
            pending.append((depth, "otherwise"))
            pending += [(depth + 1, inner) for inner in reversed(step.then or ("(nothing)",))]
        elif isinstance(step, str):
            table.add(f"{indent}{step}", "")
        elif isinstance(step, Slot):
            table.add(f"{indent}{step.name}", SLOTS[step.name])
        else:
            table.add(f"{indent}{step}", step.summary())
    title = f"{text}: {SUMMARIES[text]}" if text in SUMMARIES else text
    return Output(
        {"name": text, "text": str(pipeline)},
        [title, table, *([] if pipeline.steps else ["  (nothing)"])],
    )
