"""Operators that change the rank, and the correspondence of their axes.

A view relates groups of axes: a Reshape from [N, C, H, W] to [N, C, H * W] has the groups N → N, C → C and
(H, W) → (H * W). Groups may be permuted as a whole; the elements of each group keep their order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import Dim
from graphopt.ops import traits
from graphopt.rewrite import Builder, Match
from graphopt.rules.building_blocks import numeric_safety
from graphopt.rules.building_blocks.axes import axes_of, axis_of, reduce, squeeze, unsqueeze
from graphopt.rules.building_blocks.operands import int_of, operand
from graphopt.rules.building_blocks.reshape_targets import nonzero_dims, reshape, reshape_target
from graphopt.transforms.layout._operator import Inputs, Operator
from graphopt.transforms.layout._permutations import Perm, Placement, identity, inverse
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Group:
    """Adjacent axes of the operand, and the adjacent axes of the result that have the same elements."""

    before: tuple[int, ...]
    after: tuple[int, ...]


Groups = Sequence[Group]


def permuted(groups: Groups, perm: Perm, *, given: str) -> Placement | None:
    """The layouts of both sides of a view, if one side has layout ``perm``; ``None`` if it splits a group.

    Groups without axes on the given side follow the group before them.
    """
    mine = [group.before if given == "read" else group.after for group in groups]
    others = [group.after if given == "read" else group.before for group in groups]
    starts = {axes[0]: index for index, axes in enumerate(mine) if axes}
    order: list[int] = []
    place = 0
    while place < len(perm):
        index = starts.get(perm[place])
        if index is None or perm[place : place + len(mine[index])] != mine[index]:
            return None
        order.append(index)
        place += len(mine[index])
    for index, axes in enumerate(mine):
        if not axes:
            order.insert(order.index(index - 1) + 1 if index else 0, index)
    other = tuple(axis for index in order for axis in others[index])
    return Placement(perm, other) if given == "read" else Placement(other, perm)


class View(Operator):
    """A view with one operand and one result."""

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return (0,)

    @abstractmethod
    def groups(self, m: Match, node: ir.Node) -> Groups | None:
        """The groups of axes; ``None`` if unknown."""

    def placement(self, m: Match, node: ir.Node, perm: Perm, *, given: str) -> Placement | None:
        groups = self.groups(m, node)
        rank = m.rank(node.inputs[0] if given == "read" else node.outputs[0])
        at = None if groups is None or rank != len(perm) else permuted(groups, perm, given=given)
        return at if at is not None and self.is_expressible(m, node, at) else None

    def is_expressible(self, m: Match, node: ir.Node, at: Placement) -> bool:
        """Whether ``node`` can be built in the layouts ``at``."""
        return True


class Squeezed(View):
    """Squeeze of known axes."""

    def groups(self, m: Match, node: ir.Node) -> Groups | None:
        axes, rank = axes_of(m, node), m.rank(node.inputs[0])
        return _removed(rank, axes) if axes and rank is not None else None

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        axes = axes_of(m, node)
        assert axes and inputs[0] is not None
        return squeeze(op, m, inputs[0], sorted(at.read.index(axis) for axis in axes))


class Unsqueezed(View):
    """Unsqueeze of known axes."""

    def groups(self, m: Match, node: ir.Node) -> Groups | None:
        axes, rank = axes_of(m, node), m.rank(node.inputs[0])
        if not axes or rank is None:
            return None
        return [Group(group.after, group.before) for group in _removed(rank + len(axes), axes)]

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        axes = axes_of(m, node)
        assert axes and inputs[0] is not None
        return unsqueeze(op, m, inputs[0], sorted(at.result.index(axis) for axis in axes))


def _removed(rank: int, axes: Sequence[int]) -> list[Group]:
    kept = [axis for axis in range(rank) if axis not in axes]
    return [Group((axis,), (kept.index(axis),) if axis in kept else ()) for axis in range(rank)]


class AxisRemoval(View):
    """Operators that remove axes: the layout of the result does not determine the places of these axes."""

    def placement(self, m: Match, node: ir.Node, perm: Perm, *, given: str) -> Placement | None:
        return super().placement(m, node, perm, given=given) if given == "read" else None


class Reduction(AxisRemoval):
    """Reductions without ``keepdims`` over known axes, and ArgMax and ArgMin."""

    exact = False

    def groups(self, m: Match, node: ir.Node) -> Groups | None:
        axes, rank = self._axes(m, node), m.rank(node.inputs[0])
        if not axes or rank is None or m.attribute(node, "keepdims") or numeric_safety.rounds_long(m, node):
            return None
        return _removed(rank, axes)

    def _axes(self, m: Match, node: ir.Node) -> Sequence[int] | None:
        if node.op_type not in ("ArgMax", "ArgMin"):
            return axes_of(m, node)
        axis = axis_of(m, node, m.rank(node.inputs[0]))
        return None if axis is None else (axis,)

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        axes = self._axes(m, node)
        assert axes and inputs[0] is not None
        moved = sorted(at.read.index(axis) for axis in axes)
        if node.op_type in ("ArgMax", "ArgMin"):
            return op.like(node, inputs, axis=moved[0])
        return reduce(op, m, node.op_type, inputs[0], moved, keepdims=False)


class ArgReduction(Reduction):
    """ArgMax and ArgMin without ``keepdims``."""

    exact = True


class GatherScalar(AxisRemoval):
    """Gather of one index along an axis, which the result lacks."""

    def groups(self, m: Match, node: ir.Node) -> Groups | None:
        rank = m.rank(node.inputs[0])
        axis = axis_of(m, node, rank)
        return None if rank is None or axis is None else _removed(rank, (axis,))

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        axis = axis_of(m, node, len(at.read))
        assert axis is not None
        return op.like(node, inputs, axis=at.read.index(axis))


class Reshaped(View):
    """Reshape and Flatten whose dims correspond."""

    def groups(self, m: Match, node: ir.Node) -> Groups | None:
        before, after = m.shape(node.inputs[0]), m.shape(node.outputs[0])
        return None if before is None or after is None else _corresponding(m, before, after)

    def is_expressible(self, m: Match, node: ir.Node, at: Placement) -> bool:
        return self._target(m, node, at) is not None

    def _target(self, m: Match, node: ir.Node, at: Placement) -> tuple[int, ...] | None:
        before, after = m.shape(node.inputs[0]), m.shape(node.outputs[0])
        if before is None or after is None:
            return None
        source, result = ([s[axis] for axis in perm] for s, perm in ((before, at.read), (after, at.result)))
        return reshape_target(m, source, result, nonzero_dims(m, node))

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        target = self._target(m, node, at)
        assert target is not None and inputs[0] is not None
        return reshape(op, m, inputs[0], target)


def _corresponding(m: Match, before: Sequence[Dim], after: Sequence[Dim]) -> list[Group] | None:
    """The smallest groups of axes with provably equal numbers of elements, from left to right."""
    found: list[Group] = []
    left = right = 0
    equal = m.cx.facts.dim_equal
    while left < len(before) or right < len(after):
        ends = _next_group(before, after, left, right, equal)
        if ends is None:
            return None
        found.append(Group(tuple(range(left, ends[0])), tuple(range(right, ends[1]))))
        left, right = ends
    return found


def _next_group(
    before: Sequence[Dim], after: Sequence[Dim], left: int, right: int, equal: Callable[[Dim, Dim], bool]
) -> tuple[int, int] | None:
    """The ends of the group that begins at ``left`` and ``right``."""
    if left < len(before) and right < len(after) and equal(before[left], after[right]):
        return left + 1, right + 1
    if left < len(before) and before[left] == 1:
        return left + 1, right
    if right < len(after) and after[right] == 1:
        return left, right + 1
    for size in range(3, len(before) - left + len(after) - right + 1):  # the smallest group first
        for mine in range(1, size):
            ends = left + mine, right + size - mine
            if ends[0] > len(before) or ends[1] > len(after):
                continue
            products = symbolic.product(before[left : ends[0]]), symbolic.product(after[right : ends[1]])
            if equal(*products):
                return ends
    return None


class ShapeOf(Operator):
    """Shape and Size, whose results have one layout."""

    def reads(self, m: Match, node: ir.Node) -> Sequence[int]:
        return (0,)

    def placement(self, m: Match, node: ir.Node, perm: Perm, *, given: str) -> Placement | None:
        if given == "result" or m.rank(node.inputs[0]) != len(perm):
            return None
        return Placement(perm, identity(1 if node.op_type == "Shape" else 0))

    def rebuild(self, op: Builder, m: Match, node: ir.Node, inputs: Inputs, at: Placement) -> object:
        if node.op_type == "Size":
            return op.like(node, inputs)
        rank = len(at.read)
        start, end = int_of(m, node, "start", 0), int_of(m, node, "end", rank)
        places = np.array(inverse(at.read)[slice(start, end)], np.int64)
        whole = op.like(node, inputs, start=None, end=None)
        return op.Gather(whole, places, axis=0)


_SHAPE = ShapeOf()
_VIEWS: dict[str, Operator] = {
    "Squeeze": Squeezed(),
    "Unsqueeze": Unsqueezed(),
    "Reshape": Reshaped(),
    "Flatten": Reshaped(),
    "Shape": _SHAPE,
    "Size": _SHAPE,
}
_REDUCTION, _ARG_REDUCTION, _GATHER = Reduction(), ArgReduction(), GatherScalar()


def view_operator(m: Match, node: ir.Node) -> Operator | None:
    """The layouts of ``node`` if its rank differs from that of its operand; ``None`` if it has one layout."""
    if node.domain != "":
        return None
    if node.op_type in _VIEWS:
        return _VIEWS[node.op_type]
    if node.op_type == "Gather":
        return _GATHER if m.rank(operand(node, 1)) == 0 else None
    if not traits.reduces(node) or m.attribute(node, "keepdims"):
        return None
    return _ARG_REDUCTION if node.op_type.startswith("Arg") else _REDUCTION
