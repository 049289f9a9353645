"""When a guard makes a run leave, and what holds where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import dialects
from graphopt.profile import Guard, Seen
from graphopt.profile.annotations import assertion
from graphopt.profile.value_profile import ANY, is_symbol
from graphopt.specialization.deopt.exit_points import Place
from graphopt.specialization.deopt.levels import Level
from graphopt.specialization.deopt.writer import Writer
from graphopt.specialization.guard_nodes import GuardNodes


@dataclass(frozen=True)
class Symbol:
    """Where a symbol of guards stands for the first time: a dim of a value of the main graph."""

    value: ir.Value
    axis: int
    rank: int


@dataclass(frozen=True)
class Assertion:
    """What a guard asserts of a value, and what is known of its sizes without that."""

    value: ir.Value
    seen: Seen
    known: Sequence[int | None] | None


@dataclass(frozen=True)
class Check:
    """Leave where what guards assert is not so; where it is, the rest reads guards that always hold.

    Attributes:
        assertions: of all guards at one place.
        symbols: of those that they name, where guards before named them first.
    """

    assertions: tuple[Assertion, ...]
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    counts = False

    def asks_for(self, value: ir.Value) -> bool:
        """Whether it looks at ``value``, which was guarded before."""
        return any(symbol.value is value for symbol in self.symbols.values())

    def moved(self, stand: Mapping[ir.Value, ir.Value]) -> Check:
        """The same for what stands for the values elsewhere."""
        assertions = tuple(replace(item, value=stand[item.value]) for item in self.assertions)
        symbols = {name: replace(first, value=stand[first.value]) for name, first in self.symbols.items()}
        return Check(assertions, symbols)

    def is_hit(self, writer: Writer, before: ir.Value | None) -> ir.Value:
        """Whether one of the guards does not hold."""
        wanted: dict[str, Seen] = {}
        values: dict[str, ir.Value] = {}
        shapes: dict[str, Sequence[int | None] | None] = {}
        for number, item in enumerate(self.assertions):
            name = f"value {number}"
            wanted[name] = item.seen
            values[name], shapes[name] = writer.stand_in(item.value), item.known
        for symbol, first in self.symbols.items():
            name = f"symbol {symbol}"
            dims = (symbol if axis == first.axis else ANY for axis in range(first.rank))
            wanted[name] = Seen("", tuple(dims))
            values[name], shapes[name] = writer.stand_in(first.value), [None] * first.rank
        guard = Guard(wanted)
        nodes = GuardNodes(writer.edit, writer.graph, values, shapes)
        nodes.prepare([guard])
        condition = nodes.condition(guard, writer.graph)
        if condition is None:
            return writer.identity(writer.number(False))
        return writer.value("Not", [condition])

    def passed(self, writer: Writer) -> dict[ir.Value, ir.Value]:
        """What facts know to be as asserted; constants, where contents are."""
        return {
            item.value: _asserted(item.seen, writer.stand_in(item.value), writer) for item in self.assertions
        }


def _asserted(seen: Seen, value: ir.Value, writer: Writer) -> ir.Value:
    sizes, ints, dtype = ir.all_ints(seen.shape), seen.ints, value.dtype
    if sizes is not None and ints is not None and dtype is not None and len(ints) == prod(sizes):
        data = np.array(ints, dtype.numpy()).reshape(sizes)
        return writer.edit.constant(writer.edit.model.graph, data, f"{value.name}_seen")
    node = writer.edit.make_node(
        dialects.GUARD, [value], assertion(seen), domain=dialects.GUARD_DOMAIN, name=f"{value.name}_guard"
    )
    writer.edit.append(writer.graph, node)
    writer.edit.import_domain(node)
    node.outputs[0].type = value.type
    return node.outputs[0]


def checks_of(
    places: Sequence[Sequence[Place]], levels: Sequence[Sequence[Level]], cx: Context
) -> list[Check]:
    """What to check where guards stand, in order; nothing where that comes to nothing.

    A symbol has to be one number wherever guards name it. That can be told if the main graph sees it first;
    of others, nothing is asserted.

    Args:
        places: those at one point, and so on.
        levels: the graphs around each point.
    """
    firsts: dict[str, Symbol] = {}
    found: list[Check] = []
    for here, around in zip(places, levels, strict=True):
        earlier: dict[str, Symbol] = {}
        new: dict[str, Symbol] = {}
        assertions = []
        for place in here:
            shape, seen = cx.shape(place.value), place.seen or Seen("")
            known = None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
            dims: list[int | str] = []
            for axis, dim in enumerate(seen.shape or ()):
                if is_symbol(dim):
                    if dim in firsts:
                        earlier[dim] = firsts[dim]
                    elif len(around) > 1:
                        dim = ANY
                    else:
                        new.setdefault(dim, Symbol(place.value, axis, len(seen.shape or ())))
                dims.append(dim)
            seen = replace(seen, shape=None if seen.shape is None else tuple(dims))
            if _tells(seen, known):
                assertions.append(Assertion(place.value, seen, known))
        firsts.update(new)
        found.append(Check(tuple(assertions), earlier))
    return found


def _tells(seen: Seen, known: Sequence[int | None] | None) -> bool:
    """Whether ``seen`` asserts more than is known of the sizes."""
    if seen.ints is not None:
        return True
    if seen.shape is None or known is None:
        return seen.shape is not None
    pairs = zip(seen.shape, known, strict=False)
    return len(known) != len(seen.shape) or any(
        dim not in ir.ANONYMOUS_DIMS and dim != size for dim, size in pairs
    )
