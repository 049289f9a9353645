"""The function of a segment: computes a chunk of its work items."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from graphopt.fusion.backends.c.point_printer import C_TYPES, PointPrinter, scaled
from graphopt.fusion.backends.c.schedule import TILE
from graphopt.fusion.loops.collapse import StridedAccess
from graphopt.fusion.loops.ir import ONE, Element
from graphopt.fusion.loops.reduction_stages import Stage

#: Number of summands per lane in a block of a blocked sum.
BLOCK = 32
#: Number of lanes of the narrowest vectors.
_FEWEST_LANES = 4


class SegmentPrinter(PointPrinter):
    """Prints the function of a segment: ``static void NAME(void *run, size_t chunk)``."""

    @property
    def function(self) -> str:
        """Its name."""
        return f"{self.kernel.name}_{self.number}"

    def text(self) -> str:
        """The function."""
        inside = self._inside()
        head = [f"static void {self.function}(void *data, size_t chunk) {{"]
        head.append(f"    {self.kernel.name}_run *const run = data;")
        head += [f"    const int64_t n{index} = run->n[{index}];" for index in range(len(self.sizes))]
        for kind, ports in (("in", self.kernel.inputs), ("out", self.kernel.outputs)):
            for index, port in enumerate(ports):
                const = "const " if kind == "in" else ""
                head.append(
                    f"    {const}{C_TYPES[port.element]} *const {kind}{index} = run->{kind}[{index}];"
                )
        head += self._streaming_conditions()
        used = "\n".join(inside)
        head = [line for line in head if _is_used(line, used)]
        if "stream_" in used:
            inside.append("    go_streamed();")
        return "\n".join([*head, *inside, "}"]) + "\n"

    def _streaming_conditions(self) -> Iterator[str]:
        """Conditions of streaming stores, which write whole cache lines only."""
        plan = self.schedule
        for index, number in enumerate(self.store_numbers):
            if index not in self.streamed:
                continue
            place = self.accesses[number][0]
            width = self.kernel.outputs[place.port].element.bytes
            apart = list(place.offsets)
            apart += [stride for loop, stride in enumerate(place.strides) if loop != plan.vector]
            parts = [f"{self.sizes.c(size)} * {width}" for size in apart if size.factor]
            if plan.columns or plan.tiled:  # consecutive lines are not written in order
                parts.append(f"{plan.unroll if plan.columns else TILE} * {self.lanes} * {width}")
            lines = f"({' | '.join(parts) or '0'}) % GO_LINE == 0"
            whole = f"{self.lanes} * {width} >= GO_LINE / 2"
            yield f"    const int far{number} = run->far[{place.port}] && {whole} && {lines};"

    # The loop over work items

    def _inside(self) -> list[str]:
        plan, number = self.schedule, self.number
        self.line(f"const int64_t step = run->step[{number}], items = run->items[{number}];")
        self.line("int64_t item = (int64_t)chunk * step, rest = item;")
        self.line("const int64_t end = items - item < step ? items : item + step;")
        if plan.blocks:
            self.line(f"const int64_t extent = {self.extent(plan.vector)}, width = run->width[{number}];")
            self.line("const int64_t blocks = (extent + width - 1) / width;")
            self.line("if (!blocks) return;")
            if not plan.tiled:
                self.line("int64_t block = rest % blocks;")
                self.line("rest /= blocks;")
        for loop in reversed(plan.outer):
            self.line(f"int64_t i{loop} = rest % {self.extent(loop)};")
            self.line(f"rest /= {self.extent(loop)};")
        self.line("int64_t block = rest;" if plan.tiled else "(void)rest;")
        if plan.blocks:
            self.line("(void)block;")
        self._buffers()
        with self.block("for (; item < end; item++)"):
            self._start_item()
            if plan.columns:
                self._vectors("block * width", "(block + 1) * width < extent ? (block + 1) * width : extent")
            else:
                self._stages(1, None)
            self._next_item()
        if plan.stage_plan.spilled:
            self.line("free(own);")
        return self.lines

    def _start_item(self) -> None:
        for number, (place, written) in enumerate(self.accesses):
            port = (self.kernel.outputs if written else self.kernel.inputs)[place.port]
            terms = [f"{'out' if written else 'in'}{place.port}", *map(self.sizes.c, place.offsets)]
            terms += [
                scaled(f"i{loop}", self.sizes.c(place.strides[loop]))
                for loop in self.schedule.outer
                if place.strides[loop].factor
            ]
            const = "" if written else "const "
            self.line(f"{const}{C_TYPES[port.element]} *const p{number} = {' + '.join(terms)};")
            self.pointers[number] = f"p{number}"
            if place.period:
                self._repeat(number, place)

    def _repeat(self, number: int, place: StridedAccess) -> None:
        """Copy a repeated operand until the length is a multiple of the vector size."""
        period, type_ = place.period or 1, C_TYPES[self.kernel.inputs[place.port].element]
        power = period & -period
        length = f"{period} * {self.lanes} / ({power} < {self.lanes} ? {power} : {self.lanes})"
        self.line(f"{type_} again{number}[{length}];")
        stride = self.sizes.c(place.strides[self.schedule.vector])
        with self.block(f"for (int k = 0; k < {length}; k++)"):
            self.line(f"again{number}[k] = p{number}[{scaled(f'(k % {period})', stride)}];")
        self.period = length

    def _next_item(self) -> None:
        counters = [(f"i{loop}", self.extent(loop)) for loop in self.schedule.outer]
        if self.schedule.blocks:
            counters.insert(0 if self.schedule.tiled else len(counters), ("block", "blocks"))
        with ExitStack() as stack:
            for counter, extent in reversed(counters[1:]):
                stack.enter_context(self.block(f"if (++{counter} == {extent})"))
                self.line(f"{counter} = 0;")
            for counter, _ in counters[:1]:
                self.line(f"++{counter};")

    # Buffers

    def _buffers(self) -> None:
        spilled = self.schedule.stage_plan.spilled
        if not spilled:
            return
        plan = self.schedule
        parts = [self.extent(loop) for loop in plan.inner if loop != plan.vector]
        if plan.columns:
            parts.append(f"({plan.unroll} * {self.lanes})")
        else:
            parts.append(f"(({self.extent(plan.vector)} + {self.lanes} - 1) / {self.lanes} * {self.lanes})")
        self.line(f"const int64_t row = {' * '.join(parts)};")
        widths = [self._variable(index).width for index in spilled]
        # sizes come from the model: the product must not overflow
        few = f"{' * '.join(f'(double){part}' for part in parts)} < 0x1p48"
        self.line(
            f"char *const own = {few} ? malloc((size_t)row * {sum(widths)} + {64 * len(spilled)}) : NULL;"
        )
        with self.block("if (!own)"):
            self.line("__atomic_store_n(&run->failed, 1, __ATOMIC_RELAXED);")
            self.line("return;")
        self._place_buffers("own")

    def _place_buffers(self, memory: str) -> None:
        """Declare the buffers of ``row`` elements in ``memory``."""
        at = f"(char *)(((uintptr_t){memory} + 63) / 64 * 64)"
        for index in self.schedule.stage_plan.spilled:
            width = self._variable(index).width
            self.line(f"char *const kept{self.buffers[index]} = {at};")
            at = f"kept{self.buffers[index]} + (row * {width} + 63) / 64 * 64"

    # Stages

    def _stages(self, units: int, part: str | None) -> None:
        """All stages. Loops by columns compute ``units`` vectors at ``x``, the last with ``part`` lanes."""
        stage_plan = self.schedule.stage_plan
        for step in stage_plan.stages:
            self._compute(step.before, units, part)
            if step.body or step.reductions or step.stores:
                self._stage(step, units, part)
        self._compute(stage_plan.after, units, part)
        for index in stage_plan.stores:
            self._store_once(index, units, part)

    def _stage(self, step: Stage, units: int, part: str | None) -> None:
        plan = self.schedule
        wide = units if plan.columns else plan.unroll
        sums: dict[int, list[str]] = {}
        for index in step.reductions:
            arg = self.nest.body[index].args[0]
            copies = wide if not plan.columns or plan.vector in self.nest.axes[arg] else 1
            sums[index] = [f"sum{index}_{unit}" for unit in range(copies)]
            self._accumulators(index, sums[index])
        outer = [loop for loop in plan.inner if loop != plan.vector]
        blocks = self._start_blocks(sums, outer)
        before = dict(self.pointers), dict(self.values)
        with self._loops(step, outer):
            if plan.columns:
                self._point(step, sums | blocks, units, part)
                if blocks:
                    counter, extent = f"j{outer[-1]}", self.extent(outer[-1])
                    with self.block(f"if ({counter} % {BLOCK} == {BLOCK - 1} || {counter} + 1 == {extent})"):
                        self._end_blocks(sums, blocks)
            else:
                self._vector_loop(step, sums, blocks)
        self.pointers, self.values = before
        for index in step.reductions:
            self._finish(index, sums[index])

    def _vector_loop(self, step: Stage, sums: dict[int, list[str]], blocks: dict[int, list[str]]) -> None:
        plan = self.schedule
        start, stop = self._range()
        if self.period:
            self.line(f"int64_t turn = ({start}) % ({self.period});")
        step_width = f"{plan.unroll} * {self.lanes}" if plan.unroll > 1 else self.lanes
        self.line(f"int64_t x = {start};")
        self.line(f"const int64_t stop = {stop};")
        with self.block(f"for (; x + {step_width} <= stop; x += {step_width})"):
            self._prefetch(step)
            self._point(step, sums | blocks, plan.unroll, None)
            if blocks:
                with self.block(f"if (x / ({step_width}) % {BLOCK} == {BLOCK - 1})"):
                    self._end_blocks(sums, blocks)
            if self.period:
                self.line(f"turn = turn + {step_width} == {self.period} ? 0 : turn + {step_width};")
        with self.block(f"for (; x < stop; x += {self.lanes})"):
            self.line(f"const int m = stop - x < {self.lanes} ? (int)(stop - x) : {self.lanes};")
            self._point(step, sums | blocks, 1, "m")
        self._end_blocks(sums, blocks)

    def _range(self) -> tuple[str, str]:
        """The range of the vector loop in a stage."""
        if self.schedule.blocks:
            return "block * width", "extent - block * width < width ? extent : (block + 1) * width"
        return "0", self.extent(self.schedule.vector)

    def _prefetch(self, step: Stage) -> None:
        """In the second stage, prefetch into the second-level cache the rows of the next work item.

        Hardware prefetching ends with a row or a page, and the first stage, which reads from memory, computes
        little. Prefetches of addresses outside of a tensor have no effect.
        """
        plan = self.schedule
        stages = plan.stage_plan.stages
        if len(stages) < 2 or step is not stages[1] or not plan.outer or plan.inner != (plan.vector,):
            return
        for index in stages[0].body:
            number = self.load_numbers.get(index)
            if number is None:
                continue
            place = self.accesses[number][0]
            row = place.strides[plan.outer[-1]]
            if place.strides[plan.vector] == ONE and row.factor:
                for unit in range(plan.unroll):
                    position = f"{self.pointers[number]} + {self._at(unit)} + {self.sizes.c(row)}"
                    self.line(f"__builtin_prefetch({position}, 0, 2);")

    # Blocked sums: the error of n additions grows with n in one sequence, but with n / BLOCK + BLOCK in
    # blocks

    def _start_blocks(self, sums: dict[int, list[str]], outer: list[int]) -> dict[int, list[str]]:
        """Block accumulators of float sums that may have more than one block of summands."""
        plan, last = self.schedule, self.nest.loops[self.schedule.vector].constant
        if plan.columns:
            long = bool(outer)
        else:
            long = bool(outer) or last is None or last > BLOCK * plan.unroll * _FEWEST_LANES
        blocks = {
            index: [f"block_{name}" for name in names]
            for index, names in sums.items()
            if long and self._kind(index) == "sum" and self.nest.body[index].element is Element.F32
        }
        for index, names in blocks.items():
            self._accumulators(index, names)
        return blocks

    def _accumulators(self, index: int, names: list[str]) -> None:
        """Declare the accumulators ``names`` of a reduction."""
        nothing = self.write.identity(self._kind(index), self._variable(index))
        for name in names:
            self.line(f"{nothing.vector}{self.end} {name} = {nothing.code};")

    def _end_blocks(self, sums: dict[int, list[str]], blocks: dict[int, list[str]]) -> None:
        for index, names in blocks.items():
            nothing = self.write.identity("sum", self._variable(index))
            for total, name in zip(sums[index], names, strict=True):
                both = self.write.combine("sum", self._variable(index, total), self._variable(index, name))
                self.line(f"{total} = {both.code};")
                self.line(f"{name} = {nothing.code};")

    @contextmanager
    def _loops(self, step: Stage, loops: list[int]) -> Iterator[None]:
        """The inner loops except for the vector loop, with the instructions of each."""
        plan = self.schedule
        with ExitStack() as stack:
            for number, loop in enumerate(loops):
                header = f"for (int64_t j{loop} = 0; j{loop} < {self.extent(loop)}; j{loop}++)"
                stack.enter_context(self.block(header))
                self._advance(step, loop)
                later = set(loops[number + 1 :])
                for index in step.body:
                    axes = self.nest.axes[index]
                    if plan.vector not in axes and not axes & later and loop in axes:
                        self._instruction(index, -1, None)
            if not loops and not plan.columns:  # a block scopes the variables of the vector loop
                stack.enter_context(self.block())
            yield

    def _advance(self, step: Stage, loop: int) -> None:
        """Pointers inside of ``loop``."""
        wanted = [self.load_numbers[index] for index in step.body if index in self.load_numbers]
        wanted += [self.store_numbers[index] for index in step.stores]
        for number in wanted:
            place, written = self.accesses[number]
            if place.strides[loop].factor:
                port = (self.kernel.outputs if written else self.kernel.inputs)[place.port]
                const = "" if written else "const "
                name = f"p{number}_{loop}"
                stride = self.sizes.c(place.strides[loop])
                pointer = f"{const}{C_TYPES[port.element]} *const {name}"
                self.line(f"{pointer} = {self.pointers[number]} + j{loop} * {stride};")
                self.pointers[number] = name

    # Columns

    def _vectors(self, start: str, stop: str) -> None:
        """The vector loop with the stages inside, for loops by columns."""
        plan = self.schedule
        wide = f"{plan.unroll} * {self.lanes}" if plan.unroll > 1 else self.lanes
        self.line(f"int64_t x = {start};")
        self.line(f"const int64_t stop = {stop};")
        for header, units, part in (
            (f"for (; x + {wide} <= stop; x += {wide})", plan.unroll, None),
            (f"for (; x < stop; x += {self.lanes})", 1, "m"),
        ):
            with self.block(header):
                if part:
                    self.line(f"const int m = stop - x < {self.lanes} ? (int)(stop - x) : {self.lanes};")
                values = dict(self.values)
                self._stages(units, part)
                self.values = values


def _is_used(declaration: str, text: str) -> bool:
    """Whether ``text`` uses the variable of ``declaration``."""
    name = declaration.split(" = ", maxsplit=1)[0].rsplit(maxsplit=1)[-1].lstrip("*")
    return " = " not in declaration or re.search(rf"\b{name}\b", text) is not None
