"""Keras' LayerNormalization: a BatchNormalization with rows as channels, and the moments of these rows.

Keras calls TensorFlow's fused kernel, which normalizes batches. Scale and bias are separate nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rules.building_blocks import normalization_operators
from graphopt.rules.building_blocks import normalization_patterns as patterns
from graphopt.rules.building_blocks.axes import axes_of
from graphopt.rules.building_blocks.operands import other_operand
from graphopt.rules.building_blocks.reshape_targets import reshape, reshape_target
from graphopt.rules.building_blocks.shape_equality import same_shape


@fusion(
    patterns.layer_norms_by_batch_norm,
    pattern="LayerNorm by BatchNormalization",
    anchors=("ReduceSumSquare",),
)
def layer_norm_by_batch_norm(op: Builder, m: Match, x: ir.Value, n: ir.Value) -> Outcome:
    """BatchNormalization(rows as channels, by their own moments) → LayerNormalization(x) with scale 1."""
    found = _rows_of(m, x, n)
    data = _in_shape(op, m, x, found)
    return normalization_operators.write_unscaled(
        op, m, normalization_operators.LAYER, data, found.dims, found.first, found.dtype, found.epsilon
    )


@fusion(patterns.layer_norms_by_batch_norm, pattern="LayerNorm for onnxruntime to fuse", anchors=())
def layer_norm_spelling_by_batch_norm(op: Builder, m: Match, x: ir.Value, n: ir.Value) -> Outcome:
    """Keras' LayerNorm before opset 17 → (x - mean) / Sqrt(variance + eps), which onnxruntime fuses."""
    if m.version >= normalization_operators.LAYER.since or m.cx.options.portable:
        return m.no("the opset has an operator for it, or --portable is set", x)
    found = _rows_of(m, x, n)
    if found.dtype != ir.DataType.FLOAT or not _is_scaled_and_shifted(m, found.dims[found.first :]):
        return m.no(
            "not of type float, or not followed by the constant scale and bias that onnxruntime requires", x
        )
    return normalization_operators.canonical_form(
        op, m, _in_shape(op, m, x, found), found.first, len(found.dims), found.epsilon
    )


class _Rows(NamedTuple):
    """The rows that are normalized.

    Attributes:
        dtype: the dtype of the input and of the result.
        dims: the shape of the result.
        target: the constant operand of a Reshape to ``dims``.
        first: the axis of ``dims`` at which a row begins.
        epsilon: summand of the variance.
    """

    dtype: ir.DataType
    dims: Sequence[Dim]
    target: Sequence[int]
    first: int
    epsilon: float


def _rows_of(m: Match, x: ir.Value, n: ir.Value) -> _Rows:
    """The rows of ``x``; ``n`` is the divisor of the sum of squares."""
    norm, dtype = m.node("norm"), m.dtype(x)
    rows, dims = m.shape(m.node("rows").outputs[0]), m.shape(m.root.outputs[0])
    if rows is None or dims is None or dtype is None or len(rows) != 4 or rows[0] != 1 or rows[3] != 1:
        m.refuse("its channels are not known to be rows of the input", x)
    if any(axes_of(m, m.node(tag)) != (0, 2, 3) for tag in ("mean", "squares")):
        m.refuse("mean and variance are not taken over all axes except the channel", x)
    if not isinstance(rows[2], int) or ir.scalar_of(n) != rows[2]:
        m.refuse("the sum of squares is not divided by the number of elements", n)
    if m.attribute(norm, "training_mode"):
        m.refuse("it is in training mode", x)
    first, target = _axis_of_size(dims, rows[2]), reshape_target(m, m.shape(x), dims)
    if first is None or target is None:
        m.refuse("its rows are not the last axes of the result, or the shape of the result is unknown", x)
    return _Rows(dtype, dims, target, first, float(m.attribute(norm, "epsilon")))


def _axis_of_size(dims: Sequence[Dim], size: int) -> int | None:
    """The last axis ``a`` such that ``dims[a:]`` have ``size`` elements."""
    for axis in reversed(range(len(dims))):
        sizes = ir.all_ints(dims[axis:])
        if sizes is not None and math.prod(sizes) == size:
            return axis
    return None


def _in_shape(op: Builder, m: Match, x: ir.Value, rows: _Rows) -> ir.Value:
    """``x`` in the shape of the result."""
    return x if same_shape(m, m.shape(x), rows.dims) else reshape(op, m, x, rows.target)


def _is_scaled_and_shifted(m: Match, row: Sequence[Dim]) -> bool:
    """Whether the only reader is a product, followed by a sum, both with one constant per element."""
    value, sizes = m.root.outputs[0], ir.all_ints(row)
    for op_type in ("Mul", "Add"):
        reader = ir.only_reader(value)
        if reader is None or reader.op_type != op_type or reader.domain:
            return False
        constant = m.constant(other_operand(reader, value))
        if sizes is None or constant is None or constant.size != math.prod(sizes):
            return False
        value = reader.outputs[0]
    return True
