"""graphopt compile: write a model with all that its runs need, ahead of time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups import specialization
from graphopt.cli.option_groups import tuning as tuning_group
from graphopt.cli.option_groups.compile_arguments import CompileArguments
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model, split_names
from graphopt.cli.output.command_output import Output
from graphopt.cli.report_file import report_of_one, reporting
from graphopt.errors import UsageError
from graphopt.optimize_options import OptimizeOptions
from graphopt.util.text_tables import Block, counted, human_bytes, human_seconds

if TYPE_CHECKING:
    from graphopt.compiler.ahead_of_time import Compiled

EXAMPLE = """
graphopt compile model.onnx
graphopt compile model.onnx -o service.gopt --profile profile.json
graphopt compile model.onnx --fuser native --cpu-level v3,v4
graphopt compile model.onnx --zip --tune --budget 2m
graphopt run model.gopt --input-shape x:1x64 -v
graphopt verify model.gopt
"""


@command_decorator.command(
    "compile",
    example=EXAMPLE,
    everyday="-o --zip --profile -O --fuser --cpu-level --tune --exact --dim --input-shape --verify --device",
)
@click.argument("model", type=reads_model, metavar="MODEL")
@shared_options.group(
    "Files",
    shared_options.output_option(
        "Write the bundle to this folder.  [default: NAME.gopt beside MODEL]", metavar="OUT.gopt"
    ),
    click.option(
        "--zip/--no-zip",
        "archive",
        default=None,
        help="Write one uncompressed zip file, or a folder.  [default: --no-zip]",
    ),
    shared_options.report_option,
)
@shared_options.group(
    "Passes",
    click.option(
        "--cpu-level",
        "cpu_levels",
        multiple=True,
        callback=split_names,
        metavar="v2,v3,v4",
        help="x86-64 levels of native kernels, all in one library.  [default: all]",
    ),
)
@shared_options.record_option
@shared_options.model_options
@shared_options.pipeline_options_of(3)
@shared_options.of_section("Verification")
@tuning_group.tune_options
@specialization.variant_options
@shared_options.dim_options
@shared_options.input_options_of(several=True)
@shared_options.device_options
@shared_options.watch_options
def command(
    run: Run,
    model: Path,
    output: Path | None,
    archive: bool | None,
    report_path: Path | None,
    cpu_levels: tuple[str, ...],
    dump_dir: Path | None,
    tuning: tuning_group.TuneValues,
    variants: specialization.VariantValues,
    input_shapes: tuple[str, ...],
    input_files: tuple[str, ...],
) -> Output:
    """Write a model with all that its runs need, ahead of time.

    The result is a bundle: a folder, or with --zip a file, with the optimized model, its variants for a
    profile, their weights in one file, the library of native kernels (--fuser native), recommended session
    options (--tune), and a manifest with checksums, guards and the target. graphopt.load, graphopt run, a C
    program, or a few lines of Python with onnxruntime run it (docs/compile.md). Models are optimized by -O3
    unless options say otherwise, and verified as by graphopt optimize; stored results are not reused.
    """
    from graphopt.cli.files.check_output_paths import check_file, check_folder
    from graphopt.cli.optimize_job import warnings_of
    from graphopt.cli.option_groups.instruments import Progress, instruments
    from graphopt.compiler.ahead_of_time import bundle_path
    from graphopt.specialization.bundle.names import check_form

    if output is None and model == run.invocation.stdin:
        raise UsageError(
            "a model from standard input has no name to derive that of the bundle from", hint="-o OUT.gopt"
        )
    recorded = CompileArguments.of(run)
    archive = recorded.archive if archive is None else archive
    target = bundle_path(model, output)
    run.invocation.watch([target])
    check_form(target, archive=archive)
    check_file(target) if archive else check_folder(target)
    check_file(report_path, [".json"])
    check_folder(dump_dir)
    request = recorded.variants(variants).specialization()
    with (
        reporting(report_path, run, report_of_one(run, model)),
        run.console.progress(model.name) as advance,
    ):
        extra = OptimizeOptions(
            **tuning_group.tuning_and_inputs(run, tuning, input_shapes, input_files),
            command=run.invocation.command,
            instruments=[*instruments(dump_dir), Progress(advance)],
        )
        if run.save_repro is not None:
            extra["save_repro"] = run.save_repro
        if "pipeline" not in run.options:
            named = run.settings.pipeline if run.sources.sets("pipeline") else recorded.pipeline
            extra["pipeline"] = named
        compiled = run.compiler.having(extra).aot_compile(
            model, target, request, cpu_levels=_levels(cpu_levels) or recorded.cpu_levels, archive=archive
        )
    report = compiled.report.having(seconds={"all": run.invocation.seconds})
    run.invocation.wrote([target] if archive else [target / name for name in compiled.files])
    for text, hint in warnings_of(report, has_profile=request is not None):
        run.console.warn(text, hint)
    return Output(
        {
            "source": run.invocation.name_of(model),
            "target": str(target),
            **report.to_dict(),
            "files": compiled.files,
            "cpu_levels": list(compiled.cpu_levels),
        },
        ()
        if run.console.quiet
        else [*report.blocks(run.verbose, warned=True), *_lines(compiled, report.seconds)],
        report_file=report_path,
    )


def _lines(compiled: Compiled, seconds: dict[str, float]) -> Iterator[Block]:
    """The written files."""
    count, size = counted(len(compiled.files), "file"), human_bytes(sum(compiled.files.values()))
    yield f"  wrote     {compiled.path}   {count}, {size}   {human_seconds(seconds['all'])} in all"
    if compiled.cpu_levels:
        levels = ", ".join(f"v{level}" for level in compiled.cpu_levels)
        yield f"            one library has the kernels for x86-64 {levels}; graphopt loads it with --trusted"


def _levels(names: tuple[str, ...]) -> tuple[int, ...]:
    from graphopt.specialization.bundle.kernel_files import LEVELS

    unknown = next((name for name in names if name not in LEVELS), None)
    if unknown is not None:
        raise UsageError(f"--cpu-level: there is no level {unknown}", hint=f"levels: {', '.join(LEVELS)}")
    return tuple(LEVELS[name] for name in names)
