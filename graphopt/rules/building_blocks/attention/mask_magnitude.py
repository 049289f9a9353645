"""Upper bounds of the magnitude of masks and biases, for all inputs of the model."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.operands import producer_of

#: Maximum length of the chain of nodes followed from a mask to its constants.
_MAX_DEPTH = 12
#: Operators whose results are elements of their first input, up to the sign.
_SELECTIONS = traits.VIEW | {
    "Expand",
    "Slice",
    "Gather",
    "GatherElements",
    "GatherND",
    "Transpose",
    "Trilu",
    "Neg",
}
_AT_MOST_ONE = frozenset({"Softmax", "Sigmoid", "Tanh"})
_COMBINE: dict[str, Callable[[list[float]], float]] = {
    "Where": max,
    "Max": max,
    "Min": max,
    "Add": sum,
    "Sub": sum,
    "Mul": math.prod,
}


def max_magnitude(
    m: Match, value: ir.Value | None, depth: int = _MAX_DEPTH, *, finite: bool = False
) -> float:
    """An upper bound of the magnitude of the elements of ``value``; infinity if unknown.

    Args:
        finite: disregard infinite elements and NaN.
    """
    array = m.constant(value)
    if array is not None:
        numbers, other = np.abs(array.astype(np.float64)), 0.0 if finite else math.inf
        return float(np.max(np.nan_to_num(numbers, nan=other, posinf=other), initial=0.0))
    node = producer_of(value)
    if node is None or depth == 0:
        return math.inf
    before = [m.dtype(x) for x in node.inputs]
    if node.op_type == "Cast" and before[0] == ir.DataType.BOOL:
        return 1.0
    if node.op_type in _SELECTIONS or node.op_type == "Cast":
        return max_magnitude(m, node.inputs[0], depth - 1, finite=finite)
    if node.op_type in _AT_MOST_ONE:
        return 1.0
    if node.op_type not in _COMBINE:
        return math.inf
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    sizes = [max_magnitude(m, x, depth - 1, finite=finite) for x in operands]
    return _COMBINE[node.op_type](sizes)
