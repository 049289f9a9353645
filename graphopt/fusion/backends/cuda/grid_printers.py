"""Device functions of kernels without reductions: adjacent points per thread, and tiles in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.fusion.backends.cuda import expressions
from graphopt.fusion.backends.cuda.expressions import Value
from graphopt.fusion.backends.cuda.launch import Count, Extent, GridDim
from graphopt.fusion.backends.cuda.point_printer import PointPrinter
from graphopt.fusion.backends.cuda.schedule import (
    BLOCK,
    TILE,
    GridSchedule,
    Kind,
    extent,
    extents,
    transposed,
)
from graphopt.fusion.loops.ir import Kernel, Size

#: Maximum shared memory of the tiles of a block, in bytes; further transposed operands are read directly.
_TILE_BYTES = 32 * 1024


class FlatPrinter(PointPrinter):
    """Each thread computes adjacent points of the last loop, in a grid-stride loop."""

    @property
    def grid(self) -> GridDim:
        """The blocks."""
        plan = self.schedule
        last = extent(self.nest, plan.vector, plan.units)
        return GridDim((*extents(self.nest, plan.outer), last), BLOCK)

    def print(self) -> None:
        self.line(f"const GO_INDEX items = {self.items()};")
        with self.block(grid_loop("item", "items", BLOCK)):
            self.item()

    def items(self) -> str:
        """The number of items, which are groups of adjacent points."""
        return " * ".join([*map(self.extent, self.schedule.outer), self._chunks()])

    def _chunks(self) -> str:
        """The number of groups in the last loop."""
        units, stop = self.schedule.units, self.extent(self.schedule.vector)
        return stop if units == 1 else f"(({stop} + {units - 1}) / {units})"

    def item(self) -> None:
        """The statements of an item."""
        plan = self.schedule
        (stage,) = plan.stage_plan.stages
        if plan.units > 1:
            self.define_wide()
        times = "" if plan.units == 1 else f" * {plan.units}"
        if plan.outer:
            divisor = self._chunks()
            divisor = "1" if divisor == "0" else divisor
            self.line("GO_INDEX rest = item;")
            self.line(f"const GO_INDEX x = rest % {divisor}{times};")
            self.line(f"rest /= {divisor};")
            self.decode("rest", plan.outer)
        else:
            self.line(f"const GO_INDEX x = item{times};")
        self.positions(plan.outer)
        self.compute(stage.before)
        self.points(stage, "x", self.extent(plan.vector), {})
        self.compute(plan.stage_plan.after)
        for index in plan.stage_plan.stores:
            self.store(index, "")


class SegmentsPrinter(FlatPrinter):
    """All segments of a kernel, with equal numbers of items, in one launch."""

    def __init__(self, kernel: Kernel, schedules: Sequence[GridSchedule]) -> None:
        super().__init__(kernel, schedules[0])
        self.members = [FlatPrinter(kernel, schedule) for schedule in schedules]
        for member in self.members:
            member.sizes, member.lines = self.sizes, self.lines

    @property
    def grid(self) -> GridDim:
        return GridDim((Extent(Size(len(self.members))), *super().grid.extents), BLOCK)

    def print(self) -> None:
        self.line(f"const GO_INDEX items = {self.items()};")
        with self.block(grid_loop("place", f"items * {len(self.members)}", BLOCK)):
            self.line("const GO_INDEX segment = place / items;")
            self.line("const GO_INDEX item = place - segment * items;")
            for number, member in enumerate(self.members):
                with self.block(f"if (segment == {number})"):
                    member.depth = self.depth
                    member.item()


def are_alike(schedules: Sequence[GridSchedule]) -> bool:
    """Whether one launch can compute segments with these schedules."""
    if len(schedules) < 2 or any(plan.kind is not Kind.POINTS for plan in schedules):
        return False
    loops = [extents(plan.nest, (*plan.outer, plan.vector)) for plan in schedules]
    grids = {(plan.units, *map(_length, found)) for plan, found in zip(schedules, loops, strict=True)}
    return len(grids) == 1


def _length(found: Extent) -> Extent:
    """An extent from 0 with the same number of iterations, if it is constant."""
    start, stop = found.start.constant, found.stop.constant
    return found if start is None or stop is None else Extent(Size(stop - start))


class TilePrinter(PointPrinter):
    """Each block computes square tiles of two loops, with transposed operands in shared memory.

    Adjacent threads read adjacent elements of an operand into a tile, and then compute adjacent points of the
    last loop. The rows of a tile are padded so that the elements of a column are in different banks.
    """

    def __init__(self, kernel: Kernel, schedule: GridSchedule) -> None:
        super().__init__(kernel, schedule)
        self.staged: set[int] = set()  # loads, by instruction

    @property
    def grid(self) -> GridDim:
        """The blocks."""
        tiles: Count = tuple(extent(self.nest, loop, TILE) for loop in self.schedule.inner)
        return GridDim((*extents(self.nest, self.schedule.outer), *tiles))

    def print(self) -> None:
        plan = self.schedule
        (stage,) = plan.stage_plan.stages
        across, last = plan.inner
        for index, access in self.loads.items():
            width = TILE + max(4 // access.memory.bytes, 1)
            fits = self.shared_bytes + TILE * width * access.memory.bytes <= _TILE_BYTES
            if index in stage.body and transposed(access.place) == across and fits:
                self.share(access.type, f"tile{access.number}", TILE, width)
                self.staged.add(index)
        down, right = self.extent(across), self.extent(last)
        for name, size in (("rows", down), ("columns", right)):
            self.line(f"const GO_INDEX {name} = ({size} + {TILE - 1}) / {TILE};")
        self.line(f"const GO_INDEX items = {' * '.join([*map(self.extent, plan.outer), 'rows * columns'])};")
        self.line(f"const i32 near = GO_THREAD % {TILE};")
        self.line(f"const i32 far = GO_THREAD / {TILE};")
        with self.block(grid_loop("item", "items", 1)):
            self.line("GO_INDEX rest = item;")
            self.line(f"const GO_INDEX right = rest % columns * {TILE};")
            self.line("rest /= columns;")
            self.line(f"const GO_INDEX down = rest % rows * {TILE};")
            self.line("rest /= rows;")
            self.decode("rest", plan.outer)
            self.positions(plan.outer)
            each = f"GO_UNROLL for (i32 k = far; k < {TILE}; k += {BLOCK // TILE})"
            with self.block(each):
                self._counters("down + near", "right + k")
                with self.block(f"if (i{across} < {down} && i{last} < {right})"):
                    for index, access in self.loads.items():
                        if index in self.staged:
                            element = f"{access.tensor}[{self.position(access)}]"
                            self.line(f"tile{access.number}[k][near] = {element};")
            self.line("GO_BARRIER();")
            self.compute(stage.before)
            with self.block(each):
                self._counters("down + k", "right + near")
                with self.block(f"if (i{across} < {down} && i{last} < {right})"):
                    self.point(stage, {}, "")
            self.line("GO_BARRIER();")

    def _counters(self, across: str, last: str) -> None:
        for loop, counter in zip(self.schedule.inner, (across, last), strict=True):
            self.line(f"const GO_INDEX i{loop} = {counter};")

    def load(self, index: int, inside: str) -> Value:
        access = self.loads[index]
        if index in self.staged:
            return expressions.loaded(access.memory, f"tile{access.number}[near][k]")
        return super().load(index, inside)


def grid_loop(item: str, items: str, per_block: int) -> str:
    """The header of a loop over the items of a thread or of a block."""
    if per_block == 1:
        start, step = "GO_BLOCK(GO_INDEX)", "GO_BLOCKS(GO_INDEX)"
    else:
        start, step = f"GO_BLOCK(GO_INDEX) * {per_block} + GO_THREAD", f"GO_BLOCKS(GO_INDEX) * {per_block}"
    return f"for (GO_INDEX {item} = {start}; {item} < {items}; {item} += {step})"
