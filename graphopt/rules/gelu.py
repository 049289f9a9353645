"""GELU in three forms: by the error function, by tanh, and by a sigmoid (SiLU with a factor).

The sums and products of different exporters differ only in order and association, so rules compare them as
polynomials.
"""

from __future__ import annotations

import math

from graphopt import ir
from graphopt.rewrite import Builder, Match, Outcome, fusion
from graphopt.rewrite.match import Refused
from graphopt.rules.building_blocks import polynomials
from graphopt.rules.building_blocks.kernel_availability import kernel_refusal, require_kernel
from graphopt.rules.building_blocks.operands import producer_of
from graphopt.rules.building_blocks.shape_equality import require_shape_of
from graphopt.util.lazy_dataclass import dataclass

#: Maximum relative error of constants, which exporters round.
_CLOSE, _CLOSE_IN_HALVES = 1e-5, 2e-3
#: The opset version that introduced Gelu.
_SINCE = 20
#: Maximum number of values visited before a sum or product.
_LIMIT = 16
_MEND = "if a GELU is intended, correct its constants"


@dataclass(frozen=True)
class Form:
    """A GELU, x / 2 * (1 + f(p(x))).

    Attributes:
        function: f.
        argument: p, by powers of x.
        vendor: onnxruntime's operator.
        approximate: the value of the attribute ``approximate`` of the standard's operator.
    """

    function: str
    argument: polynomials.Polynomial
    vendor: str
    approximate: str | None


_ERF = Form("Erf", {(1,): math.sqrt(0.5)}, "Gelu", None)
#: The argument is sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016).
_TANH = Form(
    "Tanh", {(1,): math.sqrt(2 / math.pi), (3,): 0.044715 * math.sqrt(2 / math.pi)}, "FastGelu", "tanh"
)
#: Since (1 + tanh(p)) / 2 = sigmoid(2 p).
_SIGMOID = {powers: 2 * factor for powers, factor in _TANH.argument.items()}


@fusion(
    lambda op, a, b: op.one_of("Mul", "Add")(a, b),
    pattern="GELU by erf",
    exclusive=False,
    anchors=("Erf",),
    tags=("onnxscript:erf-gelu", "onnxruntime:GeluFusion"),
)
def gelu(op: Builder, m: Match) -> Outcome:
    """x / 2 * (1 + Erf(x / sqrt(2))) → Gelu(x), in any order of products and sums."""
    return _gelu(op, m, _ERF)


@fusion(
    lambda op, a, b: op.one_of("Mul", "Add")(a, b),
    pattern="GELU by tanh",
    exclusive=False,
    anchors=("Tanh",),
    tags=("onnxscript:gelu", "onnxruntime:FastGeluFusion"),
)
def tanh_gelu(op: Builder, m: Match) -> Outcome:
    """x / 2 * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) → FastGelu(x), in any order."""
    return _gelu(op, m, _TANH)


def _gelu(op: Builder, m: Match, form: Form) -> Outcome:
    result = m.root.outputs[0]
    inside = list(polynomials.operands_within(result, m.graph, _LIMIT))
    function = next((value for value in inside if producer_of(value, form.function)), None)
    node = producer_of(function)
    if function is None or node is None or (argument := node.inputs[0]) is None:
        return m.no(f"{form.function} is not part of it")
    error = _CLOSE if m.dtype(result) in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else _CLOSE_IN_HALVES
    refusal = m.no(f"it is not x + x {form.function}(…) times a number", function)
    for x in inside:
        sum_ = None if x is function else polynomials.polynomial_of(result, x, function)
        factor = 0.0 if sum_ is None else sum_.get((1, 0), 0.0)
        if not factor or not polynomials.is_close(sum_, {(1, 0): factor, (1, 1): factor}, error):
            continue
        found, halved = polynomials.polynomial_of(argument, x), math.isclose(factor, 0.5, rel_tol=error)
        if polynomials.is_close(found, form.argument, error):
            if halved:
                return _fused_gelu(op, m, x, form)
            if any(reader.op_type == "QuantizeLinear" for reader in ir.readers(result)):
                return m.no("the product is rounded by QuantizeLinear before it is halved", function)
            reason = f"the product is scaled by {factor:g}, in a GELU by 0.5"
            return m.no(reason, function, hint=_MEND)
        if halved:  # does not apply if only x is halved
            is_not, should = polynomials.polynomial_text(found), polynomials.polynomial_text(form.argument)
            reason = f"the argument of {form.function} is {is_not}, in a GELU it is {should}"
            refusal = m.no(reason, argument, hint=_MEND)
    return refusal


def _read_outside(m: Match, x: ir.Value) -> ir.Value | None:
    """A value between ``x`` and the root that has a reader outside the pattern, if any."""
    inside, pending = {m.root: None}, [m.root]
    while pending:
        for value in pending.pop().inputs:
            node = (
                None if value is None or value is x or ir.constant_of(value) is not None else value.producer()
            )
            if node is not None and node not in inside:
                inside[node] = None
                pending.append(node)
    for node in list(inside)[1:]:
        for value in node.outputs:
            if value.is_graph_output() or any(reader not in inside for reader in ir.readers(value)):
                return value
    return None


def _fused_gelu(op: Builder, m: Match, x: ir.Value, form: Form) -> ir.Value:
    """The fused operator: the standard's from opset 20 on, otherwise onnxruntime's own.

    The values between ``x`` and the root must have no other readers.
    """
    if (outside := _read_outside(m, x)) is not None:
        m.refuse("a value inside is a graph output, or has other readers", outside, shared=True)
    require_shape_of(m, x)
    if m.rank(x) == 0:
        m.refuse("the kernel does not support scalars", x)
    standard = kernel_refusal(m, "Gelu", x, domain="", since=_SINCE)
    if standard is None:
        return op.fused(op.Gelu(x, approximate=form.approximate))
    if kernel_refusal(m, form.vendor, x) is not None:
        raise Refused(standard)
    return op.fused(op.node(form.vendor, [x], domain=ir.MICROSOFT))


@fusion(
    lambda op, x, y: op.Mul(x, op.Sigmoid(y)),
    anchors=("Sigmoid",),
    pattern="quick GELU, SiLU",
    tags=("onnxruntime:QuickGeluFusion",),
)
def quick_gelu(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """x * Sigmoid(a * x) → QuickGelu(x, alpha=a); SiLU (Swish) has a = 1."""
    factor = polynomials.polynomial_of(y, x)
    if factor is None or list(factor) != [(1,)]:
        return m.no("the argument of the sigmoid is not a multiple of the other factor", x)
    require_kernel(m, "QuickGelu", x)
    require_shape_of(m, x)
    return op.fused(op.node("QuickGelu", [x], {"alpha": factor[(1,)]}, domain=ir.MICROSOFT))


@fusion(lambda op, x, y: op.Mul(x, op.Sigmoid(y)), exclusive=False, anchors=(), pattern="GELU by tanh")
def sigmoid_gelu(op: Builder, m: Match, x: ir.Value, y: ir.Value) -> Outcome:
    """x * Sigmoid(2 * p(x)) → FastGelu(x), where x / 2 * (1 + Tanh(p(x))) is a GELU."""
    error = _CLOSE if m.dtype(x) in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else _CLOSE_IN_HALVES
    if not polynomials.is_close(polynomials.polynomial_of(y, x), _SIGMOID, error):
        return m.no(f"the argument of the sigmoid is not {polynomials.polynomial_text(_SIGMOID)}", y)
    return _fused_gelu(op, m, x, _TANH)
