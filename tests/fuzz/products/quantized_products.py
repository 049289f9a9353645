"""Random products of dequantized operands, with quantized results or without."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import Array, Dim, ProductGraph

_TYPES = (np.dtype(np.uint8), np.dtype(np.int8))


def quantized_products(g: ProductGraph) -> None:
    """A convolution, a Gemm, or one product, or two of the same dequantized operand.

    The template adds integers, and onnxruntime rounded floats: a quantized result may be the next number.
    """
    g.opset = g.pick(13, 19, 21)
    g.cycle(_convolution, _gemm, _products)(g)


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
    inputs = _operands(g, [g.pick(1, 2), group * terms, *size], [filters, terms, *kernel], 0)
    _results(g, _bounded(g, g.node("Conv", inputs, **attributes)), [None, filters, None, None])


def _gemm(g: ProductGraph) -> None:
    depth, columns = g.pick(1, 2, 3, 5, 17, 64, 255, 300), g.pick(2, 3, 16, 31, 33, 100)
    rows = g.pick(1, 2, 7, 16, 17) if g.chance(0.5) else g.symbol(1, 4, 0, 17, 3)
    transposes = g.pick(0, 1)
    inputs = _operands(g, [rows, depth], [columns, depth] if transposes else [depth, columns], 1 - transposes)
    _results(g, _bounded(g, g.node("Gemm", inputs, transB=transposes)), [rows, columns])


def _operands(g: ProductGraph, dims: list[Any], shape: list[int], axis: int) -> list[str]:
    """A dequantized input and weights, and perhaps a bias; ``axis`` of the weights is that of results.

    A bias of integers has the scale of products, which onnxruntime assumes.
    """
    dtypes, count = [g.pick(*_TYPES) for _ in range(2)], shape[axis]
    each = (count,) if g.chance(0.5) else ()
    scales, limits = [_scale(g), _scale(g, *each)], np.iinfo(dtypes[1])
    parts = [g.input(dims, dtypes[0]), g.constant(scales[0]), g.constant(_zero(g, dtypes[0]))]
    inputs = [g.node("DequantizeLinear", parts)]
    numbers = g.random.integers(limits.min, limits.max + 1, shape).astype(dtypes[1])
    parts = [g.constant(numbers), g.constant(scales[1]), g.constant(_zero(g, dtypes[1], *each))]
    inputs.append(g.node("DequantizeLinear", parts, axis=axis))
    bias = g.pick("", "integers", "floats")
    if bias == "integers":
        numbers = g.random.integers(-50000, 50000, count).astype(np.int32)
        parts = [g.constant(numbers), g.constant(scales[0] * scales[1])]
        inputs.append(g.node("DequantizeLinear", parts, axis=0))
    elif bias == "floats":
        inputs.append(g.weight(count))
    return inputs


def _bounded(g: ProductGraph, value: str) -> str:
    if g.chance(0.3):
        return g.node("Relu", [value])
    if g.chance(0.3):
        bounds = [g.constant(np.float32(each)) for each in (-1 - g.random.random(), 10 * g.random.random())]
        return g.node("Clip", [value, *bounds])
    return value


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
