"""Activations."""

from __future__ import annotations

import math

from graphopt.fusion.loops.builder import Body, Term
from graphopt.fusion.operator_table import NUMBERS, At, operator, primitive

sigmoid = primitive("sigmoid", "Sigmoid")
tanh = primitive("tanh", "Tanh")


@operator("Relu", types=NUMBERS - {"UINT8"})
def relu(b: Body, at: At, x: Term) -> Term:
    """max(0, x): of two zeros it is x."""
    return b.op("max", 0, x)


@operator("LeakyRelu")
def leaky_relu(b: Body, at: At, x: Term) -> Term:
    """x, or α·x below 0."""
    return b.select(x >= 0.0, x, x * at.attribute("alpha", 0.01))


@operator("PRelu")
def prelu(b: Body, at: At, x: Term, slope: Term) -> Term:
    """x, or slope·x below 0."""
    return b.select(x < 0.0, x * slope, x)


@operator("ThresholdedRelu")
def thresholded_relu(b: Body, at: At, x: Term) -> Term:
    """x above α, else 0."""
    return b.select(x > at.attribute("alpha", 1.0), x, 0.0)


@operator("Elu")
def elu(b: Body, at: At, x: Term) -> Term:
    """x, or α·(eˣ − 1) below 0."""
    return b.select(x >= 0.0, x, at.attribute("alpha", 1.0) * (b.op("exp", x) - 1.0))


@operator("Celu")
def celu(b: Body, at: At, x: Term) -> Term:
    """max(0, x) + min(0, α·(e^(x/α) − 1))."""
    alpha = at.attribute("alpha", 1.0)
    below = alpha * (b.op("exp", x / alpha) - 1.0)
    return b.op("max", x, 0.0) + b.op("min", below, 0.0)


@operator("Selu")
def selu(b: Body, at: At, x: Term) -> Term:
    """γ·x, or γ·(α·eˣ − α) below 0."""
    alpha = at.attribute("alpha", 1.6732632423543772)
    gamma = at.attribute("gamma", 1.0507009873554805)
    return gamma * b.select(x > 0.0, x, alpha * b.op("exp", x) - alpha)


@operator("HardSigmoid")
def hard_sigmoid(b: Body, at: At, x: Term) -> Term:
    """α·x + β between 0 and 1."""
    return b.clamp(x * at.attribute("alpha", 0.2) + at.attribute("beta", 0.5), 0.0, 1.0)


@operator("HardSwish")
def hard_swish(b: Body, at: At, x: Term) -> Term:
    """x · hardsigmoid(x) with α = 1/6 and β = 1/2."""
    return x * b.clamp(x * (1.0 / 6.0) + 0.5, 0.0, 1.0)


@operator("Softplus")
def softplus(b: Body, at: At, x: Term) -> Term:
    """log(1 + eˣ)."""
    return b.softplus(x)


@operator("Softsign")
def softsign(b: Body, at: At, x: Term) -> Term:
    """x / (1 + |x|)."""
    return x / (b.op("abs", x) + 1.0)


@operator("Mish")
def mish(b: Body, at: At, x: Term) -> Term:
    """x · tanh(softplus(x))."""
    return x * b.op("tanh", b.softplus(x))


@operator("Swish", "com.microsoft::QuickGelu")
def swish(b: Body, at: At, x: Term) -> Term:
    """x · sigmoid(α·x); α of QuickGelu is 1.702 unless told."""
    alpha = at.attribute("alpha", 1.702 if at.node.domain else 1.0)
    return x * b.op("sigmoid", x if alpha == 1.0 else x * alpha)


@operator("Gelu")
def gelu(b: Body, at: At, x: Term) -> Term:
    """x · Φ(x), or its approximation by tanh."""
    return _by_tanh(b, x) if at.attribute("approximate", "none") == "tanh" else _by_erf(b, x)


@operator("com.microsoft::Gelu")
def contrib_gelu(b: Body, at: At, x: Term) -> Term:
    """x · Φ(x)."""
    return _by_erf(b, x)


@operator("com.microsoft::BiasGelu")
def bias_gelu(b: Body, at: At, x: Term, bias: Term) -> Term:
    """(x + bias) · Φ(x + bias)."""
    return _by_erf(b, x + bias)


@operator("com.microsoft::FastGelu")
def fast_gelu(b: Body, at: At, x: Term, bias: Term | None = None) -> Term:
    """x · Φ(x), approximated by tanh."""
    return _by_tanh(b, x if bias is None else x + bias)


def _by_erf(b: Body, x: Term) -> Term:
    return 0.5 * x * (b.op("erf", x * math.sqrt(0.5)) + 1.0)


def _by_tanh(b: Body, x: Term) -> Term:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (b.op("tanh", inner) + 1.0)
