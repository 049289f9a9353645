"""Random transposed convolutions of one to three axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import Dim, ProductGraph

#: Largest size of the axes of signals, images and volumes.
_LARGEST = {1: 120, 2: 20, 3: 6}


def transposed_convolutions(g: ProductGraph) -> None:
    """A transposed convolution.

    Batches are not empty, for which onnxruntime may crash. Weights are finite: kernels multiply them with padding.
    """
    rank = g.pick(1, 2, 2, 2, 3)
    groups = g.pick(1, 1, 1, 2, 3, 9)
    inner, filters = g.pick(1, 2, 3, 7, 16, 33), g.pick(1, 2, 4, 5, 9, 17)
    kernel = [g.pick(1, 2, 2, 3, 4, 5) for _ in range(rank)]
    strides = [g.pick(1, 2, 2, 3, 4) for _ in range(rank)]
    dilations = [g.pick(1, 1, 1, 2, 3) for _ in range(rank)]
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations}
    if g.chance(0.5):
        attributes["pads"] = [int(g.random.integers(0, size)) for size in kernel * 2]
    if g.chance(0.3):
        attributes["output_padding"] = [int(g.random.integers(0, step)) for step in strides]
    pads = attributes.get("pads", [0] * 2 * rank)
    space = [_size(g, rank, pads[axis] + pads[rank + axis]) for axis in range(rank)]
    batch = g.pick(1, 2, 3) if g.chance(0.5) else g.symbol(1, 2, 5, 3, 4)
    scale = float(1 / np.sqrt(inner * np.prod(kernel)))
    weights = g.weight(groups * inner, filters, *kernel, scale=scale, may_be_special=False)
    operands = [g.input([batch, groups * inner, *space]), weights]
    if g.chance(0.6):
        operands.append(g.weight(groups * filters))
    result = g.node("ConvTranspose", operands, **attributes)
    dims: list[Dim] = [batch, groups * filters, *[None] * rank]
    add_epilogue(g, result, dims, channel=1)


def _size(g: ProductGraph, rank: int, cropped: int) -> int | str:
    """A size, or a symbol of sizes, for which the result is not empty."""
    least = cropped + 1
    sizes = [g.pick(least, least + int(g.random.integers(_LARGEST[rank])), least + 15) for _ in range(5)]
    return sizes[0] if g.chance(0.5) else g.symbol(*sizes)
