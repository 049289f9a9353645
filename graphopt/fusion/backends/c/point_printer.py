"""Code of one point of the loops: loads, instructions, reductions and stores of vectors."""

from __future__ import annotations

from dataclasses import replace

from graphopt.fusion.backends.c.expressions import Value, VectorExpressions
from graphopt.fusion.backends.c.schedule import Schedule, lanes
from graphopt.fusion.c_code.size_variables import SizeVariables
from graphopt.fusion.c_code.statement_printer import StatementPrinter
from graphopt.fusion.loops.collapse import StridedAccess
from graphopt.fusion.loops.instructions import COSTLY, OPS
from graphopt.fusion.loops.ir import ONE, Element, Kernel
from graphopt.fusion.loops.reduction_stages import Stage, has_shared_inverse

#: Types of elements in memory.
C_TYPES = {
    Element.F32: "float", Element.U8: "uint8_t", Element.I8: "int8_t", Element.I32: "int32_t",
    Element.I64: "int64_t", Element.BOOL: "uint8_t", Element.F16: "uint16_t", Element.BF16: "uint16_t",
}  # fmt: skip


class PointPrinter(StatementPrinter):
    """Prints the statements of points, in a function with the counter ``x`` of the vector loop."""

    def __init__(self, kernel: Kernel, schedule: Schedule, sizes: SizeVariables, number: int) -> None:
        super().__init__()
        self.kernel, self.schedule, self.sizes, self.number = kernel, schedule, sizes, number
        self.nest = schedule.nest
        self.write = VectorExpressions(lanes(kernel))
        self.end = self.write.end
        self.lanes = f"LANES{self.end}"
        #: Results by instruction and unit (position in the unrolled loop); the unit is -1 for results that
        #: are equal in all lanes.
        self.values: dict[tuple[int, int], Value] = {}
        self.accesses: list[tuple[StridedAccess, bool]] = [
            (place, False) for place in self.nest.loads.values()
        ]
        self.load_numbers = {index: number for number, index in enumerate(self.nest.loads)}
        self.store_numbers = [len(self.accesses) + index for index in range(len(self.nest.stores))]
        self.accesses += [(store.access, True) for store in self.nest.stores]
        self.buffers = {index: number for number, index in enumerate(schedule.stage_plan.spilled)}
        self.pointers: dict[int, str] = {}
        # Candidates for streaming stores, which are slower (measured) if costly instructions separate them:
        # in the same stage, or between the last stages of two rows.
        self.streamed = {
            index
            for step in schedule.stage_plan.stages
            for index in step.stores
            if self.nest.stores[index].access.strides[schedule.vector] == ONE and not self._is_costly()
        }
        self.period = ""  # period of all repeated operands, in elements

    def _is_costly(self) -> bool:
        """Whether a stage computes costly instructions for each vector."""
        return any(
            OPS[self.nest.body[index].op].cost >= COSTLY and self.schedule.vector in self.nest.axes[index]
            for step in self.schedule.stage_plan.stages
            for index in step.body
        )

    def extent(self, loop: int) -> str:
        """The number of iterations of a loop."""
        found = self.nest.loops[loop]
        if found.constant is not None:
            return str(found.constant)
        stop = self.sizes.c(found.stop)
        return f"({stop} - {self.sizes.c(found.start)})" if found.start.factor else stop

    def _point(self, step: Stage, sums: dict[int, list[str]], units: int, part: str | None) -> None:
        """The code of a stage for ``units`` vectors; the last one has ``part`` lanes."""
        values = dict(self.values)
        for unit in range(units):
            inside = part if unit + 1 == units else None
            for index in step.reloads:
                like = self._variable(index)
                load = f"load_{like.vector}{self.end}({self._spill_address(index, unit)})"
                self._define(index, unit, replace(like, code=load))
            for index in step.body:
                if self.schedule.vector in self.nest.axes[index]:
                    self._instruction(index, unit, inside)
            for index in step.spills:
                self._spill(index, unit)
            for index in step.reductions:
                self._accumulate(index, sums[index], unit, inside)
            for index in step.stores:
                self._store(index, unit, inside)
        self.values = values

    # Instructions

    def _compute(self, indices: tuple[int, ...], units: int, part: str | None) -> None:
        """Instructions that are invariant in the inner loops."""
        for index in indices:
            if self.schedule.columns and self.schedule.vector in self.nest.axes[index]:
                for unit in range(units):
                    self._instruction(index, unit, part if unit + 1 == units else None)
            else:
                self._instruction(index, -1, None)

    def _instruction(self, index: int, unit: int, part: str | None) -> None:
        step = self.nest.body[index]
        if step.op == "load":
            value = self._load(index, unit, part)
        elif step.size is not None:
            value = self.write.splat(step.element, self.sizes.c(step.size))
        else:
            args = [self._value(arg, unit) for arg in step.args]
            if has_shared_inverse(self.nest, index):
                value = replace(args[0], code=f"({args[0].code} * (1 / {args[1].code}))", number=None)
            else:
                value = self.write.value(step, args)
        self._define(index, unit, value)

    def _define(self, index: int, unit: int, value: Value) -> None:
        name = f"v{index}" if unit < 0 else f"v{index}_{unit}"
        self.line(f"const {value.vector}{self.end} {name} = {value.code};")
        self.values[index, unit] = replace(value, code=name)

    def _value(self, index: int, unit: int) -> Value:
        return self.values[index, unit] if (index, unit) in self.values else self.values[index, -1]

    def _load(self, index: int, unit: int, part: str | None) -> Value:
        number = self.load_numbers[index]
        place = self.accesses[number][0]
        memory = self.kernel.inputs[place.port].element
        name = memory.name.lower() + self.end
        pointer = self.pointers[number]
        element = self.nest.body[index].element
        stride = place.strides[self.schedule.vector]
        rest = f", {part}" if part else ""
        kind = "_part" if part else ""
        if place.period:
            code = f"load_{name}(again{number} + turn)"
        elif unit < 0 or not stride.factor:
            code = f"load_one_{name}({pointer})"
        elif stride.constant == 1:
            code = f"load{kind}_{name}({pointer} + {self._at(unit)}{rest})"
        else:
            step = self.sizes.c(stride)
            near = memory is Element.U8 and not part and stride.constant in (2, 3, 4)
            how = "pick" if near else f"gather{kind}"
            code = f"{how}_{name}({pointer} + ({self._at(unit)}) * {step}, {step}{rest})"
        return Value(code, element, 1 if element is Element.BOOL else element.bytes)

    def _at(self, unit: int) -> str:
        return f"x + {unit} * {self.lanes}" if unit else "x"

    def _store(self, index: int, unit: int, part: str | None) -> None:
        store = self.nest.stores[index]
        value = self._value(store.instruction, unit)
        memory = self.kernel.outputs[store.access.port].element
        name = memory.name.lower() + self.end
        code = self._code(value, 1)
        pointer = self.pointers[self.store_numbers[index]]
        stride = store.access.strides[self.schedule.vector]
        rest = f", {part}" if part else ""
        kind = "_part" if part else ""
        if stride.constant == 1 and not part and index in self.streamed:
            far = f"far{self.store_numbers[index]}"
            self.line(f"stream_{name}({pointer} + {self._at(unit)}, {code}, {far});")
        elif stride.constant == 1:
            self.line(f"store{kind}_{name}({pointer} + {self._at(unit)}, {code}{rest});")
        else:
            step = self.sizes.c(stride)
            self.line(f"scatter{kind}_{name}({pointer} + ({self._at(unit)}) * {step}, {step}, {code}{rest});")

    def _store_once(self, index: int, units: int, part: str | None) -> None:
        store = self.nest.stores[index]
        if self.schedule.columns and store.access.strides[self.schedule.vector].factor:
            for unit in range(units):
                self._store(index, unit, part if unit + 1 == units else None)
            return
        value = self._value(store.instruction, 0)
        name = self.kernel.outputs[store.access.port].element.name.lower() + self.end
        pointer = self.pointers[self.store_numbers[index]]
        self.line(f"store_part_{name}({pointer}, {self._code(value, 1)}, 1);")

    def _variable(self, index: int, code: str = "") -> Value:
        """A variable for the result of an instruction: an accumulator, or a value in a buffer."""
        element = self.nest.body[index].element
        return Value(code, element, self.write.lanes.width if element is Element.BOOL else element.bytes)

    def _code(self, value: Value, width: int) -> str:
        """The expression ``value``; if it is a mask, with elements of ``width`` bytes."""
        return self.write.mask(value, width) if value.element is Element.BOOL else value.code

    def _spill_address(self, index: int, unit: int) -> str:
        """The position of the current vector in a buffer."""
        plan = self.schedule
        outer = [loop for loop in plan.inner if loop != plan.vector]
        position = ""
        for loop in outer:
            position = f"({position} * {self.extent(loop)} + j{loop})" if position else f"j{loop}"
        if plan.columns:
            position = f"({position} * {plan.unroll} + {unit}) * {self.lanes}"
        else:
            inner = f"(({self.extent(plan.vector)} + {self.lanes} - 1) / {self.lanes} * {self.lanes})"
            position = f"{position} * {inner} + " if position else ""
            position += f"x + {unit} * {self.lanes}"
        return f"kept{self.buffers[index]} + ({position}) * {self._variable(index).width}"

    def _spill(self, index: int, unit: int) -> None:
        like = self._variable(index)
        code = self._code(self.values[index, unit], like.width)
        self.line(f"store_{like.vector}{self.end}({self._spill_address(index, unit)}, {code});")

    # Reductions

    def _kind(self, index: int) -> str:
        return self.nest.body[index].op.removeprefix("reduce_")

    def _accumulate(self, index: int, names: list[str], unit: int, part: str | None) -> None:
        arg = self._value(self.nest.body[index].args[0], unit)
        if unit >= len(names):
            return
        total = self._variable(index, names[unit])
        arg = replace(total, code=self._code(arg, total.width))
        if part and not self.schedule.columns:
            nothing = self.write.identity(self._kind(index), total)
            arg = self.write.pick(self.write.first(total.width, part), arg, nothing)
        self.line(f"{names[unit]} = {self.write.combine(self._kind(index), total, arg).code};")

    def _finish(self, index: int, names: list[str]) -> None:
        totals = [self._variable(index, name) for name in names]
        if self.schedule.columns:
            same = self.schedule.vector not in self.nest.axes[index]
            for unit, total in enumerate(totals):
                self.values[index, -1 if same else unit] = total
            return
        total = totals[0]
        for other in totals[1:]:
            total = self.write.combine(self._kind(index), total, other)
        self._define(index, -1, self.write.across(self._kind(index), total))


def scaled(counter: str, stride: str) -> str:
    """The C expression ``counter * stride``."""
    return counter if stride == "1" else f"{counter} * {stride}"
