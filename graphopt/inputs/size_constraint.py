"""Constraints on two sizes, and the facts about a node that they are derived from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.shape_inference.value_facts import ShapeTuple
from graphopt.analysis.symbolic import Dim
from graphopt.inputs.integer_range_analysis import ValueBounds
from graphopt.util.lazy_dataclass import dataclass

Kind: TypeAlias = Literal["equal", "broadcast", "least"]


@dataclass(frozen=True)
class SizeConstraint:
    """A constraint on two sizes.

    Attributes:
        kind: ``equal``; ``broadcast``: equal, or one size is 1; ``least``: ``left`` is at least ``right``.
        left, right: sizes, as expressions over the symbols of the model's inputs.
    """

    kind: Kind
    left: Dim
    right: Dim

    def holds(self, left: int, right: int) -> bool:
        """Whether two numbers satisfy the constraint."""
        if self.kind == "least":
            return left >= right
        return left == right or (self.kind == "broadcast" and 1 in (left, right))


SizeConstraints: TypeAlias = Iterable[SizeConstraint]


def equal(left: Dim, right: Dim) -> SizeConstraint:
    """``left`` equals ``right``."""
    return SizeConstraint("equal", left, right)


def broadcast(left: Dim, right: Dim) -> SizeConstraint:
    """``left`` and ``right`` are equal, or one of them is 1."""
    return SizeConstraint("broadcast", left, right)


def least(left: Dim, right: Dim) -> SizeConstraint:
    """``left`` is at least ``right``."""
    return SizeConstraint("least", left, right)


class Site:
    """A node, and the facts about its inputs."""

    def __init__(self, node: ir.Node, facts: ShapeFacts, bounds: ValueBounds) -> None:
        self.node, self.facts, self.bounds = node, facts, bounds

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def value(self, index: int) -> ir.Value:
        """Input ``index`` of the node; raises IndexError if it is absent."""
        value = self.node.inputs[index]
        if value is None:
            raise IndexError(index)
        return value

    def shape(self, index: int) -> ShapeTuple:
        """The shape of input ``index``; raises IndexError if the input is absent or its rank is unknown."""
        shape = self.facts.shape(self.value(index))
        if shape is None:
            raise IndexError(index)
        return shape

    def shapes(self) -> list[ShapeTuple]:
        """The shapes of the inputs of known rank."""
        known = [self.facts.shape(value) for value in self.node.inputs if value is not None]
        return [shape for shape in known if shape is not None]

    def ints(self, index: int) -> Sequence[Dim] | None:
        return self.facts.known_ints(self.value(index)) if self.has(index) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def result(self, index: int = 0) -> ShapeTuple:
        """The shape of an output. Raises IndexError if its rank is unknown."""
        shape = self.facts.shape(self.node.outputs[index])
        if shape is None:
            raise IndexError(index)
        return shape
