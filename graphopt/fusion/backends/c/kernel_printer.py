"""A kernel in C: the state of a run, functions of segments, and the entry point that checks the inputs."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.fusion.backends.c.schedule import TILE, schedule
from graphopt.fusion.backends.c.segment_printer import SegmentPrinter
from graphopt.fusion.backends.c.split_rows import may_split, row_parts, split_rows_text
from graphopt.fusion.c_code.bounds_checks import checks
from graphopt.fusion.c_code.input_checks import input_checks, size_definitions
from graphopt.fusion.c_code.size_variables import SizeVariables
from graphopt.fusion.loops.ir import Kernel


def kernel_text(kernel: Kernel) -> str:
    """All functions of ``kernel``; the last one, ``NAME_main``, is the entry point."""
    sizes = SizeVariables()
    plans = [schedule(kernel, segment) for segment in kernel.segments]
    for _ in range(2):  # the first pass numbers the sizes
        printers = [SegmentPrinter(kernel, plan, sizes, number) for number, plan in enumerate(plans)]
        texts = [printer.text() for printer in printers]
        texts += [split_rows_text(printer) for printer in printers if may_split(printer)]
        run = "\n".join(_run(kernel, printers, sizes))
    if _common_item_count(printers):
        texts.append(_combined(kernel, len(printers)))
    return "\n".join([_state(kernel, sizes), *texts, run]) + "\n"


def _combined(kernel: Kernel, segments: int) -> str:
    calls = "".join(f"    {kernel.name}_{number}(data, chunk);\n" for number in range(segments))
    return f"static void {kernel.name}_all(void *data, size_t chunk) {{\n{calls}}}\n"


def _state(kernel: Kernel, sizes: SizeVariables) -> str:
    segments = len(kernel.segments)
    return f"""\
typedef struct {{
    const void *in[{max(len(kernel.inputs), 1)}];
    void *out[{max(len(kernel.outputs), 1)}];
    int64_t n[{max(len(sizes), 1)}], items[{segments}], step[{segments}], width[{segments}];
    int64_t item, split, parts;
    char *own;
    int far[{max(len(kernel.outputs), 1)}], failed;
}} {kernel.name}_run;
"""


def _run(kernel: Kernel, printers: list[SegmentPrinter], sizes: SizeVariables) -> Iterator[str]:
    yield f"static int {kernel.name}_main(go_call *call) {{"
    yield f"    {kernel.name}_run run = {{0}};"
    for index, port in enumerate(kernel.inputs):
        rank = len(port.dims)
        yield f"    int64_t in{index}[{max(rank, 1)}];"
        yield f"    run.in[{index}] = go_input(call, {index}, {rank}, in{index});"
        yield f"    if (!run.in[{index}]) return 1;"
    yield from size_definitions(kernel, sizes, "run.n")
    yield from input_checks(kernel, sizes)
    yield from checks(kernel, sizes)
    for index, port in enumerate(kernel.outputs):
        yield from _output(kernel, index, [sizes.c(dim) for dim in port.dims])
    shared = _common_item_count(printers)
    if shared:
        yield f"    const int64_t shared = {shared};"
        yield "    if (shared >= GO_ENOUGH) {"
        yield from _together(kernel, printers)
        yield "        return 0;"
        yield "    }"
    for printer in printers:
        yield from _segment(kernel, printer)
    yield "    return 0;"
    yield "}"


def _common_item_count(printers: list[SegmentPrinter]) -> str:
    """Code for the number of work items if several segments share it, otherwise empty."""
    extents = [[printer.extent(loop) for loop in printer.schedule.outer] for printer in printers]
    alike = len(printers) > 1 and all(each == extents[0] for each in extents)
    return " * ".join(extents[0]) if alike else ""


def _together(kernel: Kernel, printers: list[SegmentPrinter]) -> Iterator[str]:
    """Run all segments of each work item together, so that shared data are read from memory once."""
    weights = []
    for number, printer in enumerate(printers):
        if printer.schedule.blocks:
            extent = printer.extent(printer.schedule.vector)
            yield f"        run.width[{number}] = {extent} ? {extent} : 1;"
        weights.append(_weight(printer))
    yield f"        const int64_t weight = {' + '.join(weights)};"
    yield "        const int64_t step = go_step(shared, weight);"
    for number in range(len(printers)):
        yield f"        run.items[{number}] = shared;"
        yield f"        run.step[{number}] = step;"
    yield f"        go_parallel(call, {kernel.name}_all, &run, (size_t)((shared + step - 1) / step));"
    if any(printer.schedule.stage_plan.spilled for printer in printers):
        yield from memory_check()


def memory_check() -> Iterator[str]:
    """Statements that fail if an allocation of a thread of the kernel failed."""
    yield "        if (run.failed) {"
    yield '            go_fail(call, "out of memory");'
    yield "            return 1;"
    yield "        }"


def _output(kernel: Kernel, index: int, dims: list[str]) -> Iterator[str]:
    shape = "NULL"
    if dims:
        yield f"    const int64_t out{index}[] = {{{', '.join(dims)}}};"
        shape = f"out{index}"
    yield f"    run.out[{index}] = go_output(call, {index}, {len(dims)}, {shape});"
    yield f"    if (!run.out[{index}]) return 1;"
    # Outputs in place are not written by streaming stores, because their memory is in the caches.
    apart = [
        f"run.out[{index}] != run.in[{source}] && " for source, output in kernel.in_place if output == index
    ]
    width = kernel.outputs[index].element.bytes
    yield f"    run.far[{index}] = {''.join(apart)}go_far(run.out[{index}], {len(dims)}, {shape}, {width});"


def _segment(kernel: Kernel, printer: SegmentPrinter) -> Iterator[str]:
    number = printer.number
    yield "    {"
    yield from _items(printer)
    if may_split(printer):
        yield from row_parts(printer, _weight(printer))
    yield f"        const int64_t step = go_step(run.items[{number}], {_weight(printer)});"
    yield f"        run.step[{number}] = step;"
    yield f"        const int64_t chunks = (run.items[{number}] + step - 1) / step;"
    yield f"        if (chunks > 0) go_parallel(call, {kernel.name}_{number}, &run, (size_t)chunks);"
    if printer.schedule.stage_plan.spilled:
        yield from memory_check()
    yield "    }"


def _items(printer: SegmentPrinter) -> Iterator[str]:
    """The number of work items, and the width of blocks of the vector loop."""
    plan, number = printer.schedule, printer.number
    parts = [printer.extent(loop) for loop in plan.outer]
    if plan.blocks:
        step = f"{plan.unroll} * {printer.lanes}"
        yield f"        const int64_t extent = {printer.extent(plan.vector)};"
        if plan.columns or plan.tiled:
            yield f"        run.width[{number}] = {step if plan.columns else f'{TILE} * {printer.lanes}'};"
        else:
            width = f"(GO_CHUNK / {max(plan.weight, 1)} / ({step}) + 1) * ({step})"
            yield f"        run.width[{number}] = extent * {plan.weight} < 2 * GO_CHUNK ? extent : {width};"
            yield f"        if (run.width[{number}] < 1) run.width[{number}] = 1;"
        parts.append(f"((extent + run.width[{number}] - 1) / run.width[{number}])")
    yield f"        run.items[{number}] = {' * '.join(parts) or '1'};"


def _weight(printer: SegmentPrinter) -> str:
    """The cost of a work item, in bytes of memory traffic."""
    plan = printer.schedule
    parts = [str(plan.weight)]
    parts += [printer.extent(loop) for loop in plan.inner if loop != plan.vector]
    parts.append(f"run.width[{printer.number}]" if plan.blocks else printer.extent(plan.vector))
    return " * ".join(parts)
