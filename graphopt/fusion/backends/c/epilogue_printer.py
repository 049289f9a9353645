"""Epilogues in C: the nodes after a template, applied to a run of elements of its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphopt.fusion.backends.c.point_printer import C_TYPES, PointPrinter, scaled
from graphopt.fusion.backends.c.schedule import Schedule
from graphopt.fusion.c_code.bounds_checks import checks
from graphopt.fusion.c_code.input_checks import input_checks, size_definitions
from graphopt.fusion.c_code.size_variables import SizeVariables
from graphopt.fusion.loops.collapse import collapse
from graphopt.fusion.loops.ir import Element, Kernel
from graphopt.fusion.loops.reduction_stages import plan_stages
from graphopt.fusion.template_kernel import RESULT, Epilogue

_PARAMETERS = "(void *data, int64_t at, int64_t count, const void *values)"
#: Types with 256 values: a table replaces a function of one of them.
_BYTES = (Element.U8, Element.I8)


class EpiloguePrinter(PointPrinter):
    """Prints ``NAME_finish``, which computes a run of elements, and ``NAME_prepare``, which checks sizes.

    The run has to be a struct ``NAME_run`` with the members ``from`` (pointers to the inputs of the epilogue,
    NULL for the result of the template), ``out``, ``n`` (sizes), and ``table`` if :attr:`has_table`.
    """

    def __init__(self, epilogue: Epilogue, name: str) -> None:
        kernel = replace(epilogue.kernel, name=name)
        sizes = SizeVariables()
        super().__init__(kernel, _schedule(kernel), sizes, 0)
        self.result = epilogue.sources.index(RESULT)
        self._labels = [
            "the result of the template" if source == RESULT else f"input {source}"
            for source in epilogue.sources
        ]
        self.streamed = set()  # the parts of a result are too small to be written past caches
        self.text(), self.prepare()  # number the sizes

    @property
    def has_table(self) -> bool:
        """Whether a lookup table computes the elements, because each is one byte and a function of one byte.

        ``NAME_prepare`` fills the table by calls of ``NAME_compute``; ``quantize.h`` implements the lookup.
        """
        ports = (*self.kernel.inputs, *self.kernel.outputs)
        return len(ports) == 2 and all(port.element in _BYTES for port in ports) and not self.schedule.outer

    def text(self) -> str:
        """``static void NAME_finish(void *data, int64_t at, int64_t count, const void *values)``."""
        if not self.has_table:
            return self._function("finish")
        name = self.kernel.name
        return (
            f"{self._function('compute')}\n"
            f"static inline void {name}_finish{_PARAMETERS} {{\n"
            f"    {name}_run *const run = data;\n"
            f"    go_look_up(run->table, values, count, (uint8_t *)run->out[0] + at);\n}}\n"
        )

    def _function(self, suffix: str) -> str:
        name, plan = self.kernel.name, self.schedule
        last = plan.vector
        result = self.kernel.inputs[self.result]
        self.lines = []
        inside = "\n".join(self._rows())
        head = [
            f"static inline void {name}_{suffix}{_PARAMETERS} {{",
            f"    {name}_run *const run = data;",
            f"    const {C_TYPES[result.element]} *result = values;",
            "    (void)run;",
        ]
        head += [f"    const int64_t n{index} = run->n[{index}];" for index in range(len(self.sizes))]
        head += [f"    (void)n{index};" for index in range(len(self.sizes))]
        for index, port in enumerate(self.kernel.inputs):
            if index != self.result:
                head.append(f"    const {C_TYPES[port.element]} *const in{index} = run->from[{index}];")
        for index, port in enumerate(self.kernel.outputs):
            head.append(f"    {C_TYPES[port.element]} *const out{index} = run->out[{index}];")
        head.append(f"    int64_t first = at % {self.extent(last)}, rest = at / {self.extent(last)};")
        for loop in reversed(plan.outer):
            head.append(f"    int64_t i{loop} = rest % {self.extent(loop)};")
            head.append(f"    rest /= {self.extent(loop)};")
        return "\n".join([*head, "    (void)rest;", inside, "}"]) + "\n"

    def _rows(self) -> list[str]:
        plan = self.schedule
        extent = self.extent(plan.vector)
        with self.block("while (count > 0)"):
            self.line(f"const int64_t length = {extent} - first < count ? {extent} - first : count;")
            self._start_row()
            (stage,) = plan.stage_plan.stages
            self._compute(stage.before, 1, None)
            if stage.stores:
                self.line("int64_t x = 0;")
                with self.block(f"for (; x + {self.lanes} <= length; x += {self.lanes})"):
                    self._point(stage, {}, 1, None)
                with self.block("if (x < length)"):
                    self.line("const int m = (int)(length - x);")
                    self._point(stage, {}, 1, "m")
            for index in plan.stage_plan.stores:  # of a result with one element
                self._store_once(index, 1, None)
            self.line("count -= length;")
            self.line("result += length;")
            self.line("first = 0;")
            self._next_row()
        return self.lines

    def _start_row(self) -> None:
        vector = self.schedule.vector
        for number, (place, written) in enumerate(self.accesses):
            if not written and place.port == self.result:
                self.pointers[number] = "result"
                continue
            port = (self.kernel.outputs if written else self.kernel.inputs)[place.port]
            terms = [f"{'out' if written else 'in'}{place.port}", *map(self.sizes.c, place.offsets)]
            for loop, counter in [*((loop, f"i{loop}") for loop in self.schedule.outer), (vector, "first")]:
                if place.strides[loop].factor:
                    terms.append(scaled(counter, self.sizes.c(place.strides[loop])))
            const = "" if written else "const "
            self.line(f"{const}{C_TYPES[port.element]} *const p{number} = {' + '.join(terms)};")
            self.pointers[number] = f"p{number}"

    def _next_row(self) -> None:
        """Advance the counters of the outer loops, the last one first."""
        blocks = 0
        for loop in reversed(self.schedule.outer):
            self.line(f"if (++i{loop} == {self.extent(loop)}) {{")
            self.depth += 1
            self.line(f"i{loop} = 0;")
            blocks += 1
        for _ in range(blocks):
            self.depth -= 1
            self.line("}")

    def prepare(self) -> str:
        """``static int NAME_prepare(go_call *call, NAME_run *run, const int64_t *const *dims)``.

        It computes the sizes and creates the outputs; ``dims`` has the shapes of the epilogue's inputs.
        """
        name = self.kernel.name
        head = f"static int {name}_prepare(go_call *call, {name}_run *run, const int64_t *const *dims) {{"
        return "\n".join([head, *self._preparation(), "    return 0;", "}"]) + "\n"

    def _preparation(self) -> Iterator[str]:
        kernel, sizes = self.kernel, self.sizes
        lines = [*input_checks(kernel, sizes, labels=self._labels), *checks(kernel, sizes, self._labels)]
        for index, port in enumerate(kernel.outputs):
            shape = "NULL"
            if port.dims:
                lines.append(f"    const int64_t out{index}[] = {{{', '.join(map(sizes.c, port.dims))}}};")
                shape = f"out{index}"
            lines.append(f"    run->out[{index}] = go_output(call, {index}, {len(port.dims)}, {shape});")
            lines.append(f"    if (!run->out[{index}]) return 1;")
        for index in range(len(kernel.inputs)):
            yield f"    const int64_t *const in{index} = dims[{index}];"
            yield f"    (void)in{index};"
        yield from size_definitions(kernel, sizes, "run->n")
        yield from lines
        if self.has_table:
            yield from self._table()

    def _table(self) -> Iterator[str]:
        """Statements that compute the table, in parts that have at most the size of the result."""
        yield "    uint8_t all[256];"
        yield "    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;"
        yield "    void *const out = run->out[0];"
        yield f"    const int64_t most = {self.extent(self.schedule.vector)};"
        yield "    for (int64_t i = 0, some = go_least(most, 256); i < 256 && some > 0; i += some) {"
        yield "        some = go_least(some, 256 - i);"
        yield "        run->out[0] = run->table + i;"
        yield f"        {self.kernel.name}_compute(run, 0, some, all + i);"
        yield "    }"
        yield "    run->out[0] = out;"


def _schedule(kernel: Kernel) -> Schedule:
    """Loops in the order of the result's elements; the last one is vectorized."""
    (segment,) = kernel.segments
    nest = collapse(kernel, segment)
    last = len(nest.loops) - 1
    stage_plan = plan_stages(nest, frozenset((last,)), frozenset(), last)
    return Schedule(nest, tuple(range(last)), (last,), last, stage_plan, 1, False, 1)
