"""Sums and factors around a product are folded into a Gemm."""

from __future__ import annotations

from typing import Any

from graphopt import ir
from graphopt.rewrite import Match, Outcome, Reassociates, rule
from graphopt.rewrite.replacement_builder import Builder, to_float32
from graphopt.rules.building_blocks import ort_fusions as fusions
from graphopt.rules.building_blocks import quantizers
from graphopt.rules.building_blocks.affine_layers import by_channel, folded_name, with_affine
from graphopt.rules.building_blocks.broadcasting import keeps_shape
from graphopt.rules.building_blocks.computed_constants import affordable, exact, factor_of, rounded
from graphopt.rules.building_blocks.operands import operand

#: Types for which runtimes have a kernel of Gemm.
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


@rule(
    lambda op, a, b, c: op.Add(op.MatMul(a, b, tag="product"), c),
    numerics=Reassociates,
    exclusive=True,
    tags=(
        "onnxslim:gemm",
        "onnxoptimizer:fuse_matmul_add_bias_into_gemm",
        "onnxruntime:MatMulAddFusion",
        "onnxscript:matmul-add-to-gemm",
    ),
)
def matmul_add_to_gemm(op: Builder, m: Match, a: ir.Value, b: ir.Value, c: ir.Value) -> Outcome:
    """a @ b + c → Gemm(a, b, c), if a and b are matrices and c does not widen the product."""
    product = m.node("product").outputs[0]
    if m.version < 7 or m.dtype(product) not in _TYPES:
        return m.no("Gemm has no kernel for this type, or does not broadcast at this opset", product)
    for factor in (a, b):
        if m.rank(factor) != 2:
            return m.no("not a matrix", factor)
        if quantizers.is_quantizer(factor.producer(), "DequantizeLinear"):
            return m.no("runtimes compute a product of dequantized matrices in integers", factor)
    if not keeps_shape(m, product, c):
        return m.no("the sum may be wider than the product", c)
    return op.Gemm(a, b, c)


@rule(
    lambda op, x, c: op.one_of("Add", "Sub")(op.Gemm(x.rest(), tag="gemm"), c),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxslim:gemm-add", "onnxruntime:GemmSumFusion"),
)
def add_into_gemm(op: Builder, m: Match, c: ir.Value) -> Outcome:
    """Gemm(a, b, d) + c → Gemm(a, b, d + c), for constants c and d, or without d."""
    gemm = m.node("gemm")
    result, old = gemm.outputs[0], operand(gemm, 2)
    if m.version < 7 or m.dtype(result) not in _TYPES or not keeps_shape(m, result, c):
        return m.no("the sum may be wider than the product", c)
    added = m.traced(c)
    if old is None and m.root.op_type == "Add":
        return op.like(gemm, [*gemm.inputs[:2], c], beta=None)
    bias, beta = m.traced(old), m.attribute(gemm, "beta")
    if added is None or (old is not None and (bias is None or not isinstance(beta, float))):
        return m.no("the summand is not constant", c)
    total = -exact(added) if m.root.op_type == "Sub" else exact(added)
    if bias is not None:
        total = total + exact(bias) * beta
    folded = rounded(total, added.dtype, tuple(range(total.ndim)))
    if folded is None:
        return m.no("the bias becomes too large", c)
    if not affordable(m, folded.nbytes, old, c):
        return m.no("the new bias is larger than what it replaces", c)
    return op.like(gemm, [*gemm.inputs[:2], op.constant(folded, folded_name(old or c))], beta=None)


@rule(
    lambda op, x, c: op.one_of("Mul", "Div")(op.Gemm(x.rest(), tag="gemm"), c.constant()),
    lambda op, x: op.Neg(op.Gemm(x.rest(), tag="gemm")),
    numerics=Reassociates,
    exclusive=True,
    tags=("onnxslim:gemm-mul",),
)
def mul_into_gemm(op: Builder, m: Match, c: ir.Value | None) -> Outcome:
    """Gemm(a, b, d) * c → Gemm with alpha and beta times c, or weight and bias times c."""
    gemm, factor = m.node("gemm"), factor_of(m, m.root, c)
    if factor is None:
        return m.no("the constant is divided, or is 0", c)
    number = factor.contents if factor.size == 1 else None
    if number is not None and (c is None or keeps_shape(m, gemm.outputs[0], c)):
        factors = {name: _scaled(m, gemm, name, number.item()) for name in ("alpha", "beta")}
        if operand(gemm, 2) is None:
            del factors["beta"]
        if None not in factors.values():
            return op.like(gemm, gemm.inputs, **factors)
    scale = by_channel(m, gemm, factor)
    if scale is None:
        return m.no("the constant differs within a column", c)
    return with_affine(op, m, gemm, scale, None)


@rule(
    lambda op, x, c, rest: op.Gemm(op.one_of("Mul", "Div")(x, c.constant(), tag="scale"), rest.rest()),
    lambda op, x, rest: op.Gemm(op.Neg(x, tag="scale"), rest.rest()),
    numerics=Reassociates,
    exclusive=True,
)
def scale_before_gemm(op: Builder, m: Match, x: ir.Value, c: ir.Value | None, rest: Any) -> Outcome:
    """Gemm(c * a, b, d) → Gemm(a, b, d, alpha=c), for one number c."""
    if fusions.is_gelu_factor(x):
        return m.no(fusions.GELU, x)
    factor = factor_of(m, m.node("scale"), c)
    number = None if factor is None or factor.size != 1 else factor.contents
    if number is None or (c is not None and not keeps_shape(m, x, c)):
        return m.no("not one number", c)
    alpha = _scaled(m, m.root, "alpha", number.item())
    if alpha is None:
        return m.no("the factor does not fit the attribute", c)
    return op.like(m.root, [x, *rest], alpha=alpha)


def _scaled(m: Match, gemm: ir.Node, name: str, factor: float) -> float | None:
    """Attribute ``name`` times ``factor``, if float32 represents it with the precision of the data."""
    old = m.attribute(gemm, name)
    if not isinstance(old, float):
        return None
    scaled = to_float32(old * factor)
    exact_in = m.dtype(gemm.outputs[0]) != ir.DataType.DOUBLE
    return scaled if exact_in or scaled == old * factor else None
