"""MatMul: constant factors and products of constants; Einsums that are a MatMul or a simpler operator."""

from __future__ import annotations

import re

from graphopt import ir
from graphopt.context import Dim
from graphopt.rewrite import Builder, Exact, Match, Outcome, Reassociates, rule
from graphopt.rules.building_blocks import numeric_safety
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks.affine_layers import folded_name, folded_weight
from graphopt.rules.building_blocks.axes import reduce
from graphopt.rules.building_blocks.broadcasting import keeps_shape
from graphopt.rules.building_blocks.computed_constants import affordable, exact, factor_of, rounded
from graphopt.rules.building_blocks.element_type_sets import FLOATS


@rule(
    lambda op, x, w, c: op.one_of("Mul", "Div")(op.MatMul(x, w.constant(), tag="product"), c.constant()),
    lambda op, x, w, c: op.one_of("Mul", "Div")(op.MatMul(w.constant(), x, tag="product"), c.constant()),
    lambda op, x, w, c: op.MatMul(op.one_of("Mul", "Div")(x, c.constant(), tag="scale"), w.constant()),
    lambda op, x, w, c: op.MatMul(w.constant(), op.one_of("Mul", "Div")(x, c.constant(), tag="scale")),
    lambda op, x, w: op.Neg(op.MatMul(x, w.constant(), tag="product")),
    lambda op, x, w: op.Neg(op.MatMul(w.constant(), x, tag="product")),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxruntime:MatMulScaleFusion",),
)
def scale_into_matmul(op: Builder, m: Match, x: ir.Value, w: ir.Value, c: ir.Value | None) -> Outcome:
    """(x @ w) * c → x @ (w * c), if c is one number or has one per column; (x * c) @ w → x @ (w * c)."""
    at_root = m.root.op_type != "MatMul"
    scale, product = (m.root, m.node("product")) if at_root else (m.node("scale"), m.root)
    if not at_root and fusions.is_gelu_factor(x):
        return m.no(fusions.GELU, x)
    weight, factor = m.traced(w), factor_of(m, scale, c)
    if weight is None or factor is None or weight.ndim < 2:
        return m.no("not a matrix and a factor, of floats", w)
    if c is not None and not keeps_shape(m, product.outputs[0] if at_root else x, c):
        return m.no("the constant may widen the tensor", c)
    by_column = at_root and product.inputs[1] is w
    if factor.size != 1 and not (by_column and factor.shape[-1] == factor.size):
        return m.no("not one number, nor one for each column", c)
    scaled = rounded(exact(weight) * factor.reshape(-1), weight.dtype, (weight.ndim - 2,))
    folded = folded_weight(op, m, w, scaled)
    return op.MatMul(x, folded) if product.inputs[1] is w else op.MatMul(folded, x)


@rule(
    lambda op, x, a, b: op.MatMul(op.MatMul(x, a.constant()), b.constant()),
    numerics=Reassociates,
    exclusive=True,
)
def join_matmuls(op: Builder, m: Match, x: ir.Value, a: ir.Value, b: ir.Value) -> Outcome:
    """(x @ a) @ b → x @ (a @ b), if a @ b is no larger than a and b."""
    first, second = m.traced(a), m.traced(b)
    if first is None or second is None or m.dtype(a) not in FLOATS or first.ndim != 2 or second.ndim != 2:
        return m.no("not two constant matrices of floats", a)
    if first.shape[0] * second.shape[1] > first.size + second.size:
        return m.no("the product of the matrices is larger than both", a)
    joined = rounded(exact(first) @ exact(second), first.dtype, (0,))
    if joined is None:
        return m.no("the product of the matrices loses digits", a)
    if not affordable(m, joined.nbytes, a, b):
        return m.no("the matrices have other readers, and their product is large", a, shared=True)
    return op.MatMul(x, op.constant(joined, folded_name(a)))


# Einsum --------------------------------------------------------------------------------------

_EQUATION = re.compile(r"([a-zA-Z]+)(?:,([a-zA-Z]+))?->([a-zA-Z]*)")


def _labels(equation: str | bytes) -> tuple[str, str | None, str] | None:
    """The labels of one or two operands and of the result, if each of these has distinct labels."""
    text = equation.decode(errors="replace") if isinstance(equation, bytes) else equation
    match = _EQUATION.fullmatch(text.replace(" ", ""))
    if match is None or any(len(set(labels or "")) != len(labels or "") for labels in match.groups()):
        return None
    return match[1], match[2], match[3]


@rule(lambda op, x, e: op.Einsum(x, equation=e), numerics=Exact)
def einsum_to_transpose(op: Builder, m: Match, x: ir.Value, e: str) -> Outcome:
    """Einsum(x, "ij->ji") → Transpose(x)."""
    labels = _labels(e)
    if labels is None or labels[1] is not None or sorted(labels[0]) != sorted(labels[2]):
        return m.no("it does more than reorder axes")
    return op.Transpose(x, perm=[labels[0].index(label) for label in labels[2]])


@rule(lambda op, x, e: op.Einsum(x, equation=e), numerics=Reassociates)
def einsum_to_reduce_sum(op: Builder, m: Match, x: ir.Value, e: str) -> Outcome:
    """Einsum(x, "ij->i") → ReduceSum(x)."""
    labels = _labels(e)
    if labels is None or labels[1] is not None:
        return m.no("it does more than sum over axes")
    axes = [axis for axis, label in enumerate(labels[0]) if label not in labels[2]]
    if not axes or "".join(label for label in labels[0] if label in labels[2]) != labels[2]:
        return m.no("it sums over no axis, or reorders the others")
    if numeric_safety.rounds_long(m, m.root):
        return m.no(numeric_safety.ROUNDED_SUM, x)
    return reduce(op, m, "ReduceSum", x, axes, keepdims=False)


@rule(
    lambda op, x, y, e: op.Einsum(x, y, equation=e),
    numerics=Reassociates,
    tags=("onnxoptimizer:replace_einsum_with_matmul",),
)
def einsum_to_matmul(op: Builder, m: Match, x: ir.Value, y: ir.Value, e: str) -> Outcome:
    """Einsum(x, y, "bij,bjk->bik") → MatMul(x, y); Einsum(x, y, "ij,ij->ij") → Mul(x, y)."""
    labels = _labels(e)
    if labels is None or labels[1] is None:
        return m.no("labels are repeated or left out")
    a, b, result = labels[0], labels[1], labels[2]
    if a == b == result:
        return op.Mul(x, y)
    for left, right, first, second in ((x, y, a, b), (y, x, b, a)):
        if _is_matmul(first, second, result):
            if not _same_size(m, (left, first), (right, second), first[-1]):
                return m.no("an axis of size 1 may be broadcast in the sum", x)
            return op.MatMul(left, right)
    return m.no("not the axes that MatMul multiplies")


def _is_matmul(a: str, b: str, result: str) -> bool:
    """Whether the labels are (batch, i, j), (batch, j, k) → (batch, i, k); a or b may lack the batch axes."""
    if len(a) < 2 or len(b) < 2 or len(result) < 2:
        return False
    batch = result[:-2]
    if a[-1] != b[-2] or (a[-2], b[-1]) != (result[-2], result[-1]) or a[-1] in result:
        return False
    return {a[:-2], b[:-2]} <= {batch, ""} and batch in (a[:-2], b[:-2])


def _same_size(m: Match, x: tuple[ir.Value, str], y: tuple[ir.Value, str], label: str) -> bool:
    sizes: list[Dim] = []
    for value, labels in (x, y):
        shape = m.shape(value)
        if shape is None or len(shape) != len(labels):
            return False
        sizes.append(shape[labels.index(label)])
    return m.cx.facts.dim_equal(*sizes)
