"""Random pointwise convolutions after a concatenation, a normalization, factors and addends, and Relu."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import ProductGraph


def pointwise_convolutions(g: ProductGraph) -> None:
    """A convolution with a kernel of one element, and some of the operators before it."""
    rank, filters = g.pick(1, 2, 2, 3), g.pick(1, 4, 5, 16, 17, 40)
    parts = [g.pick(1, 2, 3, 7, 16, 17) for _ in range(g.pick(1, 1, 2, 3))]
    channels = sum(parts)
    space: list[Any] = [
        g.pick(1, 7, 16, 17, 33) if g.chance(0.5) else g.symbol(1, 5, 16, 17, 9) for _ in range(rank)
    ]
    batch = g.pick(1, 2, 3) if g.chance(0.5) else g.symbol(1, 2, 0, 3)
    inputs = [g.input([batch, part, *space]) for part in parts]
    value = inputs[0] if len(inputs) == 1 else g.node("Concat", inputs, axis=g.pick(1, -1 - rank))
    if g.chance(0.1):
        g.output(value)
    value = _normalized(g, value, channels, rank)
    operands = [value, g.weight(filters, channels, *[1] * rank, scale=float(1 / np.sqrt(channels)))]
    if g.chance(0.6):
        operands.append(g.weight(filters))
    add_epilogue(g, g.node("Conv", operands), [batch, filters, *space], channel=1)


def _normalized(g: ProductGraph, value: str, channels: int, rank: int) -> str:
    is_normalized = g.chance(0.6)
    if is_normalized:
        vectors = [g.constant(g.normal(channels)) for _ in range(3)]
        variance = g.constant(np.abs(g.normal(channels)) + np.float32(0.1))
        value = g.node("BatchNormalization", [value, *vectors, variance], epsilon=g.pick(1e-5, 1e-3))
    for op in ("Mul", "Add"):
        if g.chance(0.5):
            shape = (*([1] if g.chance(0.3) else []), channels, *[1] * rank)
            # The kernel joins a factor with the normalization: the sum of two infinities may be NaN.
            vector = g.weight(*shape, may_be_special=op == "Add" or not is_normalized)
            value = g.node(op, [value, vector] if g.chance(0.7) else [vector, value])
    return g.node("Relu", [value]) if g.chance(0.6) else value
