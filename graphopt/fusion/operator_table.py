"""Operators in loop nests: indexing maps of their operands, and their computation.

>>> @operator("Mul")                                                   # doctest: +SKIP
... def mul(b, ctx, x, y):
...     return x * y

The arguments of the function that defines a computation are an
:class:`~graphopt.fusion.loops.builder.IRBuilder`, the node (:class:`EmitContext`), and one
:class:`~graphopt.fusion.loops.builder.Expr` per input. It returns the expression of its result. By default,
inputs are broadcast to the shape of the result; ``indexing_maps`` overrides this.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context import Context
from graphopt.fusion.loop_nest import ONLY, AffineMap, LoopNest
from graphopt.fusion.loops.ir import CantFuse, Element
from graphopt.fusion.unknown_sizes import EQUAL, UNKNOWN
from graphopt.ops.traits import default_attribute
from graphopt.util.lazy_dataclass import dataclass

_PACKAGE = "graphopt.fusion.operators"

#: Element types, by their names in ONNX.
FLOATS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16"})
INTEGERS = frozenset({"UINT8", "INT8", "INT32", "INT64"})
NUMBERS = FLOATS | INTEGERS
BOOL = frozenset({"BOOL"})
ANY = NUMBERS | BOOL

_ELEMENTS = {item.value: item for item in Element}


def element_of(dtype: ir.DataType | None) -> Element | None:
    """The element type in kernels; ``None`` for types without kernels."""
    return None if dtype is None else _ELEMENTS.get(dtype.value)


@dataclass(frozen=True)
class EmitContext:
    """A node for which operand indices or code are emitted.

    Attributes:
        output: number of the output that is read.
        indices: the index at which it is read.
    """

    node: ir.Node
    cx: Context
    nest: LoopNest
    output: int
    indices: AffineMap

    @property
    def version(self) -> int:
        """The opset version of the operator's domain."""
        return self.cx.version(self.node)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; if omitted, the standard's default or, without one, ``default``."""
        found = self.node.attributes.get(name)
        if found is not None:
            return found.value
        standard = default_attribute(self.node.domain, self.node.op_type, self.version, name)
        return default if standard is None else standard

    def input(self, index: int) -> ir.Value | None:
        """An input; ``None`` if it is omitted."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def required_input(self, index: int) -> ir.Value:
        """An input; raises CantFuse if it is omitted."""
        value = self.input(index)
        if value is None:
            raise CantFuse("an input is missing")
        return value

    def dims(self, index: int) -> tuple[Dim, ...]:
        """The shape of an input."""
        return self.nest.dims(self.required_input(index))

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the output."""
        return self.nest.dims(self.node.outputs[self.output])

    def ints(self, index: int, attribute: str) -> tuple[int, ...] | None:
        """Static integers, from an attribute or an input; ``None`` if both are absent.

        Raises:
            CantFuse: the input is not static.
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

    def element(self) -> Element:
        """The element type of the first output."""
        found = element_of(self.cx.dtype(self.node.outputs[0]))
        if found is None:
            raise CantFuse("its type is unknown")
        return found

    def axis(self, axis: int, rank: int) -> int:
        """A nonnegative axis."""
        return axis + rank if axis < 0 else axis


#: The operands read for one element of an output, with their indices; ``None`` for inputs that are not read.
Operands = list[tuple[ir.Value, AffineMap] | None]
IndexingMaps = Callable[["EmitContext"], Operands]


@dataclass(frozen=True)
class Operator:
    """The definition of an operator in loop nests.

    Attributes:
        ops: names of the operators, such as ``Mul`` or ``com.microsoft::Gelu``.
        compute: maps expressions of the inputs to expressions of the outputs, or of the only output.
        indexing_maps: operands and their indices, one entry per input; ``None`` for inputs that are not read.
        types: element types that the first input may have.
        data: number of leading inputs with data, before sizes and axes; ``None`` if all inputs are data.
        moves: whether the operator only moves elements.
        reduces: whether the operator iterates over reduction loops.
        refuses: the reason why a node is unsupported, independent of its neighbours; ``None`` if it is
            supported.
    """

    ops: tuple[str, ...]
    compute: Callable[..., Any]
    indexing_maps: IndexingMaps
    types: frozenset[str] = FLOATS
    data: int | None = None
    moves: bool = False
    reduces: bool = False
    refuses: Callable[[ir.Node, Context], str | None] | None = None


def operator(
    *ops: str, indexing_maps: IndexingMaps | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Operator]:
    """Define ``ops``; see :class:`Operator` for the options."""

    def declare(function: Callable[..., Any]) -> Operator:
        return Operator(ops, function, indexing_maps or broadcast_all, **options)

    return declare


def primitive(name: str, *ops: str, types: frozenset[str] = FLOATS) -> Operator:
    """Define ``ops`` as elementwise applications of the instruction ``name``."""
    return Operator(ops, lambda b, ctx, *operands: b.op(name, *operands), broadcast_all, types)


def broadcast_all(ctx: EmitContext) -> Operands:
    """Indexing maps of inputs that are broadcast to the shape of the output (ONNX broadcasting)."""
    return [None if value is None else (value, broadcast_input(ctx, value)) for value in ctx.node.inputs]


def broadcast_input(ctx: EmitContext, value: ir.Value) -> AffineMap:
    """The index into ``value``, broadcast to the shape of the output."""
    among = [ctx.nest.dims(each) for each in ctx.node.inputs if each is not None]
    return broadcast_index(ctx.nest, ctx.nest.dims(value), ctx.shape, ctx.indices, among)


def broadcast_index(
    nest: LoopNest,
    dims: Sequence[Dim],
    shape: Sequence[Dim],
    indices: AffineMap,
    among: Sequence[Sequence[Dim]] = (),
) -> AffineMap:
    """The index into a tensor of shape ``dims``, broadcast to ``shape`` and read there at ``indices``.

    Args:
        among: the shapes of all operands that are broadcast, for the message of the error.

    Raises:
        CantFuse: the broadcast axes depend on sizes that are unknown before the model runs.
    """
    found = []
    rank = len(dims)
    for axis, dim, size, index in zip(
        range(-rank, 0), dims, shape[len(shape) - rank :], indices[len(indices) - rank :], strict=True
    ):
        if dim == 1:
            found.append(ONLY)
        elif nest.facts.dim_equal(dim, size):
            found.append(index)
        else:
            sizes = dict.fromkeys(str(each[axis]) for each in among if len(each) >= -axis and each[axis] != 1)
            if len(sizes) > 1:
                raise CantFuse(f"whether {' and '.join(sizes)} {EQUAL} {UNKNOWN}")
            raise CantFuse(f"whether {dim} is broadcast to {size} {UNKNOWN}")
    return tuple(found)


def qualified_name(node: ir.Node) -> str:
    """The operator of ``node``, named as in definitions."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def find(node: ir.Node) -> Operator | None:
    """The definition of the operator of ``node``."""
    return _by_operator().get(qualified_name(node))


def only_moves(node: ir.Node | None) -> bool:
    """Whether ``node`` moves elements without computing any."""
    operator = None if node is None else find(node)
    return operator is not None and operator.moves


def obstacle_to_kernel(node: ir.Node, cx: Context) -> str | None:
    """The reason why no kernel can compute ``node``: its operator or its types, regardless of neighbours."""
    found = find(node)
    if found is None:
        return f"no kernels for {qualified_name(node)}"
    first = node.inputs[0] if node.inputs else None
    dtype = None if first is None else cx.dtype(first)
    if dtype is None:
        return "its type is unknown"
    if dtype.name not in found.types:
        return f"no kernels for its type {dtype.name.lower()}"
    for output in node.outputs:
        if output.name and element_of(cx.dtype(output)) is None:
            return "no kernels for the type of its result"
    return None if found.refuses is None else found.refuses(node, cx)


@cache
def all_operators() -> dict[str, tuple[Operator, ...]]:
    """All definitions, by family."""
    package = importlib.import_module(_PACKAGE)
    found: dict[str, tuple[Operator, ...]] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{_PACKAGE}.{info.name}")
        found[info.name] = tuple(item for item in vars(module).values() if isinstance(item, Operator))
    return found


@cache
def _by_operator() -> dict[str, Operator]:
    return {op: item for items in all_operators().values() for item in items for op in item.ops}
