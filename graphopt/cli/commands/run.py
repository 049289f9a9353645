"""graphopt run: run a model through onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
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
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import Table, human_seconds

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.inputs.run_once import TimedRun
    from graphopt.ort.devices import Device
    from graphopt.ort.session_options import SessionChoice
    from graphopt.specialization.bundle.loaded_bundle import Bundle

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
@cuda_graph_option
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
    from graphopt.util import npz

    check_file(output, [".npz"])
    resolve_options.check_trusted(model, trusted=trusted)
    options = _Options(optimizations, session_options, kernels, trusted, cuda_graph, check_sizes)
    result = _run_bundle(run, model, options) if api.is_bundle(model) else _run_model(run, model, options)
    if output is not None:
        npz.write(output, result.trial.outputs)
    return Output(
        _data(result),
        [_table(result.trial)],
        notes=_notes(run, result, output),
        record=run.record,
        is_verbose=run.verbose > 0,
    )


@dataclass(frozen=True)
class _Options:
    """The options of the session."""

    optimizations: Any
    session_options: bool
    kernels: bool
    trusted: bool
    cuda_graph: bool
    check_sizes: bool


@dataclass(frozen=True)
class _Result:
    """The result of a run.

    Attributes:
        trial: its inputs, outputs and time.
        choice: the session options that the model recommends.
        uses_choice: whether the session had these options.
        shared: inputs that were overwritten by outputs, by name of the output.
        libraries: the libraries of native kernels of a model.
        bundle: the bundle that ran, if any.
    """

    trial: TimedRun
    choice: SessionChoice
    uses_choice: bool
    shared: Mapping[str, str]
    libraries: tuple[str, ...] = ()
    bundle: Bundle | None = None


def _run_model(run: Run, path: Path, options: _Options) -> _Result:
    """Run the model at ``path``."""
    from graphopt import api
    from graphopt.ort.session_options import recommended
    from graphopt.timing.bench import graph_options

    model = api.load_model(path)
    shared = _shared(run, model)
    device = resolve_options.chosen_device(run)
    graph_options(device, options.cuda_graph)
    with run.console.progress("running") as advance:
        libraries = resolve_options.libraries_of(run, model, device, options.kernels, advance).paths
        trial = run.compiler.try_out(
            model,
            optimizations=options.optimizations,
            session_options=options.session_options,
            libraries=libraries,
            check_sizes=options.check_sizes,
        )
        if options.cuda_graph:
            trial = _replayed(run, model, trial, device, options.optimizations, options.session_options)
    choice = recommended(model, device)
    return _Result(trial, choice, options.session_options and not choice.plain, shared, libraries)


def _run_bundle(run: Run, path: Path, options: _Options) -> _Result:
    """Run the first variant of the bundle at ``path`` whose guard accepts the inputs."""
    from graphopt.ort.session_options import recommended
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.specialization.bundle.names import GENERAL_NAME
    from graphopt.specialization.bundle.run_once import run_bundle_once
    from graphopt.timing.bench import graph_options

    bundle = Bundle(
        path,
        optimizations=options.optimizations,
        session_options=options.session_options,
        trusted=options.trusted,
        kernels=options.kernels,
        cuda_graph=options.cuda_graph,
        check_sizes=options.check_sizes,
    )
    general = bundle.model(GENERAL_NAME)
    shared = _shared(run, general)
    graph_options(bundle.device, options.cuda_graph)
    with run.console.progress("running"):
        trial = run_bundle_once(bundle, run.compiler.inputs, run.options.get("share_buffers", ()))
    run.record.merge(bundle.record.hints, bundle.record.counters)
    choice = recommended(general, bundle.device)
    return _Result(trial, choice, options.session_options and not choice.plain, shared, bundle=bundle)


def _shared(run: Run, model: ir.Model) -> Mapping[str, str]:
    """The inputs that outputs overwrite, by name of the output."""
    from graphopt.ir.signature import Signature
    from graphopt.specialization.shared_buffer_checks import shared_names

    pairs = tuple(run.options.get("share_buffers", ()))
    return shared_names(pairs, Signature.of(model)) if pairs else {}


def _data(result: _Result) -> dict[str, Any]:
    """The run for JSON."""
    from graphopt.cli.views.variants import choice_dict

    trial = result.trial
    return {
        **({} if result.bundle is None else choice_dict(result.bundle, trial.feeds)),
        "inputs": {name: _describe(value) for name, value in trial.feeds.items()},
        "outputs": {name: _describe(value) for name, value in trial.outputs.items()},
        "session_options": result.choice.to_dict() if result.uses_choice else {},
        "libraries": list(result.libraries),
        **({"shared_buffers": result.shared} if result.shared else {}),
        "seconds": trial.seconds,
    }


def _notes(run: Run, result: _Result, output: Path | None) -> list[str]:
    """The lines on stderr."""
    from graphopt.cli.views.variants import choice_notes

    notes = []
    if result.uses_choice:
        notes.append(f"  session options of the model: {result.choice}")
        if result.choice.remark is not None:
            notes.append(f"  warning: {result.choice.remark}")
    if result.bundle is not None:
        notes += choice_notes(result.bundle, result.trial.feeds, verbose=run.verbose)
        notes += [f"  {remark}" for remark in result.bundle.remarks]
    notes += [f"  wrote {target} over {source}" for target, source in result.shared.items()]
    notes.append(f"  ran in {human_seconds(result.trial.seconds)}")
    if output is not None:
        notes.append(f"  wrote     {output}")
    return notes


def _replayed(
    run: Run, model: ir.Model, trial: TimedRun, device: Device, optimizations: Any, session_options: bool
) -> TimedRun:
    """The run of ``trial`` as a replayed CUDA graph; ``trial`` if that is not possible."""
    from graphopt.ort.session_options import recommended
    from graphopt.specialization.cuda_graphs.captured_graphs import GraphOptions
    from graphopt.specialization.cuda_graphs.graph_switch import GraphSwitch
    from graphopt.specialization.cuda_graphs.replayed_run import replayed_run

    switch = GraphSwitch(GraphOptions(skipped=0), run.record)
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
