"""Operators that return their operand unchanged."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import numeric_safety
from graphopt.rules.building_blocks.axes import axes_of, axis_of, perm_of
from graphopt.rules.building_blocks.operands import ints_of, operand, producer_of


@rule(
    lambda op, x: op.Identity(x),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxslim:identity",
        "onnxoptimizer:eliminate_identity",
        "onnxruntime:EliminateIdentity",
        "onnxscript:fold-identity",
    ),
)
def drop_identity(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Identity(x) → x."""
    return x


@rule(
    lambda op, x, rest: op.Dropout(x, rest.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxslim:dropout",
        "onnxoptimizer:eliminate_nop_dropout",
        "onnxscript:dropout-inference",
        "onnxscript:dropout-zero",
        "onnxruntime:EliminateDropout",
        "onnxscript:fold-dropout",
    ),
)
def drop_dropout(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Dropout(x) → x, in inference mode or with ratio 0."""
    ratio = m.constant(operand(m.root, 1))
    if traits.is_random(m.root) and (ratio is None or ratio.any()):
        return m.no("it may run in training mode")
    if len(m.root.outputs) == 1:
        return x
    mask = m.root.outputs[1]
    if mask.uses() or mask.is_graph_output():
        return m.no("its mask is read", mask)
    return x, None


@rule(
    lambda op, x, rest: op.one_of(*traits.RESHAPES, "Expand", "Tile")(x, rest.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxslim:reshape-noop",
        "onnxslim:expand-noop",
        "onnxoptimizer:eliminate_nop_reshape",
        "onnxoptimizer:eliminate_nop_flatten",
        "onnxoptimizer:eliminate_nop_expand",
        "onnxscript:no-op-expand",
        "onnxruntime:ExpandElimination",
        "onnxscript:fold-expand",
        "onnxscript:fold-reshape",
        "onnxscript:fold-squeeze",
    ),
)
def drop_view_of_same_shape(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Reshape(x), Expand(x), Tile(x) and other views → x, if the shape is the same."""
    if not m.cx.facts.shape_equal(x, m.root.outputs[0]):
        return m.no("the shapes are not provably the same", x)
    return x


@rule(
    lambda op, x, p: op.Transpose(x, perm=p),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:transpose-noop", "onnxoptimizer:eliminate_nop_transpose", "onnxscript:no-op-transpose"),
)
def drop_transpose(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Transpose(x, perm=[0, 1, …]) → x."""
    perm = perm_of(m, m.root)
    if perm is None:
        return m.no("rank unknown", x)
    return x if perm == tuple(range(len(perm))) else m.no("it moves axes")


@rule(
    lambda op, x, rest: op.Slice(x, rest.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:slice-noop", "onnxscript:collapse-slice", "onnxruntime:EliminateSlice"),
)
def drop_full_slice(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Slice(x) → x, if it runs forward and the shape is the same."""
    steps = ints_of(m, m.root, 4, "steps", ())
    if steps is None or any(step < 0 for step in steps):
        return m.no("it may run backwards")
    if not m.cx.facts.shape_equal(x, m.root.outputs[0]):
        return m.no("the shapes are not provably the same", x)
    return x


@rule(
    lambda op, x, rest: op.Pad(x, rest.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:pad-noop", "onnxoptimizer:eliminate_nop_pad"),
)
def drop_empty_pad(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Pad(x, 0) → x."""
    pads = ints_of(m, m.root, 1, "pads")
    if pads is None:
        return m.no("the amounts are unknown")
    return m.no("it pads or crops") if any(pads) else x


@rule(
    lambda op, xs: op.Concat(xs.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:concat-noop", "onnxoptimizer:eliminate_nop_concat", "onnxscript:fold-concat"),
)
def drop_empty_operands_of_concat(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """Concat(x) → x; Concat(x, empty, y) → Concat(x, y)."""
    axis = axis_of(m, m.root, m.rank(m.root.outputs[0]))
    kept = [x for x in xs if not _is_empty(m, x, axis)] or list(xs[:1])
    if len(kept) == len(xs) and len(xs) > 1:
        return m.no("no operand is provably empty")
    return kept[0] if len(kept) == 1 else op.like(m.root, kept)


def _is_empty(m: Match, x: ir.Value, axis: int | None) -> bool:
    shape = m.shape(x)
    return shape is not None and axis is not None and axis < len(shape) and shape[axis] == 0


@rule(
    lambda op, x, rest: op.Split(x, rest.rest(), outputs=1),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:split-noop", "onnxoptimizer:eliminate_nop_split"),
)
def drop_split_into_one(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Split(x), with one output → x."""
    return x


@rule(
    lambda op, x: op.one_of("Sum", "Min", "Max", "Mean")(x),
    numerics=Exact,
    tags=("onnxoptimizer:eliminate_nop_with_unit",),
)
def drop_variadic_of_one(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Sum(x), Min(x), Max(x), Mean(x) → x."""
    return x


@rule(lambda op, x, rest: op.one_of("ReduceMax", "ReduceMin")(x, rest.rest(), keepdims=1), numerics=Exact)
def drop_extremum_over_size_one(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ReduceMax(x), ReduceMin(x) → x, over axes of size 1."""
    return _unless_it_reduces(m, x)


@rule(
    lambda op, x, rest: op.one_of("ReduceSum", "ReduceMean", "ReduceProd")(x, rest.rest(), keepdims=1),
    numerics=Reassociates,
)
def drop_reduction_over_size_one(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ReduceSum(x), ReduceMean(x), ReduceProd(x) → x, over axes of size 1 (a sum may turn -0.0 into 0.0)."""
    if numeric_safety.rounds_long(m, m.root):
        return m.no(numeric_safety.ROUNDED_SUM, x)
    return _unless_it_reduces(m, x)


def _unless_it_reduces(m: Match, x: ir.Value) -> Outcome:
    axes, shape = axes_of(m, m.root), m.shape(x)
    if axes is None or shape is None:
        return m.no("axes or shape unknown", x)
    return x if all(shape[axis] == 1 for axis in axes) else m.no("it reduces more than one element", x)


@rule(
    lambda op, x, rest: op.one_of("Resize", "Upsample")(x, rest.rest()),
    numerics=Exact,
    tags=("onnxslim:resize-noop",),
)
def drop_resize(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Resize(x) → x, if the size is the same: onnxruntime only copies it."""
    if m.attribute(m.root, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return m.no("it crops")
    scales = _scales(m)
    if scales is not None:
        return x if all(scale == 1.0 for scale in scales) else m.no("it scales")
    if operand(m.root, 3) is None:
        return m.no("the scales are unknown")
    if m.attribute(m.root, "keep_aspect_ratio_policy") not in (None, "stretch"):
        return m.no("it keeps the aspect ratio")
    if not m.cx.facts.shape_equal(x, m.root.outputs[0]):
        return m.no("the shapes are not provably the same", x)
    return x


def _scales(m: Match) -> list[float] | None:
    """The scales, if they are inputs with known numbers."""
    index = 1 if m.root.op_type == "Upsample" or m.version < 11 else 2
    array = m.constant(operand(m.root, index))
    if array is not None and array.size:
        return [float(scale) for scale in array]
    scales = m.root.attributes.get("scales")
    return None if scales is None or scales.is_ref() else list(scales.value)


@rule(
    lambda op, data, indices, updates: op.ScatterND(data, indices, updates),
    numerics=Exact,
    tags=("onnxscript:no-op-static-scatter-nd", "onnxscript:no-op-dynamic-scatter-nd"),
)
def drop_overwritten_scatter_target(
    op: Builder, m: Match, data: ir.Value, indices: ir.Value, updates: ir.Value
) -> Outcome:
    """ScatterND(x, [[0], [1], …], updates) → updates, if it writes every row in order."""
    if m.attribute(m.root, "reduction") not in (None, "none"):
        return m.no("it accumulates into the data")
    rows = m.shape(data)
    if not rows or not _are_all_rows(m, indices, rows[0]):
        return m.no("it is not known to write each row once, in order", indices)
    if not m.cx.facts.shape_equal(data, updates):
        return m.no("the updates don't have the shape of the data", updates)
    return updates


def _are_all_rows(m: Match, indices: ir.Value, rows: Dim) -> bool:
    """Whether ``indices`` are 0, 1, …, rows - 1, one per row: a constant, or an Unsqueeze of a Range."""
    array = m.constant(indices)
    if array is not None:
        return isinstance(rows, int) and np.array_equal(array, np.arange(rows).reshape(rows, 1))
    view = producer_of(indices, "Unsqueeze")
    if view is None or axes_of(m, view) != (1,):
        return False
    counted = producer_of(view.inputs[0], "Range")
    if counted is None:
        return False
    start, limit, step = (m.cx.known_ints(value) for value in counted.inputs)
    return start == (0,) and step == (1,) and limit is not None and m.cx.facts.dim_equal(limit[0], rows)
