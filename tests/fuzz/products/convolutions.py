"""Random convolutions of one to three axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import Dim, ProductGraph
from tests.fuzz.products.transposed_convolutions import transposed_convolutions

#: Largest size of the axes of signals, images and volumes.
_LARGEST = {1: 300, 2: 40, 3: 12}
#: Activations of FusedConv, and their parameters.
_ACTIVATIONS: dict[str, list[float]] = {
    "": [],
    "Relu": [],
    "Sigmoid": [],
    "Tanh": [],
    "LeakyRelu": [0.1],
    "HardSigmoid": [0.2, 0.5],
    "Clip": [-1.0, 1.5],
}


def convolutions(g: ProductGraph) -> None:
    """A convolution, now and then transposed, or with a second one of the same operands or of the result."""
    op = g.cycle("Conv", "ConvTranspose", "Conv", "FusedConv", "Conv")
    if op == "ConvTranspose":
        transposed_convolutions(g)
        return
    rank = g.pick(1, 2, 2, 2, 3)
    groups, inner, filters = _channels(g)
    kernel = [g.pick(1, 1, 2, 3, 3, 3, 4, 5, 7) for _ in range(rank)]
    attributes, keeps_size = _attributes(g, kernel)
    if groups > 1:
        attributes["group"] = groups
    space = [_size(g, rank, axis, kernel, attributes) for axis in range(rank)]
    batch = g.pick(1, 2, 3) if g.chance(0.5) else g.symbol(1, 2, 5, 0, 3)
    scale = float(1 / np.sqrt(inner * np.prod(kernel)))
    # By groups, kernels skip padding, and onnxruntime may multiply it with infinite weights.
    weights = g.weight(groups * filters, inner, *kernel, scale=scale, may_be_special=groups == 1)
    operands = [g.input([batch, groups * inner, *space]), weights]
    if g.chance(0.6):
        operands.append(g.weight(groups * filters))
    dims: list[Dim] = [batch, groups * filters, *(space if keeps_size else [None] * rank)]
    if op == "FusedConv":
        result = _fused(g, operands, dims, attributes)
    else:
        result = g.node(op, operands, **attributes)
    result = add_epilogue(g, result, dims, channel=1)
    second = g.random.random()
    if second < 0.15:
        g.output(g.node("Neg", [g.node("Conv", operands, **attributes)]))
    elif second < 0.3 and g.nodes[-1].op_type != "Transpose" and "Transpose" not in _operators(g):
        weights = g.weight(g.pick(1, 5, 16), groups * filters, *[1] * rank)
        g.output(g.node("Relu", [g.node("Conv", [result, weights])]))


def _fused(g: ProductGraph, operands: list[str], dims: list[Dim], attributes: dict[str, Any]) -> str:
    """A FusedConv with an activation, and an addend if the shape of the result is known."""
    name = g.pick(*_ACTIVATIONS)
    more: dict[str, Any] = {"activation": name} if name else {}
    if _ACTIVATIONS[name]:
        more["activation_params"] = _ACTIVATIONS[name]
    known = [dim for dim in dims if dim is not None]
    inputs = [*operands, *[""] * (3 - len(operands))]
    if len(known) == len(dims) and g.chance(0.7):
        inputs.append(g.input(known))
    return g.node("FusedConv", inputs, domain="com.microsoft", **attributes, **more)


def _operators(g: ProductGraph) -> list[str]:
    return [node.op_type for node in g.nodes]


def _channels(g: ProductGraph) -> tuple[int, int, int]:
    """Groups, input channels of each, and filters of each."""
    if g.chance(0.12):  # depthwise
        return int(g.random.integers(2, 20)), 1, g.pick(1, 2)
    groups = g.pick(1, 1, 1, 2, 3)
    inner, filters = g.pick(1, 2, 3, 7, 16, 17, 32), g.pick(1, 2, 4, 5, 16, 17, 33, 40)
    return (groups, inner, filters) if groups == 1 else (groups, min(inner, 8), min(filters, 17))


def _attributes(g: ProductGraph, kernel: list[int]) -> tuple[dict[str, Any], bool]:
    """Attributes, and whether the result has the size of the operand."""
    rank = len(kernel)
    if g.chance(0.35):  # as in most networks
        kernel[:] = [size | 1 for size in kernel]
        return {"pads": [size // 2 for size in kernel] * 2}, True
    plain = g.chance(0.3)
    strides = [1 if plain else g.pick(1, 1, 2, 3, 4) for _ in kernel]
    dilations = [1 if plain else g.pick(1, 1, 2, 3) for _ in kernel]
    mode = "NOTSET" if plain else g.pick("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "")
    found: dict[str, Any] = {"auto_pad": mode} if mode else {}
    if mode.startswith("SAME"):
        dilations = [1] * rank
    if mode in ("NOTSET", ""):
        found["pads"] = [int(g.random.integers(0, size + 2)) for size in kernel * 2]
    if g.chance(0.8) or max(strides) > 1:
        found["strides"] = strides
    if max(dilations) > 1:
        found["dilations"] = dilations
    if g.chance(0.5):
        found["kernel_shape"] = list(kernel)
    return found, False


def _size(g: ProductGraph, rank: int, axis: int, kernel: list[int], attributes: dict[str, Any]) -> int | str:
    """A size, or a symbol of sizes, for which the result is not empty."""
    extent = (kernel[axis] - 1) * attributes.get("dilations", [1] * rank)[axis] + 1
    least = max(1, extent - sum(attributes.get("pads", [0] * 2 * rank)[axis::rank]))
    largest = _LARGEST[rank]
    sizes = [
        max(least, g.pick(least, least + 1, least + int(g.random.integers(largest)), 1, 8, 15, 16, 17, 33))
        for _ in range(5)
    ]
    return sizes[0] if g.chance(0.5) else g.symbol(*sizes)
