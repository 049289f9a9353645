"""How large the numbers of a mask or bias can be at most, whatever the model is handed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from graphopt import ir
from graphopt.ops import traits
from graphopt.rewrite import Match
from graphopt.rules.support.operands import producer_of

#: Nodes that are followed from a mask to the numbers that it is made of.
_FAR = 12
#: Operators whose results are among the elements of their first input.
_PICKS = traits.VIEW | {
    "Expand",
    "Slice",
    "Gather",
    "GatherElements",
    "GatherND",
    "Transpose",
    "Trilu",
    "Neg",
}
_BOUNDED = frozenset({"Softmax", "Sigmoid", "Tanh"})
_COMBINED: dict[str, Callable[[list[float]], float]] = {
    "Where": max,
    "Max": max,
    "Min": max,
    "Add": sum,
    "Sub": sum,
    "Mul": math.prod,
}


def largest(m: Match, value: ir.Value | None, far: int = _FAR) -> float:
    """What no element of ``value`` exceeds in size; infinity where nothing is known."""
    array = m.constant(value)
    if array is not None:
        numbers = np.abs(array.astype(np.float64))
        return float(np.max(np.nan_to_num(numbers, nan=math.inf, posinf=math.inf), initial=0.0))
    node = producer_of(value)
    if node is None or far == 0:
        return math.inf
    before = [None if x is None else m.dtype(x) for x in node.inputs]
    if node.op_type == "Cast" and before[0] == ir.DataType.BOOL:
        return 1.0
    if node.op_type in _PICKS or node.op_type == "Cast":
        return largest(m, node.inputs[0], far - 1)
    if node.op_type in _BOUNDED:
        return 1.0
    if node.op_type not in _COMBINED:
        return math.inf
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    sizes = [largest(m, x, far - 1) for x in operands]
    return _COMBINED[node.op_type](sizes)
