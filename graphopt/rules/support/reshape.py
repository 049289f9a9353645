"""The shape that a Reshape is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.analysis.symbolic import Dim
from graphopt.rewrite.builder import Builder
from graphopt.rewrite.matcher import Match


def reshape(op: Builder, m: Match, x: ir.Value, target: Sequence[int]) -> ir.Value:
    """Reshape to ``target``, in which 0 copies a dim of ``x`` and -1 takes what is left."""
    result = op.Reshape(x, np.array(target, np.int64))
    assert isinstance(result, ir.Value)
    return result


def reshape_target(
    m: Match, source: Sequence[Dim] | None, result: Sequence[Dim] | None, nonzero: Sequence[Dim] = ()
) -> tuple[int, ...] | None:
    """What a Reshape of shape ``source`` must be told to give ``result``; ``None`` if it can't be constant.

    Sizes are told as numbers, dims that stay in their place as 0, and at most one other as -1,
    provided that the rest is never 0: beside a size of 0, -1 has no meaning (ONNX, Reshape).

    Args:
        nonzero: dims that are known not to be 0 wherever the model runs at all.
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
            return None  # a 0 that is not a copy needs allowzero
        else:
            target.append(-1)
    if target.count(-1) > 1:
        return None
    if -1 in target:
        others = [dim for dim, told in zip(result, target, strict=True) if told != -1]
        if not all(symbolic.known_nonzero(dim) or dim in nonzero for dim in others):
            return None
    return tuple(target)


def nonzero_dims(m: Match, node: ir.Node) -> tuple[Dim, ...]:
    """Dims that can't be 0 where ``node`` runs: those beside a -1 in the shape that a Reshape is given.

    With ``allowzero``, onnxruntime takes sizes of 0 beside a -1, and infers it from the other sizes.
    """
    if node.op_type != "Reshape" or len(node.inputs) < 2 or node.inputs[1] is None:
        return ()
    if m.attribute(node, "allowzero"):
        return ()
    told, shape = m.cx.known_ints(node.inputs[1]), m.shape(node.outputs[0])
    if told is None or shape is None or -1 not in told:
        return ()
    return tuple(dim for dim, number in zip(shape, told, strict=True) if number != -1)
