"""Options of the command line that several commands share.

Most are created from the table :data:`graphopt.optimize_options.OPTIONS`. Their values are stored in
:attr:`graphopt.cli.invocation.Run.options`; the function of a command does not receive them as arguments.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import click

from graphopt.cli.files import sample_model
from graphopt.cli.invocation import Invocation
from graphopt.cli.options import completion_values, cuda_flags, option_relations, weight_options
from graphopt.cli.options.parameter_types import (
    Count,
    ReadsArrays,
    reads_model,
    split_some,
    writes,
    writes_file,
)
from graphopt.cli.options.table_options import Decorator, Function, TableOption, table_option
from graphopt.optimize_options import OPTIONS


def group(title: str, *options: Decorator) -> Decorator:
    """Combine several options into one decorator; the help lists them under ``title``."""

    def decorate(function: Function) -> Function:
        for one in reversed(options):
            function = one(function)
        for parameter in function.__click_params__[-len(options) :]:  # type: ignore[attr-defined]
            parameter.section = title
        return function

    return decorate


def values_of(kind: type, name: str, title: str, *options: Decorator) -> Decorator:
    """As :func:`group`, but the command receives one argument ``name`` of the dataclass ``kind``."""
    keys = [field.name for field in dataclasses.fields(kind)]

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(run: Any, **values: Any) -> Any:
            return function(run, **{name: kind(**{key: values.pop(key) for key in keys})}, **values)

        return group(title, *options)(call)

    return decorate


def of_section(title: str, *first: Decorator) -> Decorator:
    """The options of the table that are listed under ``title``, below the options ``first``."""
    names = [name for name, opt in OPTIONS.items() if opt.section == title]
    return group(title, *first, *map(table_option, names))


def named(title: str, *names: str) -> Decorator:
    """The options ``names`` of the table, listed under ``title``."""
    return group(title, *map(table_option, names))


def model_argument(name: str = "model", *, metavar: str = "[MODEL]", several: bool = False) -> Decorator:
    """The argument for a model to read; by default the sample model.

    Args:
        name: name of the parameter.
        metavar: its name in the help.
        several: accept any number of models.
    """

    def or_sample(context: click.Context, param: click.Parameter, value: Any) -> Any:
        if value or context.resilient_parsing:
            return value
        context.ensure_object(Invocation).names[str(sample_model.PATH)] = sample_model.NAME
        return (sample_model.PATH,) if several else sample_model.PATH

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
        help="Also accept external data from this folder.",
    ),
)


output_options = group("Files", *weight_options.OPTIONS)

#: For commands whose results record their settings.
record_option = named("Files", "record_settings")

#: For commands that read results of ``optimize``, which may contain the lineage of their nodes.
provenance_option = named("Files", "provenance")

#: The hint for a fuser that is combined with another choice of passes.
FUSER_HINT = (
    "a fuser selects a pipeline: -O2 for none and ort, -O3 for builtin, -O3 with fuse-groups for native;"
    " other pipelines may contain fuse-groups, too"
)
_ONE_PIPELINE = "--skip omits passes; --pre-pass and --post-pass add passes at the ends"


def fuser_option(*, default: str = "", **relation: Any) -> Decorator:
    """``--fuser``, with its ``relation`` (:class:`graphopt.cli.options.option_relations.Option`).

    Args:
        default: its default value, for the help.
    """
    meaning = OPTIONS["fuser"].help
    decorator: Decorator = option_relations.option(
        "--fuser",
        type=click.Choice(["none", "ort", "builtin", "native"]),
        help=f"{meaning}  [default: {default}]" if default else meaning,
        **relation,
    )
    return decorator


def watch_option(default: str, **relation: Any) -> Decorator:
    """``--watch``, whose help shows its default value."""
    decorator: Decorator = option_relations.option(
        "--watch",
        type=click.Choice(["inputs", "shapes", "all"]),
        help="Profile inputs, also inner values with data-dependent shapes, or all values."
        f"  [default: {default}]",
        **relation,
    )
    return decorator


def watch_limit_option(default: int | None = None, **relation: Any) -> Decorator:
    """``--watch-limit``."""
    decorator: Decorator = option_relations.option(
        "--watch-limit",
        type=Count(0),
        metavar="N",
        default=default,
        help="Maximum number of inner values to record.  [default: 1024]",
        **relation,
    )
    return decorator


log_option = click.option(
    "--log",
    shell_complete=completion_values.log_spec,
    metavar="SPEC",
    help="Log passes, rule files or created graphs: dce:>peephole:>>transpose:forward-graph.",
)

report_option = click.option(
    "--report",
    "report_path",
    type=writes_file,
    metavar="FILE.json",
    help="Also write the report to this file.",
)

#: The help of ``--html`` in all commands.
HTML_HELP = "Also write a page with the results."

#: ``--html`` of commands that describe their results by a page.
html_option = click.option("--html", type=writes_file, metavar="FILE.html", help=HTML_HELP)

#: ``--log`` of commands that have no other options of this kind.
log_options = group("Watching", log_option)

pager_option = click.option(
    "--pager/--no-pager", default=True, help="Page long output on a terminal with $PAGER."
)


def wrt_option(*, default: str, **relation: Any) -> Decorator:
    """``--wrt``, with its ``relation`` (:class:`graphopt.cli.options.option_relations.Option`)."""
    decorator: Decorator = option_relations.option(
        "--wrt",
        default=(default,),
        multiple=True,
        metavar="params|inputs|all|NAMES",
        help="Differentiate with respect to parameters, inputs, both (all), or comma-separated names."
        f"  [default: {default}]",
        **relation,
    )
    return decorator


def threads_option(shown: str, **relation: Any) -> Decorator:
    """``--threads``, whose help shows the default as ``shown``."""
    decorator: Decorator = option_relations.option(
        "--threads", type=Count(1), help=f"Threads per operator.  [default: {shown}]", **relation
    )
    return decorator


def output_option(
    text: str, *, metavar: str = "OUT", kind: Any = writes, required: bool = False
) -> Decorator:
    """``-o``, with its help ``text``.

    Args:
        text: the help.
        metavar: the notation of the path.
        kind: the type of the path.
        required: whether the command always writes a file.
    """
    decorator: Decorator = click.option(
        "-o", "--output", type=kind, required=required, metavar=metavar, help=text
    )
    return decorator


#: The output option of a command that always writes a model.
model_output = group("Files", output_option("Write the model to this file.", required=True))


def preset_option(name: str, default: int) -> Decorator:
    """``-O``, whose value is the parameter ``name``."""
    text = "Preset: 0 (no rewrites), 1 (bit-exact), 2 (sums may be reordered), 3 (fused operators too)."
    decorator: Decorator = click.option(
        "-O", name, type=click.Choice(["0", "1", "2", "3"]), help=f"{text}  [default: {default}]"
    )
    return decorator


def pipeline_options_of(default: int) -> Decorator:
    """All options that determine which passes run.

    Args:
        default: the preset that runs without such options, for the help.
    """
    return of_section(
        "Passes",
        preset_option("level", default),
        option_relations.option(
            "--pipeline",
            shell_complete=completion_values.pipeline_text,
            metavar="NAME|TEXT",
            excludes=("-O",),
            hint=_ONE_PIPELINE,
            help="A named pipeline, or text such as dce,fixpoint(cse,dce).",
        ),
        option_relations.option(
            "--passes",
            shell_complete=completion_values.passes,
            multiple=True,
            callback=split_some,
            metavar="A,B",
            excludes=("-O", "--pipeline"),
            hint=_ONE_PIPELINE,
            help="Run only these passes, in order.",
        ),
        fuser_option(excludes=("--pipeline", "--passes"), hint=FUSER_HINT),
    )


#: :func:`pipeline_options_of` for commands whose default is ``-O2``.
pipeline_options = pipeline_options_of(2)

dim_options = named("Inputs", "dims", "dim_ranges", "dim_relations")

verify_options = named("Verification", "verify", "require_verified")

watch_options = of_section(
    "Watching",
    log_option,
    click.option(
        "--dump-dir", type=writes, metavar="FOLDER", help="Write the model after each pass that changed it."
    ),
)


def input_options_of(several: bool = False) -> Decorator:
    """The options that describe inputs.

    Args:
        several: the command itself parses the texts, which may contain several sets of shapes.
    """
    kind = {} if several else {"cls": TableOption}
    also = "; NAME:1x64,8x64 gives two shapes, NAME:1,64 is one" if several else ""
    return group(
        "Inputs",
        click.option(
            "--input",
            "input_files",
            type=ReadsArrays(),
            multiple=True,
            metavar="NAME:FILE.npy|FILE.npz",
            help="Feed these arrays instead of generated ones.",
            **kind,
        ),
        click.option(
            "--input-shape",
            "input_shapes",
            multiple=True,
            metavar="NAME:1x3x224x224",
            help=f"Shape of a generated input{also}.",
            **kind,
        ),
        click.option(
            "--seed", type=Count(0, 2**63 - 1), metavar="N", help="Seed of generated inputs.  [default: 0]"
        ),
    )


input_options = input_options_of()


def device_options(function: Function) -> Function:
    """The options of the device that runs models, and of its provider."""
    cuda = of_section("CUDA", *cuda_flags.flag_options())
    return of_section("Device")(cuda(function))


#: For commands that optimize for a device but do not run models.
target_options = group(
    "Passes",
    table_option(
        "device",
        help="Target device of optimizations, present or not: its costs determine the fused operators."
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

#: For commands that run models or bundles.
trusted_option = group(
    "Device",
    click.option(
        "--trusted",
        is_flag=True,
        help="Load the library of kernels in a bundle, which is code; by default, kernels are built from the"
        " models (docs/compile.md).",
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


def result_options(function: Function) -> Function:
    """The options of ``optimize`` that determine its result, for commands about results."""
    for decorator in (
        of_section("Watching"),
        device_options,
        input_options,
        dim_options,
        of_section("Verification"),
        pipeline_options,
        model_options,
        provenance_option,
        record_option,
        output_options,
    ):
        function = decorator(function)
    return function
