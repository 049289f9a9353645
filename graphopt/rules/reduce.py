"""Chains of reductions, and reductions next to views."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import numeric_safety
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks.axes import axes_of, axis_of, reduce
from graphopt.rules.building_blocks.operands import ints_of
from graphopt.rules.building_blocks.shape_equality import same_shape

_KINDS = (*traits.REDUCTIONS, "ArgMax", "ArgMin")
#: Operators of a normalization that read a mean: it is subtracted, or an epsilon is added to it.
_NORMALIZE = ("Sub", "Add")


@rule(lambda op, x, a: op.one_of(*traits.REDUCTIONS)(x, a.rest()), numerics=Reassociates)
def count_axes_from_front(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ReduceSum(x, axes=[-1]) → ReduceSum(x, axes=[rank - 1]), if x may be empty.

    onnxruntime (1.31) does not reduce the shape of an empty tensor over negative axes: the rewrite changes
    this shape to that of the specification, and therefore is not exact.
    """
    axes, written, shape = axes_of(m, m.root), ints_of(m, m.root, 1, "axes", ()), m.shape(x)
    if not axes or not written or shape is None:
        return m.no("axes or rank unknown", x)
    if min(written) >= 0 or all(map(symbolic.known_nonzero, shape)):
        return m.no("onnxruntime infers the shape", x)
    is_mean_of_last = m.root.op_type == "ReduceMean" and axes[-1] == len(shape) - 1
    if is_mean_of_last and any(node.op_type in _NORMALIZE for node in ir.readers(m.root.outputs[0])):
        return m.no(fusions.NORMALIZATION_AXIS, x)
    return reduce(op, m, m.root.op_type, x, axes, bool(m.attribute(m.root, "keepdims")))


@rule(
    lambda op, x, a, b: op.Unsqueeze(op.one_of(*_KINDS)(x, a.rest(), keepdims=0, tag="reduce"), b.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:reduce-unsqueeze", "onnxoptimizer:fuse_consecutive_reduce_unsqueeze"),
)
def reduce_keeping_dims(op: Builder, m: Match, x: ir.Value, a: tuple[ir.Value, ...]) -> Outcome:
    """Unsqueeze(ReduceSum(x, keepdims=0)) → ReduceSum(x, keepdims=1), for the same axes."""
    return _with_keepdims(op, m, x, a, 1)


@rule(
    lambda op, x, a, b: op.Squeeze(op.one_of(*_KINDS)(x, a.rest(), keepdims=1, tag="reduce"), b.rest()),
    numerics=Exact,
    proven_exact=True,
)
def reduce_dropping_dims(op: Builder, m: Match, x: ir.Value, a: tuple[ir.Value, ...]) -> Outcome:
    """Squeeze(ReduceSum(x, keepdims=1)) → ReduceSum(x, keepdims=0), for the same axes."""
    return _with_keepdims(op, m, x, a, 0)


def _with_keepdims(op: Builder, m: Match, x: ir.Value, a: tuple[ir.Value, ...], keepdims: int) -> Outcome:
    node = m.node("reduce")
    if not m.only_use(node.outputs[0]):
        return m.no("the reduction has other readers", node.outputs[0], shared=True)
    axes = axes_of(m, node) if node.op_type in traits.REDUCTIONS else _arg_axes(m, node, x)
    view = axes_of(m, m.root)
    if axes is None or view is None:
        return m.no("axes unknown", x)
    if axes != view or not axes:
        return m.no("the view has other axes", node.outputs[0])
    return op.like(node, [x, *a], keepdims=keepdims)


def _arg_axes(m: Match, node: ir.Node, x: ir.Value) -> tuple[int, ...] | None:
    axis = axis_of(m, node, m.rank(x))
    return None if axis is None else (axis,)


def _merged_reduction(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """One reduction of the root's kind, over the axes of the inner and the outer reduction."""
    inner, outer = m.node("inner"), m.root
    if inner.op_type != outer.op_type:
        return m.no("the reductions differ")
    if not m.only_use(inner.outputs[0]):
        return m.no("the inner reduction has other readers", inner.outputs[0], shared=True)
    keeps = m.attribute(inner, "keepdims"), m.attribute(outer, "keepdims")
    first, second, rank = axes_of(m, inner), axes_of(m, outer), m.rank(x)
    if first is None or second is None or rank is None:
        return m.no("axes unknown", x)
    if keeps == (0, 0):
        kept = [axis for axis in range(rank) if axis not in first]
        second = tuple(kept[axis] for axis in second)
    elif keeps[0] == 0:
        return m.no("only the inner reduction drops its axes")
    elif keeps[1] == 0 and not set(first) <= set(second):
        return m.no("only the outer reduction drops its axes")
    axes = sorted({*first, *second})
    return reduce(op, m, outer.op_type, x, axes, bool(keeps[1])) if axes else m.no("nothing is reduced")


@rule(
    lambda op, x, a, b: op.one_of("ReduceMax", "ReduceMin")(
        op.one_of("ReduceMax", "ReduceMin")(x, a.rest(), tag="inner"), b.rest()
    ),
    numerics=Reassociates,
)
def collapse_extrema(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ReduceMax(ReduceMax(x, a), b) → ReduceMax(x, a + b); likewise ReduceMin (zeros may change sign)."""
    return _merged_reduction(op, m, x)


@rule(
    lambda op, x, a, b: op.one_of("ReduceSum", "ReduceProd", "ReduceMean", "ReduceL1")(
        op.one_of("ReduceSum", "ReduceProd", "ReduceMean", "ReduceL1")(x, a.rest(), tag="inner"), b.rest()
    ),
    numerics=Reassociates,
)
def collapse_reductions(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ReduceSum(ReduceSum(x, a), b) → ReduceSum(x, a + b); likewise ReduceProd, ReduceMean and ReduceL1.

    onnxruntime (1.31) adds integers in double, and converts each sum to the nearest integer of the type: with
    overflow, or with more than 53 bits, two sums differ from one.
    """
    dtype = m.dtype(x)
    if m.root.op_type == "ReduceMean" and (dtype is None or not dtype.is_floating_point()):
        return m.no("integer means are rounded", x)
    exact = dtype is not None and not dtype.is_floating_point()
    if m.root.op_type == "ReduceSum" and (dtype is None or exact):
        return m.no("onnxruntime limits each sum of integers to the range of their type", x)
    if m.root.op_type == "ReduceProd" and not (exact or numeric_safety.may_approximate(m)):
        return m.no("in another order, products may overflow or vanish", x, hint="--fast-math")
    return _merged_reduction(op, m, x)


@rule(
    lambda op, x, a, b: op.one_of("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")(
        op.Squeeze(x, a.rest(), tag="squeeze"), b.rest()
    ),
    numerics=Reassociates,
)
def reduce_of_squeeze(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ReduceSum(Squeeze(x)) → ReduceSum(x), if keepdims can produce the shape."""
    if numeric_safety.rounds_long(m, m.root):
        return m.no(numeric_safety.ROUNDED_SUM, x)
    squeezed, axes, source = axes_of(m, m.node("squeeze")), axes_of(m, m.root), m.shape(x)
    if squeezed is None or not axes or source is None:
        return m.no("axes or shape unknown", x)
    kept = [axis for axis in range(len(source)) if axis not in squeezed]
    own = [kept[axis] for axis in axes]
    result = m.shape(m.root.outputs[0])
    for reduced, keepdims in ((sorted({*own, *squeezed}), False), (own, False), (own, True)):
        shape = [
            1 if axis in reduced else dim
            for axis, dim in enumerate(source)
            if keepdims or axis not in reduced
        ]
        if same_shape(m, shape, result):
            return reduce(op, m, m.root.op_type, x, reduced, keepdims)
    return m.no("neither keeping nor dropping axes gives the shape", x)
