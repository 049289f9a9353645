"""Groups of options that look the same in every command; ``option_values`` reads their values.

Options that are settings too are ``None`` unless they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from graphopt.cli import completion, relations, sample
from graphopt.cli.command_line import Function, Invocation
from graphopt.cli.parameters import (
    Count,
    ReadsArrays,
    Seconds,
    Size,
    reads_model,
    split_names,
    split_some,
    writes,
)
from graphopt.util.coerce import parse_ranges, parse_sizes


def parsed_by(
    parse: Callable[[Iterable[str]], dict[str, Any]],
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, Any]]:
    """A callback of an option that turns its texts into a dict by ``parse``."""
    return lambda context, parameter, texts: parse(texts)


def group(title: str, *options: Function) -> Function:
    """One decorator out of several options, which the help lists under ``title``."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        for parameter in function.__click_params__[-len(options) :]:  # type: ignore[attr-defined]
            parameter.section = title
        return function

    return decorate


def model_argument(name: str = "model", *, metavar: str = "[MODEL]", several: bool = False) -> Function:
    """The model that a command reads; where none is given, the sample model.

    Args:
        name: of the parameter.
        metavar: its name in the help.
        several: any number of models.
    """

    def or_sample(context: click.Context, param: click.Parameter, value: Any) -> Any:
        if value or context.resilient_parsing:
            return value
        context.ensure_object(Invocation).names[str(sample.PATH)] = sample.NAME
        return (sample.PATH,) if several else sample.PATH

    return click.argument(
        name,
        nargs=-1 if several else 1,
        required=False,
        type=reads_model,
        metavar=metavar,
        callback=or_sample,
    )


model_options = group(
    "Files",
    click.option(
        "--allow-external",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FOLDER",
        help="Accept external data from this folder, besides the model's own.",
    ),
)

output_options = group(
    "Files",
    click.option(
        "--external-data/--no-external-data",
        default=None,
        help="Store weights in a separate file.  [default: as in the input]",
    ),
)

#: The answer to a fuser beside another choice of passes.
FUSER_HINT = (
    "a fuser chooses the passes: none and ort those of -O2, builtin those of -O3, native those of -O3 and"
    " fuse-groups, which other pipelines may name"
)
_ONE_PIPELINE = "--skip leaves out passes; --pre-pass and --post-pass add some at the ends"


def fuser_option(*, default: str = "", **relation: Any) -> Function:
    """``--fuser``, in ``relation`` to other options (:class:`graphopt.cli.relations.Option`).

    Args:
        default: its default value, for the help.
    """
    meaning = (
        "Who fuses operators: ort (only onnxruntime, as -O2), builtin (also graphopt, as -O3), native (as"
        " builtin, and with compiled kernels: docs/kernels.md), or none (as ort, but executors also turn"
        " onnxruntime's fusions off)."
    )
    decorator: Function = relations.option(
        "--fuser",
        type=click.Choice(["none", "ort", "builtin", "native"]),
        help=f"{meaning}  [default: {default}]" if default else meaning,
        **relation,
    )
    return decorator


skip_option = click.option(
    "--skip",
    shell_complete=completion.passes_and_rules,
    multiple=True,
    callback=split_names,
    metavar="A,B",
    help="Leave out these passes, rules or families of rules.",
)

portable_option = click.option(
    "--portable",
    is_flag=True,
    default=None,
    help="With -O3: only operators of the ONNX standard, none of onnxruntime's own.",
)

log_option = click.option(
    "--log",
    shell_complete=completion.log_spec,
    metavar="SPEC",
    help="Log passes or rule files: dce:>peephole:>>transpose.",
)

stop_option = click.option(
    "--stop-after", type=Count(0), metavar="N", help="Stop after the first N rewrites."
)

pager_option = click.option(
    "--pager/--no-pager", default=True, help="Page long output on a terminal with $PAGER."
)


def wrt_option(*, default: str, **relation: Any) -> Function:
    """``--wrt``, in ``relation`` to other options (:class:`graphopt.cli.relations.Option`)."""
    decorator: Function = relations.option(
        "--wrt",
        default=(default,),
        multiple=True,
        metavar="params|inputs|all|NAMES",
        help="Differentiate with respect to parameters, inputs, both (all), or comma-separated names."
        f"  [default: {default}]",
        **relation,
    )
    return decorator


def threads_option(shown: str, **relation: Any) -> Function:
    """``--threads``, whose help shows the default as ``shown``."""
    decorator: Function = relations.option(
        "--threads", type=Count(1), help=f"Threads per operator.  [default: {shown}]", **relation
    )
    return decorator


#: The destination of a command that always writes a model.
model_output = group(
    "Files",
    click.option(
        "-o", "--output", type=writes, required=True, metavar="OUT", help="Write the model to this file."
    ),
)

pipeline_options = group(
    "Passes",
    click.option(
        "-O",
        "level",
        type=click.Choice(["0", "1", "2", "3"]),
        help="Preset: 0 (no rewrites), 1 (bit-exact), 2 (sums may be reordered), 3 (fused operators too)."
        "  [default: 2]",
    ),
    relations.option(
        "--pipeline",
        shell_complete=completion.pipeline_text,
        metavar="NAME|TEXT",
        excludes=("-O",),
        hint=_ONE_PIPELINE,
        help="A named pipeline, or text such as dce,fixpoint(cse,dce).",
    ),
    relations.option(
        "--passes",
        shell_complete=completion.passes,
        multiple=True,
        callback=split_some,
        metavar="A,B",
        excludes=("-O", "--pipeline"),
        hint=_ONE_PIPELINE,
        help="Run only these passes, in order.",
    ),
    fuser_option(excludes=("--pipeline", "--passes"), hint=FUSER_HINT),
    skip_option,
    click.option(
        "--only",
        shell_complete=completion.rules,
        multiple=True,
        callback=split_some,
        metavar="A,B",
        help="Apply only these rewrite rules or families of rules.",
    ),
    click.option(
        "--exact",
        is_flag=True,
        default=None,
        help="Apply only bit-exact rewrites (docs/cli.md, also about kernels that pack constants).",
    ),
    click.option("--fast-math", is_flag=True, default=None, help="Also apply approximate rewrites."),
    portable_option,
    click.option(
        "--fold-limit",
        type=Size(),
        metavar="SIZE",
        help="Maximum size of a folded constant, whatever it replaces.  [default: 64KiB]",
    ),
    click.option(
        "--time-limit",
        type=Seconds(),
        metavar="TIME",
        help="Time limit of constant folding and inference together; the rest is left as it is."
        "  [default: 60s]",
    ),
    click.option(
        "--memory-limit",
        type=Size(),
        metavar="SIZE",
        help="Memory limit of constant folding, and of risky runs during verification.  [default: 2GiB]",
    ),
    click.option(
        "--pre-pass",
        "pre_passes",
        shell_complete=completion.passes,
        multiple=True,
        metavar="PASS",
        help="Run this first: a pass, module:Class or module:rule.",
    ),
    click.option(
        "--post-pass",
        "post_passes",
        shell_complete=completion.passes,
        multiple=True,
        metavar="PASS",
        help="Run this last: a pass, module:Class or module:rule.",
    ),
)

dim_options = group(
    "Inputs",
    click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar="NAME=SIZE",
        callback=parsed_by(parse_sizes),
        help="Fix a dynamic dim, or the axis INPUT@AXIS, to this size.",
    ),
    click.option(
        "--dim-range",
        "dim_ranges",
        multiple=True,
        metavar="NAME=FIRST:LAST",
        callback=parsed_by(parse_ranges),
        help="Assume that a dynamic dim lies within this range.",
    ),
)

version_options = group(
    "Passes",
    click.option(
        "--target-opset",
        type=Count(1),
        metavar="N",
        help="Convert the model to this version of the ai.onnx opset.",
    ),
)

#: What is written besides, and what it has to suit.
outcome_options = group(
    "Passes",
    click.option(
        "--strip-docs", is_flag=True, help="Remove doc strings and exporters' metadata (docs/cli.md)."
    ),
    click.option(
        "--share-buffers",
        multiple=True,
        metavar="IN=OUT",
        help="Fail unless this output may safely be written over this input.",
    ),
)

watch_options = group(
    "Watching",
    log_option,
    click.option(
        "--dump-dir", type=writes, metavar="FOLDER", help="Write the model after each pass that changed it."
    ),
    click.option("--validate-each", is_flag=True, help="Check that the model is valid after each pass."),
    click.option(
        "--verify-each", is_flag=True, help="Compare the results with the original's after each pass."
    ),
    stop_option,
)

verify_options = group(
    "Verification",
    click.option(
        "--verify/--no-verify", default=None, help="Compare the result with the original.  [default: verify]"
    ),
    click.option(
        "--require-verified",
        is_flag=True,
        default=None,
        help="Write nothing, and fail, if the original does not run and can't be compared.",
    ),
)

input_options = group(
    "Inputs",
    click.option(
        "--input",
        "input_files",
        type=ReadsArrays(),
        multiple=True,
        metavar="NAME:FILE.npy|FILE.npz",
        help="Feed these arrays instead of generated ones.",
    ),
    click.option(
        "--input-shape",
        "input_shapes",
        multiple=True,
        metavar="NAME:1x3x224x224",
        help="Shape of a generated input.",
    ),
    click.option(
        "--seed", type=Count(0, 2**63 - 1), metavar="N", help="Seed of generated inputs.  [default: 0]"
    ),
)

device_options = group(
    "Device",
    click.option(
        "--device",
        shell_complete=completion.devices,
        metavar="auto|cpu|cuda[:N]",
        help="Device that models run on.  [default: auto]",
    ),
    click.option(
        "--allow-fallback",
        is_flag=True,
        default=None,
        help="Run on the CPU if the device can't be used, instead of failing.",
    ),
)

#: For commands that run no model, but choose for one device or another.
target_options = group(
    "Passes",
    click.option(
        "--device",
        shell_complete=completion.devices,
        metavar="auto|cpu|cuda[:N]",
        help="Device that the result is for, present or not: decides which fused operators pay off."
        "  [default: auto]",
    ),
)

session_options = group(
    "Device",
    click.option(
        "--session-options/--no-session-options",
        default=True,
        help="Use the session options that the model recommends (docs/tune.md).  [default: use them]",
    ),
)

kernel_options = group(
    "Device",
    click.option(
        "--kernels/--no-kernels",
        default=True,
        help="Build kernels for native groups, and run them (docs/kernels.md).  [default: kernels]",
    ),
)
