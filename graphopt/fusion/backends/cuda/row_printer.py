"""Device functions of reductions: the threads of a warp or of a block share the reduced loops of a point.

Each stage is a loop over the elements of a row, followed by reductions across the threads in a fixed order.
No barrier or exchange within a warp depends on a condition that differs between the threads of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphopt.fusion.backends.cuda.expressions import MEMORY, REGISTERS, Value
from graphopt.fusion.backends.cuda.launch import GridDim
from graphopt.fusion.backends.cuda.point_printer import PointPrinter
from graphopt.fusion.backends.cuda.schedule import WARP, Kind, extents
from graphopt.fusion.loops.ir import Element
from graphopt.fusion.loops.reduction_stages import Stage

#: Steps of a thread in a block of a blocked sum: the error of n additions grows with n in one sequence, but
#: with n / SUM_STEPS + SUM_STEPS in blocks.
SUM_STEPS = 32


class RowPrinter(PointPrinter):
    """Whole rows: all stages of a point of the outer loops, one after the other."""

    @property
    def is_columns(self) -> bool:
        """Whether a block computes adjacent columns."""
        return self.schedule.kind is Kind.COLUMNS

    @property
    def grid(self) -> GridDim:
        """The blocks."""
        return GridDim(extents(self.nest, self.schedule.outer), self.schedule.points)

    def print(self) -> None:
        """Print the statements of the function."""
        self.start()
        self._spill_buffers()
        with self._rows():
            self.positions(self.schedule.outer)
            self.line("const GO_INDEX stop = active ? length : 0;")
            for stage in self.schedule.stage_plan.stages:
                self.compute(stage.before)
                self.stage(stage, "0", "stop")
                for index in stage.reductions:
                    self.values[index] = Value(f"r{index}", self.nest.body[index].element)
            self.finish()

    def start(self) -> None:
        """The row and the lane of a thread within its block, and the length of a row."""
        plan = self.schedule
        lane, row = f"GO_THREAD % {plan.lanes}", f"GO_THREAD / {plan.lanes}"
        if self.is_columns:
            lane, row = f"GO_THREAD / {plan.points}", f"GO_THREAD % {plan.points}"
        self.line(f"const i32 lane = {lane};")
        self.line(f"const i32 row = {row};")
        self.line(f"const GO_INDEX length = {' * '.join(map(self.extent, plan.inner))};")
        if plan.units > 1:
            self.define_wide()

    @contextmanager
    def _rows(self) -> Iterator[None]:
        """The loop over blocks of rows."""
        plan = self.schedule
        self.line(f"const GO_INDEX rows = {' * '.join(map(self.extent, plan.outer)) or '1'};")
        step = f"GO_BLOCKS(GO_INDEX) * {plan.points}"
        first = f"GO_BLOCK(GO_INDEX) * {plan.points}"
        with self.block(f"for (GO_INDEX first = {first}; first < rows; first += {step})"):
            self.line("const bool active = first + row < rows;")
            self.line("GO_INDEX rest = active ? first + row : 0;")
            self.decode("rest", plan.outer)
            yield

    def finish(self) -> None:
        """The instructions and stores after the last stage, once per row."""
        plan = self.schedule.stage_plan
        if plan.stores:
            self.compute(plan.after)
            with self.block("if (active && lane == 0)"):
                for index in plan.stores:
                    self.store(index, "")

    def _spill_buffers(self) -> None:
        plan = self.schedule
        lengths = [self.nest.loops[loop].constant or 0 for loop in plan.inner]
        for index in plan.stage_plan.spilled:
            dims = [*lengths, plan.points] if self.is_columns else [plan.points, *lengths]
            self.share(MEMORY[self.nest.body[index].element], f"kept{index}", *dims)

    def evaluate(self, stage: Stage, inside: str, guard: str) -> None:
        """The instructions of a stage at a point, between the reads and the writes of spilled values."""
        for index in stage.reloads:
            self.define(index, Value(self._spill_place(index), self.nest.body[index].element))
        super().evaluate(stage, inside, guard)
        for index in stage.spills:
            self.line(f"{guard}{self._spill_place(index)} = {self.values[index].code};")

    def _spill_place(self, index: int) -> str:
        """The element of a buffer at the current point."""
        plan = self.schedule
        place = "".join(f"[i{loop}]" for loop in plan.inner)
        return f"kept{index}{place}[row]" if self.is_columns else f"kept{index}[row]{place}"

    # Stages

    def stage(self, stage: Stage, start: str, stop: str) -> None:
        """A loop over the elements of a row from ``start`` to ``stop``, and its reductions.

        The result of reduction 5 is in ``r5``.
        """
        totals = {index: f"r{index}" for index in stage.reductions}
        for index, name in totals.items():
            self.accumulator(index, name)
        if stage.body or stage.stores or stage.reductions:
            blocked = {index: f"b{index}" for index in totals if self._is_blocked(index)}
            for index, name in blocked.items():
                self.accumulator(index, name)
            step = self.schedule.lanes * self.schedule.units
            first = f"lane * {self.schedule.units}" if self.schedule.units > 1 else "lane"
            with self.block(f"for (GO_INDEX x = {start} + {first}; x < {stop}; x += {step})"):
                self.points(stage, "x", stop, totals | blocked)
                if blocked:
                    with self.block(f"if (x / {step} % {SUM_STEPS} == {SUM_STEPS - 1})"):
                        for index, name in blocked.items():
                            self.accumulate(index, totals[index], Value(name, Element.F32))
                            self.line(f"{name} = 0.0f;")
            for index, name in blocked.items():
                self.accumulate(index, totals[index], Value(name, Element.F32))
        for index, name in totals.items():
            self.across(index, name)

    def _is_blocked(self, index: int) -> bool:
        """Whether a sum may have more than one block of summands per thread."""
        if self.kind(index) != "sum" or self.nest.body[index].element is not Element.F32:
            return False
        length = self.schedule.part or 1
        for loop in self.schedule.inner if self.schedule.part is None else ():
            size = self.nest.loops[loop].constant
            if size is None:
                return True
            length *= size
        return length > SUM_STEPS * self.schedule.lanes * self.schedule.units

    def across(self, index: int, name: str) -> None:
        """Reduce the accumulator ``name`` over the threads of a point."""
        plan = self.schedule
        element = self.nest.body[index].element
        if plan.lanes == 1:
            return
        if self.is_columns:
            self._combine_shared(index, name, "GO_THREAD", "row", plan.points, plan.lanes)
            return
        width = min(plan.lanes, WARP)
        kind = "i32" if element is Element.BOOL else REGISTERS[element]
        with self.block(f"GO_UNROLL for (i32 distance = {width // 2}; distance; distance /= 2)"):
            self.line(f"GO_SWAP({kind}, other, {name}, distance);")
            self.accumulate(index, name, Value("other", element))
        # Either of two zeros may be the maximum: all threads use that of the first.
        self.line(f"GO_FIRST({kind}, {name}, {width});")
        if plan.lanes > WARP:
            self._combine_shared(index, name, f"GO_THREAD / {WARP}", "0", 1, plan.lanes // WARP)

    def _combine_shared(self, index: int, name: str, slot: str, first: str, stride: int, count: int) -> None:
        """Combine ``count`` accumulators in order, through shared memory; each thread receives the result.

        Reductions of one type share an array, because a barrier follows each use.

        Args:
            slot: the index of the accumulator of a thread; equal for threads with equal accumulators.
            first, stride: the elements to combine.
        """
        element = self.nest.body[index].element
        array = f"shared_{MEMORY[element]}"
        self.share(MEMORY[element], array, count * stride)
        self.line(f"{array}[{slot}] = {name};")
        self.line("GO_BARRIER();")
        self.line(f"{name} = {array}[{first}];")
        with self.block(f"for (i32 k = 1; k < {count}; k++)"):
            place = f"{first} + k * {stride}" if stride > 1 else "k"
            self.accumulate(index, name, Value(f"{array}[{place}]", element))
        self.line("GO_BARRIER();")
