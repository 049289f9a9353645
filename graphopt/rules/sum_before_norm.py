"""Sums that onnxruntime would fuse into an operator slower than the separate nodes."""

from __future__ import annotations

from graphopt import ir
from graphopt.rewrite import Builder, Exact, Match, Outcome, rule
from graphopt.rules.building_blocks import normalization_operators
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks.shape_equality import same_shape


@rule(lambda op, x, y: op.Add(x, y), numerics=Exact, pass_="fuse-builtin", phase=2)
def sum_before_norm(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """Add(x, y) → Sum(x, y) before LayerNormalization, where SkipLayerNormalization would be slower.

    onnxruntime fuses an Add of two tensors of one shape and three axes into SkipLayerNormalization, whose
    kernel is several times slower on CPUs. It does not fuse a Sum.
    """
    dtype, shape, made = m.dtype(x), m.shape(x), m.root.outputs[0]
    if not fusions.is_before_norm(made):
        return m.no("no LayerNormalization reads it", made)
    if m.version < 8 or dtype != ir.DataType.FLOAT or shape is None or len(shape) != 3:
        return m.no("it is not of type float, or does not have three axes", x)
    if not same_shape(m, shape, m.shape(y)):
        return m.no("the summands differ in shape", y)
    rows = shape[0] * shape[1]
    if m.cx.weigh(
        "SkipLayerNormalization", by=normalization_operators.SKIP_RULE, at=[made], dtype=dtype, rows=rows
    ):
        return m.no("SkipLayerNormalization is fast on the device", made)
    return op.Sum(x, y)
