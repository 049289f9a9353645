"""Transposes of groups of axes, between Reshapes that merge or split the groups."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks.axes import perm_of
from graphopt.rules.building_blocks.reshape_targets import reshape, reshape_target
from graphopt.rules.building_blocks.shape_equality import same_shape


@rule(
    lambda op, x, s, p, t: op.Reshape(op.Transpose(op.Reshape(x, s, tag="first"), perm=p, tag="T"), t),
    numerics=Exact,
    proven_exact=True,
    exclusive=True,
)
def transpose_between_reshapes(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Reshape(Transpose(Reshape(x))) → Reshape(Transpose(x)), Transpose(Reshape(x)) or Transpose(x).

    One of the Reshapes must merge or split axes that the Transpose moves as a whole.
    """
    perm = perm_of(m, m.node("T"))
    source, result = m.shape(x), m.shape(m.root.outputs[0])
    middle = _target_dims(m, m.node("first"), source)
    if perm is None or source is None or result is None or middle is None or len(perm) != len(middle):
        return m.no("the rank or a shape is unknown", x)
    if (groups := _groups(m, middle, source)) is not None:
        moved = op.Transpose(x, perm=[axis for group in perm for axis in groups[group]])
        given = [source[axis] for group in perm for axis in groups[group]]
        if same_shape(m, given, result):
            return moved
        target = reshape_target(m, given, result)
        if target is not None:
            return reshape(op, m, moved, target)
    if (groups := _groups(m, [middle[group] for group in perm], result)) is not None:
        by_middle = sorted(zip(perm, groups, strict=True))
        parted = [axis for _, axes in by_middle for axis in axes]
        target = reshape_target(m, source, [result[axis] for axis in parted])
        if target is not None:
            back = [parted.index(axis) for axis in range(len(parted))]
            return op.Transpose(reshape(op, m, x, target), perm=back)
    return m.no("it moves parts of merged axes", x)


def _target_dims(m: Match, node: ir.Node, source: Sequence[Dim] | None) -> list[Dim | None] | None:
    """The dims in the target shape of a Reshape; ``None`` for the inferred one."""
    numbers = m.cx.known_ints(node.inputs[1])
    if numbers is None or source is None:
        return None
    copies = not m.attribute(node, "allowzero")
    return [
        None if number == -1 else source[axis] if number == 0 and copies and axis < len(source) else number
        for axis, number in enumerate(numbers)
    ]


def _groups(m: Match, merged: Sequence[Dim | None], parts: Sequence[Dim]) -> list[list[int]] | None:
    """For each dim of ``merged``, the adjacent axes of ``parts`` with that product."""
    unknown = merged.index(None) if None in merged else len(merged)
    front = _leading_groups(m, merged[:unknown], parts)
    if front is None or unknown == len(merged):
        return front if front is not None and sum(map(len, front)) == len(parts) else None
    rest = merged[unknown + 1 :]
    back = _leading_groups(m, rest[::-1], parts[::-1])
    if None in rest or back is None:
        return None
    first, last = sum(map(len, front)), len(parts) - sum(map(len, back))
    if first >= last:
        return None
    mirrored = [[len(parts) - 1 - axis for axis in axes[::-1]] for axes in back[::-1]]
    return [*front, list(range(first, last)), *mirrored]


def _leading_groups(m: Match, merged: Sequence[Dim | None], parts: Sequence[Dim]) -> list[list[int]] | None:
    """For each dim of ``merged``, its axes of ``parts``, matched from the first axis on."""
    found: list[list[int]] = []
    axis = 0
    for dim in merged:
        axes: list[int] = []
        product: Dim = 1
        while not axes or dim is None or not m.cx.facts.dim_equal(product, dim):
            if axis == len(parts):
                return None
            product, axis = product * parts[axis], axis + 1
            axes.append(axis - 1)
        found.append(axes)
    return found
