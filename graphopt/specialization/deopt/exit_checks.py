"""The exit condition of guards, and the facts that hold if a run does not exit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import graphopt_operators
from graphopt.profile import Guard, ValueProfile
from graphopt.profile.annotations import guard_attributes
from graphopt.profile.guard_nodes import GuardNodes
from graphopt.profile.value_profile import ANY, is_symbol
from graphopt.specialization.deopt.enclosing_graphs import Level
from graphopt.specialization.deopt.exit_points import ExitPoint
from graphopt.specialization.deopt.graph_writer import Writer
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class SymbolSite:
    """The first occurrence of a guard symbol: a dim of a value of the main graph."""

    value: ir.Value
    axis: int
    rank: int


@dataclass(frozen=True)
class Assertion:
    """The assertion of a guard about a value, and the sizes that are known without the guard."""

    value: ir.Value
    expected: ValueProfile
    known: Sequence[int | None] | None


@dataclass(frozen=True)
class Check:
    """Exit if an assertion is violated; otherwise the remaining nodes read guards that always hold.

    Attributes:
        assertions: the assertions of all guards at one exit point.
        symbols: the first occurrences of the symbols that earlier guards introduced.
    """

    assertions: tuple[Assertion, ...]
    symbols: Mapping[str, SymbolSite] = field(default_factory=dict)
    needs_count = False

    def depends_on(self, value: ir.Value) -> bool:
        """Whether the condition reads ``value``, which an earlier guard asserted."""
        return any(symbol.value is value for symbol in self.symbols.values())

    def mapped(self, values: Mapping[ir.Value, ir.Value]) -> Check:
        """This check with its values replaced."""
        assertions = tuple(replace(item, value=values[item.value]) for item in self.assertions)
        symbols = {name: replace(first, value=values[first.value]) for name, first in self.symbols.items()}
        return Check(assertions, symbols)

    def should_exit(self, writer: Writer, before: ir.Value | None) -> ir.Value:
        """A scalar: whether an assertion is violated."""
        expected: dict[str, ValueProfile] = {}
        values: dict[str, ir.Value] = {}
        shapes: dict[str, Sequence[int | None] | None] = {}
        for number, item in enumerate(self.assertions):
            name = f"value {number}"
            expected[name] = item.expected
            values[name], shapes[name] = writer.lookup(item.value), item.known
        for symbol, first in self.symbols.items():
            name = f"symbol {symbol}"
            dims = (symbol if axis == first.axis else ANY for axis in range(first.rank))
            expected[name] = ValueProfile("", tuple(dims))
            values[name], shapes[name] = writer.lookup(first.value), [None] * first.rank
        guard = Guard(expected)
        nodes = GuardNodes(writer.edit, writer.graph, values, shapes)
        nodes.prepare([guard])
        condition = nodes.condition(guard, writer.graph)
        if condition is None:
            return writer.identity(writer.constant(False))
        return writer.value("Not", [condition])

    def substitutions(self, writer: Writer) -> dict[ir.Value, ir.Value]:
        """Guards that provide facts; constants if the assertion fixes the contents."""
        return {
            item.value: _guarded_value(item.expected, writer.lookup(item.value), writer)
            for item in self.assertions
        }


def _guarded_value(expected: ValueProfile, value: ir.Value, writer: Writer) -> ir.Value:
    sizes, ints, dtype = ir.all_ints(expected.shape), expected.ints, value.dtype
    if sizes is not None and ints is not None and dtype is not None and len(ints) == prod(sizes):
        data = np.array(ints, dtype.numpy()).reshape(sizes)
        return writer.edit.constant(writer.edit.model.graph, data, f"{value.name}_seen")
    node = writer.edit.make_node(
        graphopt_operators.GUARD,
        [value],
        guard_attributes(expected),
        domain=graphopt_operators.GUARD_DOMAIN,
        name=f"{value.name}_guard",
    )
    writer.edit.append(writer.graph, node)
    writer.edit.import_domain(node)
    node.outputs[0].type = value.type
    return node.outputs[0]


def checks_of(
    points: Sequence[Sequence[ExitPoint]], levels: Sequence[Sequence[Level]], cx: Context
) -> list[Check]:
    """The checks at groups of adjacent exit points, in order; a check may be empty.

    A symbol must denote one number at all guards that name it. A check is possible if the symbol first occurs
    in the main graph; other symbols are dropped.

    Args:
        points: the groups.
        levels: the graphs around each group.
    """
    firsts: dict[str, SymbolSite] = {}
    found: list[Check] = []
    for here, around in zip(points, levels, strict=True):
        earlier: dict[str, SymbolSite] = {}
        new: dict[str, SymbolSite] = {}
        assertions = []
        for point in here:
            shape, expected = cx.shape(point.value), point.assertion or ValueProfile("")
            known = None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
            dims: list[int | str] = []
            for axis, dim in enumerate(expected.shape or ()):
                if is_symbol(dim):
                    if dim in firsts:
                        earlier[dim] = firsts[dim]
                    elif len(around) > 1:
                        dim = ANY
                    else:
                        new.setdefault(dim, SymbolSite(point.value, axis, len(expected.shape or ())))
                dims.append(dim)
            expected = replace(expected, shape=None if expected.shape is None else tuple(dims))
            if _is_checkable(expected, known):
                assertions.append(Assertion(point.value, expected, known))
        firsts.update(new)
        found.append(Check(tuple(assertions), earlier))
    return found


def _is_checkable(expected: ValueProfile, known: Sequence[int | None] | None) -> bool:
    """Whether ``expected`` asserts more than the ``known`` sizes."""
    if expected.ints is not None:
        return True
    if expected.shape is None or known is None:
        return expected.shape is not None
    pairs = zip(expected.shape, known, strict=False)
    return len(known) != len(expected.shape) or any(
        dim not in ir.ANONYMOUS_DIMS and dim != size for dim, size in pairs
    )
