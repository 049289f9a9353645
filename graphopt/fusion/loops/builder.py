"""Instructions, as they are written: expressions that become a list in SSA form, each computed once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from graphopt.fusion.loop_nest import CantFuse
from graphopt.fusion.loops.ir import Access, Element, Instruction, Size, single

Number = int | float | bool
_COMPARED = {"lt", "le", "eq", "isnan", "isinf"}


@dataclass(frozen=True)
class Term:
    """The result of an instruction; arithmetic on terms, and with numbers, writes further ones."""

    body: Body
    index: int
    element: Element

    def __add__(self, other: Term | Number) -> Term:
        return self.body.op("add", self, other)

    def __radd__(self, other: Number) -> Term:
        return self.body.op("add", other, self)

    def __sub__(self, other: Term | Number) -> Term:
        return self.body.op("sub", self, other)

    def __rsub__(self, other: Number) -> Term:
        return self.body.op("sub", other, self)

    def __mul__(self, other: Term | Number) -> Term:
        return self.body.op("mul", self, other)

    def __rmul__(self, other: Number) -> Term:
        return self.body.op("mul", other, self)

    def __truediv__(self, other: Term | Number) -> Term:
        return self.body.op("div", self, other)

    def __rtruediv__(self, other: Number) -> Term:
        return self.body.op("div", other, self)

    def __neg__(self) -> Term:
        return self.body.op("neg", self)

    def __lt__(self, other: Term | Number) -> Term:
        return self.body.op("lt", self, other)

    def __le__(self, other: Term | Number) -> Term:
        return self.body.op("le", self, other)

    def __gt__(self, other: Term | Number) -> Term:
        return self.body.op("lt", other, self)

    def __ge__(self, other: Term | Number) -> Term:
        return self.body.op("le", other, self)


@dataclass
class Body:
    """The instructions of a piece of a kernel.

    Attributes:
        row: how many elements a reduction goes over; ``None`` where there is none to go over.
    """

    row: Size | None = None
    steps: list[Instruction] = field(default_factory=list)
    _known: dict[object, int] = field(default_factory=dict)

    def add(self, step: Instruction) -> Term:
        """The result of ``step``, which is written once."""
        value = struct.pack("d", step.value) if isinstance(step.value, float) else step.value
        key = (step.op, step.element, step.args, step.access, value, step.size, step.into)
        if key not in self._known:
            self._known[key] = len(self.steps)
            self.steps.append(step)
        return Term(self, self._known[key], step.element)

    def load(self, access: Access, element: Element) -> Term:
        """An element of an input of type ``element``."""
        return self.add(Instruction("load", element.computed, access=access))

    def constant(self, value: Number, element: Element) -> Term:
        """A number."""
        if element.is_float:
            value = single(float(value))
        elif element is Element.BOOL:
            value = bool(value)
        else:
            value = int(value)
        return self.add(Instruction("constant", element.computed, value=value))

    def op(self, name: str, *operands: Term | Number) -> Term:
        """The result of an op; numbers take the type of the other operands."""
        terms = [operand for operand in operands if isinstance(operand, Term)]
        kind = terms[-1].element  # of select it is the second
        made = [item if isinstance(item, Term) else self.constant(item, kind) for item in operands]
        if any(term.element is not kind for term in made):
            raise CantFuse("its operands are of different types")
        element = Element.BOOL if name in _COMPARED else made[-1].element
        return self.add(Instruction(name, element, tuple(term.index for term in made)))

    def cast(self, term: Term, element: Element) -> Term:
        """The value as another type; real numbers are rounded to its precision."""
        if term.element is not element.computed:
            term = self.add(Instruction("cast", element.computed, (term.index,)))
        return self.rounded(term, element)

    def rounded(self, term: Term, element: Element) -> Term:
        """A real number as precise as ``element`` is."""
        if element not in (Element.F16, Element.BF16):
            return term
        last = self.steps[term.index]
        if last.op == "round" and last.into is element:
            return term
        return self.add(Instruction("round", Element.F32, (term.index,), into=element))

    def select(self, condition: Term, then: Term | Number, other: Term | Number) -> Term:
        """``then`` where the condition holds, else ``other``; one of the two is a term."""
        kind = then.element if isinstance(then, Term) else other.element  # type: ignore[union-attr]
        a, b = (item if isinstance(item, Term) else self.constant(item, kind) for item in (then, other))
        if a.element is not b.element or condition.element is not Element.BOOL:
            raise CantFuse("its operands are of different types")
        return self.add(Instruction("select", kind, (condition.index, a.index, b.index)))

    def reduce(self, name: str, term: Term) -> Term:
        """The sum, product, maximum or minimum over the row."""
        if self.row is None:
            # A sum begins with 0, so that -0.0 alone gives 0.
            return self.op("add", term, 0.0) if name == "sum" and term.element.is_float else term
        return self.add(Instruction(f"reduce_{name}", term.element, (term.index,)))

    def count(self, element: Element) -> Term:
        """How many elements the row has."""
        if self.row is None:
            return self.constant(1, element)
        if self.row.constant is not None:
            return self.constant(self.row.constant, element)
        return self.add(Instruction("extent", element.computed, size=self.row))

    # What is often needed -------------------------------------------------------------------------

    def mean(self, term: Term) -> Term:
        """The mean over the row, of real numbers; 0 over nothing, as onnxruntime has it."""
        count = self.count(Element.F32)
        known = self.row is None or self.row.constant is not None
        return self.reduce("sum", term) / (count if known else self.op("max", count, 1.0))

    def softplus(self, term: Term) -> Term:
        """log(1 + eˣ): nothing overflows, and no digit of a small eˣ is lost.

        Where u = 1 + t is rounded, log(u) · t / (u − 1) makes up for it (Goldberg, "What Every Computer
        Scientist Should Know About Floating-Point Arithmetic", theorem 4).
        """
        small = self.op("exp", -self.op("abs", term))
        rounded = small + 1.0
        exact = self.op("log", rounded) * small / (rounded - 1.0)
        tail = self.select(self.op("eq", rounded, 1.0), small, exact)
        return self.op("max", term, 0.0) + tail

    def clamp(self, term: Term, low: Term | Number, high: Term | Number) -> Term:
        """The value, or the bound that it is beyond."""
        return self.op("min", self.op("max", term, low), high)

    def total(self, op: str, terms: Sequence[Term]) -> Term:
        """All terms put together by an op of two, from the left."""
        found = terms[0]
        for term in terms[1:]:
            found = self.op(op, found, term)
        return found


def needed(steps: Sequence[Instruction], results: Sequence[int]) -> tuple[list[Instruction], dict[int, int]]:
    """The instructions that ``results`` depend on, and the new index of each."""
    wanted = dict.fromkeys(results)
    for index in reversed(range(len(steps))):
        if index in wanted:
            wanted.update(dict.fromkeys(steps[index].args))
    places = {old: new for new, old in enumerate(sorted(wanted))}
    kept = [
        replace(steps[old], args=tuple(places[argument] for argument in steps[old].args)) for old in places
    ]
    return kept, places
