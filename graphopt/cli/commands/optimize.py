"""graphopt optimize: make models smaller and faster.

Most of its options are declared in :mod:`graphopt.optimize_options`; options of files and output are here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import publish
from graphopt.cli.files import optimize_files, reused_results
from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.option_groups import specialization
from graphopt.cli.options import option_relations, shared_options
from graphopt.cli.options.parameter_types import Seconds, Writes, writes
from graphopt.cli.output.command_output import Output
from graphopt.cli.output.error_messages import report_error
from graphopt.cli.views import optimization
from graphopt.errors import UsageError
from graphopt.optimize_options import OptimizeOptions
from graphopt.util.text_tables import counted, human_seconds

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.api import Report
    from graphopt.cli.files.reused_results import Reuse
    from graphopt.cli.output.console import Advance
    from graphopt.inputs.dim_bindings import Shape
    from graphopt.result_cache.stored_result import StoredReport, StoredResult
    from graphopt.specialization.build_variants import Specialization
    from graphopt.tuning.tuner import Tune

EXAMPLE = """
graphopt optimize model.onnx
graphopt optimize model.onnx -o out.onnx
graphopt optimize a.onnx b.onnx -o folder/ --exact
graphopt optimize model.onnx -o out.onnx --dim batch=4 --dim-range seq=1:512
graphopt optimize model.onnx -o out.onnx --passes dce,cse --report report.json
graphopt optimize model.onnx -o out.onnx -O3 --tune --budget 2m --input-shape x:1x64,8x64
graphopt optimize model.onnx -o out.onnx -O3 --strict-fusion /encoder/layer.0/attention/self/Softmax
graphopt optimize model.onnx -o out.onnx --fuser native
graphopt optimize decoder.onnx -o out.onnx --share-buffers past_key=present_key
graphopt optimize model.onnx -o out.onnx -O3 --profile profile.json
graphopt optimize model.onnx -o out.bundle -O3 --profile profile.json --emit bundle
"""


@dataclass(frozen=True)
class TuneValues:
    """The values of :data:`tune_options`."""

    tune: bool
    budget: float | None
    threads: int | None
    fresh: bool

    def of(self, grid: Sequence[dict[str, Shape]]) -> Tune | None:
        """The options of tuning for each of the sets of shapes in ``grid``, if tuning is requested."""
        if not self.tune:
            return None
        from graphopt.tuning.tuner import Tune

        budget = 60.0 if self.budget is None else self.budget
        return Tune(budget, self.threads, tuple(grid) if any(grid) else (), self.fresh)


tune_options = shared_options.values_of(
    TuneValues,
    "tuning",
    "Tuning",
    option_relations.option(
        "--tune",
        is_flag=True,
        excludes=("--stop-after",),
        hint="only whole results are tuned",
        help="Measure rewrites and session options, and keep those that make the model faster"
        " (docs/tune.md).",
    ),
    option_relations.option(
        "--budget",
        requires="--tune",
        type=Seconds(positive=True),
        metavar="TIME",
        help="Approximate measuring time, such as 60s or 2m; in less than about 35s, little is measured."
        " The comparison with IN adds up to half a minute.  [default: 60s]",
    ),
    shared_options.threads_option("one per core, and others are tried", requires="--tune"),
    option_relations.option(
        "--fresh", is_flag=True, requires="--tune", help="Measure again, even if the store has results."
    ),
)


@command_decorator.command(
    "optimize",
    example=EXAMPLE,
    everyday="-o -O --exact --fuser --dim --input-shape"
    " --input --target-opset --skip --report --dry-run --verify --device",
)
@shared_options.model_argument("sources", metavar="[IN...] [OUT]", several=True)
@shared_options.group(
    "Files",
    click.option(
        "-o",
        "--output",
        type=Writes(in_place=True),
        metavar="OUT|FOLDER|-",
        help="Write the result to this file, or to this folder under the name of IN.  [default: NAME.opt.onnx"
        " beside IN]",
    ),
    click.option("--dry-run", is_flag=True, help="Write no model; only report."),
    click.option(
        "--force",
        is_flag=True,
        help="Without -o: also replace a file that graphopt did not write.",
    ),
    click.option(
        "--report",
        "report_path",
        type=writes,
        metavar="FILE.json",
        help="Also write the report to this file.",
    ),
)
@shared_options.output_options
@shared_options.model_options
@shared_options.pipeline_options
@shared_options.of_section("Verification")
@shared_options.of_section("Cache")
@tune_options
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
    dump_dir: Path | None,
    tuning: TuneValues,
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
    from graphopt.cli.files.check_output_paths import check_file, check_folder

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
    check_file(report_path, [".json"])
    check_folder(dump_dir)
    native = run.options.get("pipeline") == "native"
    request = variants.specialization()
    if request is not None and len(planned.sources) > 1:
        raise UsageError("--profile needs one model; several are given")
    extra = _extra_options(run, tuning, input_shapes, input_files)
    job = _Job(run, extra, request, variants.bundle, dump_dir)
    if optimize_files.STDOUT in planned.targets:
        run.console.use_stderr()
        if native:
            raise UsageError("standard output can't contain the library of kernels", hint="-o FILE")
    if len(planned.sources) == 1:
        source, target = planned.sources[0], planned.targets[0]
        report, reuse = job.optimize(source, target, marks=planned.marks)
        text = () if run.console.quiet else optimization.text(run, report, reuse, target, planned)
        result = Output(optimization.as_dict(run, source, target, report, reuse), text)
    else:
        result = _optimize_all(job, planned)
    if report_path is not None:
        publish.write(report_path, result.json() + "\n")
    return result


def _plan_bundle(words: tuple[Path, ...], output: str | None, *, dry_run: bool) -> optimize_files.Plan:
    """The models to read, and the folder for the bundle."""
    if output is None:
        output = str(words[1] if len(words) == 2 else words[0].with_suffix(".bundle"))
        words = words[:1]
    target = None if dry_run else specialization.bundle_folder(output)
    return optimize_files.Plan(words, (target,) * len(words), output=output)


def _extra_options(
    run: Run, tuning: TuneValues, shapes: tuple[str, ...], files: tuple[str, ...]
) -> OptimizeOptions:
    """Options derived from several command-line options; only the first set of shapes is verified."""
    found = OptimizeOptions(
        weigh_each=bool(
            run.settings.cache or run.verbose or run.console.as_json
        ),  # reports are stored in full
        command=run.invocation.command,
    )
    if tuning.tune:
        from graphopt.inputs.shape_sets import parse_shape_sets

        grid: list[dict[str, Shape]] = parse_shape_sets(shapes)
        shapes = tuple(f"{name}:{','.join(map(str, shape))}" for name, shape in grid[0].items())
        found["tune"] = tuning.of(grid)
    if shapes or files:
        from graphopt.inputs.feeds import InputOptions

        found["inputs"] = InputOptions.parse(shapes, files, run.settings.seed)
    return found


@dataclass(frozen=True)
class _Job:
    """The optimization of each of the models.

    Attributes:
        run: the context of the command.
        extra: options derived from several command-line options.
        request: the profile for variants, if any.
        bundle: whether a bundle is written.
        dump_dir: the folder for the model after each pass.
    """

    run: Run
    extra: OptimizeOptions
    request: Specialization | None
    bundle: bool
    dump_dir: Path | None

    def optimize(
        self, source: Path, target: Path | None, *, marks: bool = False, several: bool = False
    ) -> tuple[Report | StoredReport, Reuse | None]:
        """Optimize one model and write it, unless ``target`` is ``None``."""
        run, begin = self.run, time.perf_counter()
        name = run.invocation.name_of(source)
        with run.console.progress(source.name if name == str(source) else name) as advance:
            advance(None, "loading")
            reuse = self._reuse(source, target, marks=marks)

            def waits() -> None:
                advance(None, "waiting for another process")

            with nullcontext() if reuse is None else reuse.found(waits) as stored:
                shown = f"  {source} → {target}" if marks and not several else None
                about = f"{name}: " if several else ""
                found: Report | StoredReport | None = None
                if stored is not None:
                    found = self._reused(stored, target, shown, about)
                if found is None:
                    if reuse is not None:
                        reuse.stored = None
                    found = self._built(source, target, reuse, advance, shown, about, marks=marks)
        spent = time.perf_counter() - begin if several else run.invocation.seconds
        return found.having(seconds={"all": spent}), reuse

    def _reuse(self, source: Path, target: Path | None, *, marks: bool) -> Reuse | None:
        """The use of the result cache, unless it is switched off."""
        if not self.run.settings.cache:
            return None
        obstacle = None
        if self.request is not None:
            obstacle = "variants for a profile are not stored"
        elif self.run.save_repro is not None or self.dump_dir is not None:
            name = "--dump-dir" if self.run.save_repro is None else "--save-repro"
            obstacle = f"the option {name} is given"
        options = OptimizeOptions(**{**self.run.options, **self.extra})
        return reused_results.Reuse.of(
            source, target, self.run.settings, options, marks=marks, obstacle=obstacle
        )

    def _reused(
        self, stored: StoredResult, target: Path | None, shown: str | None, about: str
    ) -> StoredReport | None:
        """Write a stored result; ``None`` if another process has removed it in the meantime."""
        run, begin = self.run, time.perf_counter()
        try:
            report = stored.report({})
        except (OSError, ValueError):
            return None
        if target is not None:
            write = reused_results.deliver(stored, target)
            if write is None:
                return None
            if shown is not None:
                run.console.note(shown)
            _write(run, target, (), write)
        for text, hint in report.warnings:
            run.console.warn(f"{about}{text}", hint)
        return report.having(seconds={"save": time.perf_counter() - begin})

    def _built(
        self,
        source: Path,
        target: Path | None,
        reuse: Reuse | None,
        advance: Advance,
        shown: str | None,
        about: str,
        *,
        marks: bool,
    ) -> Report:
        """Optimize a model, write the result, and store it for later runs."""
        from graphopt import ir
        from graphopt.cli.files.check_output_paths import check_representable
        from graphopt.cli.option_groups.instruments import Progress, instruments

        run, request = self.run, self.request
        more = OptimizeOptions(cache=False)  # the command itself uses the cache
        if run.save_repro is not None:
            more["save_repro"] = run.save_repro / source.stem if about else run.save_repro
        if target is not None:
            check_representable(source, target)
        more["instruments"] = [*instruments(self.dump_dir), Progress(advance)]
        compiler = run.compiler.having({**self.extra, **more})
        result = (
            compiler.optimize(source)
            if request is None
            else compiler.specialize(source, request, bundle=self.bundle)
        )
        report = result.report
        if shown is not None:
            run.console.note(shown)
        if result.model is not None:
            _check_guards(result.model, report)
            if marks:
                optimize_files.mark_as_optimized(result.model.metadata_props)
        advance(None, "writing")
        begin = time.perf_counter()
        new_bytes: int | None = None
        remarks: list[str] = []
        if target == optimize_files.STDOUT:
            assert result.model is not None
            new_bytes = _write_to_stdout(result.model)
        elif target is not None:
            write = partial(specialization.write, result, target, request)
            new_bytes, remarks = _write(run, target, report.libraries, write)
        seconds = time.perf_counter() - begin
        warnings = _warnings(report, has_profile=request is not None)
        for text, hint in warnings:
            run.console.warn(f"{about}{text}", hint)
        report = report.having(
            file_bytes=(report.file_bytes[0], new_bytes),
            other_form=target is not None and ir.codec_of(source) is not ir.codec_of(target),
        )
        if reuse is not None:
            failure = reuse.store(result.model, target, new_bytes or 0, report, warnings)
            if failure is not None:
                run.console.warn(f"{about}{failure}")
        return report.having(remarks=remarks, seconds={"save": seconds})


def _warnings(report: Report, *, has_profile: bool) -> list[tuple[str, str]]:
    """The warnings about a result, each with its hint or ``""``."""
    from graphopt.verification.verdict import INPUTS_HINT

    found, verdict = [], report.verdict
    if verdict is not None and verdict.unverifiable is not None:
        hint = INPUTS_HINT + (
            "" if has_profile else "; --profile FILE.json tries the shapes of recorded runs"
        )
        found.append((f"not verified: {verdict.unverifiable}", hint if verdict.lacks_inputs else ""))
    for reason, drops in groupby(report.dropped, lambda drop: drop.reason):
        found.append((f"dropped {', '.join(map(str, drops))}: {reason}", ""))
    return found


def _write(
    run: Run, target: Path, libraries: Sequence[str], write: Callable[[], list[Path]]
) -> tuple[int, list[str]]:
    """Write a result by ``write``, and its ``libraries``; returns its size in bytes, and remarks."""
    from graphopt.cli.files.check_output_paths import make_folder
    from graphopt.cli.files.write_kernel_libraries import library_of, remove_stale, writing

    if not target.parent.exists():
        make_folder(target.parent)
    library = library_of(target)
    remarks: list[str] = []
    with writing(libraries, library):
        written = write()
    if not target.is_dir() and not libraries and remove_stale(library):
        remarks.append(f"removed {library}, the kernels of the replaced model")
    return sum(run.invocation.wrote(written).values()), remarks


def _write_to_stdout(model: ir.Model) -> int:
    """Write ``model`` to standard output in one piece, external data included; returns its size in bytes."""
    from graphopt import ir

    data = ir.to_bytes(model)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return len(data)


def _check_guards(model: ir.Model, report: Report) -> None:
    """Raise a UsageError, before anything is written, if the result has new guards: no runtime runs them."""
    from graphopt.ops.graphopt_operators import GUARD, GUARD_DOMAIN, guards_of, type_checks_of

    if checks := type_checks_of(model):
        raise UsageError(
            f"the optimized model has {counted(len(checks), 'type check')} left, which no runtime supports",
            hint="let lower-fallbacks follow guard-groups",
        )
    count = len(guards_of(model))
    if count > report.original.ops.get(f"{GUARD_DOMAIN}::{GUARD}", 0):
        raise UsageError(
            f"the optimized model has {counted(count, 'guard')} left, which no runtime supports",
            hint="graphopt dump --pass-by-pass shows such models; leave out insert-guards to write one",
        )


def _optimize_all(job: _Job, planned: optimize_files.Plan) -> Output:
    """Optimize several models: prints a line for each as soon as it is written."""
    run = job.run
    results: list[dict[str, Any]] = []
    pairs = list(zip(planned.sources, planned.targets, strict=True))
    labels = [f"{one.name} → {to.name}" if planned.marks and to else one.name for one, to in pairs]
    status, width = 0, max(map(len, labels))
    for (source, target), label in zip(pairs, labels, strict=True):
        try:
            report, reuse = job.optimize(source, target, marks=planned.marks, several=True)
        except Exception as error:  # the remaining models are still optimized
            failure = report_error(
                error,
                debug=run.invocation.debug,
                kept=run.save_repro is not None,
                about=str(source),
                files=(str(source),),
                color=run.console.color,
            )
            status = max(status, failure.status)
            results.append({"source": str(source), "error": failure.to_dict()})
            continue
        found = optimization.as_dict(run, source, target, report, reuse)
        results.append(found)
        before, after = found["original"]["nodes"], found["optimized"]["nodes"]
        verified = optimization.brief_verdict(found["verification"])
        kernels = f"  {counted(len(found['kernels']), 'kernel')}" if found["kernels"] else ""
        cached = "  cached" if reuse is not None and reuse.stored is not None else ""
        took = human_seconds(report.seconds["all"])
        run.console.print(
            f"  {label:{width}}  {before:,} → {after:,} nodes{kernels}{verified}{cached}  {took}"
        )
    failed = sum("error" in result for result in results)
    summary = f"{counted(len(results) - failed, 'model')} optimized"
    text = [f"  {summary}, {failed} failed" if failed else f"  {summary}"]
    if planned.is_dry:
        text.append(f"  {optimization.how_to_write(run, planned)}")
    return Output({"models": results, "status": int(status)}, text, status=status)
