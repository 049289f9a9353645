"""graphopt compare: compare the inner tensors of two models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import resolve_options, shared_options
from graphopt.cli.options.parameter_types import Number, reads_model
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus, UsageError
from graphopt.verification.inner_tensors import comparison_text as views

EXAMPLE = """
graphopt compare model.onnx model.opt.onnx
graphopt compare model.onnx half.onnx --rtol 1e-2 --atol 1e-2
graphopt compare model.onnx --other-optimizations default
graphopt compare model.onnx --device cpu --other-device cuda
graphopt compare a.onnx b.onnx --input x:x.npy --json
graphopt compare a.onnx b.onnx --html differences.html
"""

_LEVELS = click.Choice(["off", "basic", "default"])


@command_decorator.command(
    "compare",
    example=EXAMPLE,
    everyday="--optimizations --other-optimizations --device --other-device --rtol --atol --input",
)
@click.argument("a", type=reads_model, metavar="A")
@click.argument("b", type=reads_model, metavar="[B]", required=False)
@shared_options.group(
    "Verification",
    click.option(
        "--rtol", type=Number(0), metavar="R", help="Tolerance as a share of the element, such as 1e-3."
    ),
    click.option(
        "--atol",
        type=Number(0),
        metavar="R",
        help="Tolerance as a share of the largest element, such as 1e-5.",
    ),
    click.option("--exact", is_flag=True, default=None, help="Require identical bits."),
    click.option("--fast-math", is_flag=True, default=None, help="Allow approximate results."),
)
@shared_options.dim_options
@shared_options.input_options
@shared_options.device_options
@shared_options.group(
    "Device",
    click.option("--other-device", metavar="cpu|cuda[:N]", help="Device of B.  [default: --device]"),
    click.option(
        "--optimizations",
        type=_LEVELS,
        default="off",
        help="Graph optimizations of onnxruntime.  [default: off]",
    ),
    click.option(
        "--other-optimizations",
        type=_LEVELS,
        help="Graph optimizations in the sessions of B.  [default: --optimizations]",
    ),
)
@shared_options.kernel_options
@shared_options.group(
    "Files",
    shared_options.html_option,
)
@shared_options.model_options
def command(
    run: Run,
    a: Path,
    b: Path | None,
    rtol: float | None,
    atol: float | None,
    other_device: str | None,
    optimizations: Any,
    other_optimizations: Any,
    kernels: bool,
    html: Path | None,
) -> Output:
    """Find the first tensor that departs between two models.

    Both run on the same inputs, each on its own inner values, in chunks of nodes to limit memory.
    Tensors are matched by name, and by the recorded original nodes of a result. Without B, the sessions of A
    are compared with those on another device, or with other optimizations of onnxruntime. Exit status 0 if no
    tensor departs, 1 otherwise.
    """
    from graphopt import api, publish
    from graphopt.cli.files.check_output_paths import check_page

    check_page(html)
    if b is None and other_device is None and other_optimizations in (None, optimizations):
        raise UsageError(
            f"nothing to compare {a} with",
            hint="add a model, --other-device or --other-optimizations",
        )
    other = a if b is None else b
    models = [api.load_model(path) for path in dict.fromkeys((a, other))]  # errors first
    device = resolve_options.chosen_device(run)
    with run.console.progress("comparing") as advance:
        libraries = resolve_options.libraries_of(run, models[-1], device, kernels, advance).paths
        found = run.compiler.compare(
            a,
            other,
            optimizations=optimizations,
            other_optimizations=other_optimizations,
            other_device=other_device,
            numerics=run.compiler.numerics,
            rtol=rtol,
            atol=atol,
            bits=run.settings.exact,
            libraries=libraries,
        )
    files = []
    if html is not None:
        from graphopt.compiler.page_source import page_source
        from graphopt.page.render import page_of

        source = page_source(
            run.compiler, models[0], models[-1], (str(a), str(other)), run.invocation.command
        )
        publish.write(html, page_of(replace(source, comparison=found)))
        files.append(f"  wrote     {html}")
    return Output(
        {"a": str(a), "b": str(other), **found.to_dict()},
        views.lines(found, (str(a), str(other)), everything=run.verbose > 0),
        status=ExitStatus.OK if found.is_equal else ExitStatus.VERIFICATION_FAILED,
        notes=[*views.notes(found), *files],
        record=run.record,
        is_verbose=run.verbose > 0,
    )
