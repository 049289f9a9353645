"""Random MatMulNBits."""

from __future__ import annotations

import numpy as np

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import ProductGraph


def low_bits(g: ProductGraph) -> None:
    """A product with weights of 4 or 8 bits, now and then two of the same operand."""
    depth, block = g.pick(1, 15, 16, 17, 32, 48, 100, 130, 256, 300), g.pick(16, 32, 64, 128, 256)
    level = g.pick(0, 1, 4)
    if level == 4:
        # Blocks of the operand are rounded to 1/127 of their maximum, at ties in either direction; the result of
        # numbers that are not finite is unspecified.
        g.is_finite, g.precision = True, 2.0**-6
    batch = [g.pick(1, 2, 3) if g.chance(0.5) else g.symbol(1, 2, 0, 5, 17) for _ in range(g.pick(0, 1, 2))]
    rows = g.pick(1, 2, 3, 4, 5, 16, 17, 33) if g.chance(0.5) else g.symbol(1, 3, 16, 33, 7)
    x = g.input([*batch, rows, depth])
    for _ in range(1 if g.chance(0.8) else 2):
        columns = g.pick(1, 2, 5, 16, 31, 32, 33, 64, 100)
        value = _product(g, x, depth, columns, block, level)
        add_epilogue(g, value, [*batch, rows, columns], channel=len(batch) + 1)


def _product(g: ProductGraph, x: str, depth: int, columns: int, block: int, level: int) -> str:
    bits, blocks = g.pick(4, 4, 8), -(-depth // block)
    packed = g.random.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8)
    if g.chance(0.2):
        packed[:] = g.pick(0, 255)
    scales = g.normal(columns, blocks, scale=0.05)
    if g.chance(0.2):
        scales[int(g.random.integers(columns))] = 0
    is_flat = g.chance(0.5)
    operands = [x, g.constant(packed), g.constant(scales.reshape(-1) if is_flat else scales), "", "", ""]
    if g.chance(0.5):
        zeros = g.random.integers(0, 256, (columns, -(-blocks * bits // 8)), np.uint8)
        if g.chance(0.3):
            zeros[:] = g.pick(0, 255)
        operands[3] = g.constant(zeros.reshape(-1) if is_flat else zeros)
    if g.chance(0.4):
        operands[5] = g.constant(g.normal(columns))
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    return g.node("MatMulNBits", operands, domain="com.microsoft", **attributes)
