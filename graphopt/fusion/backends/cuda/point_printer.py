"""Code for adjacent points of the loops: loads, instructions, reductions and stores.

A function has a variable ``i3`` for the counter of loop 3, and ``a5`` for the position of access 5 at the
current point of the outer loops. Positions have the type ``GO_INDEX``, i32 or i64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from graphopt.fusion.backends.cuda import expressions
from graphopt.fusion.backends.cuda.expressions import MEMORY, REGISTERS, SIZES, Value
from graphopt.fusion.backends.cuda.launch import GridDim
from graphopt.fusion.backends.cuda.schedule import GridSchedule, is_wide
from graphopt.fusion.c_code.size_variables import SizeVariables
from graphopt.fusion.c_code.statement_printer import StatementPrinter
from graphopt.fusion.loops.collapse import StridedAccess
from graphopt.fusion.loops.ir import ONE, Element, Kernel, Size
from graphopt.fusion.loops.reduction_stages import Stage, has_shared_inverse
from graphopt.util.lazy_dataclass import dataclass

#: Bytes of the widest access.
_WIDEST = 16


@dataclass(frozen=True)
class NumberedAccess:
    """A load or store of a segment.

    Attributes:
        wide: whether one vector instruction may access several elements.
    """

    number: int
    place: StridedAccess
    memory: Element
    written: bool
    wide: bool

    @property
    def tensor(self) -> str:
        """The pointer."""
        return f"{'out' if self.written else 'in'}{self.place.port}"

    @property
    def type(self) -> str:
        """The type of an element."""
        return MEMORY[self.memory]


class PointPrinter(StatementPrinter, ABC):
    """Prints statements of points, and the types and sizes that they use."""

    def __init__(self, kernel: Kernel, schedule: GridSchedule) -> None:
        super().__init__()
        self.kernel, self.schedule, self.nest = kernel, schedule, schedule.nest
        self.sizes = SizeVariables()
        self.values: dict[int, Value] = {}
        self.shared: list[str] = []
        self.shared_bytes = 0
        self.loads: dict[int, NumberedAccess] = {}
        for number, (index, place) in enumerate(self.nest.loads.items()):
            self.loads[index] = self._access(number, place, kernel.inputs[place.port].element, False)
        first = len(self.loads)
        self.stores = [
            self._access(first + number, store.access, kernel.outputs[store.access.port].element, True)
            for number, store in enumerate(self.nest.stores)
        ]

    def _access(self, number: int, place: StridedAccess, memory: Element, written: bool) -> NumberedAccess:
        units = self.schedule.units
        wide = units > 1 and is_wide(place, self.schedule.vector, units)
        return NumberedAccess(number, place, memory, written, wide)

    @property
    @abstractmethod
    def grid(self) -> GridDim:
        """The number of blocks of the function."""

    @abstractmethod
    def print(self) -> None:
        """Print the statements of the function."""

    @property
    def accesses(self) -> list[NumberedAccess]:
        """All loads and stores."""
        return [*self.loads.values(), *self.stores]

    def extent(self, loop: int) -> str:
        """The number of iterations of a loop."""
        found = self.nest.loops[loop]
        if found.constant is not None:
            return str(max(found.constant, 0))
        stop = self.sizes.c(found.stop)
        return f"({stop} - {self.sizes.c(found.start)})" if found.start.factor else stop

    # Positions

    def decode(self, rest: str, loops: Sequence[int]) -> None:
        """Define the counters of ``loops`` at point ``rest``, a variable, which is modified."""
        for loop in reversed(loops[1:]):
            size = self.divisor(loop)
            self.line(f"const GO_INDEX i{loop} = {rest} % {size};")
            self.line(f"{rest} /= {size};")
        if loops:
            self.line(f"const GO_INDEX i{loops[0]} = {rest};")

    def divisor(self, loop: int) -> str:
        """The extent of a loop; 1 instead of a constant 0, for which every launch is skipped."""
        size = self.extent(loop)
        return "1" if size == "0" else size

    def positions(self, loops: Iterable[int]) -> None:
        """Define the positions of accesses at a point of ``loops``."""
        loops = list(loops)
        for access in self.accesses:
            terms = [self.sizes.c(offset) for offset in access.place.offsets]
            terms += [self._scaled(access.place, loop) for loop in loops if access.place.strides[loop].factor]
            self.line(f"const GO_INDEX a{access.number} = {' + '.join(terms) or '0'};")

    def position(self, access: NumberedAccess) -> str:
        """The position of an access at a point of the inner loops."""
        terms = [f"a{access.number}"]
        for loop in self.schedule.inner:
            if access.place.strides[loop].factor:
                terms.append(self._scaled(access.place, loop))
        return " + ".join(terms)

    def _scaled(self, place: StridedAccess, loop: int) -> str:
        counter = f"i{loop}"
        if place.period is not None and loop == self.schedule.vector:
            counter = f"({counter} % {place.period})"
        stride = place.strides[loop]
        return counter if stride == ONE else f"{counter} * {self.sizes.c(stride)}"

    # Wide accesses

    def define_wide(self) -> None:
        """Define whether all pointers and sizes allow wide accesses."""
        aligned: dict[str, int] = {}
        multiples: dict[Size, None] = {}
        units = self.schedule.units
        for access in self.accesses:
            if access.wide:
                width = min(units * access.memory.bytes, _WIDEST)
                aligned[access.tensor] = max(width, aligned.get(access.tensor, 1))
                apart = [s for loop, s in enumerate(access.place.strides) if loop != self.schedule.vector]
                sizes = (*apart, *access.place.offsets)
                multiples |= dict.fromkeys(size for size in sizes if size.factor % units)
        checks = [f"GO_ADDRESS({name}) % {width} == 0" for name, width in aligned.items()]
        checks += [f"{self.sizes.c(size)} % {units} == 0" for size in multiples]
        self.line(f"const bool wide = {' && '.join(checks) or 'true'};")

    # Points

    def points(self, stage: Stage, x: str, stop: str, totals: dict[int, str]) -> None:
        """The code of a stage for up to ``units`` adjacent points from ``x``, all before ``stop``.

        Args:
            totals: accumulators of the stage's reductions.
        """
        values = dict(self.values)
        if self.schedule.units == 1:
            self._define_counters(x)
            self.point(stage, totals, "")
        else:
            self._several_points(stage, x, stop, totals)
        self.values = values

    def _several_points(self, stage: Stage, x: str, stop: str, totals: dict[int, str]) -> None:
        units, vector = self.schedule.units, self.schedule.vector
        each = f"GO_UNROLL for (i32 u = 0; u < {units}; u++)"
        self.line(f"const i32 m = {stop} - {x} < {units} ? (i32)({stop} - {x}) : {units};")
        self.line(f"const bool whole = wide && m == {units};")
        for index in stage.body:
            access = self.loads.get(index)
            if access is not None and access.wide:
                name = f"w{access.number}"
                place = f"{access.tensor} + a{access.number} + {x}"
                self.line(f"{access.type}x{units} {name};")
                self.line(f"if (whole) {name} = *(GO_GLOBAL const {access.type}x{units} *)({place});")
                element = f"{access.tensor}[a{access.number} + {x} + u]"
                self.line(f"else {each} {name}.at[u] = u < m ? {element} : ({access.type})0;")
        written = [self.stores[index] for index in stage.stores if self.stores[index].wide]
        for access in written:
            self.line(f"{access.type}x{units} w{access.number};")
        with self.block(each):
            self.line(f"const GO_INDEX i{vector} = {x} + u;")
            self.point(stage, totals, "u < m")
        for access in written:
            place = f"{access.tensor} + a{access.number} + {x}"
            self.line(f"if (whole) *(GO_GLOBAL {access.type}x{units} *)({place}) = w{access.number};")
            element = f"{access.tensor}[a{access.number} + {x} + u]"
            self.line(f"else {each} if (u < m) {element} = w{access.number}.at[u];")

    def _define_counters(self, x: str) -> None:
        """The counters of the inner loops at position ``x``."""
        inner = self.schedule.inner
        if len(inner) == 1:
            self.line(f"const GO_INDEX i{inner[0]} = {x};")
        else:
            self.line(f"GO_INDEX place = {x};")
            self.decode("place", inner)

    def point(self, stage: Stage, totals: dict[int, str], inside: str) -> None:
        """The code of one point; ``inside`` is the condition that it exists, if any."""
        guard = f"if ({inside}) " if inside else ""
        self.evaluate(stage, inside, guard)
        for index in stage.reductions:
            self.accumulate(index, totals[index], self._argument(index), guard)
        for index in stage.stores:
            self.store(index, guard)

    @property
    def scratch_types(self) -> dict[int, str]:
        """The element types of scratch buffers, by index."""
        return {}

    def evaluate(self, stage: Stage, inside: str, guard: str) -> None:
        """The instructions of a stage at a point; ``guard`` precedes statements that write."""
        for index in stage.body:
            self.instruction(index, inside)

    def compute(self, indices: Iterable[int]) -> None:
        """Instructions that are invariant in the inner loops."""
        for index in indices:
            self.instruction(index, "")

    def instruction(self, index: int, inside: str) -> None:
        """Define the result of an instruction."""
        step = self.nest.body[index]
        if step.op == "load":
            found = self.load(index, inside)
        elif step.size is not None:
            found = Value(f"({REGISTERS[step.element]}){self.sizes.c(step.size)}", step.element)
        else:
            args = [self.values[arg] for arg in step.args]
            if has_shared_inverse(self.nest, index):
                found = replace(args[0], code=f"({args[0].code} * (1.0f / {args[1].code}))")
            else:
                found = expressions.value(step, args)
        self.define(index, found)

    def define(self, index: int, found: Value) -> None:
        self.line(f"const {found.type} v{index} = {found.code};")
        self.values[index] = replace(found, code=f"v{index}")

    def load(self, index: int, inside: str) -> Value:
        """The element of a load at the current point; ``inside`` is the condition that it exists, if any."""
        access = self.loads[index]
        if access.wide and inside:
            return expressions.loaded(access.memory, f"w{access.number}.at[u]")
        element = f"{access.tensor}[{self.position(access)}]"
        varies = any(access.place.strides[loop].factor for loop in self.schedule.inner)
        code = f"({inside} ? {element} : ({access.type})0)" if inside and varies else element
        return expressions.loaded(access.memory, code)

    def store(self, index: int, guard: str) -> None:
        """Write the result of a store at the current point; ``guard`` precedes the statement."""
        access = self.stores[index]
        code = expressions.stored(access.memory, self.values[self.nest.stores[index].instruction])
        if access.wide and guard:
            self.line(f"w{access.number}.at[u] = {code};")
        else:
            self.line(f"{guard}{access.tensor}[{self.position(access)}] = {code};")

    # Reductions

    def kind(self, index: int) -> str:
        """The operation of a reduction."""
        return self.nest.body[index].op.removeprefix("reduce_")

    def _argument(self, index: int) -> Value:
        return self.values[self.nest.body[index].args[0]]

    def accumulate(self, index: int, total: str, term: Value, guard: str = "") -> None:
        """Combine ``term`` with the accumulator ``total`` of a reduction."""
        both = expressions.combine(self.kind(index), Value(total, term.element), term)
        self.line(f"{guard}{total} = {both.code};")

    def accumulator(self, index: int, name: str) -> None:
        """Declare an accumulator of a reduction."""
        element = self.nest.body[index].element
        self.line(f"{REGISTERS[element]} {name} = {expressions.identity(self.kind(index), element).code};")

    # Text

    def share(self, kind: str, name: str, *dims: int) -> None:
        """Declare an array of type ``kind`` in shared memory, once for each name."""
        declared = f"GO_SHARED {kind} {name}{''.join(f'[{dim}]' for dim in dims)};"
        if declared not in self.shared:
            self.shared.append(declared)
            self.shared_bytes += SIZES[kind] * prod(dims)
