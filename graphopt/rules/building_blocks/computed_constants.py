"""Constants computed by rules: factors of products, size and rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from graphopt import ir
from graphopt.rewrite import Match
from graphopt.rules.building_blocks.broadcasting import aligns_right
from graphopt.rules.building_blocks.element_type_sets import FLOATS

#: Bytes by which a new constant may exceed the constants that it replaces.
_SLACK = 4096


#: Absolute errors below this are ignored: the smallest normal float32.
_NEGLIGIBLE = float(np.finfo(np.float32).tiny)


#: Types whose range exceeds this are not checked for overflow of sums: values are far below their limits.
_ROOMY = 1e30


def affordable(m: Match, nbytes: int, *replaced: ir.Value | None) -> bool:
    """Whether a new constant of ``nbytes`` is no larger than all ``replaced`` ones that become unused."""
    freed = 0
    for value in replaced:
        tensor = ir.constant_of(value)
        # below IR version 4, initializers are inputs, which are never removed
        if tensor is not None and value is not None and m.only_use(value) and not value.is_graph_input():
            freed += tensor.nbytes
    return nbytes <= freed + _SLACK


def factor_of(m: Match, node: ir.Node, constant: ir.Value | None) -> np.ndarray | None:
    """The factor of the other operand in the Mul or Div ``node``, in float64; -1 for a Neg.

    ``None`` if ``constant`` is not constant, is the dividend, or has a zero as divisor.
    """
    if not aligns_right(m):
        return None
    if node.op_type == "Neg":
        return np.array(-1.0) if m.dtype(node.outputs[0]) in FLOATS else None
    number = m.constant(constant)
    if number is None or constant is None or m.dtype(constant) not in FLOATS:
        return None
    if node.op_type == "Mul":
        return exact(number)
    if node.inputs[1] is not constant or np.any(number == 0):
        return None
    return np.asarray(1 / exact(number))


def times_number(node: ir.Node) -> tuple[ir.Value, float] | None:
    """(x, c) if ``node``, a Mul or Div, computes x * c for one nonzero number c, of any shape."""
    a, b = node.inputs
    for x, c in ((a, b), (b, a)) if node.op_type == "Mul" else ((a, b),):
        number = ir.scalar_of(c)
        if x is not None and number and math.isfinite(number):
            return x, float(number) if node.op_type == "Mul" else 1.0 / float(number)
    return None


@dataclass(frozen=True)
class FloatLimits:
    """Limits of a floating-point type: machine epsilon, the lowest and the highest finite number."""

    eps: float
    lowest: float
    highest: float


def limits(dtype: np.dtype[Any]) -> FloatLimits:
    """The limits of a floating-point type, bfloat16 included."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return FloatLimits(float(info.eps), float(info.min), float(info.max))


def exact(array: np.ndarray) -> np.ndarray:
    """``array`` as float64, which represents products and sums of narrower types (nearly) exactly."""
    return array.astype(np.float64)


def rounded(values: np.ndarray, dtype: np.dtype[Any], over: tuple[int, ...] = ()) -> np.ndarray | None:
    """``values`` converted to ``dtype``; ``None`` if that loses more than rounding.

    Each element must be finite, must not overflow, and must keep the digits that are significant relative to
    the largest element along the axes ``over`` (without axes: relative to itself). Elements along ``over``
    are summed later, so their sum must not overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(dtype)
        back = result.astype(np.float64)
        error = np.abs(back - values)
    if not np.all(np.isfinite(back)):
        return None
    largest = np.max(np.abs(values), axis=over, keepdims=True, initial=0)
    if over and _ROOMY < limits(dtype).highest < np.max(largest, initial=0) ** 2:
        return None
    limit = np.maximum(limits(dtype).eps * largest, _NEGLIGIBLE if over else 0)
    return result if np.all(error <= limit) else None
