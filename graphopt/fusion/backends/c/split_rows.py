"""Reductions of few long rows: each stage is a function of a part of the row, which threads share.

A part reduces its elements to partial results, which the functions of later stages combine in the order of
the parts. The bounds of parts depend on sizes only, so that results are equal for all numbers of threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from graphopt.fusion.backends.c.segment_printer import BLOCK, SegmentPrinter
from graphopt.fusion.c_code.statement_printer import without_unused
from graphopt.fusion.loops.reduction_stages import Stage

#: Maximum number of rows that are divided, and of parts of a row.
_MOST_ROWS, _MOST_PARTS = 16, 64
#: Constant length of a row below which it is never divided, in elements.
_SHORTEST = 4096
#: A declaration without side effects, at the start of a function.
_DECLARATION = re.compile(r"^    (?:const )?\w+ \**(?:const )?(\w+) = ")


def may_split(printer: SegmentPrinter) -> bool:
    """Whether the rows of a segment may be few and long."""
    plan = printer.schedule
    if plan.inner != (plan.vector,) or not any(step.reductions for step in plan.stage_plan.stages):
        return False
    length = printer.nest.loops[plan.vector].constant
    rows = [printer.nest.loops[loop].constant for loop in plan.outer]
    known = prod(count for count in rows if count is not None)
    return (length is None or length >= _SHORTEST) and known <= _MOST_ROWS and rows.count(None) <= 1


def split_rows_text(printer: SegmentPrinter) -> str:
    """The functions of all stages, and the function of the instructions after the last one."""
    phases = range(len(printer.schedule.stage_plan.stages) + 1)
    return "\n".join(_PartPrinter(printer, phase).text() for phase in phases)


def row_parts(printer: SegmentPrinter, weight: str) -> Iterator[str]:
    """Statements of ``NAME_main`` that divide the rows and return, if they are few and long.

    Args:
        weight: the cost of a row, in bytes of memory traffic.
    """
    plan, number, name = printer.schedule, printer.number, printer.kernel.name
    extent = printer.extent(plan.vector)
    step = f"({plan.unroll * BLOCK} * {printer.lanes})"
    stages = plan.stage_plan.stages
    slots = sum(len(stage.reductions) for stage in stages)
    row = _PartPrinter(printer, 0).buffered_bytes()
    yield f"        const int64_t length = {extent}, rows = run.items[{number}];"
    yield f"        const double cost = {weight.replace(' * ', ' * (double)')};"
    yield f"        if (rows > 0 && rows <= {_MOST_ROWS} && cost >= 4 * GO_CHUNK && cost < 0x1p48) {{"
    yield "            const double even = 2 * GO_CHUNK / cost * (double)length;"
    yield f"            const int64_t share = (length / {_MOST_PARTS} / {step} + 1) * {step};"
    yield f"            run.split = even > (double)share ? (int64_t)even / {step} * {step} : share;"
    yield "            run.parts = (length + run.split - 1) / run.split;"
    yield f"            const int64_t padded = {_padded('length', printer.lanes)};"
    buffers = f"(size_t)padded * {row} + {64 * (len(plan.stage_plan.spilled) + 1)}"
    yield f"            run.own = malloc({buffers} + (size_t)run.parts * {8 * slots});"
    yield "            if (!run.own) {"
    yield '                go_fail(call, "out of memory");'
    yield "                return 1;"
    yield "            }"
    yield "            for (run.item = 0; run.item < rows; run.item++) {"
    for phase in range(len(stages)):
        yield f"                go_parallel(call, {name}_{number}_part{phase}, &run, (size_t)run.parts);"
    yield f"                {name}_{number}_part{len(stages)}(&run, 0);"
    yield "            }"
    yield "            free(run.own);"
    yield f"            run.items[{number}] = 0;"
    yield "        }"


def _padded(length: str, lanes: str) -> str:
    return f"({length} + {lanes} - 1) / {lanes} * {lanes}"


class _PartPrinter(SegmentPrinter):
    """Prints the function of a part of a row in a stage, or of the instructions after the last stage."""

    def __init__(self, printer: SegmentPrinter, phase: int) -> None:
        super().__init__(printer.kernel, printer.schedule, printer.sizes, printer.number)
        self.phase = phase

    def buffered_bytes(self) -> int:
        """Bytes per element of a row in all buffers."""
        return sum(self._variable(index).width for index in self.schedule.stage_plan.spilled)

    @property
    def function(self) -> str:
        return f"{self.kernel.name}_{self.number}_part{self.phase}"

    def _inside(self) -> list[str]:
        plan = self.schedule
        stages = plan.stage_plan.stages
        self.line("int64_t rest = run->item;")
        for loop in reversed(plan.outer):
            self.line(f"int64_t i{loop} = rest % {self.extent(loop)};")
            self.line(f"rest /= {self.extent(loop)};")
        self.line("(void)rest;")
        if plan.stage_plan.spilled:
            row = _padded(self.extent(self.schedule.vector), self.lanes)
            self.line(f"const int64_t row = {row};")
            self._place_buffers(f"(run->own + run->parts * {8 * len(self._slots())})")
        self._start_item()
        for number, step in enumerate(stages[: self.phase + 1]):
            self._compute(step.before, 1, None)
            if number < self.phase:
                self._combine(step)
        if self.phase < len(stages):
            self._reduce(stages[self.phase])
        else:
            self.line("(void)chunk;")
            self._compute(plan.stage_plan.after, 1, None)
            for index in plan.stage_plan.stores:
                self._store_once(index, 1, None)
        return without_unused(self.lines, _DECLARATION)

    def _range(self) -> tuple[str, str]:
        extent = self.extent(self.schedule.vector)
        start = "(int64_t)chunk * run->split"
        return start, f"{extent} - x < run->split ? {extent} : x + run->split"

    def _prefetch(self, step: Stage) -> None:
        """Parts are adjacent."""

    def _slots(self) -> list[int]:
        """All reductions."""
        return [index for step in self.schedule.stage_plan.stages for index in step.reductions]

    def _slot(self, index: int, part: str) -> str:
        """The address of the partial result of a reduction."""
        return f"run->own + ({self._slots().index(index)} * run->parts + {part}) * 8"

    def _reduce(self, step: Stage) -> None:
        """The stage in a part, and its partial results."""
        if not (step.body or step.reductions or step.stores):
            self.line("(void)chunk;")
            return
        self._stage(step, 1, None)
        for index in step.reductions:
            like = self._variable(index)
            code = self._code(self._value(index, -1), like.width)
            self.line(
                f"store_part_{like.vector}{self.end}({self._slot(index, '(int64_t)chunk')}, {code}, 1);"
            )

    def _combine(self, step: Stage) -> None:
        """The results of an earlier stage."""
        for index in step.reductions:
            total = self._variable(index, f"all{index}")
            nothing = self.write.identity(self._kind(index), total)
            self.line(f"{nothing.vector}{self.end} all{index} = {nothing.code};")
            with self.block("for (int64_t part = 0; part < run->parts; part++)"):
                one = self._variable(index, f"load_one_{total.vector}{self.end}({self._slot(index, 'part')})")
                self.line(f"all{index} = {self.write.combine(self._kind(index), total, one).code};")
            self._define(index, -1, total)
