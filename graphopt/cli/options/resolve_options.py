"""Resolve shared options to the objects that commands use: pipeline, device, kernel libraries, inputs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from graphopt.cli.invocation import Run
from graphopt.cli.options.shared_options import FUSER_HINT
from graphopt.cli.options.table_options import TableOption
from graphopt.cli.output.console import say
from graphopt.errors import UsageError
from graphopt.optimize_options import OPTIONS, OptimizeOptions

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.cli.output.console import Advance
    from graphopt.fusion.kernel_library import Libraries
    from graphopt.ort.devices import Device


#: Commands that also apply the recorded arguments of their own operation.
_REPEATED = {"compile": "aot_compile"}


def check_idle(sections: Collection[str], why: str, hint: str, besides: Collection[str] = ()) -> None:
    """Refuse the given options in these sections of the help, because they have no effect.

    Args:
        sections: titles of sections.
        why: the reason, as the predicate of a sentence about the option.
        hint: the next step.
        besides: names of options in these sections that have an effect.

    Raises:
        UsageError: such an option is given.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in besides and getattr(parameter, "section", None) in sections:
            raise UsageError(f"{parameter.opts[-1]} {why}", hint=hint)


def move_options(run: Run, context: click.Context, values: dict[str, Any]) -> None:
    """Move options of ``optimize`` that are not settings from ``values`` to ``run.options``.

    Raises:
        UsageError: a fuser is combined with another preset, or inputs can't be read.
    """
    found: dict[str, Any] = {}
    for parameter in context.command.params:
        if isinstance(parameter, TableOption) and parameter.name in values:
            found[parameter.name] = values.pop(parameter.name)
    shapes, files = found.pop("input_shapes", ()), found.pop("input_files", ())
    if shapes or files:
        from graphopt.inputs.feeds import InputOptions

        found["inputs"] = InputOptions.parse(shapes, files, run.settings.seed)
    if "level" in values:
        found["pipeline"] = chosen_pipeline({key: values.pop(key) for key in ("level", "passes", "fuser")})
        _warn_of_idle_portable(run, context, found)
    given = {name: value for name, value in found.items() if value not in (None, (), {})}
    run.recorded = _recorded_options(run, context, given)
    run.options = cast(OptimizeOptions, {**run.recorded, **given})


def _recorded_options(run: Run, context: click.Context, given: Mapping[str, Any]) -> OptimizeOptions:
    """The options of ``optimize`` that ``--config`` reads, unless they are ``given``.

    Raises:
        UsageError: the command lacks an option, or as for :meth:`SettingsRecord.options`.
    """
    file, record = run.sources.config_file, run.sources.record
    if record is None or file is None:
        return {}
    found = record.options(str(file), run.settings, given)
    known = {parameter.name for parameter in context.command.params}
    if "input_shapes" in known:
        known.add("inputs")
    if record.arguments and _REPEATED.get(context.command.name or "") != record.operation:
        names = ", ".join(name.replace("_", "-") for name in record.arguments)
        run.console.note(f"  ignored   {names}: arguments of {record.operation} in {file}")
    if lacking := [name for name in found if name not in known]:
        flag = OPTIONS[lacking[0]].flag.partition("/")[0] or lacking[0]
        raise UsageError(
            f"{file} records {flag}, which is no option of {context.command_path}",
            hint="only commands with the option can apply the record",
        )
    return found


def chosen_pipeline(values: Mapping[str, Any]) -> str | None:
    """The pipeline that ``-O``, ``--passes`` or ``--fuser`` chooses, if any.

    ``--pipeline`` is a setting, which already applies. A fuser may be combined only with the preset that it
    extends.

    Raises:
        UsageError: a fuser is combined with another preset.
    """
    level, passes, fuser = values["level"], values["passes"], values["fuser"]
    if fuser is None:
        return f"O{level}" if level is not None else ",".join(passes) or None
    from graphopt.executor.fusers import FUSERS

    base = FUSERS[fuser].pipeline if fuser != "native" else "O3"
    if level is not None and base != f"O{level}":
        raise UsageError(f"-O{level} and --fuser {fuser} exclude each other", hint=FUSER_HINT)
    return FUSERS[fuser].pipeline


def _warn_of_idle_portable(run: Run, context: click.Context, found: Mapping[str, Any]) -> None:
    """Warn if ``--portable`` has no effect."""
    if context.get_parameter_source("portable") is not click.core.ParameterSource.COMMANDLINE:
        return
    from graphopt.passes.base import FUSED_OPERATORS
    from graphopt.passes.pipelines import make_pipeline

    text = found["pipeline"] or run.settings.pipeline
    if not make_pipeline(text, found["pre_passes"], found["post_passes"]).provides(FUSED_OPERATORS):
        text = "graphopt: warning: --portable leaves out nothing here: only -O3 fuses operators"
        say(text, "caution", stream=sys.stderr, color=context.obj.color)


def chosen_device(run: Run, *, explains_auto: bool = True) -> Device:
    """The device that the options choose; prints the reason if the named device can't be used.

    Args:
        explains_auto: with ``-v``, also print the reason for the choice of ``auto``.
    """
    device, remark = run.compiler.device, run.compiler.device_remark
    if remark and (run.settings.device != "auto" or (run.verbose and explains_auto)):
        run.console.note(f"  {remark}")
    return device


def check_cuda_flag(run: Run) -> None:
    """Check that flags for the CUDA provider are only used for models that may run on CUDA.

    Settings of the provider have no effect on the CPU: machines with and without a GPU may share settings.

    Raises:
        UsageError: a flag is given, and models run on the CPU.
    """
    from graphopt.ort.devices import parse_device

    if run.cuda_flag is None:
        return
    named = None if run.settings.allow_fallback else parse_device(run.settings.device)
    device = named or run.compiler.device
    if device.capabilities.is_host:
        raise UsageError(
            f"{run.cuda_flag} is for CUDA, and the models run on the CPU",
            hint="use --device cuda on a machine with CUDA, or omit the flag",
        )


def check_trusted(path: Path, *, trusted: bool) -> None:
    """Check that ``--trusted`` is only given for a bundle.

    Raises:
        UsageError: the model at ``path`` has no library of its own.
    """
    from graphopt import api

    if trusted and not api.is_bundle(path):
        raise UsageError(
            f"--trusted has no effect on {path}, which is not a bundle",
            hint="models contain no library; kernels are built",
        )


def libraries_of(
    run: Run, model: ir.Model, device: Device, wanted: bool = True, advance: Advance | None = None
) -> Libraries:
    """The kernel libraries of ``model``; prints the reason for each missing library."""
    from graphopt.fusion.kernel_library import Libraries, libraries_for

    if not wanted:
        return Libraries()
    found = libraries_for(model, run.settings, device, advance)
    for remark in found.remarks:
        run.console.note(f"  {remark}")
    return found
