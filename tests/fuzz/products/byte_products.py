"""Random products and convolutions of bytes: MatMulInteger, QLinearMatMul, dynamic quantization, QLinearConv, ConvInteger."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.products.epilogues import add_epilogue
from tests.fuzz.products.product_graph import Array, Dim, ProductGraph

_TYPES = (np.dtype(np.uint8), np.dtype(np.int8))
_SHARED = "com.microsoft"
_PRODUCTS = ("MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
_CONVOLUTIONS = ("QLinearConv", "ConvInteger")


def byte_products(g: ProductGraph) -> None:
    """One product or convolution. Ranges of numbers that are not finite are unspecified."""
    g.is_finite = True
    op = g.cycle(*_CONVOLUTIONS, *_PRODUCTS)
    (_convolution if op in _CONVOLUTIONS else _product)(g, op)


def _product(g: ProductGraph, op: str) -> None:
    depth, columns = g.pick(1, 2, 3, 4, 5, 31, 64, 100, 257), g.pick(1, 2, 15, 16, 17, 33, 64, 100)
    rows = g.pick(1, 2, 3, 7, 13, 17) if g.chance(0.5) else g.symbol(1, 4, 0, 17, 3)
    batch: list[Any] = [g.pick(1, 2) for _ in range(g.pick(0, 0, 1, 2))]
    kind, other = _types(g, op)
    dims = [*batch, rows, columns]
    a = g.input([*batch, rows, depth], np.float32 if op == "DynamicQuantizeMatMul" else kind)
    is_batched = bool(batch) and g.chance(0.3)
    b = _bytes(g, [*(batch if is_batched else []), depth, columns], other)
    count = () if is_batched or g.chance(0.5) else (columns,)
    a_zero, b_zero = g.constant(_zero(g, kind)), g.constant(_zero(g, other, *count))
    scales = [g.constant(_scale(g)), g.constant(_scale(g, *count))]
    bias = [g.weight(columns)] if g.chance(0.5) else []
    if op == "MatMulInteger":
        _integers(g, g.node(op, [a, b, a_zero, b_zero]), dims)
    elif op == "QLinearMatMul":
        result = [g.constant(_scale(g) * np.float32(depth)), g.constant(_zero(g, kind))]
        _quantized(g, g.node(op, [a, scales[0], a_zero, b, scales[1], b_zero, *result]), dims)
    elif op == "MatMulIntegerToFloat":
        inputs = [a, b, *scales, a_zero, b_zero, *bias]
        add_epilogue(g, g.node(op, inputs, domain=_SHARED), dims, channel=len(dims) - 1)
    else:
        inputs = [a, b, scales[1], b_zero, *bias]
        add_epilogue(g, g.tie(g.node(op, inputs, domain=_SHARED)), dims, channel=len(dims) - 1)


def _convolution(g: ProductGraph, op: str) -> None:
    kind, other = _types(g, op)
    terms, filters = g.pick(1, 2, 3, 4, 5, 8, 17), g.pick(1, 2, 5, 11, 12, 16, 49)
    group = g.pick(1, 1, 2, 3, 19)
    if group > 1:
        terms, filters = g.pick(1, 1, 2, 5), group * g.pick(1, 1, 2, 6)
    kernel = [g.pick(1, 1, 2, 3, 5), g.pick(1, 1, 2, 3, 5)]
    size = [g.pick(9, 13, 16, 33) if g.chance(0.5) else g.symbol(9, 17, 10, 40) for _ in range(2)]
    attributes: dict[str, Any] = {"strides": [g.pick(1, 1, 2, 3), g.pick(1, 1, 2)], "group": group}
    mode = g.pick("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    if mode == "NOTSET":
        attributes["pads"] = [int(g.random.integers(0, each)) for each in (*kernel, *kernel)]
    else:
        attributes["auto_pad"] = mode
    if not mode.startswith("SAME"):
        attributes["dilations"] = [g.pick(1, 1, 2), g.pick(1, 1, 2)]
    x = g.input([g.pick(1, 2), group * terms, *size], kind)
    weights = _bytes(g, [filters, terms, *kernel], other)
    x_zero, dims = g.constant(_zero(g, kind)), [None, filters, None, None]
    if op == "ConvInteger":
        product = g.node(op, [x, weights, x_zero, g.constant(_zero(g, other))], **attributes)
        _integers(g, product, dims)
        return
    count = (filters,) if g.chance(0.5) else ()
    zeros = np.broadcast_to(_zero(g, other), count)  # onnxruntime requires equal zero points
    inputs = [x, g.constant(_scale(g)), x_zero, weights, g.constant(_scale(g, *count)), g.constant(zeros)]
    spread = np.float32(terms * kernel[0] * kernel[1])
    inputs += [g.constant(_scale(g) * spread), g.constant(_zero(g, kind))]
    if g.chance(0.5):
        inputs.append(g.constant(g.random.integers(-50000, 50000, filters).astype(np.int32)))
    _quantized(g, g.node(op, inputs, **attributes), dims)


def _types(g: ProductGraph, op: str) -> tuple[np.dtype, np.dtype]:
    """Types of the operands that onnxruntime supports."""
    if op == "DynamicQuantizeMatMul":
        return _TYPES[0], g.pick(*_TYPES)
    if op in ("MatMulInteger",):
        return g.pick(*_TYPES), g.pick(*_TYPES)
    if op == "ConvInteger":
        return _TYPES[0], g.pick(*_TYPES)
    return g.pick((_TYPES[0], _TYPES[0]), (_TYPES[0], _TYPES[1]), (_TYPES[1], _TYPES[1]))


def _bytes(g: ProductGraph, shape: list[Any], dtype: np.dtype) -> str:
    """A constant, or an input."""
    limits = np.iinfo(dtype)
    if g.chance(0.7):
        return g.constant(g.random.integers(limits.min, limits.max + 1, shape).astype(dtype))
    return g.input(shape, dtype)


def _scale(g: ProductGraph, *shape: int) -> Array:
    return np.asarray(g.random.uniform(0.01, 0.1, shape), np.float32)


def _zero(g: ProductGraph, dtype: np.dtype, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    if g.chance(0.3):
        return np.full(shape, 128 if dtype == np.uint8 else 0, dtype)
    return np.asarray(g.random.integers(limits.min, limits.max + 1, shape), dtype)


def _integers(g: ProductGraph, product: str, dims: list[Dim]) -> None:
    """Outputs: the integers, or elementwise nodes of them."""
    if g.chance(0.4):
        g.output(product, TensorProto.INT32)
        return
    value = g.node("Mul", [g.node("Cast", [product], to=TensorProto.FLOAT), g.constant(_scale(g))])
    add_epilogue(g, value, dims, channel=len(dims) - 1 if dims[-1] else 1)


def _quantized(g: ProductGraph, product: str, dims: list[Dim]) -> None:
    """Outputs: elementwise nodes of the dequantized result."""
    value = g.node("DequantizeLinear", [g.tie(product), g.constant(_scale(g))])
    add_epilogue(g, value, dims, channel=len(dims) - 1 if dims[-1] else 1, most=2)
