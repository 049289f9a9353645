"""graphopt run: run a model through onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups import executor_runs
from graphopt.cli.option_groups.run_features import check_sizes_option, cuda_graph_option
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.options.parameter_types import writes_file
from graphopt.cli.options.table_options import table_option
from graphopt.cli.output.command_output import Output
from graphopt.util.text_tables import Table, human_seconds

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.inputs.run_once import TimedRun
    from graphopt.ort.devices import Device

EXAMPLE = """
graphopt run model.onnx
graphopt run model.onnx --input-shape x:1x3x224x224 --seed 1
graphopt run model.onnx --input x:x.npy -o outputs.npz
graphopt run decoder.onnx --share-buffers 'past*=present*'
graphopt run model.gopt --input-shape ids:1x128 -v
graphopt run model.onnx --inputs requests/ --rounds 3
graphopt run model.onnx --inputs requests/ --fusion-strategy static:1,dynamic:2 --fuser ort
"""


@command_decorator.command(
    "run",
    example=EXAMPLE,
    everyday="-o --input --input-shape --seed --device --optimizations --inputs --rounds --fuser",
)
@shared_options.model_argument()
@shared_options.group(
    "Files",
    click.option(
        "-o", "--output", type=writes_file, metavar="FILE.npz", help="Write the outputs to this file."
    ),
)
@shared_options.model_options
@shared_options.input_options
@shared_options.device_options
@shared_options.session_options
@shared_options.kernel_options
@shared_options.trusted_option
@shared_options.group(
    "Device",
    click.option(
        "--optimizations",
        type=click.Choice(["default", "off"]),
        default="default",
        help="Graph optimizations of onnxruntime.  [default: default]",
    ),
)
@shared_options.group(
    "Device",
    table_option(
        "share_buffers",
        help="Write output OUT over input IN, after a check that this is safe; past*=present* names all pairs"
        " (docs/executor.md).",
    ),
)
@shared_options.group("CUDA", cuda_graph_option)
@check_sizes_option
@shared_options.log_options
@executor_runs.executor_options
def command(
    run: Run,
    model: Path,
    output: Path | None,
    optimizations: Any,
    session_options: bool,
    kernels: bool,
    trusted: bool,
    cuda_graph: bool,
    check_sizes: bool,
    chosen: executor_runs.ExecutorValues,
) -> Output:
    """Run a model once and show its outputs.

    Inputs that are not given are generated, the same ones for the same seed. In a bundle, the first variant
    whose guard accepts the inputs runs; -v explains the choice. With --inputs, an executor runs all files,
    specializes the model for their inputs, and reports the plan of each run (docs/executor.md).
    """
    if chosen.recorded:
        return executor_runs.run_all(run, model, chosen, cuda_graph=cuda_graph, check_sizes=check_sizes)
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_file
    from graphopt.cli.views.variants import choice_dict, choice_notes
    from graphopt.ir.signature import Signature
    from graphopt.ort.session_options import recommended
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.specialization.bundle.names import GENERAL_NAME
    from graphopt.specialization.bundle.run_once import run_bundle_once
    from graphopt.specialization.shared_buffer_checks import shared_names
    from graphopt.timing.bench import cuda_options
    from graphopt.util import npz

    check_file(output, [".npz"])
    resolve_options.check_trusted(model, trusted=trusted)
    bundle, libraries = None, tuple[str, ...]()
    if api.is_bundle(model):
        bundle = Bundle(
            model,
            optimizations=optimizations,
            session_options=session_options,
            trusted=trusted,
            kernels=kernels,
            cuda_graph=cuda_graph,
            check_sizes=check_sizes,
        )
    loaded = api.load_model(model) if bundle is None else bundle.model(GENERAL_NAME)
    pairs = tuple(run.options.get("share_buffers", ()))
    shared = shared_names(pairs, Signature.of(loaded)) if pairs else {}
    device = resolve_options.chosen_device(run) if bundle is None else bundle.device
    cuda_options(device, cuda_graph=cuda_graph)
    with run.console.progress("running") as advance:
        if bundle is None:
            libraries = resolve_options.libraries_of(run, loaded, device, kernels, advance).paths
            trial = run.compiler.try_out(
                loaded,
                optimizations=optimizations,
                session_options=session_options,
                libraries=libraries,
                check_sizes=check_sizes,
            )
            if cuda_graph:
                trial = _replayed(run, loaded, trial, device, optimizations, session_options)
        else:
            trial = run_bundle_once(bundle, run.compiler.inputs, pairs)
    choice = recommended(loaded, device)
    used = session_options and not choice.plain
    if output is not None:
        npz.write(output, trial.outputs)
    notes = []
    if used:
        notes.append(f"  session options of the model: {choice}")
        if choice.remark is not None:
            notes.append(f"  warning: {choice.remark}")
    if bundle is not None:
        run.record.merge(bundle.record.hints, bundle.record.counters)
        notes += choice_notes(bundle, trial.feeds, verbose=run.verbose)
        notes += [f"  {remark}" for remark in bundle.remarks]
    notes += [f"  wrote {target} over {source}" for target, source in shared.items()]
    notes.append(f"  ran in {human_seconds(trial.seconds)}")
    if output is not None:
        notes.append(f"  wrote     {output}")
    return Output(
        {
            **({} if bundle is None else choice_dict(bundle, trial.feeds)),
            "inputs": {name: _describe(value) for name, value in trial.feeds.items()},
            "outputs": {name: _describe(value) for name, value in trial.outputs.items()},
            "session_options": choice.to_dict() if used else {},
            "libraries": list(libraries),
            **({"shared_buffers": shared} if shared else {}),
            "seconds": trial.seconds,
        },
        [_table(trial)],
        notes=notes,
        record=run.record,
        is_verbose=run.verbose > 0,
    )


def _replayed(
    run: Run, model: ir.Model, trial: TimedRun, device: Device, optimizations: Any, session_options: bool
) -> TimedRun:
    """The run of ``trial`` as a replayed CUDA graph; ``trial`` if that is not possible."""
    from graphopt.ort.session_options import recommended
    from graphopt.specialization.cuda_graphs.captured_graphs import GraphOptions
    from graphopt.specialization.cuda_graphs.graph_switch import GraphSwitch
    from graphopt.specialization.cuda_graphs.replayed_run import replayed_run

    switch = GraphSwitch(GraphOptions(), run.record)
    choice = recommended(model, device) if session_options else None
    found = replayed_run(
        model, trial.feeds, switch, device=device, optimizations=optimizations, choice=choice
    )
    return found or trial


def _table(trial: TimedRun) -> Table:
    """A row for each input and output."""
    table = Table(["", "name", "type", "min", "mean", "max"], "<<<>>>")
    for direction, values in (("input", trial.feeds), ("output", trial.outputs)):
        for name, value in values.items():
            facts = _describe(value)
            numbers = [_number(facts.get(key)) for key in ("min", "mean", "max")]
            table.add(direction, name, _type(value), *numbers)
    return table


def _describe(value: Any) -> dict[str, Any]:
    import numpy as np

    if not isinstance(value, np.ndarray):
        kind = "sequence" if isinstance(value, list) else "map" if isinstance(value, dict) else "none"
        return {"type": kind, "shape": [len(value)] if isinstance(value, list | dict) else None}
    facts: dict[str, Any] = {"type": "string" if value.dtype.kind == "O" else str(value.dtype)}
    facts["shape"] = list(value.shape)
    if value.size and value.dtype.kind in "fiub":
        wide = value.astype(np.float64)
        with np.errstate(all="ignore"):
            facts |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    return facts


def _type(value: Any) -> str:
    """The type of a value: ``f32[2, 16]``, ``sequence of 3``."""
    import numpy as np

    from graphopt import ir

    if isinstance(value, np.ndarray):
        dtype = ir.DataType.STRING if value.dtype.kind in "OUS" else ir.DataType.from_numpy(value.dtype)
        return ir.type_text(dtype, value.shape)
    kind = _describe(value)
    return str(kind["type"]) if kind["shape"] is None else f"{kind['type']} of {len(value)}"


def _number(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"
