"""graphopt kernels: list or race the kernels of a model, print their source, or build their library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import option_relations, resolve_options, shared_options, table_options
from graphopt.cli.options.parameter_types import Seconds, writes_file
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.text_tables import Block, Line, Table, beginning, counted, human_bytes

if TYPE_CHECKING:
    from graphopt.fusion.group_functions import Group
    from graphopt.fusion.kernel_inventory import Inventory

EXAMPLE = """
graphopt kernels model.opt.onnx
graphopt kernels model.opt.onnx -o model.kernels.so
graphopt kernels model.onnx --source
graphopt kernels model.opt.onnx --device cuda -o model.kernels.so
graphopt kernels model.onnx --candidates --input-shape x:1x3x224x224 --threads 1
"""

#: Number of operators of a kernel, and of characters of types, shown without -v.
_OPS, _TYPES = 4, 40


@command_decorator.command("kernels", example=EXAMPLE)
@shared_options.model_argument()
@shared_options.group(
    "Files",
    shared_options.output_option(
        "Build the library, and write it to this file.", metavar="LIBRARY.so", kind=writes_file
    ),
)
@shared_options.group(
    "Kernels",
    click.option("--source", is_flag=True, help="Print the source of the kernels instead."),
)
@shared_options.group(
    "Device",
    table_options.table_option("device", help="Device of the kernels, present or not.  [default: auto]"),
)
@shared_options.group(
    "Race",
    option_relations.option(
        "--candidates",
        is_flag=True,
        excludes=("--source", "--output"),
        hint="a race writes no files",
        help="Race each kernel against onnxruntime's kernels of its nodes, and show times and winners.",
    ),
    option_relations.option(
        "--budget",
        requires="--candidates",
        type=Seconds(positive=True),
        metavar="TIME",
        help="Approximate time of all races, such as 60s or 2m.  [default: 60s]",
    ),
    shared_options.threads_option("one per core", requires="--candidates"),
    option_relations.option(
        "--fresh", is_flag=True, requires="--candidates", help="Measure again, even if the store has results."
    ),
)
@shared_options.model_options
@shared_options.input_options
def command(
    run: Run,
    model: Path,
    output: Path | None,
    source: bool,
    candidates: bool,
    budget: float | None,
    threads: int | None,
    fresh: bool,
) -> Output:
    """Show native kernels of a model, or build their library.

    Native kernels implement functions of the domain graphopt.native, which graphopt optimize --fuser native
    creates. For a model without such functions, the kernels that --fuser native would create are shown. Any
    program that runs the model with onnxruntime can register the library (docs/kernels.md); graphopt builds
    the libraries that it loads, and never loads a library from the folder of a model.

    With --candidates, each kernel runs alternately with onnxruntime's own kernels of its nodes, in models of
    one group. Results are stored, also for equal groups of other models. Groups that --fuser native omits by
    predicted costs are raced, too (docs/tune.md).
    """
    from graphopt import api
    from graphopt.cli.files.check_output_paths import check_file

    if candidates:
        return _race(run, model, budget, threads, fresh)
    resolve_options.check_idle(
        ["Inputs"], "has no effect without --candidates", "--candidates runs the model"
    )
    if source and run.console.as_json:
        raise UsageError("--source prints source code, and --json JSON", hint="leave one of them out")
    if output is not None:
        from graphopt.fusion.kernel_library import SUFFIXES

        check_file(output, SUFFIXES)
    with run.console.progress(model.name) as advance:
        advance(None, "looking for groups")
        found = api.list_kernels(model)
        if output is not None:
            found.build(output, advance)
    obstacle = None if source else _obstacle_to_building(run, found)
    if source:
        if found.kernels:
            run.console.write(found.source())
        return Output(None)
    built = found.built
    text = () if run.console.quiet else _text(model, found, built, output, obstacle, run.verbose)
    return Output(_json(model, found, built, output), text)


def _obstacle_to_building(run: Run, found: Inventory) -> str | None:
    """The reason why no library can be built; ``None`` if there is a compiler, or there are no kernels.

    Raises:
        NoCompiler: the compiler that the user chose does not run.
    """
    from graphopt.errors import NoCompiler

    if not found.kernels:
        return None
    try:
        found.backend.describe_compiler(run.settings.compiler)
    except NoCompiler as failure:
        if run.settings.compiler != "auto":
            raise
        return f"{failure.message} ({failure.hint})"
    return None


def _race(run: Run, model: Path, budget: float | None, threads: int | None, fresh: bool) -> Output:
    from graphopt.cli.option_groups.instruments import Progress
    from graphopt.cli.views.kernel_candidates import candidate_blocks

    with run.console.progress(model.name) as advance:
        found = run.compiler.having({"instruments": [Progress(advance)]}).race_kernels(
            model, budget=budget or 60.0, threads=threads, fresh=fresh, progress=advance
        )
    return Output({"model": str(model), **found.to_dict()}, candidate_blocks(found, run.verbose))


def _json(model: Path, found: Inventory, built: Path | None, output: Path | None) -> dict[str, Any]:
    from graphopt.fusion.kernel_inventory import bytes_of
    from graphopt.fusion.kernel_library import cpu_level, session_lines

    kernels = []
    for group in found.groups:
        signature = group.signature
        types = {} if signature is None else signature.to_dict()
        moved = None if signature is None else bytes_of((*signature.inputs, *signature.outputs))
        kernels.append(
            {
                "name": group.name,
                "calls": group.calls,
                "ops": _ops(group),
                "inputs": types.get("inputs"),
                "outputs": types.get("outputs"),
                "bytes": moved if moved is None or isinstance(moved, int) else str(moved),
                "reason": group.reason or None,
            }
        )
    return {
        "model": str(model),
        "device": found.backend.device,
        "proposed": found.proposed,
        "kernels": kernels,
        "built": built is not None,
        "cpu_level": None if built is None else cpu_level(built),
        "library": None if output is None else str(output),
        "session": None if output is None else list(session_lines(model, output, kind=found.backend.device)),
    }


def _ops(group: Group) -> dict[str, int]:
    """The operators of a group, with their numbers."""
    ops = Counter(node.op_type for node in group.function.graph if node.op_type != "Constant")
    return dict(ops.most_common())


def _text(
    model: Path,
    found: Inventory,
    built: Path | None,
    output: Path | None,
    obstacle: str | None,
    verbose: int,
) -> Iterator[Block]:
    from graphopt.fusion.kernel_library import cpu_level, session_lines

    native = "--fuser native" + (" --device cuda" if found.backend.device == "cuda" else "")
    if not found.groups:
        yield f"  no native groups; graphopt optimize {native} would create none"
        yield Line(f"  (graphopt explain {model} {native} has the reasons)", "hint")
    else:
        yield _table(found.groups, verbose)
    for group in found.groups:
        if group.kernel is None:
            yield f"  no kernel for {group.name}: {group.reason}"
    if found.groups and found.proposed:
        yield f"  {model} has no native groups; graphopt optimize {native} would create these"
    elif built is not None:
        level = cpu_level(built)
        parts = ["CUDA"] * (found.backend.device == "cuda") + [f"x86-64-v{level}"] * (level > 0)
        runs = f", and runs its kernels for {' and '.join(parts)}" if parts else ""
        yield f"  {counted(len(found.kernels), 'kernel')}; the library is in the store{runs}"
    elif found.kernels and obstacle is None:
        yield f"  {counted(len(found.kernels), 'kernel')}; the library is not built yet (-o LIBRARY.so)"
    if obstacle is not None:
        yield f"  no library can be built: {obstacle}"
    if output is not None:
        yield f"  wrote     {output}   {human_bytes(output.stat().st_size)}"
        yield from (
            f"              {line}" for line in session_lines(model, output, kind=found.backend.device)
        )
        yield "  (in C: RegisterCustomOpsLibrary_V2; without it, onnxruntime runs the nodes)"


def _table(groups: Sequence[Group], verbose: int) -> Table:
    """A row for each kernel."""
    from graphopt.fusion.kernel_inventory import bytes_of

    def short(text: str) -> str:
        return text if verbose else beginning(text, _TYPES)

    table = Table(["kernel", "calls", "operators", "in", "out", "bytes"], "<><<<>")
    for group in groups:
        names = [f"{op} × {count}" if count > 1 else op for op, count in _ops(group).items()]
        hidden = len(names) > _OPS and not verbose
        ops = ", ".join(names[:_OPS]) + " …" if hidden else ", ".join(names)
        cells = ["?", "?", "?"]
        if (signature := group.signature) is not None:
            ends = (signature.inputs, signature.outputs)
            cells = [short(", ".join(str(one).replace(",", ", ") for one in end)) for end in ends]
            moved = bytes_of((*signature.inputs, *signature.outputs))
            cells.append(human_bytes(moved) if isinstance(moved, int) else short(str(moved)))
        table.add(group.name, group.calls, ops, *cells)
    return table
