"""Reshape, Flatten, Squeeze and Unsqueeze: views of the same elements in the same order.

The normal form of a chain of views is one node: the tensor itself, one Squeeze or Unsqueeze, or a
Reshape whose shape is constant.
"""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis import symbolic
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rewrite.traced_array import TracedArray
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks.axes import axes_of, squeeze, unsqueeze
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.reshape_targets import nonzero_dims, reshape, reshape_target
from graphopt.rules.building_blocks.shape_equality import has_one_element, same_shape

_EMPTY_BATCHES = "onnxruntime fuses Transpose and MatMul into a kernel that fails on empty batches"
_CHEAP_VIEWS = ("Reshape", "Flatten")
#: Elementwise operators that may be moved through a view if only the first operand has several elements.
_ELEMENTWISE = tuple(sorted((traits.UNARY_ELEMENTWISE | traits.BINARY_ELEMENTWISE) - {"Identity"}))


@rule(
    lambda op, x, shape: op.Reshape(x, shape),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxscript:materialize-reshape-shape",
        "onnxoptimizer:fuse_concat_into_reshape",
        "onnxslim:concat-reshape",
        "onnxruntime:ReshapeFusion",
        "onnxslim:reshape-as",
    ),
)
def materialize_reshape_shape(op: Builder, m: Match, x: ir.Value, shape: ir.Value) -> Outcome:
    """Reshape(x, computed shape) → Reshape(x, constant), if all dims but one are numbers or dims of x."""
    if ir.constant_of(shape) is not None:
        return m.no("the shape is constant already", shape)
    source, result = m.shape(x), m.shape(m.root.outputs[0])
    if result is None:
        return m.no("the rank of the result is unknown", m.root.outputs[0])
    target = reshape_target(m, source, result, nonzero_dims(m, m.root))
    if target is not None:
        return reshape(op, m, x, target)
    # before opset 9, Flatten supports only floats
    axis = _flatten_axis(m, source, result) if m.version >= 9 else None
    return m.no("two dims or more are unknown", shape) if axis is None else op.Flatten(x, axis=axis)


def _flatten_axis(
    m: Match, source: tuple[symbolic.Dim, ...] | None, result: tuple[symbolic.Dim, ...]
) -> int | None:
    """The axis of a Flatten from shape ``source`` to ``result``."""
    if source is None or len(result) != 2:
        return None
    for axis in range(len(source) + 1):
        sides = symbolic.product(source[:axis]), symbolic.product(source[axis:])
        if same_shape(m, sides, result):
            return axis
    return None


@rule(
    lambda op, x, a, b: op.one_of(*traits.RESHAPES)(
        op.one_of(*traits.RESHAPES)(x, a.rest(), tag="inner"), b.rest()
    ),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxslim:reshape-chain",
        "onnxslim:unsqueeze-chain",
        "onnxscript:reshape-reshape",
        "onnxscript:squeeze-reshape-1d",
        "onnxscript:unsqueeze-unsqueeze",
        "onnxscript:flatten-to-reshape",
        "onnxoptimizer:fuse_consecutive_squeezes",
        "onnxoptimizer:fuse_consecutive_unsqueezes",
    ),
)
def collapse_views(op: Builder, m: Match, x: ir.Value, b: tuple[ir.Value, ...]) -> Outcome:
    """view(view(x)) → view(x), for Reshape, Flatten, Squeeze and Unsqueeze."""
    inner, outer = m.node("inner"), m.root
    source, result = m.shape(x), m.shape(outer.outputs[0])
    if same_shape(m, source, result):
        return x
    if outer.op_type == inner.op_type == "Unsqueeze" and fusions.is_mask_view(outer.outputs[0]):
        return m.no(fusions.MASK, x)
    merged = _merge_axes(op, m, x, inner, outer)
    if merged is not None:
        return merged
    known = nonzero_dims(m, inner) + nonzero_dims(m, outer)
    target = reshape_target(m, source, result, known)
    if target is not None:
        return reshape(op, m, x, target)
    if outer.op_type == "Reshape" and _copies_nothing(m, x, inner.outputs[0], outer):
        return op.like(outer, [x, b[0]])
    return m.no("the shape is not expressible as a constant", outer.outputs[0])


def _merge_axes(op: Builder, m: Match, x: ir.Value, inner: ir.Node, outer: ir.Node) -> ir.Value | None:
    """One Squeeze or Unsqueeze for two of a kind, or for a pair in which one undoes part of the other."""
    kinds = inner.op_type, outer.op_type
    if not set(kinds) <= {"Squeeze", "Unsqueeze"} or kinds == ("Squeeze", "Unsqueeze"):
        return None
    first, second = axes_of(m, inner), axes_of(m, outer)
    if first is None or second is None:
        return None
    if kinds == ("Unsqueeze", "Unsqueeze"):
        kept = [axis for axis in range(len(first) + len(second) + (m.rank(x) or 0)) if axis not in second]
        return unsqueeze(op, m, x, sorted({*second, *(kept[axis] for axis in first)}))
    if kinds == ("Squeeze", "Squeeze"):
        kept = [axis for axis in range(m.rank(x) or 0) if axis not in first]
        return squeeze(op, m, x, sorted({*first, *(kept[axis] for axis in second)}))
    rank = (m.rank(x) or 0) + len(first)
    if set(second) <= set(first):
        kept = [axis for axis in range(rank) if axis not in second]
        return unsqueeze(op, m, x, [kept.index(axis) for axis in first if axis not in second])
    if set(first) < set(second):
        kept = [axis for axis in range(rank) if axis not in first]
        return squeeze(op, m, x, [kept.index(axis) for axis in second if axis not in first])
    return None


def _copies_nothing(m: Match, x: ir.Value, y: ir.Value, node: ir.Node) -> bool:
    """Whether a Reshape of y has the same result on x: a 0 in its target copies no dim, or an equal one."""
    if m.attribute(node, "allowzero"):
        return True
    target = m.cx.known_ints(node.inputs[1])
    source, middle = m.shape(x), m.shape(y)
    if target is None or source is None or middle is None:
        return False
    shared = min(len(source), len(middle))
    return all(
        symbolic.known_nonzero(dim) or (axis < shared and m.cx.facts.dim_equal(source[axis], middle[axis]))
        for axis, dim in enumerate(target)
    )


@rule(
    lambda op, a, b, s: op.one_of(*_CHEAP_VIEWS)(op.MatMul(a, b, tag="matmul"), s.rest()),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxscript:one-reshape-matmul-reshape", "onnxscript:two-reshapes-matmul-reshape"),
)
def matmul_without_reshapes(op: Builder, m: Match, a: ir.Value, b: ir.Value) -> Outcome:
    """Reshape(Reshape(a) @ Reshape(b)) → a @ b."""
    x, y = _operand_of_view(m, a), _operand_of_view(m, b)
    if x is a and y is b:
        return m.no("no operand is reshaped", a)
    if x is not a and _transposed_and_maybe_empty(m, x):
        return m.no(_EMPTY_BATCHES, x)
    for left, right in ((x, y), (x, b), (a, y)):
        if (left, right) != (a, b) and _same_product(m, (a, left), (b, right)):
            return op.MatMul(left, right)
    return m.no("the rows or batches are split differently", a)


def _operand_of_view(m: Match, value: ir.Value) -> ir.Value:
    """The operand of the Reshape or Flatten that computes ``value``, or ``value`` itself."""
    node = producer_of(value, *_CHEAP_VIEWS, graph=m.graph)
    return value if node is None else node.inputs[0] or value


def _transposed_and_maybe_empty(m: Match, value: ir.Value) -> bool:
    shape = m.shape(value)
    return producer_of(value, "Transpose") is not None and (
        shape is None or not all(symbolic.known_nonzero(dim) for dim in shape)
    )


def _same_product(m: Match, left: tuple[ir.Value, ir.Value], right: tuple[ir.Value, ir.Value]) -> bool:
    """Whether the product of the unviewed operands is the root's result; pairs are (view, its source)."""
    a, x = m.shape(left[0]), m.shape(left[1])
    b, y = m.shape(right[0]), m.shape(right[1])
    result = m.shape(m.root.outputs[0])
    if not a or not b or not x or not y or len(a) < 2 or len(b) < 2:
        return False
    if len(x) == 1 and len(y) > 1:
        # a vector on the left: its row axis, of size 1, is not in the result
        same = same_shape(m, a, (1, *x)) and same_shape(m, b, y)
        return same and same_shape(m, (*y[:-2], y[-1]), result)
    if len(b) == 2 and (same_shape(m, b, y) or same_shape(m, b, (*y, 1))):
        # a matrix on the right: only the rows on the left count
        return same_shape(m, a[-1:], x[-1:]) and same_shape(m, (*x[:-1], *y[1:]), result)
    return (
        same_shape(m, a[:-2], b[:-2])
        and same_shape(m, x[:-2], y[:-2])
        and same_shape(m, a[-2:], x[-2:])
        and same_shape(m, b[-2:], y[-2:])
        and same_shape(m, (*x[:-1], y[-1]), result)
    )


@rule(
    lambda op, x, a, w, c, b: op.one_of(*_CHEAP_VIEWS)(
        op.Gemm(op.one_of(*_CHEAP_VIEWS)(x, a.rest()), w, c.optional(), alpha=1.0, transA=0, tag="gemm"),
        b.rest(),
    ),
    numerics=Reassociates,
)
def gemm_without_reshapes(op: Builder, m: Match, x: ir.Value, w: ir.Value, c: ir.Value | None) -> Outcome:
    """Reshape(Gemm(Reshape(x), w, c)) → x @ w + c."""
    gemm = m.node("gemm")
    if not m.only_use(gemm.outputs[0]):
        return m.no("the product has other readers", gemm.outputs[0], shared=True)
    if _transposed_and_maybe_empty(m, x):
        return m.no(_EMPTY_BATCHES, x)
    transposed = bool(m.attribute(gemm, "transB"))
    _require_rows(m, x, gemm.inputs[0], w, (1, 0) if transposed else (0, 1))
    if c is not None and (m.attribute(gemm, "beta") != 1.0 or not _is_row(m, c)):
        return m.no("the bias is scaled, or differs by row", c)
    weight: ir.Value | TracedArray = w
    if transposed:
        array = m.traced(w)
        if array is None or not m.only_use(w):
            return m.no("the weight would have to be transposed, and has other readers", w, shared=True)
        weight = array.transpose((1, 0))
    result = op.MatMul(x, weight)
    return result if c is None else op.Add(result, c)


def _require_rows(m: Match, x: ir.Value, rows: ir.Value | None, w: ir.Value, axes: tuple[int, int]) -> None:
    """Refuse if x @ w does not have the root's shape, or ``x`` and ``rows`` have different rows."""
    source, weight, result = m.shape(x), m.shape(w), m.shape(m.root.outputs[0])
    flat = m.shape(rows)
    if not source or weight is None or not flat or result is None:
        m.refuse("a shape is unknown", x)
    if len(weight) != 2 or len(source) < 2:
        m.refuse("the weight is not a matrix, or x has fewer than two axes", w)
    inner, outer = weight[axes[0]], weight[axes[1]]
    if not (m.cx.facts.dim_equal(source[-1], inner) and m.cx.facts.dim_equal(flat[-1], inner)):
        m.refuse("the rows of x are split differently", x)
    if not same_shape(m, (*source[:-1], outer), result):
        m.refuse("the result does not have the leading axes of x", m.root.outputs[0])


def _is_row(m: Match, c: ir.Value) -> bool:
    shape = m.shape(c)
    return shape is not None and all(dim == 1 for dim in shape[:-1])


@rule(
    lambda op, x, a, c, b: op.one_of(*traits.RESHAPES)(
        op.one_of(*_ELEMENTWISE)(
            op.one_of(*traits.RESHAPES)(x, a.rest(), tag="inner"), c.rest(), tag="between"
        ),
        b.rest(),
    ),
    numerics=Exact,
    proven_exact=True,
    exclusive=True,
    tags=("onnxslim:transpose-view-transpose",),
)
def elementwise_between_views(op: Builder, m: Match, x: ir.Value, c: tuple[ir.Value | None, ...]) -> Outcome:
    """view(f(view(x))) → view(f(x)), for elementwise f."""
    source, result = m.shape(x), m.shape(m.root.outputs[0])
    if source is None or any(other is not None and not _adds_no_axis(m, other, len(source)) for other in c):
        return m.no("another operand has more than one element", x)
    known = nonzero_dims(m, m.node("inner")) + nonzero_dims(m, m.root)
    target = None if same_shape(m, source, result) else reshape_target(m, source, result, known)
    if target is None and not same_shape(m, source, result):
        return m.no("the shape is not expressible as a constant", m.root.outputs[0])
    value = op.like(m.node("between"), [x, *c])
    return value if target is None else reshape(op, m, value, target)


def _adds_no_axis(m: Match, value: ir.Value, rank: int) -> bool:
    return has_one_element(m, value) and (m.rank(value) or 0) <= rank
