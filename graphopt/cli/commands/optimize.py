"""graphopt optimize: make models smaller and faster.

Most of its options are declared in :mod:`graphopt.optimize_options`; options of files and output are here.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click

from graphopt.cli.files import optimize_files
from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.optimize_batch import Batch
from graphopt.cli.optimize_job import Job
from graphopt.cli.option_groups import specialization
from graphopt.cli.option_groups import tuning as tuning_group
from graphopt.cli.options import option_relations, shared_options
from graphopt.cli.options.parameter_types import Writes, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.cli.report_file import report_of_one, reporting
from graphopt.cli.views import optimization
from graphopt.errors import UsageError
from graphopt.optimize_options import OptimizeOptions
from graphopt.result_cache.fresh_store import fresh_store

EXAMPLE = """
graphopt optimize model.onnx
graphopt optimize model.onnx -o out.onnx
graphopt optimize a.onnx b.onnx -o folder/ --exact
graphopt optimize model.onnx -o out.onnx --dim batch=4 --dim-range seq=1:512
graphopt optimize model.onnx -o out.onnx --passes dce,cse --report report.json
graphopt optimize model.onnx -o out.onnx --html report.html
graphopt optimize model.onnx -o out.onnx -O3 --tune --budget 2m --input-shape x:1x64,8x64
graphopt optimize model.onnx -o out.onnx -O3 --strict-fusion /encoder/layer.0/attention/self/Softmax
graphopt optimize model.onnx -o out.onnx --fuser native
graphopt optimize model.onnx -o out.onnx --pipeline freezing
graphopt optimize decoder.onnx -o out.onnx --share-buffers past_key=present_key
graphopt optimize model.onnx -o out.onnx -O3 --profile profile.json
graphopt optimize model.onnx -o out.bundle -O3 --profile profile.json --emit bundle
"""


@command_decorator.command(
    "optimize",
    example=EXAMPLE,
    everyday="-o -O --exact --fuser --dim --input-shape"
    " --input --target-opset --skip --report --dry-run --verify --device",
)
@shared_options.model_argument("sources", metavar="[IN...] [OUT]", several=True)
@shared_options.group(
    "Files",
    shared_options.output_option(
        "Write the result to this file, or to this folder under the name of IN, or several models"
        " under their relative paths.  [default: NAME.opt.onnx beside IN]",
        metavar="OUT|FOLDER|-",
        kind=Writes(in_place=True),
    ),
    click.option("--dry-run", is_flag=True, help="Write no model; only report."),
    click.option(
        "--force",
        is_flag=True,
        help="Without -o: also replace a file that graphopt did not write.",
    ),
    shared_options.report_option,
    option_relations.option(
        "--html",
        type=writes_file,
        metavar="FILE.html",
        excludes=("--profile",),
        hint="graphopt report MODEL OTHER compares a model with a variant",
        help=shared_options.HTML_HELP,
    ),
)
@shared_options.output_options
@shared_options.record_option
@shared_options.provenance_option
@shared_options.model_options
@shared_options.pipeline_options
@shared_options.of_section("Verification")
@shared_options.of_section(
    "Cache",
    click.option(
        "--fresh-cache",
        is_flag=True,
        help="Use an empty store, which is removed afterwards: also compute kernels and tunings again.",
    ),
)
@tuning_group.tune_options
@specialization.specialize_options
@shared_options.dim_options
@shared_options.input_options_of(several=True)
@shared_options.device_options
@shared_options.watch_options
def command(
    run: Run,
    sources: tuple[Path, ...],
    output: str | None,
    dry_run: bool,
    force: bool,
    report_path: Path | None,
    html: Path | None,
    dump_dir: Path | None,
    fresh_cache: bool,
    tuning: tuning_group.TuneValues,
    variants: specialization.SpecializeValues,
    input_shapes: tuple[str, ...],
    input_files: tuple[str, ...],
) -> Output:
    """Make models smaller and faster.

    The result has the same interface and the same outputs: it is compared with the original, and written only
    if both agree. If they differ, graphopt finds, reports and drops the rewrite responsible; exit status 1 if
    the models still differ.

    Without -o the result of model.onnx is model.opt.onnx beside it. If two paths are given, the second is the
    result, unless it is already a model. If a folder is given, all its models are optimized; - is standard
    input. If IN does not run, a warning reports that the result is not verified; if inputs are given, this is
    an error.
    """
    from graphopt.cli.files.check_output_paths import check_file, check_folder, check_page

    if variants.bundle:
        planned = _plan_bundle(sources, output, dry_run=dry_run)
    else:
        planned = optimize_files.plan_files(
            sources,
            output,
            stdin=run.invocation.stdin,
            force=force,
            dry_run=dry_run,
            note=run.console.note,
        )
    run.invocation.watch([target for target in planned.targets if target is not None])
    check_file(report_path, [".json"])
    check_page(html)
    if html is not None and len(planned.sources) > 1:
        raise UsageError(
            "--html needs one model; several are given", hint="graphopt report MODEL writes its page"
        )
    check_folder(dump_dir)
    native = run.options.get("pipeline") == "native"
    request = variants.specialization()
    if request is not None and len(planned.sources) > 1:
        raise UsageError("--profile needs one model; several are given")
    extra = OptimizeOptions(
        **tuning_group.tuning_and_inputs(run, tuning, input_shapes, input_files),
        # stored results have full reports
        weigh_each=bool(run.settings.cache or run.verbose or run.console.as_json),
        command=run.invocation.command,
    )
    job = Job(run, extra, request, variants.bundle, dump_dir, html)
    if optimize_files.STDOUT in planned.targets:
        run.console.use_stderr()
        if native:
            raise UsageError("standard output can't contain the library of kernels", hint="-o FILE")
    with fresh_store(run.settings) if fresh_cache else nullcontext(run.settings) as run.settings:
        if len(planned.sources) > 1:
            batch = Batch(job, planned)
            with reporting(report_path, run, batch.output):
                batch.run()
            result = batch.output()
        else:
            with reporting(report_path, run, report_of_one(run, planned.sources[0])):
                result = _optimize_one(job, planned)
    return replace(result, report_file=report_path)


def _optimize_one(job: Job, planned: optimize_files.Plan) -> Output:
    """Optimize one model."""
    run, (source,), (target,) = job.run, planned.sources, planned.targets
    report, reuse = job.optimize(source, target, planned)
    text = () if run.console.quiet else optimization.text(run, report, reuse, target, planned)
    return Output(optimization.as_dict(run, source, target, report, reuse), text)


def _plan_bundle(words: tuple[Path, ...], output: str | None, *, dry_run: bool) -> optimize_files.Plan:
    """The models to read, and the folder for the bundle."""
    if output is None:
        output = str(words[1] if len(words) == 2 else words[0].with_suffix(".bundle"))
        words = words[:1]
    target = None if dry_run else specialization.bundle_folder(output)
    return optimize_files.Plan(words, (target,) * len(words), output=output)
