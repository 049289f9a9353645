"""graphopt verify: compare two models by running them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.options.parameter_types import reads_model
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus, UsageError
from graphopt.util.text_tables import Block, Line, Table, counted

if TYPE_CHECKING:
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.verification.verdict import Verdict

EXAMPLE = """
graphopt verify model.onnx model.opt.onnx
graphopt verify a.onnx b.onnx --exact
graphopt verify a.onnx b.onnx --input-shape x:4x3x64x64
graphopt verify a.onnx b.onnx --dim batch=4
graphopt verify model.onnx model.gopt
graphopt verify model.gopt
"""


@command_decorator.command(
    "verify",
    example=EXAMPLE,
    everyday="--exact --fast-math --signature --dim --dim-range --input --input-shape --seed"
    " --device --kernels",
)
@click.argument("original", type=reads_model, metavar="A")
@click.argument("candidate", type=reads_model, metavar="B", required=False)
@shared_options.group(
    "Verification",
    click.option(
        "--exact",
        is_flag=True,
        default=None,
        help="Require identical bits when onnxruntime's optimizations are off.",
    ),
    click.option("--fast-math", is_flag=True, default=None, help="Allow approximate results."),
    click.option("--signature/--no-signature", default=True, help="Require identical signatures."),
)
@shared_options.dim_options
@shared_options.input_options
@shared_options.device_options
@shared_options.kernel_options
@shared_options.trusted_option
@shared_options.model_options
def command(
    run: Run, original: Path, candidate: Path | None, signature: bool, kernels: bool, trusted: bool
) -> Output:
    """Check that model B computes the same as model A.

    Both models run on several sizes of every dynamic dim and several kinds of numbers, with onnxruntime's
    optimizations off and at its defaults. Exit status 1 if they differ, or if A does not run and nothing
    could be compared. In a bundle, each variant is compared with A on inputs that its guard accepts, and the
    general model on all inputs. If B has native groups, B runs without their kernels and with them. A bundle
    alone is checked: its files, its target, and a session of each of its models.
    """
    from graphopt import api
    from graphopt.instrument.report import verdict_dict
    from graphopt.ir.signature import Signature, fixed_dims
    from graphopt.specialization.bundle.loaded_bundle import Bundle
    from graphopt.verification.verdict import INPUTS_HINT

    resolve_options.check_trusted(original if candidate is None else candidate, trusted=trusted)
    if candidate is None:
        return _check_bundle(run, original, trusted=trusted, kernels=kernels)
    if api.is_bundle(candidate):
        bundle = Bundle(candidate, trusted=trusted, kernels=kernels)
        return _verify_bundle(run, original, bundle, signature=signature)
    loaded = [api.load_model(path) for path in (original, candidate)]  # errors first
    device = resolve_options.chosen_device(run)
    with run.console.progress("verifying") as advance:
        libraries = resolve_options.libraries_of(run, loaded[1], device, kernels, advance).paths
        verdict = run.compiler.verify(
            original,
            candidate,
            numerics=run.compiler.numerics,
            signature=signature,
            bits=run.settings.exact,
            libraries=libraries,
        )
    notes = [f"hint: {INPUTS_HINT}"] if verdict.lacks_inputs else []
    fixed = {} if verdict.ok else fixed_dims(*map(Signature.of, loaded))
    if fixed and "dims" not in run.options:
        dims = " ".join(f"--dim {name}={size}" for name, size in fixed.items())
        notes.append(f"hint: {dims} compares the models at the sizes that {candidate} supports")
    equal = verdict.ok and verdict.unverifiable is None
    status = ExitStatus.OK if equal else ExitStatus.VERIFICATION_FAILED
    text = _text(verdict, run.verbose)
    return Output(
        verdict_dict(verdict), text, status=status, notes=notes, record=run.record, is_verbose=run.verbose > 0
    )


def _check_bundle(run: Run, path: Path, *, trusted: bool, kernels: bool) -> Output:
    """Check the files, the target and the sessions of a bundle."""
    from graphopt import api
    from graphopt.specialization.bundle.loaded_bundle import Bundle

    if not api.is_bundle(path):
        api.load_model(path)  # a path that names neither is another error
        raise UsageError(
            f"verify compares two models, and only {path} is given",
            hint="graphopt verify MODEL RESULT; a bundle is checked alone",
        )
    resolve_options.check_idle(["Verification", "Inputs"], "needs a model to compare with", "leave it out")
    bundle = Bundle(path, trusted=trusted, kernels=kernels)
    sums = bundle.manifest.sums
    table = Table(["file", "bytes", "SHA-256", ""], "<><<")
    for file, size in bundle.sizes.items():
        known = file in sums
        table.add(
            file, f"{size:,}", sums[file].sha256[:16] if known else "", "correct" if known else "unknown"
        )
    run.console.print(table)
    for name in bundle.names:
        with run.console.progress(f"loading {name}"):
            bundle.session(name)
    counts = f"{counted(len(sums), 'file')} correct, {counted(len(bundle.names), 'model')} loaded"
    return Output(
        {
            "path": str(path),
            "files": {
                file: {"bytes": size, "sha256": sums[file].sha256 if file in sums else None}
                for file, size in bundle.sizes.items()
            },
            "checked": bundle.check(),
            "models": bundle.names,
            "device": str(bundle.device),
        },
        [f"  {counts} on {bundle.device}"],
        notes=[f"  {remark}" for remark in bundle.remarks],
    )


def _verify_bundle(run: Run, original: Path, bundle: Bundle, *, signature: bool) -> Output:
    """Compare variants with the original where their guards hold, and the general model on all inputs."""
    from graphopt import api
    from graphopt.compiler.run_and_compare import verify_models
    from graphopt.instrument.report import verdict_dict, verdict_lines

    found = {}
    compared = verify_models(
        run.compiler,
        api.load_model(original),
        bundle,
        numerics=run.compiler.numerics,
        signature=signature,
        bits=run.settings.exact,
    )
    for expected in bundle.names:
        with run.console.progress(f"verifying {expected}"):
            name, verdict = next(compared)
        found[name] = verdict
        run.console.print(Line(f"  {name}", "title"), *verdict_lines(verdict))
    equal = all(verdict.ok and verdict.unverifiable is None for verdict in found.values())
    return Output(
        {"equal": equal, "variants": {name: verdict_dict(verdict) for name, verdict in found.items()}},
        status=ExitStatus.OK if equal else ExitStatus.VERIFICATION_FAILED,
    )


def _text(verdict: Verdict, verbose: int) -> Iterator[Block]:
    from graphopt.instrument.report import verdict_lines

    yield from verdict_lines(verdict)
    for change in verdict.signature[1:]:
        yield f"  the interface changed: {change}"
    rows = verdict.rows if verbose else verdict.failures[:10]
    if rows:
        table = Table(["", "shapes", "inputs", "optimizations", "max |Δ|", "output", ""], "<<<<><<")
        for row in rows:
            equal = "rounding" if row.excused else "identical" if row.identical else "equal"
            level = f"{row.level}, library" if row.libraries else row.level
            delta = "–" if row.delta is None else f"{row.delta:.1e}"
            mark = equal if row.ok else "differs"
            table.add(mark, row.binding, row.distribution, level, delta, row.output, row.reason or "")
        yield table
    for skipped in verdict.skipped if verbose else ():
        yield f"  skipped: {skipped}"
