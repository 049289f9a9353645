"""One node as a shape rule sees it: its attributes, and the facts about its inputs.

A *shape rule* tells the facts of a node's outputs. It is a function of a :class:`NodeFacts`, marked
with :func:`shape_rule` in a module of :mod:`graphopt.analysis.shape_inference.rules`. It returns a
:class:`Fact` for each output (one alone stands for itself; outputs left out are unknown), or None
to leave the node to onnx's own inference. It may assume that the node runs without an error,
and must hold for every such run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from graphopt import ir
from graphopt.analysis.shape_inference.facts import (
    ABSENT,
    Contents,
    Fact,
    ShapeTuple,
    element_count,
    tracks_contents,
)
from graphopt.analysis.symbolic import Bound, Dim, Extremum, OrElse, SymDim, at_least, bounds, lone_atom

if TYPE_CHECKING:
    from graphopt.analysis.shape_inference.engine import Inference

Facts: TypeAlias = "Fact | Sequence[Fact] | None"
ShapeRule: TypeAlias = "Callable[[NodeFacts], Facts]"
_Rule = TypeVar("_Rule", bound=ShapeRule)

_NAMED_ELEMENTS = 16  # unknown contents get symbols up to this many elements


class UnknownAttribute(Exception):
    """An attribute refers to one of the enclosing function, and the call is not known."""


def shape_rule(*op_types: str, domain: str = "") -> Callable[[_Rule], _Rule]:
    """Mark a function as the shape rule of ``op_types``."""

    def mark(rule: _Rule) -> _Rule:
        marks = rule.__dict__.setdefault("shape_rule_for", [])
        marks.extend((domain, op_type) for op_type in op_types)
        return rule

    return mark


class NodeFacts:
    """A node, its attributes, and the facts about its inputs."""

    __slots__ = ("facts", "inference", "node")

    def __init__(self, inference: Inference, node: ir.Node) -> None:
        self.inference = inference
        self.node = node
        known = inference.known
        self.facts = [ABSENT if value is None else known(value) for value in node.inputs]

    # inputs; an index past the last input is a missing input

    def has(self, index: int) -> bool:
        """Whether input ``index`` is given."""
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
        """The elements of an integer input, where they are known."""
        return self.facts[index].contents if index < len(self.facts) else None

    def named_contents(self, index: int) -> Contents | None:
        """Like :meth:`contents`, with symbols for the unknown elements of a very small tensor."""
        fact = self.fact(index)
        if fact.contents is None and tracks_contents(fact.dtype, fact.shape):
            count = element_count(fact.shape)
            if count is not None and count <= _NAMED_ELEMENTS:
                value = self.node.inputs[index]
                name = (value.name if value is not None else None) or "value"
                lo, hi = _value_range(fact.dtype)
                fact.contents = tuple(self.fresh(name, lo, hi) for _ in range(count))
        return fact.contents

    def static_contents(self, index: int) -> tuple[int, ...] | None:
        """The elements of an integer input if every one is a known number."""
        return ir.all_ints(self.contents(index))

    def fill(self, index: int) -> np.generic | None:
        """The number that every element of input ``index`` is, if that is known."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            return None
        tensor = self.inference.constant(value)
        if tensor is None:
            return self.inference.need(value).fill
        number = ir.fill_of_tensor(tensor)
        if number is not None:
            ir.read_for_facts(value)
        return number

    def constant(self, index: int) -> ir.TensorProtocol | None:
        """The tensor, if input ``index`` is constant."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None else self.inference.constant(value)

    def constant_array(self, index: int, limit: int = 1024) -> np.ndarray | None:
        """The contents of a constant input of at most ``limit`` elements."""
        tensor = self.constant(index)
        if tensor is None or tensor.size > limit:
            return None
        self.rely_on(index)
        return tensor.numpy()

    def rely_on(self, index: int) -> None:
        """Note that facts come from the contents of input ``index``."""
        value = self.node.inputs[index]
        if value is not None:
            ir.read_for_facts(value)

    # attributes

    def attr(self, name: str) -> ir.Attr | None:
        """The attribute, as the call of the enclosing function gives it. Raises UnknownAttribute."""
        attribute = self.node.attributes.data.get(name)
        if attribute is not None and attribute.is_ref():
            return self.inference.resolve(attribute)
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
        """A body. Raises AttributeError if it is missing."""
        attribute = self.attr(name)
        if attribute is None:
            raise AttributeError(f"{self.node.op_type} has no {name}")
        return attribute.value

    def axis(self, rank: int, default: int, name: str = "axis") -> int:
        """The attribute as an index in ``[0, rank)``. Raises IndexError."""
        return normalize_axis(self.attr_int(name, default), rank)

    @property
    def version(self) -> int:
        """The opset version of the node's domain."""
        return self.inference.version(self.node)

    # results

    def fresh(self, hint: str | None = None, lo: Bound = 0, hi: Bound = math.inf) -> SymDim:
        """A new unknown, by default a dimension."""
        return self.inference.fresh(hint or self.node.op_type, lo, hi)

    def fresh_shape(self, rank: int) -> ShapeTuple:
        """A shape of which only the rank is known."""
        return tuple(self.fresh() for _ in range(rank))

    def like(self, index: int, dtype: ir.DataType | None = None) -> Fact:
        """Another tensor with the shape of an input, and its dtype unless one is given."""
        return Fact(dtype or self.dtype(index), self.shape(index))

    def broadcast(self, shapes: Sequence[ShapeTuple | None]) -> ShapeTuple | None:
        """The shape of multidirectional broadcasting (ONNX: Broadcasting in ONNX)."""
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
        """The size that ``dims`` broadcast to. All that are not 1 agree, or the node fails."""
        found: list[Dim] = []
        for dim in map(self.inference.world.resolved, dims):
            if dim != 1 and dim not in found:
                found.append(dim)
        if len(found) <= 1:
            return found[0] if found else 1
        sure = [dim for dim in found if never_one(dim)]
        for dim in sure:
            if isinstance(dim, int):
                return dim
        if sure:
            return sure[0]
        if len(found) == 2:
            for vague, dim in (found, found[::-1]):
                if _equal_or_conflicting(vague, dim):
                    self.inference.equate(self.node, vague, dim)
                    return dim
        return self.fresh()


def _equal_or_conflicting(vague: Dim, dim: Dim) -> bool:
    """Whether ``vague`` equals ``dim``, or else they are two different sizes other than 1."""
    atom = lone_atom(vague)
    if isinstance(atom, OrElse):  # "dim or d": where dim is 0, d takes its place
        return atom.first == dim and never_one(atom.otherwise)
    if isinstance(atom, Extremum) and atom.sign < 0:  # min(dim, d)
        return dim in atom.args and all(arg == dim or at_least(arg, 2) for arg in atom.args)
    return False


def never_one(dim: Dim) -> bool:
    """Whether ``dim`` can't be 1."""
    if isinstance(dim, int):
        return dim != 1
    lo, hi = bounds(dim)
    return lo > 1 or hi < 1


def normalize_axis(axis: int, rank: int) -> int:
    """``axis``, counted from the front. Raises IndexError if there is no such axis."""
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
