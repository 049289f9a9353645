"""What an operator is to a loop nest: which elements it reads, and what it does to them.

>>> @operator("Mul")                                                   # doctest: +SKIP
... def mul(b, at, x, y):
...     return x * y

A function of that kind takes a :class:`~graphopt.fusion.loops.builder.Body` to write instructions in, the
node (:class:`At`) and one :class:`~graphopt.fusion.loops.builder.Term` for each of its inputs, and returns
the term of its result. By default inputs are broadcast to the result; ``reads`` says otherwise.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.fusion.loop_nest import ONLY, CantFuse, Map, Nest
from graphopt.fusion.loops.ir import Element
from graphopt.ops.traits import default_attribute

_PACKAGE = "graphopt.fusion.operators"

#: Types of elements that an operator may be defined for.
FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16"})
INTEGERS = frozenset({"UINT8", "INT8", "INT32", "INT64"})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({"BOOL"})
ANY = NUMBERS | BOOL

_ELEMENTS = {item.value: item for item in Element}


def element_of(dtype: ir.DataType | None) -> Element | None:
    """The type of elements, where kernels know it."""
    return None if dtype is None else _ELEMENTS.get(dtype.value)


@dataclass(frozen=True)
class At:
    """A node where it is read: the nest, which of its outputs, and the index into that."""

    node: ir.Node
    cx: Context
    nest: Nest
    output: int
    map: Map

    @property
    def version(self) -> int:
        """The opset version of the operator's domain."""
        return self.cx.version(self.node)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or the one that the standard gives it."""
        found = self.node.attributes.get(name)
        if found is not None:
            return found.value
        standard = default_attribute(self.node.domain, self.node.op_type, self.version, name)
        return default if standard is None else standard

    def input(self, index: int) -> ir.Value | None:
        """An input, ``None`` where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def needed(self, index: int) -> ir.Value:
        """An input that is there."""
        value = self.input(index)
        if value is None:
            raise CantFuse("an input is missing")
        return value

    def dims(self, index: int) -> tuple[Dim, ...]:
        """The shape of an input."""
        return self.nest.dims(self.needed(index))

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the output."""
        return self.nest.dims(self.node.outputs[self.output])

    def ints(self, index: int, attribute: str) -> tuple[int, ...] | None:
        """Numbers that are known: those of an attribute or an input; ``None`` where neither is there.

        Raises:
            CantFuse: they are not known before the model runs.
        """
        found = self.node.attributes.get(attribute)
        if found is not None:
            return tuple(found.as_ints())
        value = self.input(index)
        if value is None:
            return None
        known = self.cx.static_ints(value)
        if known is None:
            raise CantFuse(f"{attribute} is not known before the model runs")
        return known

    def element(self, output: int = 0) -> Element:
        """The type of an output's elements."""
        found = element_of(self.cx.dtype(self.node.outputs[output]))
        if found is None:
            raise CantFuse("its type is unknown")
        return found

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        return axis + rank if axis < 0 else axis


#: Yields what a node reads to compute its output at an index, and at which index each.
Reads = Callable[[At], Sequence[tuple[ir.Value, Map] | None]]


@dataclass(frozen=True)
class Operator:
    """What some operators are to a loop nest.

    Attributes:
        ops: the operators, as ``Mul`` or ``com.microsoft::Gelu``.
        compute: the terms of its outputs, or the one of its only output, from those of its inputs.
        reads: what it reads, one entry for each input; ``None`` for inputs of which no element is needed.
        types: names of the types that its first input may have.
        data: how many of its inputs, the first ones, are computed with or moved; others tell sizes and axes.
        moves: it only moves elements.
        reduces: it reduces over the row.
        accepts: why a node can't be in a nest, where that is so whatever is around it.
    """

    ops: tuple[str, ...]
    compute: Callable[..., Any]
    reads: Reads
    types: frozenset[str] = FLOATS
    data: int | None = None
    moves: bool = False
    reduces: bool = False
    accepts: Callable[[ir.Node, Context], str | None] | None = None


def operator(
    *ops: str, reads: Reads | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare what ``ops`` compute; see :class:`Operator`."""

    def declare(function: Callable[..., Any]) -> Operator:
        return Operator(ops, function, reads or broadcasts, **options)

    return declare


def primitive(name: str, *ops: str, types: frozenset[str] = FLOATS) -> Operator:
    """Declare that ``ops`` compute element by element what the instruction ``name`` does."""
    return Operator(ops, lambda b, at, *terms: b.op(name, *terms), broadcasts, types)


def broadcasts(at: At) -> list[tuple[ir.Value, Map] | None]:
    """Inputs are broadcast to the shape of the output (ONNX Broadcasting)."""
    return [None if value is None else (value, broadcast(at, value)) for value in at.node.inputs]


def broadcast(at: At, value: ir.Value) -> Map:
    """The index into ``value``, which is broadcast to the shape of the output."""
    return spread(at.nest, at.nest.dims(value), at.shape, at.map)


def spread(nest: Nest, dims: Sequence[Dim], shape: Sequence[Dim], at: Map) -> Map:
    """The index into a tensor of ``dims``, which is broadcast to ``shape``, where that is at ``at``.

    Raises:
        CantFuse: it can't be told before the model runs which axes are broadcast.
    """
    found = []
    for dim, size, index in zip(
        dims, shape[len(shape) - len(dims) :], at[len(at) - len(dims) :], strict=True
    ):
        if dim == 1:
            found.append(ONLY)
        elif nest.facts.dim_equal(dim, size):
            found.append(index)
        else:
            raise CantFuse(f"whether {dim} is broadcast to {size} is not known before the model runs")
    return tuple(found)


def spelt(node: ir.Node) -> str:
    """An operator as declarations name it."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def find(node: ir.Node) -> Operator | None:
    """What ``node`` is to a nest."""
    return _by_operator().get(spelt(node))


def unfit(node: ir.Node, cx: Context) -> str | None:
    """Why kernels can't compute ``node``, whatever is around it: its operator, or its types."""
    found = find(node)
    if found is None:
        return f"kernels do not know {spelt(node)}"
    first = node.inputs[0] if node.inputs else None
    dtype = None if first is None else cx.dtype(first)
    if dtype is None:
        return "its type is unknown"
    if dtype.name not in found.types:
        return f"kernels do not compute it of {dtype.name.lower()}"
    for output in node.outputs:
        if output.name and element_of(cx.dtype(output)) is None:
            return "kernels do not know the type of its result"
    return None if found.accepts is None else found.accepts(node, cx)


@cache
def all_operators() -> dict[str, tuple[Operator, ...]]:
    """By family, what is known of operators."""
    package = importlib.import_module(_PACKAGE)
    found: dict[str, tuple[Operator, ...]] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{_PACKAGE}.{info.name}")
        found[info.name] = tuple(_declared(module))
    return found


def _declared(module: Any) -> Iterator[Operator]:
    yield from (item for item in vars(module).values() if isinstance(item, Operator))


@cache
def _by_operator() -> dict[str, Operator]:
    return {op: item for items in all_operators().values() for item in items for op in item.ops}
