"""Values of shared options as the objects that commands use: pipeline, device, kernel libraries, inputs."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from graphopt import config
from graphopt.cli import options
from graphopt.cli.command_line import Run
from graphopt.cli.console import say
from graphopt.errors import UsageError

if TYPE_CHECKING:
    from graphopt import ir
    from graphopt.cli.console import Advance
    from graphopt.fusion.library import Libraries
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device


def check_idle(sections: Collection[str], why: str, hint: str) -> None:
    """Check that no option is given of these sections of the help, which have no effect.

    Args:
        sections: titles of sections.
        why: the reason, as the predicate of a sentence about the option.
        hint: the next step.

    Raises:
        UsageError: one is given.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and getattr(parameter, "section", None) in sections:
            raise UsageError(f"{parameter.opts[-1]} {why}", hint=hint)


def chosen_pipeline(values: dict[str, Any]) -> str | None:
    """The pipeline that ``-O``, ``--passes`` or ``--fuser`` chooses, if any; removes them from ``values``.

    ``--pipeline`` is a setting, and is in force already. A fuser may be combined with the preset that it
    builds on.

    Raises:
        UsageError: a fuser is combined with another preset.
    """
    level, passes, fuser = values.pop("level"), values.pop("passes"), values.pop("fuser")
    chosen = f"O{level}" if level is not None else ",".join(passes) or None
    if fuser is not None:
        from graphopt.executor.options import FUSERS

        base = FUSERS[fuser].pipeline if fuser != "native" else "O3"
        if level is not None and base != f"O{level}":
            raise UsageError(f"-O{level} and --fuser {fuser} exclude each other", hint=options.FUSER_HINT)
        chosen = FUSERS[fuser].pipeline
    _warn_of_idle_portable(chosen, values)
    return chosen


def _warn_of_idle_portable(pipeline: str | None, values: dict[str, Any]) -> None:
    """Warn if ``--portable`` has no effect."""
    context = click.get_current_context()
    if context.get_parameter_source("portable") is not click.core.ParameterSource.COMMANDLINE:
        return
    from graphopt.passes.pipelines import make_pipeline

    text = pipeline or config.current().pipeline
    passes = make_pipeline(text, values["pre_passes"], values["post_passes"]).passes()
    if not any(step.name == "fuse-builtin" for step in passes):
        text = "graphopt: warning: --portable leaves out nothing here: only -O3 fuses operators"
        say(text, "caution", stream=sys.stderr, color=context.obj.color)


def chosen_device(run: Run) -> Device:
    """The device that the settings choose; a line explains it if the named one can't be used.

    For ``auto``, only ``-v`` shows that line.
    """
    from graphopt.api import choose_device

    device, remark = choose_device()
    if remark and (run.verbose or run.settings.device != "auto"):
        run.console.note(f"  {remark}")
    return device


def libraries_of(
    run: Run, model: ir.Model, device: Device, wanted: bool = True, advance: Advance | None = None
) -> Libraries:
    """The kernel libraries of ``model``; a line for each missing one gives the reason."""
    from graphopt.fusion.library import Libraries, libraries_for

    if not wanted:
        return Libraries()
    found = libraries_for(model, run.settings, device, advance)
    for remark in found.remarks:
        run.console.note(f"  {remark}")
    return found


def given_inputs(run: Run, values: dict[str, Any]) -> InputOptions | None:
    """The inputs that ``--input`` and ``--input-shape`` describe, if any; removes them from ``values``."""
    shapes, files = values.pop("input_shapes"), values.pop("input_files")
    if not shapes and not files:
        return None
    from graphopt.inputs.feeds import InputOptions

    return InputOptions.parse(shapes, files, run.settings.seed)
