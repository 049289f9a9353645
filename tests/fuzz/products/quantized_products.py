"""Random products of dequantized operands, with quantized results or without."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import Array, Dim, ProductGraph

_TYPES = (np.dtype(np.uint8), np.dtype(np.int8))


def quantized_products(g: ProductGraph) -> None:
    """A convolution, or one product, or two of the same dequantized operand.

    The template adds integers, and onnxruntime rounded floats: a quantized result may be the next number.
    """
    g.opset = g.pick(13, 19, 21)
    if g.cycle(False, True):
        _convolution(g)
    else:
        _products(g)


def _products(g: ProductGraph) -> None:
    depth, columns = (
        g.pick(1, 2, 3, 4, 5, 15, 16, 17, 64, 100, 255),
        g.pick(1, 2, 3, 15, 16, 17, 31, 33, 64, 100),
    )
    rows = g.pick(1, 2, 3, 4, 7, 16, 17) if g.chance(0.5) else g.symbol(1, 4, 0, 17, 3)
    batch: list[Any] = [
        g.pick(1, 2) if g.chance(0.5) else g.symbol(1, 3, 0, 2) for _ in range(g.pick(0, 0, 1, 2))
    ]
    if g.chance(0.75):
        dtype = g.pick(*_TYPES)
        parts = [g.input([*batch, rows, depth], dtype), g.constant(_scale(g)), g.constant(_zero(g, dtype))]
        left = g.node("DequantizeLinear", parts)
    else:
        left = g.input([*batch, rows, depth])
    for _ in range(1 if g.chance(0.8) else 2):
        right = _right(g, batch if batch and g.chance(0.3) else [], depth, columns)
        _results(g, g.node("MatMul", [left, right]), [*batch, rows, columns])


def _convolution(g: ProductGraph) -> None:
    dtypes = [g.pick(*_TYPES) for _ in range(2)]
    group = g.pick(1, 1, 1, 2, 19)
    terms, filters = g.pick(1, 2, 3, 8, 17, 65), g.pick(1, 2, 5, 12, 16, 49)
    if group > 1:
        terms, filters = g.pick(1, 1, 2, 5), group * g.pick(1, 1, 2, 6)
    kernel = [g.pick(1, 1, 2, 3, 5), g.pick(1, 1, 2, 3, 5)]
    size = [g.pick(9, 13, 16, 33) if g.chance(0.5) else g.symbol(9, 17, 10, 40) for _ in range(2)]
    attributes: dict[str, Any] = {"strides": [g.pick(1, 1, 2, 3), g.pick(1, 1, 2)], "group": group}
    attributes["pads"] = [int(g.random.integers(0, each)) for each in (*kernel, *kernel)]
    if g.chance(0.3):
        attributes["dilations"] = [g.pick(1, 2), g.pick(1, 2)]
    value = g.input([g.pick(1, 2), group * terms, *size], dtypes[0])
    inputs = [g.node("DequantizeLinear", [value, g.constant(_scale(g)), g.constant(_zero(g, dtypes[0]))])]
    limits, count = np.iinfo(dtypes[1]), (filters,) if g.chance(0.5) else ()
    numbers = g.random.integers(limits.min, limits.max + 1, (filters, terms, *kernel)).astype(dtypes[1])
    parts = [g.constant(numbers), g.constant(_scale(g, *count)), g.constant(_zero(g, dtypes[1], *count))]
    inputs.append(g.node("DequantizeLinear", parts, axis=0))
    bias = g.pick("", "integers", "floats")
    if bias == "integers":
        parts = [
            g.constant(g.random.integers(-50000, 50000, filters).astype(np.int32)),
            g.constant(_scale(g)),
        ]
        inputs.append(g.node("DequantizeLinear", parts))
    elif bias == "floats":
        inputs.append(g.weight(filters))
    result = g.node("Conv", inputs, **attributes)
    if g.chance(0.3):
        result = g.node("Relu", [result])
    elif g.chance(0.3):
        bounds = [g.constant(np.float32(each)) for each in (-g.random.random(), 10 * g.random.random())]
        result = g.node("Clip", [result, *bounds])
    _results(g, result, [None, filters, None, None])


def _scale(g: ProductGraph, *shape: int) -> Array:
    return np.asarray(g.random.uniform(0.001, 0.1, shape), np.float32)


def _zero(g: ProductGraph, dtype: np.dtype, *shape: int) -> Array:
    limits, kind = np.iinfo(dtype), g.random.random()
    if kind < 0.5:
        return np.full(shape, limits.min if kind < 0.3 else limits.max, dtype)
    return np.asarray(g.random.integers(limits.min, limits.max + 1, shape), dtype)


def _right(g: ProductGraph, batch: list[Any], depth: int, columns: int) -> str:
    """The dequantized right operand, constant or an input, with a scale or one for each column."""
    dtype = g.pick(*_TYPES)
    limits = np.iinfo(dtype)
    if all(isinstance(dim, int) for dim in batch) and g.chance(0.7):
        numbers = g.random.integers(limits.min, limits.max + 1, (*batch, depth, columns)).astype(dtype)
        value = g.constant(numbers)
    else:
        value = g.input([*batch, depth, columns], dtype)
    if g.chance(0.5):
        return g.node("DequantizeLinear", [value, g.constant(_scale(g)), g.constant(_zero(g, dtype))])
    parts = [value, g.constant(_scale(g, columns))]
    if dtype == np.uint8 or g.chance(0.7):
        parts.append(g.constant(_zero(g, dtype, columns)))
    return g.node("DequantizeLinear", parts, axis=len(batch) + 1)


def _results(g: ProductGraph, product: str, dims: list[Dim]) -> None:
    """Outputs: the quantized product, or elementwise nodes of it."""
    if g.chance(0.4):
        add_epilogue(g, product, dims, channel=len(dims) - 1 if dims[-1] else 1)
        return
    dtype = g.pick(*_TYPES)
    scale = np.asarray(g.random.uniform(0.001, 1), np.float32)
    value = g.tie(g.node("QuantizeLinear", [product, g.constant(scale), g.constant(_zero(g, dtype))]))
    if g.chance(0.5):
        g.output(value, helper.np_dtype_to_tensor_dtype(dtype))
        return
    value = g.node("DequantizeLinear", [value, g.constant(_scale(g)), g.constant(_zero(g, dtype))])
    add_epilogue(g, value, dims, channel=len(dims) - 1 if dims[-1] else 1, most=2)
