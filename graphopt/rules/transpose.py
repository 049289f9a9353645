"""Transposes: compose, cancel, and propagate them if that reduces their number."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.ops import traits
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import numeric_safety, position_dependence, quantizers
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks.axes import (
    axes_of,
    axis_of,
    perm_of,
    reduce,
    squeeze,
    unsqueeze,
)
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.reshape_targets import nonzero_dims, reshape, reshape_target
from graphopt.rules.building_blocks.shape_equality import has_one_element, same_shape
from graphopt.rules.building_blocks.transpose_region import Region

Perm = tuple[int, ...]
#: Operators on several operands that have one shape, or are joined along an axis.
_JOINS = (*sorted(traits.BINARY_ELEMENTWISE), *traits.VARIADIC_ELEMENTWISE, "Concat")


@rule(
    lambda op, x, p, q: op.Transpose(op.Transpose(x, perm=p, tag="inner"), perm=q),
    numerics=Exact,
    proven_exact=True,
    tags=(
        "onnxslim:transpose-chain",
        "onnxscript:transpose-transpose",
        "onnxoptimizer:fuse_consecutive_transposes",
    ),
)
def compose_transposes(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Transpose(Transpose(x, p), q) → Transpose(x, p[q])."""
    inner, outer = perm_of(m, m.node("inner")), perm_of(m, m.root)
    if inner is None or outer is None:
        return m.no("rank unknown", x)
    perm = [inner[axis] for axis in outer]
    return x if perm == sorted(perm) else op.Transpose(x, perm=perm)


@rule(
    lambda op, y, q: op.Transpose(y, perm=q),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:transpose-view-transpose", "onnxruntime:TransposeOptimizer"),
)
def hoist_transpose(op: Builder, m: Match, y: ir.Value) -> Outcome:
    """Transpose(f(x)) → f(Transpose(x)), for exact elementwise f, Concat, Pad, Slice, if it saves nodes."""
    return _hoisted(op, m, y, exact=True)


@rule(
    lambda op, y, q: op.Transpose(y, perm=q), numerics=Reassociates, tags=("onnxruntime:TransposeOptimizer",)
)
def hoist_transpose_through_reductions(op: Builder, m: Match, y: ir.Value) -> Outcome:
    """Transpose(f(x)) → f(Transpose(x)), also for reductions and any elementwise f, if that saves nodes."""
    return _hoisted(op, m, y, exact=False)


def _hoisted(op: Builder, m: Match, y: ir.Value, *, exact: bool) -> Outcome:
    perm = perm_of(m, m.root)
    if perm is None:
        return m.no("rank unknown", y)
    region = Region.above(m, y, perm, exact=exact)
    if not region.nodes:
        return m.no("the producer does not commute with a Transpose", y)
    if region.transposes_saved() <= 0:
        return m.no("it would not save a Transpose", y)
    if any(fusions.moves_axis_of_norm(m, node, perm) for node in region.nodes):
        return m.no(fusions.NORMALIZATION_AXIS, y)
    if any(numeric_safety.rounds_long(m, node) for node in region.nodes):
        return m.no(numeric_safety.ROUNDED_SUM, y)
    return region.rebuild(op)


@rule(
    lambda op, xs: op.one_of(*_JOINS)(xs.rest()),
    numerics=Exact,
    proven_exact=True,
    producers=("Transpose",),
    tags=("onnxruntime:TransposeOptimizer",),
)
def join_transposes(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """f(Transpose(x, p), Transpose(y, p)) → Transpose(f(x, y), p), for elementwise f and Concat."""
    if position_dependence.depends_on_position(m, m.root):
        return m.no(
            f"the bits of onnxruntime's {m.root.op_type} depend on positions in memory", m.root.outputs[0]
        )
    return _joined(op, m, xs)


@rule(
    lambda op, xs: op.one_of(*position_dependence.sometimes_dependent(_JOINS))(xs.rest()),
    numerics=Reassociates,
    producers=("Transpose",),
)
def join_transposes_before_extremum(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """f(Transpose(x, p), Transpose(y, p)) → Transpose(f(x, y), p), for Max, Min, Pow, Where and others.

    Not exact: in onnxruntime (1.31), the sign of a zero and the rounding depend on the position in memory.
    """
    if position_dependence.is_integer_power(m, m.root):
        return m.no("the overflow of an integer power depends on shapes", m.root.outputs[0])
    return _joined(op, m, xs)


def _joined(op: Builder, m: Match, xs: tuple[ir.Value, ...]) -> Outcome:
    """The Transpose of the root on operands before their Transposes."""
    sources = [_transposed(m, x) for x in xs]
    first = sources[0]
    if first is None or any(source is None or source[1] != first[1] for source in sources):
        return m.no("the operands are not all transposed by the same permutation", xs[0])
    if sum(m.only_use(x) for x in dict.fromkeys(xs)) < 2:
        return m.no("the transposed operands have other readers", xs[0], shared=True)
    perm, operands = first[1], [source[0] for source in sources if source is not None]
    if m.root.op_type == "Concat":
        axis = axis_of(m, m.root, len(perm))
        if axis is None:
            return m.no("axis unknown", xs[0])
        return op.Transpose(op.like(m.root, operands, axis=perm[axis]), perm=list(perm))
    return op.Transpose(op.like(m.root, operands), perm=list(perm))


def _transposed(m: Match, x: ir.Value) -> tuple[ir.Value, Perm] | None:
    """The operand and the permutation of the Transpose that computes ``x``."""
    node = producer_of(x, "Transpose", graph=m.graph)
    if node is None or node.inputs[0] is None:
        return None
    perm = perm_of(m, node)
    return None if perm is None else (node.inputs[0], perm)


@rule(
    lambda op, x, p, rest: op.Split(op.Transpose(x, perm=p, tag="T"), rest.rest()),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxruntime:TransposeOptimizer",),
)
def split_before_transpose(op: Builder, m: Match, x: ir.Value, rest: tuple[ir.Value, ...]) -> Outcome:
    """Transpose(Split(Transpose(x))[i]) → Split(x)[i], if every part is transposed back."""
    perm = perm_of(m, m.node("T"))
    axis = None if perm is None else axis_of(m, m.root, len(perm))
    if perm is None or axis is None:
        return m.no("rank or axis unknown", x)
    for part in m.root.outputs:
        backs = [_transposed(m, user.outputs[0]) for user, _ in part.uses() if user.graph is not None]
        if part.is_graph_output() or any(
            back is None or [perm[a] for a in back[1]] != sorted(perm) for back in backs
        ):
            return m.no("not every part is transposed back", part)
    if not any(part.uses() for part in m.root.outputs):
        return m.no("no part is read", x)
    parts = op.like(m.root, [x, *rest], axis=perm[axis])
    parts = parts if isinstance(parts, tuple) else (parts,)
    return tuple(
        op.Transpose(new, perm=list(perm)) if part.uses() else None
        for part, new in zip(m.root.outputs, parts, strict=True)
    )


@rule(
    lambda op, a, b, c, p: op.Gemm(op.Transpose(a, perm=p, tag="T"), b, c.optional()),
    lambda op, a, b, c, p: op.Gemm(a, op.Transpose(b, perm=p, tag="T"), c.optional()),
    numerics=Reassociates,
    tags=("onnxoptimizer:fuse_transpose_into_gemm", "onnxruntime:GemmTransposeFusion"),
)
def transpose_into_gemm(op: Builder, m: Match, a: ir.Value, b: ir.Value, c: ir.Value | None) -> Outcome:
    """Gemm(Transpose(a), b) → Gemm(a, b, transA=1); likewise for b."""
    perm = perm_of(m, m.node("T"))
    if perm != (1, 0):
        return m.no("rank unknown, or it transposes nothing")
    flag = "transA" if m.root.inputs[0] is m.node("T").outputs[0] else "transB"
    return op.like(m.root, [a, b] if c is None else [a, b, c], **{flag: 1 - m.attribute(m.root, flag)})


@rule(
    lambda op, a, b, p: op.MatMul(op.Transpose(a, perm=p, tag="T"), b),
    lambda op, a, b, p: op.MatMul(a, op.Transpose(b, perm=p, tag="T")),
    numerics=Reassociates,
    tags=("onnxscript:transpose-matmul-add-to-gemm",),
)
def transpose_and_matmul_to_gemm(op: Builder, m: Match, a: ir.Value, b: ir.Value) -> Outcome:
    """Transpose(a) @ b → Gemm(a, b, transA=1), for matrices; likewise for b."""
    transposed = m.node("T").outputs[0]
    if m.version < 11:
        return m.no("Gemm needs a bias below opset 11")
    if m.rank(a) != 2 or m.rank(b) != 2 or perm_of(m, m.node("T")) != (1, 0):
        return m.no("they are not both matrices", a)
    if not m.only_use(transposed):
        return m.no("the transposed matrix has other readers", transposed, shared=True)
    if m.dtype(a) not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return m.no("not float or double", a)
    for factor in (a, b):
        if quantizers.is_quantizer(factor.producer(), "DequantizeLinear"):
            return m.no("runtimes compute a product of dequantized matrices in integers", factor)
    return op.Gemm(a, b, **{"transA" if m.root.inputs[0] is transposed else "transB": 1})


@rule(
    lambda op, x, p, a: op.one_of(*traits.REDUCTIONS)(op.Transpose(x, perm=p, tag="T"), a.rest(), keepdims=0),
    numerics=Reassociates,
)
def reduce_of_transpose(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """ReduceSum(Transpose(x)) → ReduceSum(x), if the remaining axes keep their order."""
    if numeric_safety.rounds_long(m, m.root):
        return m.no(numeric_safety.ROUNDED_SUM, x)
    axes = _axes_before_transpose(m, x)
    return reduce(op, m, m.root.op_type, x, axes, keepdims=False) if axes else m.no("nothing is reduced", x)


@rule(
    lambda op, x, p, a: op.Squeeze(op.Transpose(x, perm=p, tag="T"), a.rest()),
    numerics=Exact,
    proven_exact=True,
)
def squeeze_of_transpose(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Squeeze(Transpose(x)) → Squeeze(x), if the remaining axes keep their order."""
    return squeeze(op, m, x, _axes_before_transpose(m, x))


def _axes_before_transpose(m: Match, x: ir.Value) -> list[int]:
    """The axes of ``x`` that the root removes after the Transpose, if the others keep their order."""
    perm, axes = perm_of(m, m.node("T")), axes_of(m, m.root)
    if perm is None or axes is None:
        m.refuse("axes unknown", x)
    if not _in_order([perm[axis] for axis in range(len(perm)) if axis not in axes]):
        m.refuse("the remaining axes change their order", x)
    return sorted(perm[axis] for axis in axes)


@rule(
    lambda op, x, a, q: op.Transpose(op.Unsqueeze(x, a.rest(), tag="view"), perm=q),
    numerics=Exact,
    proven_exact=True,
)
def transpose_of_unsqueeze(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Transpose(Unsqueeze(x)) → Unsqueeze(x), if only new axes move."""
    perm, axes = perm_of(m, m.root), axes_of(m, m.node("view"))
    if perm is None or axes is None:
        return m.no("axes unknown", x)
    if not _in_order([source for source in perm if source not in axes]):
        return m.no("it moves axes of x", x)
    return unsqueeze(op, m, x, [axis for axis, source in enumerate(perm) if source in axes])


@rule(
    lambda op, x, p, a: op.one_of(*traits.RESHAPES)(op.Transpose(x, perm=p, tag="T"), a.rest()),
    lambda op, x, p, a: op.Transpose(op.one_of(*traits.RESHAPES)(x, a.rest()), perm=p, tag="T"),
    numerics=Exact,
    proven_exact=True,
    tags=("onnxslim:transpose-as-reshape",),
)
def transpose_as_reshape(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Transpose(x) → Reshape(x), if only axes of size 1 move; merged with the view beside it."""
    node = m.node("T")
    perm, before = perm_of(m, node), m.shape(node.inputs[0])
    if perm is None or before is None:
        return m.no("rank unknown", x)
    if not _in_order([axis for axis in perm if before[axis] != 1]):
        return m.no("it moves axes that are not provably 1", x)
    source, result = m.shape(x), m.shape(m.root.outputs[0])
    if same_shape(m, source, result):
        return x
    view = node.inputs[0].producer() if node is m.root and node.inputs[0] is not None else m.root
    target = reshape_target(m, source, result, () if view is None else nonzero_dims(m, view))
    return (
        m.no("the shape is not expressible as a constant", x) if target is None else reshape(op, m, x, target)
    )


@rule(
    lambda op, x, p, s: op.Reshape(op.Transpose(x, perm=p, tag="T"), s),
    lambda op, x, p, s: op.Transpose(op.Reshape(x, s), perm=p, tag="T"),
    numerics=Exact,
    proven_exact=True,
)
def reshape_as_transpose(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Reshape(Transpose(x)) → Transpose(x), if the Reshape only moves axes of size 1."""
    node, source, result = m.node("T"), m.shape(x), m.shape(m.root.outputs[0])
    perm = perm_of(m, node)
    middle = m.shape(node.outputs[0] if node is not m.root else m.root.inputs[0])
    if perm is None or source is None or middle is None or result is None:
        return m.no("rank unknown", x)
    first = list(perm) if node is not m.root else _moved_ones(m, source, middle)
    second = list(perm) if node is m.root else _moved_ones(m, middle, result)
    if first is None or second is None:
        return m.no("it does not only move axes of size 1", x)
    return op.Transpose(x, perm=[first[axis] for axis in second])


def _moved_ones(m: Match, source: tuple[Dim, ...], result: tuple[Dim, ...]) -> list[int] | None:
    """The permutation equivalent to a Reshape from ``source`` to ``result``, if only axes of size 1 move."""
    ones = [axis for axis, dim in enumerate(source) if dim == 1]
    others = [axis for axis, dim in enumerate(source) if dim != 1]
    if len(source) != len(result) or sum(dim == 1 for dim in result) != len(ones):
        return None
    if not same_shape(m, [source[axis] for axis in others], [dim for dim in result if dim != 1]):
        return None
    return [ones.pop(0) if dim == 1 else others.pop(0) for dim in result]


@rule(
    lambda op, a, b, c, p: op.Transpose(op.Gemm(a, b, c.optional(), tag="gemm"), perm=p),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxruntime:GemmTransposeFusion",),
)
def transpose_of_gemm(op: Builder, m: Match, a: ir.Value, b: ir.Value, c: ir.Value | None) -> Outcome:
    """Transpose(Gemm(a, b)) → Gemm(b, a, transA=1, transB=1)."""
    gemm = m.node("gemm")
    if perm_of(m, m.root) != (1, 0):
        return m.no("it transposes nothing")
    if c is not None and not has_one_element(m, c):
        return m.no("the bias would have to be transposed", c)
    flags = {"transA": 1 - m.attribute(gemm, "transB"), "transB": 1 - m.attribute(gemm, "transA")}
    return op.like(gemm, [b, a] if c is None else [b, a, c], **flags)


def _in_order(axes: list[int]) -> bool:
    return axes == sorted(axes)
