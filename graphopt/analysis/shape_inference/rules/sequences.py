"""Sequences and optionals.

The facts of a container hold for each of its elements. A fresh symbol in them represents a size that may
differ between elements, so an extracted element has a new symbol.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, normalize_axis, shape_rule
from graphopt.analysis.shape_inference.value_facts import UNKNOWN, Fact, ShapeTuple
from graphopt.analysis.symbolic import Dim


def join_shapes(node: NodeFacts, a: ShapeTuple | None, b: ShapeTuple | None) -> ShapeTuple | None:
    """The facts common to both shapes."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else node.fresh() for x, y in zip(a, b, strict=True))


def join(node: NodeFacts, a: Fact, b: Fact) -> Fact:
    """The facts common to both; contents are kept only if they are equal."""
    if a is b:
        return a
    if a.container is not None or b.container is not None:
        if a.container is not b.container:
            return UNKNOWN
        return Fact(container=a.container, element=join(node, a.element or UNKNOWN, b.element or UNKNOWN))
    if a.vacant or b.vacant:
        return b if a.vacant else a
    dtype = a.dtype if a.dtype == b.dtype else None
    contents = a.contents if a.contents == b.contents and a.shape == b.shape else None
    return Fact(dtype, join_shapes(node, a.shape, b.shape), contents)


def _sequence(element: Fact) -> Fact:
    if element.container is None:
        element = Fact(element.dtype, element.shape, vacant=element.vacant)
    return Fact(container=ir.SequenceType, element=element)


def _element(node: NodeFacts, sequence: Fact) -> Fact:
    """One element of a sequence."""
    element = sequence.element
    if element is None or element.container is not None:
        return element or UNKNOWN
    return Fact(element.dtype, _with_fresh_dims(node, element.shape))


def _with_fresh_dims(node: NodeFacts, shape: ShapeTuple | None) -> ShapeTuple | None:
    if shape is None:
        return None
    return tuple(node.fresh() if not isinstance(dim, int) and dim.birth else dim for dim in shape)


@shape_rule("SequenceEmpty")
def sequence_empty(node: NodeFacts) -> Fact:
    return _sequence(Fact(ir.DataType(node.attr_int("dtype", 1)), vacant=True))


@shape_rule("SequenceConstruct")
def sequence_construct(node: NodeFacts) -> Fact:
    element = node.fact(0)
    for other in node.facts[1:]:
        element = join(node, element, other)
    return _sequence(element)


@shape_rule("SequenceInsert")
def sequence_insert(node: NodeFacts) -> Fact:
    return _sequence(join(node, node.fact(0).element or UNKNOWN, node.fact(1)))


@shape_rule("SequenceErase")
def sequence_erase(node: NodeFacts) -> Fact:
    return node.fact(0)


@shape_rule("SequenceAt")
def sequence_at(node: NodeFacts) -> Fact:
    return _element(node, node.fact(0))


@shape_rule("SequenceLength")
def sequence_length(node: NodeFacts) -> Fact:
    return Fact(ir.DataType.INT64, (), (node.fresh("length"),))


@shape_rule("SplitToSequence")
def split_to_sequence(node: NodeFacts) -> Fact:
    """Without ``split``, each element has size 1 along ``axis``, or lacks the axis if ``keepdims`` is 0."""
    shape, dtype = node.shape(0), node.dtype(0)
    if shape is None:
        return _sequence(Fact(dtype))
    axis = node.axis(len(shape), 0)
    if node.has(1):
        return _sequence(Fact(dtype, (*shape[:axis], node.fresh(), *shape[axis + 1 :])))
    kept = (1,) if node.attr_int("keepdims", 1) else ()
    return _sequence(Fact(dtype, shape[:axis] + kept + shape[axis + 1 :]))


@shape_rule("ConcatFromSequence")
def concat_from_sequence(node: NodeFacts) -> Fact:
    """The elements joined along ``axis``, or stacked along a new axis."""
    element = node.fact(0).element or UNKNOWN
    shape = _with_fresh_dims(node, element.shape)
    if shape is None:
        return Fact(element.dtype)
    joined: Dim = node.fresh()
    if node.attr_int("new_axis", 0):
        axis = normalize_axis(node.attr_int("axis", 0), len(shape) + 1)
        return Fact(element.dtype, (*shape[:axis], joined, *shape[axis:]))
    axis = node.axis(len(shape), 0)
    return Fact(element.dtype, (*shape[:axis], joined, *shape[axis + 1 :]))


@shape_rule("Optional")
def optional(node: NodeFacts) -> Fact | None:
    """The given value, or an empty optional of a declared type."""
    if not node.has(0):
        return None
    value = node.fact(0)
    return Fact(container=ir.OptionalType, element=value)


@shape_rule("OptionalGetElement")
def optional_get_element(node: NodeFacts) -> Fact:
    """The element of an optional; from opset 18 on, tensors and sequences are returned unchanged."""
    fact = node.fact(0)
    return fact if fact.container is not ir.OptionalType else fact.element or UNKNOWN


@shape_rule("OptionalHasElement")
def optional_has_element(node: NodeFacts) -> Fact:
    return Fact(ir.DataType.BOOL, ())
