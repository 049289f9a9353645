"""The input of a shape rule: a node with its attributes, and the facts about its inputs.

A *shape rule* infers the facts of a node's outputs. It is a function of a :class:`NodeFacts`, marked with
:func:`shape_rule` in a module of :mod:`graphopt.analysis.shape_inference.rules`. It returns a :class:`Fact`
for each output (a single fact for a single output; omitted outputs are unknown), or ``None`` to fall back to
onnx's inference. A rule may assume that the node runs without an error, and must be correct for every such
run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.value_facts import (
    ABSENT,
    Contents,
    Fact,
    ShapeTuple,
    element_count,
    tracks_contents,
)
from graphopt.analysis.symbolic import Bound, Dim, Minimum, OrElse, SymDim, at_least, bounds, lone_atom

Facts: TypeAlias = "Fact | Sequence[Fact] | None"
ShapeRule: TypeAlias = "Callable[[NodeFacts], Facts]"
_Rule = TypeVar("_Rule", bound=ShapeRule)

#: Maximum number of elements of a tensor whose unknown contents become symbols.
_NAMED_ELEMENTS = 16


class UnknownAttribute(Exception):
    """An attribute refers to an attribute of the enclosing function, whose call is unknown."""


class Assumption(Protocol):
    """Facts inferred from premises that may later prove too strong."""

    results: list[Fact]

    def retract(self) -> None:
        """Discard the premises and everything inferred from them."""


class Scope(Protocol):
    """Services of the engine for rules; implemented by :class:`.inference_engine.Inference`."""

    @property
    def newest_symbol(self) -> int: ...
    def version(self, node: ir.Node, /) -> int: ...
    def constant(self, value: ir.Value, /) -> ir.TensorProtocol | None: ...
    def known(self, value: ir.Value, /) -> Fact: ...
    def infer(self, value: ir.Value, /) -> Fact: ...
    def resolve(self, attribute: ir.Attr, /) -> ir.Attr | None: ...
    def fresh(self, hint: str, lo: Bound = 0, hi: Bound = math.inf) -> SymDim: ...
    def guard_symbol(self, name: str, /) -> SymDim: ...
    def resolved(self, dim: Dim, /) -> Dim: ...
    def equate(self, node: ir.Node, vague: Dim, dim: Dim, /) -> None: ...
    def assume(self, premises: Mapping[ir.Value, Fact], wanted: Iterable[ir.Value], /) -> Assumption: ...


def shape_rule(*op_types: str, domain: str = "") -> Callable[[_Rule], _Rule]:
    """Mark a function as the shape rule of ``op_types``."""

    def mark(rule: _Rule) -> _Rule:
        marks = rule.__dict__.setdefault("shape_rule_for", [])
        marks.extend((domain, op_type) for op_type in op_types)
        return rule

    return mark


class NodeFacts:
    """A node, its attributes, and the facts about its inputs.

    Attributes:
        ir: the node itself.
        scope: the inference engine.
        facts: the facts of the inputs.
    """

    __slots__ = ("facts", "ir", "scope")

    def __init__(self, scope: Scope, node: ir.Node) -> None:
        self.scope = scope
        self.ir = node
        known = scope.known
        self.facts = [ABSENT if value is None else known(value) for value in node.inputs]

    # inputs; an index beyond the last input denotes an omitted input

    def has(self, index: int) -> bool:
        """Whether input ``index`` is present."""
        return index < len(self.facts) and self.facts[index] is not ABSENT

    def fact(self, index: int) -> Fact:
        return self.facts[index] if index < len(self.facts) else ABSENT

    def shape(self, index: int) -> ShapeTuple | None:
        return self.facts[index].shape if index < len(self.facts) else None

    def rank(self, index: int) -> int | None:
        shape = self.shape(index)
        return None if shape is None else len(shape)

    def dtype(self, index: int) -> ir.DataType | None:
        return self.facts[index].dtype if index < len(self.facts) else None

    def contents(self, index: int) -> Contents | None:
        """The elements of an integer input; ``None`` if unknown."""
        return self.facts[index].contents if index < len(self.facts) else None

    def named_contents(self, index: int) -> Contents | None:
        """Like :meth:`contents`, with symbols for the unknown elements of a very small tensor."""
        fact = self.fact(index)
        if fact.contents is None and tracks_contents(fact.dtype, fact.shape):
            count = element_count(fact.shape)
            if count is not None and count <= _NAMED_ELEMENTS:
                value = self.ir.inputs[index]
                name = (value.name if value is not None else None) or "value"
                lo, hi = _value_range(fact.dtype)
                fact.contents = tuple(self.fresh(name, lo, hi) for _ in range(count))
        return fact.contents

    def static_contents(self, index: int) -> tuple[int, ...] | None:
        """The elements of an integer input if all are known numbers."""
        return ir.all_ints(self.contents(index))

    def fill(self, index: int) -> np.generic | None:
        """The common value of all elements of input ``index``, if known."""
        value = self.ir.inputs[index] if index < len(self.ir.inputs) else None
        if value is None:
            return None
        tensor = self.scope.constant(value)
        if tensor is None:
            return self.scope.infer(value).fill
        number = ir.fill_of_tensor(tensor)
        if number is not None:
            ir.read_for_facts(value)
        return number

    def constant(self, index: int) -> ir.TensorProtocol | None:
        """The tensor of input ``index`` if it is constant."""
        value = self.ir.inputs[index] if index < len(self.ir.inputs) else None
        return None if value is None else self.scope.constant(value)

    def constant_array(self, index: int, limit: int = 1024) -> np.ndarray | None:
        """The contents of a constant input of at most ``limit`` elements."""
        tensor = self.constant(index)
        if tensor is None or tensor.size > limit:
            return None
        self.rely_on(index)
        return tensor.numpy()

    def rely_on(self, index: int) -> None:
        """Record that facts depend on the contents of input ``index``."""
        value = self.ir.inputs[index]
        if value is not None:
            ir.read_for_facts(value)

    # attributes

    def attr(self, name: str) -> ir.Attr | None:
        """The attribute, with a reference resolved for the current call. Raises UnknownAttribute."""
        attribute = self.ir.attributes.data.get(name)
        if attribute is not None and attribute.is_ref():
            return self.scope.resolve(attribute)
        return attribute

    def attr_int(self, name: str, default: int) -> int:
        attribute = self.attr(name)
        return default if attribute is None else attribute.value

    def attr_ints(self, name: str) -> tuple[int, ...] | None:
        attribute = self.attr(name)
        return None if attribute is None else tuple(attribute.value)

    def attr_floats(self, name: str) -> tuple[float, ...] | None:
        attribute = self.attr(name)
        return None if attribute is None else tuple(attribute.value)

    def attr_str(self, name: str, default: str) -> str:
        attribute = self.attr(name)
        if attribute is None:
            return default
        return attribute.value.decode() if isinstance(attribute.value, bytes) else attribute.value

    def attr_graph(self, name: str) -> ir.Graph:
        """The body in attribute ``name``. Raises AttributeError if it is missing."""
        attribute = self.attr(name)
        if attribute is None:
            raise AttributeError(f"{self.ir.op_type} has no {name}")
        return attribute.value

    def axis(self, rank: int, default: int) -> int:
        """The attribute ``axis`` as an index in ``[0, rank)``. Raises IndexError."""
        return normalize_axis(self.attr_int("axis", default), rank)

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.scope.version(self.ir)

    # results

    def fresh(self, hint: str | None = None, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
        """A new symbol, by default a size: an integer that is at least 0."""
        return self.scope.fresh(hint or self.ir.op_type, lo, hi)

    def fresh_shape(self, rank: int) -> ShapeTuple:
        """A shape with unknown dims."""
        return tuple(self.fresh() for _ in range(rank))

    def like(self, index: int, dtype: ir.DataType | None = None) -> Fact:
        """A tensor with the shape of input ``index``, and the given dtype, by default that of the input."""
        return Fact(dtype or self.dtype(index), self.shape(index))

    def broadcast(self, shapes: Sequence[ShapeTuple | None]) -> ShapeTuple | None:
        """The shape that ``shapes`` broadcast to (ONNX: Multidirectional Broadcasting)."""
        first = shapes[0]
        if first is None:
            return None
        for shape in shapes:
            if shape != first:
                break
        else:
            return first
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return None
        rank = max(map(len, known))
        padded = [(1,) * (rank - len(shape)) + shape for shape in known]
        return tuple(self.broadcast_dim(dims) for dims in zip(*padded, strict=True))

    def broadcast_dim(self, dims: Iterable[Dim]) -> Dim:
        """The size that ``dims`` broadcast to. The node fails unless all dims other than 1 are equal."""
        found: list[Dim] = []
        for dim in map(self.scope.resolved, dims):
            if dim != 1 and dim not in found:
                found.append(dim)
        if len(found) <= 1:
            return found[0] if found else 1
        certain = [dim for dim in found if never_one(dim)]
        for dim in certain:
            if isinstance(dim, int):
                return dim
        if certain:
            return certain[0]
        if len(found) == 2:
            for vague, dim in (found, found[::-1]):
                if _equal_or_conflicting(vague, dim):
                    self.scope.equate(self.ir, vague, dim)
                    return dim
        return self.fresh()


def _equal_or_conflicting(vague: Dim, dim: Dim) -> bool:
    """Whether ``vague`` and ``dim`` are equal, or are two different sizes that are not 1."""
    atom = lone_atom(vague)
    if isinstance(atom, OrElse):  # "dim or d" is d if dim is 0
        first, otherwise = atom.operands
        return first == dim and never_one(otherwise)
    if isinstance(atom, Minimum):  # min(dim, d)
        return dim in atom.operands and all(each == dim or at_least(each, 2) for each in atom.operands)
    return False


def never_one(dim: Dim) -> bool:
    """Whether ``dim`` can't be 1."""
    if isinstance(dim, int):
        return dim != 1
    lo, hi = bounds(dim)
    return lo > 1 or hi < 1


def normalize_axis(axis: int, rank: int) -> int:
    """``axis`` as a non-negative index. Raises IndexError for an invalid axis."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def known_length(shape: ShapeTuple | None) -> int | None:
    """The length of a vector, if it is static."""
    if shape is not None and len(shape) == 1 and isinstance(shape[0], int):
        return shape[0]
    return None


def _value_range(dtype: ir.DataType | None) -> tuple[Bound, Bound]:
    if dtype == ir.DataType.BOOL:
        return (0, 1)
    return (0, math.inf) if dtype is not None and not dtype.is_signed() else (-math.inf, math.inf)
