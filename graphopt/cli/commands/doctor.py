"""graphopt doctor: versions, devices, compilers, store and settings, and faults among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import shared_options
from graphopt.cli.options.parameter_types import reads_model
from graphopt.cli.output.command_output import Output
from graphopt.errors import ExitStatus, UsageError
from graphopt.util.text_tables import Block, Table, counted, human_bytes

if TYPE_CHECKING:
    from graphopt.ort.installation import Health, Problem

EXAMPLE = """
graphopt doctor
graphopt doctor --json | jq .problems
graphopt doctor --hints model.onnx
"""


@command_decorator.command("doctor", example=EXAMPLE, needs_settings=False, has_details=False)
@click.argument("model", type=reads_model, required=False, metavar="[MODEL]")
@click.option(
    "--hints",
    is_flag=True,
    help="List the hints about MODEL on the device; without MODEL, all hints with their conditions.",
)
@shared_options.named("Device", "device")
def command(run: Run, model: Path | None, hints: bool) -> Output:
    """Show versions, devices, and remedies for faults.

    Also lists compilers, the store and the current settings. Exit status 6 if something is broken; missing
    CUDA is reported, but is no fault.
    """
    if hints:
        return _hints(run, model)
    if model is not None:
        raise UsageError("a model has hints only", hint=f"graphopt doctor --hints {model}")
    from graphopt.ort.installation import examine

    health = examine(run.settings, run.invocation.environ, run.settings_fault)
    problems = health.problems()
    costs, cuda_compiler = _costs(run), _cuda_compiler(run)
    return Output(
        health.to_dict()
        | {
            "costs": costs,
            "cuda_compiler": cuda_compiler,
            "problems": [vars(problem) for problem in problems],
        },
        _text(health, costs, cuda_compiler, problems),
        status=ExitStatus.RUNTIME_FAILURE if any(problem.broken for problem in problems) else ExitStatus.OK,
    )


def _hints(run: Run, model: Path | None) -> Output:
    """The hints about ``model``, or the conditions of all hints."""
    from graphopt.device_hints.model_hints import model_hints
    from graphopt.diagnostics.hint import HINTS

    if model is None:
        table = Table(["code", "condition"], "<<")
        for code, condition in HINTS.items():
            table.add(code, condition)
        return Output({"hints": [{"code": code, "condition": text} for code, text in HINTS.items()]}, [table])
    from graphopt import api
    from graphopt.ort.gpu_properties import gpu_properties

    loaded = api.load_model(model)
    device = run.compiler.target
    gpu = gpu_properties(device)
    found = list(model_hints(loaded, device, gpu, tf32=False, is_verified=True))
    lines = [line for hint in found for line in hint.lines()] or ["  no hints"]
    name = str(device) if gpu is None else f"{device}, {gpu}"
    if device.kind == "cuda" and gpu is None:
        name = f"{device}, no GPU found"
        lines.append("  hints that depend on the properties of the GPU are not listed")
    data = {"device": name, "hints": [hint.to_dict() for hint in found]}
    return Output(data, [f"  device    {name}", *lines])


def _text(health: Health, costs: str, cuda_compiler: str, problems: list[Problem]) -> Iterator[Block]:
    yield _facts(health, costs, cuda_compiler)
    yield ""
    for problem in problems:
        yield f"  {'broken' if problem.broken else 'note'}: {problem.what}"
        yield f"    {problem.advice}"
    if not problems:
        yield "  no problems found"


def _costs(run: Run) -> str:
    """The current cost table, or the reason why it is not usable."""
    from graphopt.cost.select_table import costs_for
    from graphopt.ort.devices import choose

    settings = run.settings
    try:
        device, _ = choose(settings.device, allow_fallback=True)
        return str(costs_for(settings.costs, device, settings.cache_dir))
    except UsageError as error:
        return f"not usable: {error.message}"


def _cuda_compiler(run: Run) -> str:
    """The compilers of kernels for CUDA, or the reason why there are none, with the remedy."""
    from graphopt.errors import NoCompiler
    from graphopt.fusion.backend import backend_for
    from graphopt.ort.devices import Device

    backend = backend_for(Device("cuda"))
    if backend is None:
        return "none"
    try:
        return backend.describe_compiler(run.settings.compiler)
    except NoCompiler as failure:
        return f"none: {failure.message} ({failure.hint})" if failure.hint else f"none: {failure.message}"


def _facts(health: Health, costs: str, cuda_compiler: str) -> Table:
    runtime, store = health.runtime, health.store
    table = Table(["", ""], "<<")
    for name, version in health.versions.items():
        table.add(name, version or "from a source tree")
    owners = f" ({', '.join(runtime.packages)})" if runtime.packages else ""
    table.add("onnxruntime", (runtime.version or "not usable") + owners)
    table.add("providers", ", ".join(runtime.providers) or "none")
    table.add("CUDA", "on" if health.cuda.available else "off")
    table.add("onnxruntime loads", f"opset up to {runtime.opset}, IR version up to {runtime.ir_version}")
    table.add("onnx knows", f"opset up to {health.opset}, IR version up to {health.ir_version}")
    table.add("C compilers", ", ".join(health.compilers) or "none")
    table.add("CUDA kernels", cuda_compiler)
    used = f"{counted(store.entries, 'entry', 'entries')}, {human_bytes(store.bytes)}"
    table.add("store", f"{store.path} ({used})")
    table.add("costs", costs)
    table.add("settings from", ", ".join(health.settings) or "defaults")
    return table
