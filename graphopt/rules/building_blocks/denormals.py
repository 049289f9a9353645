"""Values without denormal elements, which a rewrite could otherwise round to 0."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.element_type_sets import is_integer_or_bool
from graphopt.rules.building_blocks.operands import computed_by

#: Operators whose results are 0 or at least the root of the smallest denormal number.
_ROOTS = frozenset({"Sqrt", "ReduceL2"})
#: Operators whose results are never negative.
_NONNEGATIVE = frozenset(
    {
        "Abs",
        "Exp",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "Relu",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Sqrt",
    }
)
#: Operators whose results are sums or averages of their operands.
_SUMS = frozenset({"Add", "AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "Sum"})


def never_denormal(m: Match, value: ir.Value) -> bool:
    """Whether no element of ``value`` is denormal, for all inputs of the model."""
    node = computed_by(value)
    if node is None or node.domain != "":
        return _least(m, value) is not None
    if node.op_type in _ROOTS:
        return True
    if node.op_type == "Cast":
        return is_integer_or_bool(m.dtype(node.inputs[0]))
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type == "Max":
        return any((least := _least(m, operand)) is not None and least > 0 for operand in operands)
    if node.op_type == "Clip" and len(operands) > 1 and node.inputs[1] is not None:
        least = _least(m, node.inputs[1])
        return least is not None and least > 0
    if node.op_type == "Add":
        positive = [(least := _least(m, operand)) is not None and least > 0 for operand in operands]
        return any(positive) and all(
            sure or _nonnegative(m, operand) for sure, operand in zip(positive, operands, strict=True)
        )
    return _least(m, value) is not None


def _least(m: Match, value: ir.Value) -> float | None:
    """The minimum element of a constant without denormal elements; ``None`` for other values."""
    number = m.constant(value)
    if number is None or number.dtype.kind != "f" or number.size == 0:
        return None
    normal = np.abs(number) >= np.finfo(number.dtype).tiny
    return float(number.min()) if bool((normal | (number == 0)).all()) else None


def _nonnegative(m: Match, value: ir.Value, depth: int = 4) -> bool:
    """Whether no element of ``value`` is negative."""
    node = computed_by(value)
    if node is None or node.domain != "":
        least = _least(m, value)
        return least is not None and least >= 0
    if node.op_type in _NONNEGATIVE:
        return True
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type == "Mul" and len(operands) == 2 and operands[0] is operands[1]:
        return True
    if node.op_type == "Pow":
        exponent = m.constant(operands[1])
        return exponent is not None and bool((exponent % 2 == 0).all())
    if node.op_type in _SUMS and depth:
        data = operands if node.op_type in ("Add", "Sum") else operands[:1]
        return all(_nonnegative(m, operand, depth - 1) for operand in data)
    return False
