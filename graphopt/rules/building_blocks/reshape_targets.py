"""Constant target shapes of Reshape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import Dim
from graphopt.rewrite import Builder, Match


def reshape(op: Builder, m: Match, x: ir.Value, target: Sequence[int]) -> ir.Value:
    """Reshape to ``target``, in which 0 copies a dim of ``x`` and -1 is inferred."""
    return op.Reshape(x, np.array(target, np.int64))


def reshape_target(
    m: Match, source: Sequence[Dim] | None, result: Sequence[Dim] | None, nonzero: Sequence[Dim] = ()
) -> tuple[int, ...] | None:
    """The constant target of a Reshape from ``source`` to ``result``; ``None`` if no constant suffices.

    Known sizes are numbers, dims that keep their position are 0, and at most one other dim is -1, if the
    others are never 0: beside a size of 0, -1 is undefined (ONNX, Reshape).

    Args:
        nonzero: dims that are nonzero in every valid run of the model.
    """
    if result is None:
        return None
    target: list[int] = []
    for axis, dim in enumerate(result):
        stays = source is not None and axis < len(source) and m.cx.facts.dim_equal(source[axis], dim)
        if isinstance(dim, int) and dim != 0:
            target.append(dim)
        elif stays:
            target.append(0)
        elif isinstance(dim, int):
            return None  # a size of 0 needs allowzero
        else:
            target.append(-1)
    if target.count(-1) > 1:
        return None
    if -1 in target:
        others = [dim for dim, sizes in zip(result, target, strict=True) if sizes != -1]
        if not all(symbolic.known_nonzero(dim) or dim in nonzero for dim in others):
            return None
    return tuple(target)


def nonzero_dims(m: Match, node: ir.Node) -> tuple[Dim, ...]:
    """Dims that are nonzero in every valid run of ``node``: the other dims of a Reshape target with a -1.

    With ``allowzero``, onnxruntime accepts sizes of 0 beside a -1, and infers the -1 from the other sizes.
    """
    if node.op_type != "Reshape" or len(node.inputs) < 2 or node.inputs[1] is None:
        return ()
    if m.attribute(node, "allowzero"):
        return ()
    sizes, shape = m.cx.known_ints(node.inputs[1]), m.shape(node.outputs[0])
    if sizes is None or shape is None or -1 not in sizes:
        return ()
    return tuple(dim for dim, number in zip(shape, sizes, strict=True) if number != -1)
