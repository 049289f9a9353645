"""Device functions for few long rows, which are split into parts: two passes for each stage.

In the first pass, each block reduces a part of a row to partial results. In the second pass, one block per
row combines the partial results, in a fixed order, for the next stage. Each pass is a launch, because the
blocks of one launch can't synchronize.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from graphopt.fusion.backends.cuda.expressions import MEMORY, SIZES, Value
from graphopt.fusion.backends.cuda.grid_printers import grid_loop
from graphopt.fusion.backends.cuda.launch import Buffer, GridDim
from graphopt.fusion.backends.cuda.row_printer import RowPrinter
from graphopt.fusion.backends.cuda.schedule import BLOCK, GridSchedule, Kind, extent, extents
from graphopt.fusion.loops.ir import Kernel
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class PartialResults:
    """Scratch buffers of split rows.

    Attributes:
        parts, totals: indices of the buffers for the results of parts and of rows, by instruction.
        buffers: all buffers, in the order of their indices.
    """

    parts: dict[int, int]
    totals: dict[int, int]
    buffers: tuple[Buffer, ...]


def partial_results(schedule: GridSchedule, first: int) -> PartialResults:
    """Buffers with indices from ``first``: the results of parts and of rows for each reduction."""
    nest, part = schedule.nest, schedule.part
    assert part is not None
    reductions = [index for stage in schedule.stage_plan.stages for index in stage.reductions]
    rows = extents(nest, schedule.outer)
    parts, totals, buffers = {}, {}, list[Buffer]()
    for index in reductions:
        width = SIZES[MEMORY[nest.body[index].element]]
        parts[index], totals[index] = first + len(buffers), first + len(buffers) + 1
        buffers += [Buffer((*rows, extent(nest, schedule.vector, part)), width), Buffer(rows, width)]
    return PartialResults(parts, totals, tuple(buffers))


class SplitPrinter(RowPrinter):
    """A pass of stage ``number`` over rows in parts."""

    def __init__(self, kernel: Kernel, schedule: GridSchedule, results: PartialResults, number: int) -> None:
        super().__init__(kernel, schedule)
        self.results, self.number = results, number
        self.stages = schedule.stage_plan.stages

    @property
    def scratch_types(self) -> dict[int, str]:
        places = [*self.results.parts.items(), *self.results.totals.items()]
        return {number: MEMORY[self.nest.body[index].element] for index, number in places}

    def before(self, count: int) -> None:
        """The instructions before stage ``count``, with the results of earlier stages."""
        for number, stage in enumerate(self.stages[: count + 1]):
            self.compute(stage.before)
            if number < count:
                self._take_totals(stage.reductions)

    def _take_totals(self, reductions: Iterable[int]) -> None:
        for index in reductions:
            element = self.nest.body[index].element
            total = Value(f"scratch{self.results.totals[index]}[point]", element)
            self.define(index, total)


class PartPrinter(SplitPrinter):
    """The first pass: computes a stage of a part of a row."""

    @property
    def grid(self) -> GridDim:
        plan = self.schedule
        assert plan.part is not None
        rows = extents(self.nest, plan.outer)
        if plan.kind is Kind.COLUMNS:
            rows = (*rows[:-1], extent(self.nest, plan.outer[-1], plan.points))
        return GridDim((*rows, extent(self.nest, plan.vector, plan.part)))

    def print(self) -> None:
        plan = self.schedule
        assert plan.part is not None
        self.start()
        self.line(f"const GO_INDEX parts = (length + {plan.part - 1}) / {plan.part};")
        with self._columns() if self.is_columns else self._rows():
            self.positions(plan.outer)
            self.before(self.number)
            self.line(f"const GO_INDEX start = part * {plan.part};")
            rest = f"length - start < {plan.part} ? length : start + {plan.part}"
            self.line(f"const GO_INDEX stop = !active ? 0 : {rest};")
            stage = self.stages[self.number]
            self.stage(stage, "start", "stop")
            if stage.reductions:
                with self.block("if (active && lane == 0)"):
                    for index in stage.reductions:
                        self.line(f"scratch{self.results.parts[index]}[point * parts + part] = r{index};")

    @contextmanager
    def _rows(self) -> Iterator[None]:
        outer = self.schedule.outer
        items = " * ".join([*map(self.extent, outer), "parts"])
        with self.block(grid_loop("item", items, 1)):
            self.line("const bool active = true;")
            self.line("GO_INDEX rest = item;")
            self.line("const GO_INDEX part = rest % parts;")
            self.line("rest /= parts;")
            self.line("const GO_INDEX point = rest;")
            self.decode("rest", outer)
            yield

    @contextmanager
    def _columns(self) -> Iterator[None]:
        *outer, last = self.schedule.outer
        points, width = self.schedule.points, self.extent(last)
        self.line(f"const GO_INDEX across = ({width} + {points - 1}) / {points};")
        items = " * ".join([*map(self.extent, outer), "across", "parts"])
        with self.block(grid_loop("item", items, 1)):
            self.line("GO_INDEX rest = item;")
            self.line("const GO_INDEX part = rest % parts;")
            self.line("rest /= parts;")
            self.line(f"const GO_INDEX column = rest % across * {points} + row;")
            self.line("rest /= across;")
            self.line(f"const bool active = column < {width};")
            self.line(f"const GO_INDEX i{last} = active ? column : 0;")
            self.line(f"const GO_INDEX point = rest * {width} + i{last};")
            self.decode("rest", outer)
            yield


class TotalPrinter(SplitPrinter):
    """The second pass: combines the results of the parts; after the last stage, stores rows."""

    @property
    def grid(self) -> GridDim:
        return GridDim(extents(self.nest, self.schedule.outer))

    def print(self) -> None:
        plan = self.schedule
        assert plan.part is not None
        stage = self.stages[self.number]
        is_last = self.number + 1 == len(self.stages)
        self.line("const i32 lane = GO_THREAD;")
        self.line(f"const GO_INDEX length = {self.extent(plan.vector)};")
        self.line(f"const GO_INDEX parts = (length + {plan.part - 1}) / {plan.part};")
        self.line(f"const GO_INDEX rows = {' * '.join(map(self.extent, plan.outer)) or '1'};")
        with self.block(grid_loop("point", "rows", 1)):
            for index in stage.reductions:
                self.accumulator(index, f"r{index}")
                with self.block(f"for (GO_INDEX k = lane; k < parts; k += {BLOCK})"):
                    part = f"scratch{self.results.parts[index]}[point * parts + k]"
                    self.accumulate(index, f"r{index}", Value(part, self.nest.body[index].element))
                self.across(index, f"r{index}")
                if not is_last:
                    self.line(f"if (lane == 0) scratch{self.results.totals[index]}[point] = r{index};")
                self.values[index] = Value(f"r{index}", self.nest.body[index].element)
            if is_last and plan.stage_plan.stores:
                self._store_once()

    def _store_once(self) -> None:
        """The instructions and stores after the last stage."""
        self.line("const bool active = true;")
        self.line("GO_INDEX rest = point;")
        self.decode("rest", self.schedule.outer)
        self.positions(self.schedule.outer)
        self.before(self.number)
        self.finish()
