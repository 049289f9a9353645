"""When a guard makes a run leave, and what holds where it does not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import guards
from graphopt.profile import Guard, Seen
from graphopt.profile.notes import assertion
from graphopt.specialize.bailouts.places import Level, Place
from graphopt.specialize.bailouts.writer import Writer
from graphopt.specialize.guard_nodes import GuardNodes

_VALUE = "value"
#: A size of which nothing is asserted.
_ANY = "?"


@dataclass(frozen=True)
class Symbol:
    """Where a symbol of guards stands for the first time: a dim of a value of the main graph."""

    value: ir.Value
    axis: int
    rank: int


@dataclass(frozen=True)
class Check:
    """Leave where what a guard asserts is not so; where it is, the rest reads a guard that always holds.

    Attributes:
        seen: what is asserted.
        known: what is known of the sizes without it.
        symbols: of those that the guard names, where guards before named them first.
    """

    seen: Seen
    known: Sequence[int | None] | None = None
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    counts = False

    def asks_for(self, value: ir.Value) -> bool:
        """Whether it looks at ``value``, which was guarded before."""
        return any(symbol.value is value for symbol in self.symbols.values())

    def is_hit(self, writer: Writer, value: ir.Value, before: ir.Value | None) -> ir.Value:
        """Whether the guard does not hold of ``value``."""
        names = (f"?{count}" for count in itertools.count())
        wanted = {_VALUE: replace(self.seen, shape=_named(self.seen.shape, names))}
        values: dict[str, ir.Value] = {_VALUE: value}
        shapes: dict[str, Sequence[int | None] | None] = {_VALUE: self.known}
        for name, first in self.symbols.items():
            dims = [name if axis == first.axis else next(names) for axis in range(first.rank)]
            wanted[f"={name}"] = Seen("", tuple(dims))
            values[f"={name}"] = writer.stand_in(first.value)
            shapes[f"={name}"] = [None] * first.rank
        guard = Guard(wanted)
        nodes = GuardNodes(writer.edit, writer.graph, values, shapes)
        nodes.prepare([guard])
        condition = nodes.condition(guard, writer.graph)
        if condition is None:
            return writer.identity(writer.number(False))
        return writer.value("Not", [condition])

    def passed(self, writer: Writer, value: ir.Value) -> ir.Value:
        """What facts know to be as asserted; if its contents are, a constant."""
        sizes, ints, dtype = ir.all_ints(self.seen.shape), self.seen.ints, value.dtype
        if sizes is not None and ints is not None and dtype is not None and len(ints) == prod(sizes):
            data = np.array(ints, dtype.numpy()).reshape(sizes)
            return writer.edit.constant(writer.edit.model.graph, data, f"{value.name}_seen")
        node = writer.edit.make_node(
            guards.GUARD, [value], assertion(self.seen), domain=guards.DOMAIN, name=f"{value.name}_guard"
        )
        writer.edit.append(writer.graph, node)
        writer.edit.import_domain(node)
        node.outputs[0].type = value.type
        return node.outputs[0]


def _named(shape: tuple[int | str, ...] | None, names: Iterator[str]) -> tuple[int | str, ...] | None:
    """``shape`` with a name of its own for each dim of which nothing is asserted."""
    if shape is None:
        return None
    return tuple(next(names) if dim in ir.ANONYMOUS_DIMS else dim for dim in shape)


def checks_of(places: Sequence[Place], levels: Sequence[Sequence[Level]], cx: Context) -> list[Check | None]:
    """What to check at each of ``places``, in order; ``None`` where that comes to nothing.

    A symbol has to be one number wherever guards name it. That can be told if the main graph sees it first;
    of others, nothing is asserted.
    """
    firsts: dict[str, Symbol] = {}
    found: list[Check | None] = []
    for place, around in zip(places, levels, strict=True):
        seen, shape = place.seen, cx.shape(place.value)
        if seen is None:
            found.append(None)
            continue
        known = None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
        dims: list[int | str] = []
        earlier: dict[str, Symbol] = {}
        for dim in seen.shape or ():
            if isinstance(dim, str) and dim not in ir.ANONYMOUS_DIMS:
                if dim in firsts:
                    earlier[dim] = firsts[dim]
                elif len(around) > 1:
                    dim = _ANY
            dims.append(dim)
        for axis, dim in enumerate(dims if len(around) == 1 else ()):
            if isinstance(dim, str) and dim not in ir.ANONYMOUS_DIMS:
                firsts.setdefault(dim, Symbol(place.value, axis, len(dims)))
        seen = replace(seen, shape=None if seen.shape is None else tuple(dims))
        found.append(Check(seen, known, earlier) if _tells(seen, known) else None)
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
