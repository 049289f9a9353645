"""Element-wise operators of one operand, in terms of the operand x or, if shorter, the result y.

A branch of a Where may overflow at elements that the condition does not select. The operands of such a branch
are clamped, so that second derivatives stay finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphopt import ir
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, Gradient, gradient, non_differentiable

constant_pieces = non_differentiable(
    "Ceil", "Floor", "Round", "Sign", "Hardmax", reason="it is piecewise constant"
)

bits = non_differentiable("BitCast", reason="it reinterprets bits")


def _formula(
    op_type: str, formula: str, dx: Callable[[GraphBuilder, ir.Value, ir.Value, ir.Value], ir.Value]
) -> Gradient:
    """The rule of an operator without attributes: ``dx(builder, x, y, dy)`` writes ``formula``."""

    def rule(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
        return dx(op, node.x, node.y, dy)

    rule.__doc__ = formula
    return gradient(op_type)(rule)


identity = _formula("Identity", "dy.", lambda op, x, y, dy: dy)
neg = _formula("Neg", "-dy.", lambda op, x, y, dy: op.Neg(dy))
abs_ = _formula("Abs", "sign(x) dy.", lambda op, x, y, dy: op.Mul(dy, op.Sign(x)))
reciprocal = _formula("Reciprocal", "-y² dy.", lambda op, x, y, dy: op.Neg(op.Mul(dy, op.Mul(y, y))))
exp = _formula("Exp", "y dy.", lambda op, x, y, dy: op.Mul(dy, y))
log = _formula("Log", "dy / x.", lambda op, x, y, dy: op.Div(dy, x))
sqrt = _formula("Sqrt", "dy / 2y.", lambda op, x, y, dy: op.Div(op.Mul(dy, 0.5), y))
sin = _formula("Sin", "cos(x) dy.", lambda op, x, y, dy: op.Mul(dy, op.Cos(x)))
cos = _formula("Cos", "-sin(x) dy.", lambda op, x, y, dy: op.Neg(op.Mul(dy, op.Sin(x))))
tan = _formula("Tan", "(1 + y²) dy.", lambda op, x, y, dy: op.Mul(dy, op.Add(op.Mul(y, y), 1.0)))
asin = _formula("Asin", "dy / √(1 - x²).", lambda op, x, y, dy: op.Div(dy, op.Sqrt(_one_minus_square(op, x))))
acos = _formula(
    "Acos", "-dy / √(1 - x²).", lambda op, x, y, dy: op.Neg(op.Div(dy, op.Sqrt(_one_minus_square(op, x))))
)
atan = _formula("Atan", "dy / (1 + x²).", lambda op, x, y, dy: op.Div(dy, op.Add(op.Mul(x, x), 1.0)))
sinh = _formula(
    "Sinh",
    "(eˣ + e⁻ˣ)/2 dy: onnxruntime implements Cosh only in float32.",
    lambda op, x, y, dy: op.Mul(dy, op.Mul(op.Add(op.Exp(x), op.Exp(op.Neg(x))), 0.5)),
)
cosh = _formula(
    "Cosh",
    "(eˣ - e⁻ˣ)/2 dy: onnxruntime implements Sinh only in float32.",
    lambda op, x, y, dy: op.Mul(dy, op.Mul(op.Sub(op.Exp(x), op.Exp(op.Neg(x))), 0.5)),
)
tanh = _formula("Tanh", "(1 - y²) dy.", lambda op, x, y, dy: op.Mul(dy, _one_minus_square(op, y)))
asinh = _formula(
    "Asinh", "dy / √(x² + 1).", lambda op, x, y, dy: op.Div(dy, op.Sqrt(op.Add(op.Mul(x, x), 1.0)))
)
acosh = _formula(
    "Acosh", "dy / √(x² - 1).", lambda op, x, y, dy: op.Div(dy, op.Sqrt(op.Sub(op.Mul(x, x), 1.0)))
)
atanh = _formula("Atanh", "dy / (1 - x²).", lambda op, x, y, dy: op.Div(dy, _one_minus_square(op, x)))
# the constant is last, so that it folds with the constant of x = u / √2 in GELUs
erf = _formula(
    "Erf",
    "2/√π exp(-x²) dy.",
    lambda op, x, y, dy: op.Mul(op.Mul(dy, op.Exp(op.Neg(op.Mul(x, x)))), 2 / math.sqrt(math.pi)),
)
sigmoid = _formula("Sigmoid", "y (1 - y) dy.", lambda op, x, y, dy: op.Mul(dy, op.Mul(y, op.Sub(1.0, y))))
softplus = _formula("Softplus", "sigmoid(x) dy.", lambda op, x, y, dy: op.Mul(dy, op.Sigmoid(x)))
relu = _formula("Relu", "dy where y > 0.", lambda op, x, y, dy: op.only_where(op.Greater(y, 0.0), dy))


@gradient("Cast", "CastLike")
def cast(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy in the type of x."""
    return op.cast_like(dy, node.x)


@gradient("Gelu")
def gelu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(Φ(x) + x φ(x)) dy, or the derivative of the tanh approximation."""
    x = node.x
    if node.attribute("approximate", "none") == "tanh":
        # t = tanh(u), u = c (x + 0.044715 x³); y' = (1 + t)/2 + x (1 - t²) u' / 2
        c = math.sqrt(2 / math.pi)
        square = op.Mul(x, x)
        t = op.Tanh(op.Mul(x, op.Add(op.Mul(square, 0.044715 * c), c)))
        slope = op.Add(op.Mul(square, 3 * 0.044715 * c), c)
        curved = op.Mul(op.Mul(x, _one_minus_square(op, t)), slope)
        return op.Mul(dy, op.Mul(op.Add(op.Add(t, 1.0), curved), 0.5))
    cdf = op.Mul(op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0), 0.5)
    density = op.Mul(op.Exp(op.Mul(op.Mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return op.Mul(dy, op.Add(cdf, op.Mul(x, density)))


@gradient("HardSigmoid")
def hard_sigmoid(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """alpha dy where 0 < y < 1."""
    inside = op.And(op.Greater(node.y, 0.0), op.Less(node.y, 1.0))
    return op.only_where(inside, op.Mul(dy, node.number("alpha")))


@gradient("HardSwish")
def hard_swish(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """0 for x ≤ -3, dy for x ≥ 3, otherwise (x/3 + 1/2) dy."""
    x = node.x
    slope = op.Where(op.Less(x, 3.0), op.Add(op.Mul(x, 1 / 3), 0.5), op.number(1.0, x))
    return op.only_where(op.Greater(x, -3.0), op.Mul(dy, slope))


@gradient("Swish")
def swish(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(s + alpha y (1 - s)) dy with s = sigmoid(alpha x)."""
    alpha = node.number("alpha")
    s = op.Sigmoid(node.x if alpha == 1 else op.Mul(node.x, alpha))
    rest = op.Mul(node.y, op.Sub(1.0, s))
    return op.Mul(dy, op.Add(s, rest if alpha == 1 else op.Mul(rest, alpha)))


@gradient("Mish")
def mish(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(t + x (1 - t²) sigmoid(x)) dy with t = tanh(softplus(x))."""
    x = node.x
    t = op.Tanh(op.Softplus(x))
    curved = op.Mul(op.Mul(x, _one_minus_square(op, t)), op.Sigmoid(x))
    return op.Mul(dy, op.Add(t, curved))


@gradient("Softsign")
def softsign(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy / (1 + |x|)²."""
    base = op.Add(op.Abs(node.x), 1.0)
    return op.Div(dy, op.Mul(base, base))


@gradient("ThresholdedRelu")
def thresholded_relu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy where x > alpha."""
    alpha = node.number("alpha")
    return op.only_where(op.Greater(node.y, 0.0) if alpha >= 0 else op.Greater(node.x, alpha), dy)


@gradient("LeakyRelu")
def leaky_relu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """alpha dy for x < 0, otherwise dy."""
    alpha = node.number("alpha")
    return op.Where(op.Less(_value_with_sign_of_x(node, alpha), 0.0), op.Mul(dy, alpha), dy)


@gradient("Elu")
def elu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(y + alpha) dy for x < 0, otherwise dy."""
    alpha = node.number("alpha")
    return op.Where(op.Less(_value_with_sign_of_x(node, alpha), 0.0), op.Mul(dy, op.Add(node.y, alpha)), dy)


@gradient("Selu")
def selu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(y + gamma alpha) dy for x < 0, otherwise gamma dy."""
    alpha, gamma = node.number("alpha"), node.number("gamma")
    slope = op.Where(op.Less(node.x, 0.0), op.Add(node.y, gamma * alpha), op.number(gamma, node.x))
    return op.Mul(dy, slope)


@gradient("Celu")
def celu(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """exp(x / alpha) dy = (y / alpha + 1) dy for x < 0, otherwise dy."""
    slope = op.Add(op.Mul(node.y, 1 / node.number("alpha")), 1.0)
    return op.Where(op.Less(node.x, 0.0), op.Mul(dy, slope), dy)


@gradient("Shrink")
def shrink(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy where |x| > lambd."""
    return op.only_where(op.Greater(op.Abs(node.x), node.number("lambd")), dy)


@gradient("Clip")
def clip(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy where low ≤ x ≤ high; Σ dy where x < low; Σ dy where x > high."""
    x, low, high = node.x, node.optional(1), node.optional(2)
    within = [op.GreaterOrEqual(x, low)] if low is not None else []
    within += [op.LessOrEqual(x, high)] if high is not None else []
    if not within:
        return dy
    dx = op.only_where(within[0] if len(within) == 1 else op.And(*within), dy)
    return dx, _to_low(op, node, dy), _to_high(op, node, dy)


def _to_low(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> ir.Value | None:
    if not node.needs_grad(1):
        return None
    low, high = node.input(1), node.optional(2)
    hit = op.Less(node.x, low)
    if high is not None:  # the high bound wins if low > high
        hit = op.And(hit, op.LessOrEqual(low, high))
    return op.reduce_to(op.only_where(hit, dy), low, node.y)


def _to_high(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> ir.Value | None:
    if not node.needs_grad(2):
        return None
    low, high = node.optional(1), node.input(2)
    hit = op.Greater(node.x, high)
    if low is not None:
        hit = op.Or(hit, op.Greater(low, high))
    return op.reduce_to(op.only_where(hit, dy), high, node.y)


@gradient("Dropout")
def dropout(op: GraphBuilder, node: PrimalNode, dy: ir.Value, dmask: ir.Value | None = None) -> Cotangents:
    """dy; in training mode, dy / (1 - ratio) where the mask keeps x."""
    mode = node.optional(2)
    if mode is None:
        return dy
    training = node.constant(2)
    if training is not None and not bool(training.reshape(())):
        return dy
    ratio = node.optional(1)
    if node.needs_grad(1):
        raise node.refusal("its random mask depends on the ratio")
    rate = op.Sub(1.0, op.cast_like(ratio, dy)) if ratio is not None else op.number(0.5, dy)
    kept = op.only_where(node.output(1), op.Div(dy, rate))
    return kept if training is not None else op.Where(mode, kept, dy)


def _one_minus_square(op: GraphBuilder, value: ir.Value) -> ir.Value:
    return op.Sub(1.0, op.Mul(value, value))


def _value_with_sign_of_x(node: PrimalNode, alpha: float) -> ir.Value:
    """y if ``alpha`` > 0, otherwise x: a value with the sign of x; y is more likely to be saved."""
    return node.y if alpha > 0 else node.x
