"""Reshape, Flatten, Squeeze and Unsqueeze: views of the same elements in the same order.

The normal form of a chain of views is one node: the tensor itself, one Squeeze or Unsqueeze, or a
Reshape whose shape is constant.
"""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.analysis import dims
from graphopt.context import Refusal
from graphopt.rewrite import Exact, Match, Outcome, Reassociates, rule
from graphopt.rewrite.builder import Builder
from graphopt.rules import _forms as forms


@rule(
    lambda op, x, shape: op.Reshape(x, shape),
    numerics=Exact,
    tags=(
        "onnxscript:materialize-reshape-shape",
        "onnxoptimizer:fuse_concat_into_reshape",
        "onnxslim:concat-reshape",
    ),
)
def materialize_reshape_shape(op: Builder, m: Match, x: ir.Value, shape: ir.Value) -> Outcome:
    """A Reshape to a computed shape is one to a constant if all dims but one are numbers or dims of x."""
    if ir.constant_of(shape) is not None:
        return m.no("the shape is constant already", shape)
    source, result = m.shape(x), m.shape(m.root.outputs[0])
    if result is None:
        return m.no("the rank of the result is unknown", m.root.outputs[0])
    target = forms.reshape_target(m, source, result, forms.nonzero_dims(m, m.root))
    if target is not None:
        return forms.reshape(op, m, x, target)
    axis = _flatten_axis(m, source, result)
    return m.no("two dims or more are unknown", shape) if axis is None else op.Flatten(x, axis=axis)


def _flatten_axis(m: Match, source: tuple[dims.Dim, ...] | None, result: tuple[dims.Dim, ...]) -> int | None:
    """The axis of the Flatten that makes ``result`` of ``source``."""
    if source is None or len(result) != 2:
        return None
    for axis in range(len(source) + 1):
        sides = dims.product(source[:axis]), dims.product(source[axis:])
        if forms.same_shape(m, sides, result):
            return axis
    return None


@rule(
    lambda op, x, a, b: op.one_of(*forms.VIEWS)(op.one_of(*forms.VIEWS)(x, a.rest(), tag="inner"), b.rest()),
    numerics=Exact,
    tags=(
        "onnxslim:reshape-chain",
        "onnxslim:unsqueeze-chain",
        "onnxscript:reshape-reshape",
        "onnxscript:squeeze-reshape",
        "onnxscript:unsqueeze-unsqueeze",
        "onnxscript:flatten-to-reshape",
        "onnxoptimizer:fuse_consecutive_squeezes",
        "onnxoptimizer:fuse_consecutive_unsqueezes",
    ),
)
def collapse_views(
    op: Builder, m: Match, x: ir.Value, a: tuple[ir.Value, ...], b: tuple[ir.Value, ...]
) -> Outcome:
    """A view of a view of x is one view of x."""
    inner, outer = m.node("inner"), m.root
    source, result = m.shape(x), m.shape(outer.outputs[0])
    if forms.same_shape(m, source, result):
        return x
    merged = _merge_axes(op, m, x, inner, outer)
    if merged is not None:
        return merged
    known = forms.nonzero_dims(m, inner) + forms.nonzero_dims(m, outer)
    target = forms.reshape_target(m, source, result, known)
    if target is not None:
        return forms.reshape(op, m, x, target)
    if outer.op_type == "Reshape" and _copies_nothing(m, x, inner.outputs[0], outer):
        return op.like(outer, [x, b[0]])
    return m.no("the shape can't be told as a constant", outer.outputs[0])


def _merge_axes(op: Builder, m: Match, x: ir.Value, inner: ir.Node, outer: ir.Node) -> ir.Value | None:
    """One Squeeze or Unsqueeze for two, or for one of each where one undoes part of the other."""
    kinds = inner.op_type, outer.op_type
    if not set(kinds) <= {"Squeeze", "Unsqueeze"} or kinds == ("Squeeze", "Unsqueeze"):
        return None
    first, second = forms.axes_of(m, inner), forms.axes_of(m, outer)
    if first is None or second is None:
        return None
    if kinds == ("Unsqueeze", "Unsqueeze"):
        kept = [axis for axis in range(len(first) + len(second) + (m.rank(x) or 0)) if axis not in second]
        return forms.unsqueeze(op, m, x, sorted({*second, *(kept[axis] for axis in first)}))
    if kinds == ("Squeeze", "Squeeze"):
        kept = [axis for axis in range(m.rank(x) or 0) if axis not in first]
        return forms.squeeze(op, m, x, sorted({*first, *(kept[axis] for axis in second)}))
    rank = (m.rank(x) or 0) + len(first)
    if set(second) <= set(first):
        kept = [axis for axis in range(rank) if axis not in second]
        return forms.unsqueeze(op, m, x, [kept.index(axis) for axis in first if axis not in second])
    if set(first) < set(second):
        kept = [axis for axis in range(rank) if axis not in first]
        return forms.squeeze(op, m, x, [kept.index(axis) for axis in second if axis not in first])
    return None


def _copies_nothing(m: Match, x: ir.Value, y: ir.Value, reshape: ir.Node) -> bool:
    """Whether a Reshape of y says the same of x: no 0 in its shape copies a dim, or both have it."""
    if m.attribute(reshape, "allowzero"):
        return True
    told = m.cx.known_ints(reshape.inputs[1]) if reshape.inputs[1] is not None else None
    source, middle = m.shape(x), m.shape(y)
    if told is None or source is None or middle is None:
        return False
    shared = min(len(source), len(middle))
    return all(
        dims.known_nonzero(dim) or (axis < shared and m.cx.facts.dim_equal(source[axis], middle[axis]))
        for axis, dim in enumerate(told)
    )


@rule(
    lambda op, x, a, w, b: op.one_of("Reshape", "Flatten")(
        op.MatMul(op.one_of("Reshape", "Flatten")(x, a.rest()), w, tag="matmul"), b.rest()
    ),
    numerics=Reassociates,
    tags=("onnxscript:reshape-matmul-reshape",),
)
def matmul_without_reshapes(op: Builder, m: Match, x: ir.Value, a: object, w: ir.Value, b: object) -> Outcome:
    """MatMul of the flattened rows of x, given the shape of x again, is MatMul of x."""
    product = m.node("matmul")
    if not m.only_use(product.outputs[0]):
        return m.no("the product is read by others", product.outputs[0])
    fault = _changes_rows(m, x, product.inputs[0], w, (0, 1))
    return fault if fault is not None else op.MatMul(x, w)


@rule(
    lambda op, x, a, w, c, b: op.one_of("Reshape", "Flatten")(
        op.Gemm(
            op.one_of("Reshape", "Flatten")(x, a.rest()), w, c.optional(), alpha=1.0, transA=0, tag="gemm"
        ),
        b.rest(),
    ),
    numerics=Reassociates,
)
def gemm_without_reshapes(
    op: Builder, m: Match, x: ir.Value, a: object, w: ir.Value, c: ir.Value | None, b: object
) -> Outcome:
    """Gemm of the flattened rows of x, given the shape of x again, is MatMul and Add on x."""
    gemm = m.node("gemm")
    if not m.only_use(gemm.outputs[0]):
        return m.no("the product is read by others", gemm.outputs[0])
    transposed = bool(m.attribute(gemm, "transB"))
    fault = _changes_rows(m, x, gemm.inputs[0], w, (1, 0) if transposed else (0, 1))
    if fault is not None:
        return fault
    if c is not None and (m.attribute(gemm, "beta") != 1.0 or not _is_row(m, c)):
        return m.no("the bias is scaled, or differs by row", c)
    weight: ir.Value | np.ndarray = w
    if transposed:
        array = m.constant(w)
        if array is None or not m.only_use(w):
            return m.no("the weight would have to be transposed, and others read it", w)
        weight = np.ascontiguousarray(array.T)
    result = op.MatMul(x, weight)
    return result if c is None else op.Add(result, c)


def _changes_rows(
    m: Match, x: ir.Value, rows: ir.Value | None, w: ir.Value, axes: tuple[int, int]
) -> Refusal | None:
    """The refusal where x @ w has not the shape of the root, or its rows are not those of ``rows``."""
    source, weight, result = m.shape(x), m.shape(w), m.shape(m.root.outputs[0])
    flat = None if rows is None else m.shape(rows)
    if not source or weight is None or not flat or result is None:
        return m.no("a shape is unknown", x)
    if len(weight) != 2 or len(source) < 2:
        return m.no("the weight is no matrix, or x is no batch of rows", w)
    inner, outer = weight[axes[0]], weight[axes[1]]
    if not (m.cx.facts.dim_equal(source[-1], inner) and m.cx.facts.dim_equal(flat[-1], inner)):
        return m.no("the rows of x are cut differently", x)
    if not forms.same_shape(m, (*source[:-1], outer), result):
        return m.no("the result does not get the shape of x back", m.root.outputs[0])
    return None


def _is_row(m: Match, c: ir.Value) -> bool:
    shape = m.shape(c)
    return shape is not None and all(dim == 1 for dim in shape[:-1])
