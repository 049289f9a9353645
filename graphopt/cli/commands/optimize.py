"""graphopt optimize: make models smaller and faster."""

from __future__ import annotations

import json
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt import publish
from graphopt.cli import command_line, options, relations, specializing
from graphopt.cli.command_line import Run
from graphopt.cli.failure import tell
from graphopt.cli.parameters import Count, Seconds, Writes, reads_model, writes
from graphopt.errors import UsageError
from graphopt.tables import counted, human_seconds

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.api import Report
    from graphopt.runtime.inputs.bindings import Shape
    from graphopt.runtime.session_choice import SessionChoice
    from graphopt.tune.tuned import Tune

EXAMPLE = """
graphopt optimize model.onnx -o model.opt.onnx
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


@command_line.command("optimize", example=EXAMPLE)
@click.argument("sources", nargs=-1, required=True, type=reads_model, metavar="IN...")
@options.group(
    "Files",
    click.option(
        "-o",
        "--output",
        type=Writes(in_place=True),
        required=True,
        metavar="OUT|FOLDER",
        help="Where the result goes; in a folder, it is called like IN.",
    ),
    click.option(
        "--report", "report_path", type=writes, metavar="FILE.json", help="Write the report there too."
    ),
)
@options.output_options
@options.model_options
@options.pipeline_options
@options.version_options
@options.outcome_options
@options.verify_options
@options.group(
    "Verification",
    click.option(
        "--strict-fusion",
        multiple=True,
        metavar="SCOPE",
        help="With -O3 or --fuser native: fail unless this node, or all nodes whose names begin so, are one"
        " fused operator, or one kernel.",
    ),
    click.option(
        "--strict",
        is_flag=True,
        help="Fail if the result differs; by default the rewrite at fault is dropped.",
    ),
)
@options.group(
    "Tuning",
    relations.option(
        "--tune",
        is_flag=True,
        excludes=("--stop-after",),
        hint="only whole results are tuned",
        help="Measure what rewrites and session options give; keep those that pay (docs/tune.md).",
    ),
    relations.option(
        "--budget",
        goes_with="--tune",
        type=Seconds(positive=True),
        metavar="TIME",
        help="Measure for about so long, such as 60s or 2m; the comparison with IN, which is made in any"
        " case, takes up to half a minute more; less than about 35s leaves little time for anything else."
        "  [default: 60s]",
    ),
    relations.option(
        "--threads",
        goes_with="--tune",
        type=Count(1),
        help="Threads in one operator while measuring.  [default: one a core, and others are tried]",
    ),
    relations.option(
        "--fresh", is_flag=True, goes_with="--tune", help="Measure anew, though the store has it."
    ),
)
@specializing.specialize_options
@options.dim_options
@options.input_options
@options.device_options
@options.watch_options
def command(run: Run, sources: tuple[Path, ...], output: str, report_path: Path | None, **values: Any) -> int:
    """Make models smaller and faster.

    The result computes the same and is called the same: it is compared with the original, and
    written only if they agree. If they do not, the rewrite at fault is looked for, told and left
    out; exit status 1 if that does not help. Several models go into a folder. Where IN itself does
    not run, the result is not verified, and a warning says so; where the inputs are given, that is
    an error.
    """
    from graphopt.cli.outputs import check_file, check_folder

    bundled = values["emit"] == "bundle" and values["profile"] is not None
    targets = [specializing.bundle_folder(output)] if bundled else _targets(sources, output)
    check_file(report_path, [".json"])
    check_folder(values["dump_dir"])
    fuser = values["fuser"]
    arguments = _arguments(run, values)
    if arguments["specialize"] is not None:
        if len(sources) > 1:
            raise UsageError("a profile is of one model, and several are given")
        if fuser == "native":
            raise UsageError(
                "variants for a profile have no kernels of their own: --fuser native goes without --profile",
                hint="an executor compiles some for what comes: graphopt run MODEL --inputs … --fuser native",
            )
    if len(sources) == 1:
        report = _optimize(run, sources[0], targets[0], arguments)
        told = run.console.as_json or report_path is not None
        result = _result(sources[0], targets[0], report) if told else {}
        status = 0
        _print(run, report, targets[0])
    else:
        result, status = _optimize_all(run, sources, targets, arguments)
    run.console.json(result)
    if report_path is not None:
        _write_report(report_path, result)
    return status


def _targets(sources: tuple[Path, ...], output: str) -> list[Path]:
    """Where each result goes."""
    from graphopt import ir
    from graphopt.cli.outputs import check_file, check_folder, check_model_file

    path = Path(output)
    if len(sources) == 1 and not path.is_dir() and not output.endswith("/"):
        check_model_file(path, *sources)
        return [path]
    if path.suffix in ir.SUFFIXES and not path.exists() and not output.endswith("/"):
        raise UsageError(
            f"{counted(len(sources), 'model')} can't go into the file {path}",
            hint=f"name a folder, or write {path}/ if that is to be one",
        )
    targets = [path / source.name for source in sources]
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise UsageError(f"two of the models would be written to {twice}")
    check_folder(path)
    for target in targets if path.is_dir() else ():
        check_file(target)
    return targets


def _arguments(run: Run, values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of :func:`graphopt.api.optimize` that are not settings."""
    tune = _tune(values)
    specialize = specializing.requested(values)
    inputs = options.given_inputs(run, values)
    pipeline = options.chosen_pipeline(values)
    weigh = bool(run.verbose or run.console.as_json)
    command = run.invocation.command
    return {
        **values,
        "inputs": inputs,
        "tune": tune,
        "pipeline": pipeline,
        "weigh_each": weigh,
        "share_buffers": _shared_buffers(values["share_buffers"]),
        "specialize": specialize,
        "command": command,
    }


def _shared_buffers(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The pairs of input and output that ``--share-buffers`` names."""
    if not texts:
        return ()
    from graphopt.passes.check_aliasing import pairs_of

    return pairs_of(texts)


def _tune(values: dict[str, Any]) -> Tune | None:
    """How to tune, if that is asked for; takes what says so out of ``values``.

    Of several shapes, the first stays there: the result is verified with it.
    """
    tune, budget, threads, fresh = (values.pop(key) for key in ("tune", "budget", "threads", "fresh"))
    if not tune:
        return None
    from graphopt.runtime.inputs.shape_grids import parse_grid
    from graphopt.tune.tuned import Tune

    grid: list[dict[str, Shape]] = parse_grid(values["input_shapes"])
    values["input_shapes"] = tuple(f"{name}:{','.join(map(str, shape))}" for name, shape in grid[0].items())
    return Tune(60.0 if budget is None else budget, threads, tuple(grid) if any(grid) else (), fresh)


def _optimize(
    run: Run, source: Path, target: Path, arguments: dict[str, Any], *, several: bool = False
) -> Report:
    """Optimize one model and write it."""
    from graphopt import api, ir
    from graphopt.cli.console import warn_unverified
    from graphopt.cli.libraries import library_of, remove_stale, writing
    from graphopt.cli.outputs import check_told, make_folder
    from graphopt.cli.watching import Progress, instruments
    from graphopt.runtime.oracle.verdict import INPUTS_HINT

    arguments = dict(arguments)
    watchers = instruments(run, arguments)
    if run.save_repro is not None:
        arguments["save_repro"] = run.save_repro / source.stem if several else run.save_repro
    begin = time.perf_counter()
    with run.console.progress(source.name) as advance:
        advance(None, "loading")
        check_told(source, target)
        arguments["instruments"] = [*watchers, Progress(advance)]
        asked: specializing.Request | None = arguments.pop("specialize")
        made = api.optimize(source, **arguments) if asked is None else asked.run(source, arguments)
        report = made.report
        if made.model is not None:
            _check_guards(made.model, report)
        advance(None, "writing")
        before_save = time.perf_counter()
        if not target.parent.exists():
            make_folder(target.parent)
        library = library_of(target)
        with writing(report.libraries, library):
            written = specializing.write(made, target, asked)
        if asked is None and not report.libraries and remove_stale(library):
            report.remarks.append(f"removed {library}, the kernels of what was here before")
    sizes = run.invocation.wrote(written)
    end = time.perf_counter()
    about = f"{source}: " if several else ""
    if report.verdict is not None:
        hint = INPUTS_HINT + ("" if asked else "; --profile FILE.json tries the shapes of recorded runs")
        warn_unverified(report.verdict, about, hint)
    for reason, drops in groupby(report.dropped, lambda drop: drop.reason):
        click.echo(f"graphopt: warning: {about}dropped {', '.join(map(str, drops))}: {reason}", err=True)
    report.seconds |= {"save": end - before_save, "all": end - begin if several else run.invocation.seconds}
    report.file_bytes = (report.file_bytes[0], sum(sizes.values()))
    report.other_form = ir.form_of(source) is not ir.form_of(target)
    return report


def _check_guards(model: ir.Model, report: Report) -> None:
    """No runtime knows guards; where there are some that the original did not have, nothing is written."""
    from graphopt.ops.guards import DOMAIN, GUARD, guards_of

    count = len(guards_of(model))
    if count > report.original.ops.get(f"{DOMAIN}::{GUARD}", 0):
        raise UsageError(
            f"the optimized model has {counted(count, 'guard')} left, and no runtime knows them",
            hint="graphopt dump --pass-by-pass shows such models; leave out insert-guards to write one",
        )


def _optimize_all(
    run: Run, sources: tuple[Path, ...], targets: list[Path], arguments: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """Optimize several models: a line for each, and the worst exit status."""
    from graphopt.instrument.report import not_verified

    results: list[dict[str, Any]] = []
    status, width = 0, max(len(source.name) for source in sources)
    for source, target in zip(sources, targets, strict=True):
        try:
            report = _optimize(run, source, target, arguments, several=True)
        except Exception as error:  # the others are optimized all the same
            failure = tell(
                error,
                debug=run.invocation.debug,
                kept=run.save_repro is not None,
                about=str(source),
                files=(str(source),),
            )
            status = max(status, failure.status)
            results.append({"source": str(source), "error": failure.to_dict()})
            continue
        results.append(_result(source, target, report))
        before, after = report.original.nodes, report.optimized.nodes
        verified = ""
        if report.verdict is not None:
            why = report.verdict.unverifiable
            verified = "  verified" if why is None else f"  {not_verified(report.verdict)}"
        kernels = f"  {counted(len(report.kernels), 'kernel')}" if report.kernels else ""
        took = human_seconds(report.seconds["all"])
        run.console.print(f"  {source.name:{width}}  {before:,} → {after:,} nodes{kernels}{verified}  {took}")
    failed = sum("error" in result for result in results)
    summary = f"{counted(len(results) - failed, 'model')} optimized"
    run.console.print(f"  {summary}, {failed} failed" if failed else f"  {summary}")
    return {"models": results, "status": int(status)}, status


def _choice(report: Report) -> SessionChoice | None:
    """The session options that tuning recommends."""
    return None if report.tuning is None else report.tuning.choice


def _result(source: Path, target: Path, report: Report) -> dict[str, Any]:
    told = {"source": str(source), "target": str(target), **report.to_dict()}
    if not report.libraries:
        return {**told, "library": None}
    from graphopt.cli.libraries import library_of

    return {**told, "library": str(library_of(target)), "session": _session(report, target) or None}


def _session(report: Report, target: Path) -> list[str]:
    """How a program runs the result with its library; none where onnxruntime does not read such files."""
    from graphopt import ir
    from graphopt.cli.libraries import library_of
    from graphopt.fusion.inventory import session_lines

    if ir.form_of(target) is not ir.FileForm.ONNX:
        return []
    return list(session_lines(target, library_of(target), _choice(report)))


def _print(run: Run, report: Report, target: Path) -> None:
    if run.console.quiet:
        return
    for line in report.lines(run.verbose, warned=True):
        run.console.print(line)
    run.console.print(f"  wrote     {target}   {human_seconds(report.seconds['all'])} in all")
    if report.libraries:
        from graphopt.cli.libraries import library_of

        run.console.print(
            f"  wrote     {library_of(target)}   kernels; without it, onnxruntime runs their nodes"
        )
        lines = _session(report, target)
        for line in lines or [f"for onnxruntime, graphopt convert {target} makes a .onnx file of the model"]:
            run.console.print(f"              {line}")


def _write_report(path: Path, result: dict[str, Any]) -> None:
    publish.write(path, json.dumps(result, indent=2, ensure_ascii=False, default=str) + "\n")
