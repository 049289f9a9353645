"""Activations."""

from __future__ import annotations

import math

from graphopt.fusion.loops.builder import Expr, IRBuilder
from graphopt.fusion.operator_table import NUMBERS, EmitContext, operator, primitive

sigmoid = primitive("sigmoid", "Sigmoid")
tanh = primitive("tanh", "Tanh")


@operator("Relu", types=NUMBERS - {"UINT8"})
def relu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """max(0, x); x if both are zeros."""
    return b.op("max", 0, x)


@operator("LeakyRelu")
def leaky_relu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x ≥ 0 ? x : α·x."""
    return b.select(x >= 0.0, x, x * ctx.attribute("alpha", 0.01))


@operator("PRelu")
def prelu(b: IRBuilder, ctx: EmitContext, x: Expr, slope: Expr) -> Expr:
    """x < 0 ? slope·x : x."""
    return b.select(x < 0.0, x * slope, x)


@operator("ThresholdedRelu")
def thresholded_relu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x > α ? x : 0."""
    return b.select(x > ctx.attribute("alpha", 1.0), x, 0.0)


@operator("Elu")
def elu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x ≥ 0 ? x : α·(eˣ − 1)."""
    return b.select(x >= 0.0, x, ctx.attribute("alpha", 1.0) * (b.op("exp", x) - 1.0))


@operator("Celu")
def celu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """max(0, x) + min(0, α·(e^(x/α) − 1))."""
    alpha = ctx.attribute("alpha", 1.0)
    below = alpha * (b.op("exp", x / alpha) - 1.0)
    return b.op("max", x, 0.0) + b.op("min", below, 0.0)


@operator("Selu")
def selu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """γ·(x > 0 ? x : α·eˣ − α)."""
    alpha = ctx.attribute("alpha", 1.6732632423543772)
    gamma = ctx.attribute("gamma", 1.0507009873554805)
    return gamma * b.select(x > 0.0, x, alpha * b.op("exp", x) - alpha)


@operator("HardSigmoid")
def hard_sigmoid(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """min(max(α·x + β, 0), 1)."""
    return b.clamp(x * ctx.attribute("alpha", 0.2) + ctx.attribute("beta", 0.5), 0.0, 1.0)


@operator("HardSwish")
def hard_swish(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x · hardsigmoid(x) with α = 1/6 and β = 1/2."""
    return x * b.clamp(x * (1.0 / 6.0) + 0.5, 0.0, 1.0)


@operator("Softplus")
def softplus(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """log(1 + eˣ)."""
    return b.softplus(x)


@operator("Softsign")
def softsign(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x / (1 + |x|)."""
    return x / (b.op("abs", x) + 1.0)


@operator("Mish")
def mish(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x · tanh(softplus(x))."""
    return x * b.op("tanh", b.softplus(x))


@operator("Swish", "com.microsoft::QuickGelu")
def swish(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x · sigmoid(α·x); the default of α is 1.702 for QuickGelu, otherwise 1."""
    alpha = ctx.attribute("alpha", 1.702 if ctx.node.domain else 1.0)
    return x * b.op("sigmoid", x if alpha == 1.0 else x * alpha)


@operator("Gelu")
def gelu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x · Φ(x), exact or approximated by tanh."""
    return _by_tanh(b, x) if ctx.attribute("approximate", "none") == "tanh" else _by_erf(b, x)


@operator("com.microsoft::Gelu")
def contrib_gelu(b: IRBuilder, ctx: EmitContext, x: Expr) -> Expr:
    """x · Φ(x)."""
    return _by_erf(b, x)


@operator("com.microsoft::BiasGelu")
def bias_gelu(b: IRBuilder, ctx: EmitContext, x: Expr, bias: Expr) -> Expr:
    """(x + bias) · Φ(x + bias)."""
    return _by_erf(b, x + bias)


@operator("com.microsoft::FastGelu")
def fast_gelu(b: IRBuilder, ctx: EmitContext, x: Expr, bias: Expr | None = None) -> Expr:
    """x · Φ(x), approximated by tanh."""
    return _by_tanh(b, x if bias is None else x + bias)


def _by_erf(b: IRBuilder, x: Expr) -> Expr:
    return 0.5 * x * (b.op("erf", x * math.sqrt(0.5)) + 1.0)


def _by_tanh(b: IRBuilder, x: Expr) -> Expr:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (b.op("tanh", inner) + 1.0)
