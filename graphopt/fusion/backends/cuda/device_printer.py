"""The device code of a kernel: the functions of all segments and schedules, and their launches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphopt.fusion.backends.cuda.expressions import MEMORY
from graphopt.fusion.backends.cuda.grid_printers import FlatPrinter, SegmentsPrinter, TilePrinter, are_alike
from graphopt.fusion.backends.cuda.launch import (
    Argument,
    Buffer,
    Count,
    DeviceKernel,
    Input,
    Launch,
    Output,
    Scratch,
    SizeValue,
)
from graphopt.fusion.backends.cuda.point_printer import PointPrinter
from graphopt.fusion.backends.cuda.row_printer import RowPrinter
from graphopt.fusion.backends.cuda.schedule import BLOCK, GridSchedule, Kind, open_counts, schedule
from graphopt.fusion.backends.cuda.split_printer import PartPrinter, TotalPrinter, partial_results
from graphopt.fusion.c_code.statement_printer import without_unused
from graphopt.fusion.loops.ir import Kernel

_PRINTERS: dict[Kind, type[PointPrinter]] = {
    Kind.POINTS: FlatPrinter,
    Kind.TILES: TilePrinter,
    Kind.ROWS: RowPrinter,
    Kind.COLUMNS: RowPrinter,
}
#: A declaration without side effects.
_DECLARATION = re.compile(r"^ *(?:const )?(?:GO_INDEX|bool|f32|[iu]\d+) (\w+) = ")


def device_kernel(kernel: Kernel) -> DeviceKernel:
    """The functions of ``kernel``, in the text that all dialects share, and their launches.

    Raises:
        ValueError: the name of the kernel is not an identifier.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", kernel.name, re.ASCII):
        raise ValueError(f"the name {kernel.name!r} of a kernel is not an identifier")
    texts: list[str] = []
    launches: list[Launch] = []
    scratch: list[Buffer] = []
    for function, printer in _functions(kernel, scratch):
        text, launch = _function(kernel, printer, function, scratch)
        texts.append(text)
        conditions = printer.schedule.conditions or (None,)
        launches += [replace(launch, condition=condition) for condition in conditions]
    return DeviceKernel("\n".join(texts), tuple(launches), tuple(scratch))


def _functions(kernel: Kernel, scratch: list[Buffer]) -> Iterator[tuple[str, PointPrinter]]:
    """The functions of all segments, in the order of their launches; buffers are added to ``scratch``."""
    plans = [schedule(kernel, segment) for segment in kernel.segments]
    first = [variants[0] for variants in plans]
    if are_alike(first):
        yield f"{kernel.name}_0", SegmentsPrinter(kernel, first)
        return
    for number, variants in enumerate(plans):
        for variant, plan in enumerate(variants):
            name = f"{kernel.name}_{number}" + (f"_{variant}" if variant else "")
            yield from _functions_of(kernel, plan, name, scratch)


def _functions_of(
    kernel: Kernel, plan: GridSchedule, name: str, scratch: list[Buffer]
) -> Iterator[tuple[str, PointPrinter]]:
    """The functions of a schedule, in the order of their launches; buffers are added to ``scratch``."""
    if plan.part is not None:
        results = partial_results(plan, len(scratch))
        scratch += results.buffers
        rows = replace(plan, kind=Kind.ROWS, lanes=BLOCK, points=1)
        stages = plan.stage_plan.stages
        for number, stage in enumerate(stages):
            yield f"{name}_part{number}", PartPrinter(kernel, plan, results, number)
            if stage.reductions or (number + 1 == len(stages) and plan.stage_plan.stores):
                yield f"{name}_total{number}", TotalPrinter(kernel, rows, results, number)
        return
    yield name, _PRINTERS[plan.kind](kernel, plan)


def _function(
    kernel: Kernel, printer: PointPrinter, name: str, scratch: Sequence[Buffer]
) -> tuple[str, Launch]:
    """The text of a function, in one or two widths of indices, and its launch."""
    printer.print()
    plan = printer.schedule
    body = [f"    {line}" for line in printer.shared] + without_unused(printer.lines, _DECLARATION)
    parameters = _parameters(kernel, printer, len(scratch), set(re.findall(r"[a-z]+\d+", "\n".join(body))))
    head = [f"    GO_EXCHANGE({plan.block});"] if any("GO_SWAP" in line for line in body) else []
    for index, size in enumerate(printer.sizes.all):
        if SizeValue(size) in parameters:
            head.append(f"    const GO_INDEX n{index} = (GO_INDEX)size{index};")
    counts, widths = _index_widths(kernel, plan)
    texts = []
    for width in widths:
        whole = f"{name}_{width}" if counts else name
        opening = f"GO_KERNEL({plan.block}) {whole}({', '.join(parameters.values())}) {{"
        texts.append("\n".join([opening, *head, *body, "}"]).replace("GO_INDEX", f"i{width}") + "\n")
    launch = Launch(name, printer.grid, plan.block, tuple(parameters), printer.shared_bytes, counts)
    return "\n".join(texts), launch


def _parameters(kernel: Kernel, printer: PointPrinter, buffers: int, used: set[str]) -> dict[Argument, str]:
    """The arguments of a function that uses the names ``used``, and their declarations.

    Pointers to memory that an input and an output may share have no ``restrict``.
    """
    aliases = {f"in{pair[0]}" for pair in kernel.in_place} | {f"out{pair[1]}" for pair in kernel.in_place}
    pointers: list[tuple[str, str, Argument]] = []
    for index, port in enumerate(kernel.inputs):
        pointers.append((f"in{index}", f"const {MEMORY[port.element]}", Input(index)))
    for index, port in enumerate(kernel.outputs):
        pointers.append((f"out{index}", MEMORY[port.element], Output(index)))
    for index in range(buffers):
        pointers.append((f"scratch{index}", printer.scratch_types.get(index, ""), Scratch(index)))
    found: dict[Argument, str] = {
        argument: f"GO_GLOBAL {kind} *{'' if name in aliases else 'GO_RESTRICT '}{name}"
        for name, kind, argument in pointers
        if name in used
    }
    for index, size in enumerate(printer.sizes.all):
        if f"n{index}" in used:
            found[SizeValue(size)] = f"const i64 size{index}"
    return found


def _index_widths(kernel: Kernel, plan: GridSchedule) -> tuple[tuple[Count, ...], tuple[int, ...]]:
    """The counts that select the width of indices, and the widths of the functions."""
    if plan.bits is not None:
        return (), (plan.bits,)
    groups = (plan.outer, plan.inner, (*plan.outer, *plan.inner))
    counts, is_wide = open_counts(kernel, plan.nest, groups)
    if is_wide:
        return (), (64,)
    return (counts, (32, 64)) if counts else ((), (32,))
