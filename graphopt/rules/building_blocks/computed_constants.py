"""Constants computed by rules: factors of products, size and rounding."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from graphopt import ir
from graphopt.rewrite import Match
from graphopt.rewrite.traced_array import TracedArray
from graphopt.rules.building_blocks.broadcasting import aligns_right
from graphopt.rules.building_blocks.element_type_sets import FLOATS
from graphopt.util.lazy_dataclass import dataclass

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
        tensor = ir.computable(value)
        # below IR version 4, initializers are inputs, which are never removed
        if tensor is not None and value is not None and m.only_use(value) and not value.is_graph_input():
            freed += tensor.nbytes
    return nbytes <= freed + _SLACK


def factor_of(m: Match, node: ir.Node, constant: ir.Value | None) -> TracedArray | None:
    """The factor of the other operand in the Mul or Div ``node``, in float64; -1 for a Neg.

    ``None`` if ``constant`` is not constant, is the dividend, or has a zero as divisor.
    """
    if not aligns_right(m):
        return None
    if node.op_type == "Neg":
        return TracedArray.of(-1.0) if m.dtype(node.outputs[0]) in FLOATS else None
    number = m.traced(constant)
    if number is None or constant is None or m.dtype(constant) not in FLOATS:
        return None
    if node.op_type == "Mul":
        return exact(number)
    if node.inputs[1] is not constant:
        return None
    divisor = exact(number).require(abs(number) > 0)
    return None if divisor is None else TracedArray.of(1.0) / divisor


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


def exact(array: TracedArray) -> TracedArray:
    """``array`` as float64, which represents products and sums of narrower types (nearly) exactly."""
    return array.astype(np.dtype(np.float64))


def rounded(values: TracedArray, dtype: np.dtype[Any], over: tuple[int, ...] = ()) -> TracedArray | None:
    """``values`` converted to ``dtype``; ``None`` if that loses more than rounding.

    Each element must be finite, must not overflow, and must keep the digits that are significant relative to
    the largest element along the axes ``over`` (without axes: relative to itself). Elements along ``over``
    are summed later, so their sum must not overflow.
    """
    if values.depends and dtype not in (np.float32, np.float64):
        return None  # onnxruntime rounds twice
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(dtype)
        back = exact(result)
        error = abs(back - values)
        largest = abs(values).largest(over)
        limit = (largest * limits(dtype).eps).maximum(_NEGLIGIBLE if over else 0)
        conditions = [back.is_finite() & ~(limit < error)]
        if over and limits(dtype).highest > _ROOMY:
            conditions.append(~(limits(dtype).highest < largest * largest))
    for condition in conditions:
        valid = result.require(condition)
        if valid is None:
            return None
        result = valid
    return result
