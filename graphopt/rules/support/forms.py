"""How operators are read and written at each opset: what rules need to say the same thing everywhere.

Axes, pads, ranges and shapes moved from attributes to inputs over the opset versions; these
helpers read either form and write the one that the model's opset has.
"""

from __future__ import annotations

from graphopt.rules.support.axes import (
    REDUCTIONS,
    all_normalized,
    axes_of,
    axis_of,
    normalized,
    perm_of,
    reduce,
    squeeze,
    unsqueeze,
)
from graphopt.rules.support.operands import (
    WIDENED,
    has_one_element,
    int_of,
    ints_of,
    keeps_shape_of,
    operand,
    other_operand,
    producer_of,
    same_shape,
    too_old,
    unavailable,
)
from graphopt.rules.support.reshapes import nonzero_dims, reshape, reshape_target
from graphopt.rules.support.slices_and_pads import (
    INT32_MAX,
    INT64_MAX,
    Padding,
    Range,
    pad,
    pad_number,
    padding_of,
    range_from,
    slice_,
    slice_ranges,
)

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "REDUCTIONS",
    "WIDENED",
    "Padding",
    "Range",
    "all_normalized",
    "axes_of",
    "axis_of",
    "has_one_element",
    "int_of",
    "ints_of",
    "keeps_shape_of",
    "nonzero_dims",
    "normalized",
    "operand",
    "other_operand",
    "pad",
    "pad_number",
    "padding_of",
    "perm_of",
    "producer_of",
    "range_from",
    "reduce",
    "reshape",
    "reshape_target",
    "same_shape",
    "slice_",
    "slice_ranges",
    "squeeze",
    "too_old",
    "unavailable",
    "unsqueeze",
]
