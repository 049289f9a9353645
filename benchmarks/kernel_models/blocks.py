"""Chains in the form of torch's exporters, shared by patterns and networks."""

from __future__ import annotations

import numpy as np

from benchmarks.kernel_models.graph import Graph


def gelu_tanh(g: Graph, x: str) -> str:
    """``F.gelu(x, approximate="tanh")``."""
    cube = g.op("Mul", g.op("Mul", x, x), x)
    inner = g.op("Add", x, g.op("Mul", cube, g.number(0.044715)))
    inner = g.op("Mul", inner, g.number(np.sqrt(2 / np.pi)))
    factor = g.op("Add", g.op("Tanh", inner), g.number(1.0))
    return g.op("Mul", g.op("Mul", x, g.number(0.5)), factor)


def gelu_erf(g: Graph, x: str) -> str:
    """``F.gelu(x)``."""
    inner = g.op("Erf", g.op("Div", x, g.number(np.sqrt(2))))
    return g.op("Mul", g.op("Mul", x, g.op("Add", inner, g.number(1.0))), g.number(0.5))


def silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def rms_norm(g: Graph, x: str, weight: str) -> str:
    """As in Llama: x / sqrt(mean(x²) + ε), times the weights."""
    mean = g.op("ReduceMean", g.op("Pow", x, g.number(2.0)), g.ints(-1), keepdims=1)
    root = g.op("Sqrt", g.op("Add", mean, g.number(1e-6)))
    return g.op("Mul", weight, g.op("Mul", x, g.op("Reciprocal", root)))


def group_norm(g: Graph, x: str, channels: int, groups: int) -> str:
    """``nn.GroupNorm``: a normalization of groups as instances, then a factor and a summand a channel."""
    shape = g.op("Shape", x)
    parts = g.op("Reshape", x, g.ints(0, groups, -1))
    ones, zeros = g.constant(np.ones(groups, np.float32)), g.constant(np.zeros(groups, np.float32))
    normal = g.op("InstanceNormalization", parts, ones, zeros, epsilon=1e-5)
    back = g.op("Reshape", normal, shape)
    return g.op("Add", g.op("Mul", back, g.near_one(channels, 1, 1)), g.weight(channels, 1, 1, scale=0.1))


def rotate(g: Graph, x: str, cos: str, sin: str, half: int) -> str:
    """Rotary positions of x [B, H, S, 2 * half]: x * cos + concat(-right, left) * sin."""
    left = g.op("Slice", x, g.ints(0), g.ints(half), g.ints(3), g.ints(1))
    right = g.op("Slice", x, g.ints(half), g.ints(2**63 - 1), g.ints(3), g.ints(1))
    turned = g.op("Concat", g.op("Neg", right), left, axis=-1)
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))
