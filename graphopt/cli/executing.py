"""``run --inputs``: an executor runs files of inputs, and the plan that ran each is reported."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from graphopt.cli import option_values, options, relations
from graphopt.cli.command_line import Run
from graphopt.cli.parameters import Count
from graphopt.cli.recorded import arrays_in, recorded_option
from graphopt.errors import UsageError
from graphopt.util.tables import Table, human_seconds

_NEEDS_INPUTS = {"goes_with": "--inputs", "hint": "add --inputs FILE.npz or a folder of them"}
_with_inputs = partial(relations.option, **_NEEDS_INPUTS)

executor_options = options.group(
    "Executor",
    recorded_option(
        excludes=(
            "-o",
            "--input",
            "--input-shape",
            "--seed",
            "--optimizations",
            "--session-options",
            "--kernels",
        ),
        hint="--inputs makes many runs, of an executor",
    ),
    _with_inputs("--rounds", type=Count(1), metavar="N", help="Number of runs of each file.  [default: 1]"),
    _with_inputs(
        "--fusion-strategy",
        metavar="TEXT",
        help="Number of specializations of each kind, in order (docs/specialize.md)."
        "  [default: static:2,dynamic:10]",
    ),
    _with_inputs(
        "--profiled-runs",
        type=Count(0),
        metavar="N",
        help="Profiled runs before each specialization.  [default: 1]",
    ),
    options.fuser_option(default="builtin", **_NEEDS_INPUTS),
    _with_inputs("--no-optimize", is_flag=True, help="Run the model as it is."),
)


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    files: Sequence[Path]
    rounds: int
    strategy: str | None
    profiled_runs: int
    fuser: str | None
    optimize: bool


def requested(values: dict[str, Any]) -> Request | None:
    """What the options of :data:`executor_options` ask for; takes them out of ``values``."""
    files, rounds, strategy = (values.pop(key) for key in ("recorded", "rounds", "fusion_strategy"))
    runs, fuser, plain = (values.pop(key) for key in ("profiled_runs", "fuser", "no_optimize"))
    if files:
        return Request(files, rounds or 1, strategy, 1 if runs is None else runs, fuser, not plain)
    return None


def run_all(run: Run, model: Path, asked: Request) -> None:
    """Let an executor run the files, and tell which plan each took."""
    import graphopt
    from graphopt.api import is_bundle, load_model
    from graphopt.executor.options import ExecutorOptions
    from graphopt.inputs.feeds import InputOptions, Inputs
    from graphopt.profile import FusionStrategy

    if is_bundle(model):
        raise UsageError(
            f"an executor specializes models, and {model} is a bundle of variants",
            hint="--input FILE.npz runs it on the inputs of one file",
        )
    files = [file for path in asked.files for file in arrays_in(run, path)]
    loaded = load_model(model)
    feeds = {}
    for file in files:
        try:
            feeds[file] = Inputs(loaded, InputOptions(files=((None, file),))).given
        except UsageError as error:
            said = error.message if str(file) in error.message else f"{file}: {error.message}"
            raise UsageError(said, hint=error.hint) from error
    strategy = None if asked.strategy is None else FusionStrategy.parse(asked.strategy)
    device = option_values.chosen_device(run)
    with ExitStack() as stack:
        if asked.fuser is not None:
            stack.enter_context(graphopt.fuser(asked.fuser))
        stack.enter_context(graphopt.optimized_execution(asked.optimize))
        advance = stack.enter_context(run.console.progress("compiling"))
        how = ExecutorOptions(strategy=strategy, profiled_runs=asked.profiled_runs, wait=None)
        executor = graphopt.compile(loaded, how, device=device, verify=run.settings.verify)
        rows: list[dict[str, Any]] = []
        for number in range(asked.rounds):
            for index, file in enumerate(files):
                advance((number + index / len(files)) / asked.rounds, file.name)
                begin = time.perf_counter()
                executor.run(feeds[file])
                took = time.perf_counter() - begin
                rows.append(
                    {"round": number + 1, "file": str(file), "plan": executor.last_plan, "seconds": took}
                )
    state = executor.debug_state()
    run.console.json({"runs": rows, **state.to_dict()})
    table = Table(["round", "file", "plan", "time"], "><<>")
    for row in rows:
        table.add(row["round"], row["file"], row["plan"], human_seconds(row["seconds"]))
    run.console.table(table)
    for line in state.lines():
        run.console.print(f"  {line}")
