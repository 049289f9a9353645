"""Builder of the loop IR: expressions become instructions in SSA form, without duplicates."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field, replace
from functools import reduce

from graphopt.fusion.loops.instructions import OPS
from graphopt.fusion.loops.ir import Access, CantFuse, Element, Instruction, Size, live_instructions, single
from graphopt.util.lazy_dataclass import dataclass

Number = int | float | bool


@dataclass(frozen=True)
class Expr:
    """The result of an instruction; operators on expressions and numbers add instructions."""

    builder: IRBuilder
    index: int
    element: Element

    def __add__(self, other: Expr | Number) -> Expr:
        return self.builder.op("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return self.builder.op("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return self.builder.op("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return self.builder.op("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return self.builder.op("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return self.builder.op("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return self.builder.op("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return self.builder.op("div", other, self)

    def __neg__(self) -> Expr:
        return self.builder.op("neg", self)

    def __lt__(self, other: Expr | Number) -> Expr:
        return self.builder.op("lt", self, other)

    def __le__(self, other: Expr | Number) -> Expr:
        return self.builder.op("le", self, other)

    def __gt__(self, other: Expr | Number) -> Expr:
        return self.builder.op("lt", other, self)

    def __ge__(self, other: Expr | Number) -> Expr:
        return self.builder.op("le", other, self)


@dataclass
class IRBuilder:
    """The instructions of a segment under construction.

    Attributes:
        reduction_size: number of elements that a reduction iterates over; ``None`` without reduction loops.
    """

    reduction_size: Size | None = None
    steps: list[Instruction] = field(default_factory=list)
    _known: dict[object, int] = field(default_factory=dict)

    def add(self, step: Instruction) -> Expr:
        """The result of ``step``, which is added unless an equal instruction exists."""
        value = struct.pack("d", step.value) if isinstance(step.value, float) else step.value
        key = (step.op, step.element, step.args, step.access, value, step.size, step.into)
        if key not in self._known:
            self._known[key] = len(self.steps)
            self.steps.append(step)
        return Expr(self, self._known[key], step.element)

    def load(self, access: Access, element: Element) -> Expr:
        """An element of an input with elements of type ``element``."""
        return self.add(Instruction("load", element.computed, access=access))

    def constant(self, value: Number, element: Element) -> Expr:
        """A number of type ``element``."""
        if element.is_float:
            value = single(float(value))
        elif element is Element.BOOL:
            value = bool(value)
        else:
            value = int(value)
        return self.add(Instruction("constant", element.computed, value=value))

    def op(self, name: str, *operands: Expr | Number) -> Expr:
        """The result of an instruction; numbers have the type of the other operands."""
        kind = [operand for operand in operands if isinstance(operand, Expr)][-1].element
        exprs = [item if isinstance(item, Expr) else self.constant(item, kind) for item in operands]
        if any(expr.element is not kind for expr in exprs):
            raise CantFuse("an operator has operands of different types")
        element = Element.BOOL if OPS[name].predicate else kind
        return self.add(Instruction(name, element, tuple(expr.index for expr in exprs)))

    def cast(self, term: Expr, element: Element) -> Expr:
        """``term``, converted to another type; floats are rounded to its precision."""
        if term.element is not element.computed:
            term = self.add(Instruction("cast", element.computed, (term.index,)))
        return self.rounded(term, element)

    def rounded(self, term: Expr, element: Element) -> Expr:
        """A float, rounded to the precision of ``element``."""
        if element not in (Element.F16, Element.BF16):
            return term
        last = self.steps[term.index]
        if last.op == "round" and last.into is element:
            return term
        return self.add(Instruction("round", Element.F32, (term.index,), into=element))

    def select(self, condition: Expr, then: Expr | Number, other: Expr | Number) -> Expr:
        """``condition ? then : other``; ``then`` or ``other`` is an expression."""
        kind = then.element if isinstance(then, Expr) else other.element  # type: ignore[union-attr]
        a, b = (item if isinstance(item, Expr) else self.constant(item, kind) for item in (then, other))
        if a.element is not b.element or condition.element is not Element.BOOL:
            raise CantFuse("an operator has operands of different types")
        return self.add(Instruction("select", kind, (condition.index, a.index, b.index)))

    def reduce(self, name: str, term: Expr) -> Expr:
        """The sum, prod, max or min over the reduction loops."""
        if self.reduction_size is None:
            # A sum starts from 0, so the sum of -0.0 is 0.
            return self.op("add", term, 0.0) if name == "sum" and term.element.is_float else term
        return self.add(Instruction(f"reduce_{name}", term.element, (term.index,)))

    def count(self, element: Element) -> Expr:
        """The number of elements that a reduction iterates over."""
        if self.reduction_size is None:
            return self.constant(1, element)
        if self.reduction_size.constant is not None:
            return self.constant(self.reduction_size.constant, element)
        return self.add(Instruction("extent", element.computed, size=self.reduction_size))

    # Compositions ---------------------------------------------------------------------------------

    def mean(self, term: Expr) -> Expr:
        """The mean of floats over the reduction loops; 0 over no elements, like in onnxruntime."""
        count = self.count(Element.F32)
        known = self.reduction_size is None or self.reduction_size.constant is not None
        return self.reduce("sum", term) / (count if known else self.op("max", count, 1.0))

    def softplus(self, term: Expr) -> Expr:
        """log(1 + eˣ), without overflow and without loss of precision for small eˣ.

        log(u) · t / (u − 1) compensates the rounding of u = 1 + t (Goldberg, "What Every Computer Scientist
        Should Know About Floating-Point Arithmetic", theorem 4).
        """
        small = self.op("exp", -self.op("abs", term))
        rounded = small + 1.0
        exact = self.op("log", rounded) * small / (rounded - 1.0)
        tail = self.select(self.op("eq", rounded, 1.0), small, exact)
        return self.op("max", term, 0.0) + tail

    def clamp(self, term: Expr, low: Expr | Number, high: Expr | Number) -> Expr:
        """min(max(term, low), high)."""
        return self.op("min", self.op("max", term, low), high)

    def fold(self, op: str, terms: Sequence[Expr]) -> Expr:
        """The binary instruction ``op`` applied to all ``terms`` from left to right."""
        return reduce(lambda found, term: self.op(op, found, term), terms)


def live(steps: Sequence[Instruction], results: Sequence[int]) -> tuple[list[Instruction], dict[int, int]]:
    """The instructions that ``results`` depend on, and their new indices by old index."""
    renumbered = {old: new for new, old in enumerate(live_instructions(steps, results))}
    kept = [
        replace(steps[old], args=tuple(renumbered[argument] for argument in steps[old].args))
        for old in renumbered
    ]
    return kept, renumbered
