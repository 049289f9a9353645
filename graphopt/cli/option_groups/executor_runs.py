"""``run --inputs``: an executor runs files of inputs, and reports the plan for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from graphopt.cli.invocation import Run
from graphopt.cli.option_groups.input_files import arrays_in, recorded_option
from graphopt.cli.options import option_relations, resolve_options, shared_options
from graphopt.cli.options.parameter_types import Count, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Table, human_seconds

_NEEDS_INPUTS = {"requires": "--inputs", "hint": "add --inputs FILE.npz or a folder of them"}
_with_inputs = partial(option_relations.option, **_NEEDS_INPUTS)


@dataclass(frozen=True)
class ExecutorValues:
    """The values of :data:`executor_options`."""

    recorded: Sequence[Path]
    rounds: int | None
    fusion_strategy: str | None
    profiled_runs: int | None
    depth: int | None
    most_plans: int | None
    background: bool
    watch: Literal["inputs", "shapes", "all"] | None
    watch_limit: int | None
    fuser: str | None
    compile_log: Path | None
    no_optimize: bool


executor_options = shared_options.values_of(
    ExecutorValues,
    "chosen",
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
        hint="with --inputs, an executor runs the model on each file",
    ),
    _with_inputs("--rounds", type=Count(1), metavar="N", help="Number of runs of each file.  [default: 1]"),
    _with_inputs(
        "--fusion-strategy",
        metavar="TEXT",
        help="Number of specializations of each kind, in order, or always-dynamic (docs/specialize.md)."
        "  [default: static:2,dynamic:10]",
    ),
    _with_inputs(
        "--profiled-runs",
        type=Count(0),
        metavar="N",
        help="Profiled runs before each specialization.  [default: 1]",
    ),
    _with_inputs(
        "--depth", type=Count(0), metavar="N", help="Maximum number of specializations.  [default: all]"
    ),
    _with_inputs(
        "--most-plans",
        type=Count(1),
        metavar="N",
        help="Maximum number of specializations to keep; the least recently used one is evicted."
        "  [default: all]",
    ),
    _with_inputs("--background", is_flag=True, help="Run the general plan until a specialization is ready."),
    shared_options.watch_option("inputs", **_NEEDS_INPUTS),
    shared_options.watch_limit_option(requires="--watch", hint="add --watch shapes or --watch all"),
    shared_options.fuser_option(default="builtin", **_NEEDS_INPUTS),
    _with_inputs(
        "--pipelines",
        type=click.Choice(["preset", "jit"]),
        help="One preset for all plans, or the pipelines of the JIT: plan-general, plan-profiled, ..."
        "  [default: preset]",
    ),
    _with_inputs(
        "--compile-log",
        type=writes_file,
        metavar="FILE",
        help="Append a line of JSON for each compilation to this file.",
    ),
    _with_inputs(
        "--no-optimize",
        is_flag=True,
        excludes=(
            *("--fuser", "--fusion-strategy", "--profiled-runs", "--depth", "--most-plans", "--background"),
            "--watch",
            "--pipelines",
        ),
        help="Run the unmodified model.",
    ),
)


def run_all(
    run: Run, model: Path, chosen: ExecutorValues, *, cuda_graph: bool = False, check_sizes: bool = False
) -> Output:
    """Run the files by an executor; the output has the plan of each run."""
    import graphopt
    from graphopt.api import is_bundle, load_model
    from graphopt.executor.executor_options import ExecutorOptions
    from graphopt.inputs.feeds import InputOptions, Inputs
    from graphopt.specialization.shared_buffer_checks import shared_names
    from graphopt.specialization.shared_buffer_runs import copies
    from graphopt.timing.bench import graph_options

    if is_bundle(model):
        raise UsageError(
            f"an executor specializes models, and {model} is a bundle of variants",
            hint="--input FILE.npz runs it on the inputs of one file",
        )
    files = [file for path in chosen.recorded for file in arrays_in(run, path)]
    loaded = load_model(model)
    feeds = {}
    for file in files:
        try:
            feeds[file] = Inputs(loaded, InputOptions(files=((None, file),))).given
        except UsageError as error:
            text = error.message if str(file) in error.message else f"{file}: {error.message}"
            raise UsageError(text, hint=error.hint) from error
    options = ExecutorOptions(
        strategy=chosen.fusion_strategy,
        profiled_runs=1 if chosen.profiled_runs is None else chosen.profiled_runs,
        compile="background" if chosen.background else "blocking",
        wait=None,
        most_plans=chosen.most_plans,
        depth=chosen.depth,
        watch=chosen.watch or "inputs",
        watch_limit=1024 if chosen.watch_limit is None else chosen.watch_limit,
        compile_log=chosen.compile_log,
        cuda_graph=cuda_graph,
        check_sizes=check_sizes,
    )
    graph_options(resolve_options.chosen_device(run), cuda_graph)
    rounds = chosen.rounds or 1
    with ExitStack() as stack:
        if chosen.fuser is not None:
            stack.enter_context(graphopt.fuser(chosen.fuser))
        stack.enter_context(graphopt.optimized_execution(not chosen.no_optimize))
        advance = stack.enter_context(run.console.progress("compiling"))
        executor = run.compiler.compile(loaded, options)
        share = shared_names(run.options.get("share_buffers", ()), executor.signature)
        rows: list[dict[str, Any]] = []
        for number in range(rounds):
            for index, file in enumerate(files):
                advance((number + index / len(files)) / rounds, file.name)
                values = copies(feeds[file], executor.signature, run.compiler.device) if share else {}
                begin = time.perf_counter()
                if share:
                    executor.run_bound(values, share=share)
                else:
                    executor.run(feeds[file])
                took = time.perf_counter() - begin
                rows.append(
                    {"round": number + 1, "file": str(file), "plan": executor.last_plan, "seconds": took}
                )
    state = executor.debug_state()
    table = Table(["round", "file", "plan", "time"], "><<>")
    for row in rows:
        table.add(row["round"], row["file"], row["plan"], human_seconds(row["seconds"]))
    return Output({**state.to_dict(), "runs": rows}, [table, *(f"  {line}" for line in state.lines())])
