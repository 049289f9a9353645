"""graphopt bench: time models against one another."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import publish
from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups.compared_models import ORIGINAL, ComparedModels
from graphopt.cli.option_groups.run_features import check_sizes_option, cuda_graph_option
from graphopt.cli.options import completion_values, resolve_options, shared_options
from graphopt.cli.options.parameter_types import Count, Runs, Seconds, split_some, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus, UsageError, unknown
from graphopt.util.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.timing.alternating_runs import RaceLimits
    from graphopt.timing.bench import Contestant, Result

EXAMPLE = """
graphopt bench model.onnx --threads 2
graphopt bench model.onnx --against original,onnxslim --input-shape x:1x3x224x224,8x3x224x224
graphopt bench model.onnx --fuser native
graphopt bench decoder.onnx --share-buffers 'past*=present*'
graphopt bench a.onnx b.onnx --processes 15 --plot speed.svg
graphopt bench model.onnx model.gopt --input-shape x:1x64
graphopt bench model.onnx model.gopt --input-shape x:1x64
graphopt bench model.onnx --device cuda --cuda-graph --hot
graphopt bench model.onnx --threads 1 --roofline
graphopt bench model.onnx --html run-time.html
"""


@dataclass(frozen=True)
class Measurement:
    """The values of :data:`measurement`."""

    threads: int | None
    processes: int
    rounds: int
    warmup: int
    seconds: float
    hot: bool
    roofline: bool
    plot: Path | None
    html: Path | None


measurement = shared_options.values_of(
    Measurement,
    "chosen",
    "Measurement",
    shared_options.threads_option("one per core"),
    click.option("--processes", type=Count(1), default=7, help="Number of fresh processes.  [default: 7]"),
    click.option("--rounds", type=Count(1), default=40, help="Rounds in each process.  [default: 40]"),
    click.option(
        "--warmup", type=Count(1), default=5, help="Warm-up runs before the first round.  [default: 5]"
    ),
    click.option(
        "--seconds",
        type=Seconds(positive=True),
        default=120.0,
        metavar="TIME",
        help="Time limit of all rounds of a table, without session creation and warm-up.  [default: 2m]",
    ),
    click.option("--hot", is_flag=True, help="Also show the operators that take the most time."),
    click.option("--roofline", is_flag=True, help="Also compare each kernel with the peaks of this machine."),
    click.option("--plot", type=writes_file, metavar="FILE.svg", help="Draw the latencies."),
    shared_options.html_option,
)


@command_decorator.command(
    "bench",
    example=EXAMPLE,
    everyday="--against --device --threads --input-shape --input --dim"
    " -O --fuser --seconds --processes --hot --roofline --plot",
)
@shared_options.model_argument("models", metavar="[MODEL...]", several=True)
@shared_options.group(
    "Comparison",
    click.option(
        "--against",
        shell_complete=completion_values.tools,
        multiple=True,
        callback=split_some,
        metavar="A,B",
        help="Compare with: original, onnxslim, onnxsim, onnxoptimizer, onnxscript.  [default: original]",
    ),
    click.option(
        "--peer-python",
        type=Runs(),
        default=sys.executable,
        metavar="PYTHON",
        help="Python interpreter with the tools of --against.  [default: this one]",
    ),
)
@measurement
@shared_options.pipeline_options
@shared_options.dim_options
@shared_options.input_options_of(several=True)
@shared_options.device_options
@shared_options.session_options
@shared_options.kernel_options
@shared_options.trusted_option
@cuda_graph_option
@check_sizes_option
@shared_options.model_options
@shared_options.log_options
def command(
    run: Run,
    models: tuple[Path, ...],
    against: tuple[str, ...],
    peer_python: str,
    chosen: Measurement,
    cuda_graph: bool,
    session_options: bool,
    kernels: bool,
    trusted: bool,
    input_shapes: tuple[str, ...],
    input_files: tuple[str, ...],
    check_sizes: bool,
) -> Output:
    """Compare the latencies of models.

    One model is optimized in memory (options under Passes) and compared with the original and the
    results of other tools. With several models, each is compared with the first. The models take turns, in
    fresh processes. For a bundle, the variant that the inputs select is measured; a bundle alone is compared
    with its general model. The original is also compared with itself; differences within the range of these
    ratios count as noise. With --share-buffers, timed runs write outputs over inputs. Each shape has a table:
    --input-shape x:1x8,4x8 prints two. Exit status 6 if one of the models does not run on the inputs of the
    first.
    """
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_file, check_page
    from graphopt.cli.views.bench_results import drawing, next_steps
    from graphopt.inputs.feeds import InputOptions
    from graphopt.inputs.shape_sets import parse_shape_sets
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.specialization.bundle.names import GENERAL_NAME
    from graphopt.timing.bench import graph_options

    check_file(chosen.plot, [".svg"])
    check_page(chosen.html)
    grid = parse_shape_sets(input_shapes)
    if chosen.html is not None and len(grid) > 1:
        raise UsageError("--html shows the runs of one set of shapes", hint="give one shape for each input")
    inputs = InputOptions.parse((), input_files, run.settings.seed)
    bundles = {path: Bundle(path, trusted=trusted, kernels=kernels) for path in models if api.is_bundle(path)}
    resolve_options.check_trusted(next(iter(bundles), models[0]), trusted=trusted)
    _check_against(models, against, has_bundles=bool(bundles))
    # errors precede the line about the device
    first, *_ = [
        bundles[path].model(GENERAL_NAME) if path in bundles else api.load_model(path) for path in models
    ]
    inputs = replace(inputs, ranges=run.compiler.vouched(first).dim_ranges)
    device = next(iter(bundles.values())).device if bundles else resolve_options.chosen_device(run)
    if chosen.roofline and not device.capabilities.is_host:
        raise UsageError(f"--roofline is for the CPU, not {device}", hint="add --device cpu, or use --hot")
    compared = _Compared(models, first, bundles, against, peer_python, device)
    options = _Options(chosen, graph_options(device, cuda_graph), session_options, kernels, check_sizes)
    _record_hints(run, compared)
    facts, results, failed = _measure(
        run, compared, options, [replace(inputs, shapes=shapes) for shapes in grid]
    )
    notes = []
    if chosen.plot is not None:
        publish.write(chosen.plot, drawing(results))
        notes.append(f"  wrote     {chosen.plot}")
    if chosen.html is not None:
        notes.append(f"  wrote     {chosen.html}")
    steps = dict.fromkeys(step for result in results for step in next_steps(result, _limits(chosen)))
    notes += [f"hint: {step}" for step in steps]
    if failed is not None and len(models) > 1:
        notes.append(f"hint: {_other_inputs(first, failed.model)}")
    return Output(
        {**facts, "tables": [result.to_dict() for result in results]},
        status=ExitStatus.OK if failed is None else ExitStatus.RUNTIME_FAILURE,
        notes=notes,
        record=run.record,
        is_verbose=run.verbose > 0,
    )


@dataclass(frozen=True)
class _Compared:
    """The models to compare.

    Attributes:
        paths: their files.
        first: the first model, or the general model of the first bundle.
        bundles: the bundles among them, by path.
        against: the other tools whose results are compared.
        peer_python: the interpreter that runs them.
        device: the device that runs all models.
    """

    paths: tuple[Path, ...]
    first: ir.Model
    bundles: Mapping[Path, Bundle]
    against: tuple[str, ...]
    peer_python: str
    device: Device


@dataclass(frozen=True)
class _Options:
    """The options of the measurement.

    Attributes:
        provider_options: options of the CUDA provider besides those of the device.
    """

    chosen: Measurement
    provider_options: dict[str, str]
    session_options: bool
    kernels: bool
    check_sizes: bool


def _record_hints(run: Run, compared: _Compared) -> None:
    """Record the hints about the first model on the device."""
    from graphopt.device_hints.model_hints import model_hints
    from graphopt.ort.gpu_properties import gpu_properties

    device = compared.device.timed
    for hint in model_hints(compared.first, device, gpu_properties(device), tf32=device.has_tf32):
        run.record.hint(hint)


def _record_tf32(run: Run, contestants: Sequence[Contestant], device: Device) -> None:
    """Record the hint about float32 products that are timed in TF32."""
    from graphopt.device_hints.model_hints import timing_hints
    from graphopt.ort.gpu_properties import gpu_properties

    models = {one.name: one.model for one in contestants if one.model is not None}
    for hint in timing_hints(models, device, gpu_properties(device)):
        run.record.hint(hint)


def _measure(
    run: Run, compared: _Compared, options: _Options, grid: Sequence[InputOptions]
) -> tuple[dict[str, Any], list[Result], Contestant | None]:
    """Measure and print a table for each of ``grid``.

    Returns:
        The facts that all tables share, the tables, and the first model that failed, if any.
    """
    from graphopt.cli.views.bench_results import blocks
    from graphopt.cli.views.roofline_table import peak_lines, roofline_blocks
    from graphopt.device_hints.bf16 import naming_bf16
    from graphopt.ir.signature import Signature
    from graphopt.page.run_time_page import run_time_page
    from graphopt.specialization.shared_buffer_checks import shared_names
    from graphopt.specialization.shared_buffer_runs import run_shared
    from graphopt.timing.bench import Bench, SharedBuffers
    from graphopt.timing.bench_rooflines import bench_rooflines

    first, device, chosen = compared.first, compared.device, options.chosen
    limits = _limits(chosen)
    provider_options = options.provider_options
    results: list[Result] = []
    failed: Contestant | None = None
    facts: dict[str, Any] = {}
    rooflines: list[list[dict[str, Any]]] = []
    with publish.ScratchFolder() as folder, naming_bf16(lambda: first, device):
        makes = ComparedModels(run, folder, device, options.kernels, compared.bundles)
        share = shared_names(run.options.get("share_buffers", ()), Signature.of(first))
        run_once = partial(run_shared, share=share, device=device)
        shared = SharedBuffers(share, run_once) if share else None
        check = partial(_check_sizes, first) if options.check_sizes else None
        contestants: list[Contestant] = []
        for inputs in grid:
            if compared.bundles or not contestants:
                contestants = (
                    makes.chosen(compared.paths, first, inputs, check)
                    if compared.bundles
                    else makes.all(compared.paths, compared.against, compared.peer_python)
                )
                contestants[0] = replace(contestants[0], model=first)  # its dims are fixed by the options
                _record_tf32(run, contestants, device)
                provider_options = _without_obstructed_graphs(run, contestants, device, provider_options)
            bench = Bench(
                contestants,
                device,
                chosen.threads,
                provider_options,
                limits,
                options.session_options,
                shared,
                _check_sizes if options.check_sizes else None,
            )
            with run.console.progress("timing") as advance:
                results.append(bench.run(inputs, advance))
            run.console.print(*blocks(results[-1], bench, hot=chosen.hot))
            facts = bench.facts()
            if chosen.html is not None:
                title = " and ".join(map(run.invocation.name_of, compared.paths))
                command = run.invocation.command
                with run.console.progress("profiling"):
                    page = run_time_page(bench, results[-1], inputs, run.compiler.store, title, command)
                publish.write(chosen.html, page)
            if chosen.roofline:
                with run.console.progress("profiling"):
                    failing = {row.name for row in results[-1].rows if row.failure}
                    found = bench_rooflines(bench, inputs, run.compiler.store, besides=failing)
                run.console.print(*peak_lines(found[0].peaks))
                run.console.print(*(block for one in found for block in roofline_blocks(one)))
                rooflines.append([one.to_dict() for one in found])
                facts["rooflines"] = rooflines
            if failed is None:
                failures = {row.name for row in results[-1].rows if row.failure} - {*compared.against}
                failed = next((one for one in contestants if one.name in failures), None)
    return facts, results, failed


def _limits(chosen: Measurement) -> RaceLimits:
    from graphopt.timing.alternating_runs import RaceLimits

    return RaceLimits(chosen.rounds, chosen.processes, chosen.warmup, chosen.seconds)


def _check_sizes(model: ir.Model, feeds: Mapping[str, Any]) -> None:
    """Check ``feeds`` against the inputs of ``model``; raises UsageError if they do not fit."""
    from graphopt.ir.signature import Signature
    from graphopt.specialization.size_checks import SizeChecks

    signature = Signature.of(model)
    SizeChecks(signature).check(
        {name: value for name, value in feeds.items() if name in signature.input_types}
    )


def _without_obstructed_graphs(
    run: Run, contestants: Sequence[Contestant], device: Device, provider_options: dict[str, str]
) -> dict[str, str]:
    """``provider_options`` without CUDA graphs if one of the models can't be captured: all run alike."""
    from graphopt.specialization.cuda_graphs.graph_switch import skip
    from graphopt.specialization.cuda_graphs.graph_trial import trial_refusal
    from graphopt.specialization.cuda_graphs.obstacles import obstacles

    if provider_options.get("enable_cuda_graph") != "1":
        return provider_options
    for one in contestants:
        reason = None if one.model is None else next(obstacles(one.model, device), None)
        if reason is None and one.failure is None:
            reason = trial_refusal(one.path, one.model, device, one.choice)
        if reason is not None:
            skip(run.record, f"{one.name}: {reason}", device)
            return {key: value for key, value in provider_options.items() if key != "enable_cuda_graph"}
    return provider_options


# Compared models ---------------------------------------------------------------------------------


def _check_against(models: Sequence[Path], against: Sequence[str], *, has_bundles: bool) -> None:
    from graphopt.timing.other_optimizers import PEERS

    for name in against:
        if name != ORIGINAL and name not in PEERS:
            raise unknown("tool", name, [ORIGINAL, *PEERS])
    if len(models) > 1 or has_bundles:
        why = "needs one model; several, and bundles, are compared without changes"
        hint = "leave it out, or bench one model at a time"
        if against:
            raise UsageError(f"--against {why}", hint=hint)
        resolve_options.check_idle(["Passes"], why, hint, besides=["share_buffers"])


def _other_inputs(first: ir.Model, other: ir.Model | None) -> str:
    """The next step to run both models on the same inputs."""
    from graphopt.ir.signature import Signature, fixed_dims

    fixed = {} if other is None else fixed_dims(Signature.of(first), Signature.of(other))
    if not fixed:
        return "--input-shape or --input chooses inputs that all models accept"
    dims = " ".join(f"--dim {name}={size}" for name, size in fixed.items())
    return f"{dims} or --input-shape chooses inputs that both models accept"
