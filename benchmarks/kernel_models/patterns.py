"""Memory-bound chains, by the bytes of their main tensor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from benchmarks.kernel_models import blocks
from benchmarks.kernel_models.graph import Example, Feeds, Graph

_WIDTH = 1024
F32, U8, BOOL = np.float32, np.uint8, np.bool_
ROWS: tuple[int | str, ...] = ("rows", _WIDTH)


def _normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _rows(size: int) -> int:
    return size // (4 * _WIDTH)


def gate(size: int) -> Example:
    """x * sigmoid(x) * y + z"""
    g = Graph()
    x, y, z = (g.input(name, F32, *ROWS) for name in "xyz")
    g.output(g.op("Add", g.op("Mul", blocks.silu(g, x), y), z), "out", F32, ROWS)
    feeds = {name: _normal(_rows(size), _WIDTH, seed=seed) for seed, name in enumerate("xyz")}
    return Example(gate.__doc__ or "", g.model(), feeds)


def bias_gelu_tanh(size: int) -> Example:
    """bias, then GELU (tanh)"""
    g = Graph()
    x = g.op("Add", g.input("x", F32, *ROWS), g.weight(_WIDTH, scale=1))
    g.output(blocks.gelu_tanh(g, x), "out", F32, ROWS)
    return Example(bias_gelu_tanh.__doc__ or "", g.model(), {"x": _normal(_rows(size), _WIDTH)})


def bias_gelu_erf(size: int) -> Example:
    """bias, then GELU (erf)"""
    g = Graph()
    x = g.op("Add", g.input("x", F32, *ROWS), g.weight(_WIDTH, scale=1))
    g.output(blocks.gelu_erf(g, x), "out", F32, ROWS)
    return Example(bias_gelu_erf.__doc__ or "", g.model(), {"x": _normal(_rows(size), _WIDTH)})


def rms_norm(size: int) -> Example:
    """RMSNorm, unfused"""
    g = Graph()
    g.output(blocks.rms_norm(g, g.input("x", F32, *ROWS), g.near_one(_WIDTH)), "out", F32, ROWS)
    return Example(rms_norm.__doc__ or "", g.model(), {"x": _normal(_rows(size), _WIDTH)})


def ada_ln(size: int) -> Example:
    """LayerNorm * (1 + scale) + shift"""
    g = Graph()
    x = g.input("x", F32, "batch", "rows", _WIDTH)
    scale, shift = (g.input(name, F32, "batch", 1, _WIDTH) for name in ("scale", "shift"))
    ones, zeros = g.constant(np.ones(_WIDTH, F32)), g.constant(np.zeros(_WIDTH, F32))
    normal = g.op("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-6)
    scaled = g.op("Mul", normal, g.op("Add", scale, g.number(1.0)))
    g.output(g.op("Add", scaled, shift), "out", F32, ("batch", "rows", _WIDTH))
    feeds = {
        "x": _normal(2, _rows(size) // 2, _WIDTH),
        "scale": _normal(2, 1, _WIDTH, seed=2),
        "shift": _normal(2, 1, _WIDTH, seed=3),
    }
    return Example(ada_ln.__doc__ or "", g.model(), feeds)


def add_rms_norm(size: int) -> Example:
    """residual Add and RMSNorm, both returned"""
    g = Graph()
    total = g.op("Add", g.input("x", F32, *ROWS), g.input("residual", F32, *ROWS))
    g.output(blocks.rms_norm(g, total, g.near_one(_WIDTH)), "out", F32, ROWS)
    g.output(total, "total", F32, ROWS)
    feeds = {"x": _normal(_rows(size), _WIDTH), "residual": _normal(_rows(size), _WIDTH, seed=2)}
    return Example(add_rms_norm.__doc__ or "", g.model(), feeds)


def masked_softmax(size: int) -> Example:
    """scale, mask, softmax of attention scores"""
    g, heads, keys = Graph(), 8, 256
    scores = g.input("scores", F32, "batch", heads, "queries", "keys")
    mask = g.input("mask", F32, "batch", 1, "queries", "keys")
    scaled = g.op("Add", g.op("Mul", scores, g.number(0.125)), mask)
    g.output(g.op("Softmax", scaled, axis=-1), "out", F32, ("batch", heads, "queries", "keys"))
    queries = size // (4 * heads * keys)
    hidden = np.random.default_rng(2).random((1, 1, queries, keys)) < 0.3
    feeds = {
        "scores": _normal(1, heads, queries, keys),
        "mask": np.where(hidden, F32(np.finfo(F32).min), F32(0)),
    }
    return Example(masked_softmax.__doc__ or "", g.model(), feeds)


def rotary(size: int) -> Example:
    """rotary positions, half and half"""
    g, heads, width = Graph(), 8, 64
    x = g.input("x", F32, "batch", heads, "positions", width)
    cos, sin = (g.input(name, F32, "batch", 1, "positions", width) for name in ("cos", "sin"))
    g.output(blocks.rotate(g, x, cos, sin, width // 2), "out", F32, ("batch", heads, "positions", width))
    positions = size // (4 * heads * width)
    angles = _normal(1, 1, positions, width, seed=2)
    feeds = {"x": _normal(1, heads, positions, width), "cos": np.cos(angles), "sin": np.sin(angles)}
    return Example(rotary.__doc__ or "", g.model(), feeds)


def byte_chain(size: int) -> Example:
    """u8 cast, clip, where, back to u8"""
    g = Graph()
    x = g.input("x", U8, "rows", _WIDTH)
    wide = g.op("Cast", x, to=TensorProto.FLOAT)
    moved = g.op("Add", g.op("Mul", wide, g.number(1.7)), g.number(-40.0))
    clipped = g.op("Clip", moved, g.number(0.0), g.number(255.0))
    chosen = g.op("Where", g.op("Greater", wide, g.number(30.0)), clipped, g.number(0.0))
    g.output(g.op("Cast", chosen, to=TensorProto.UINT8), "out", U8, ("rows", _WIDTH))
    x_ = np.random.default_rng(1).integers(0, 256, (size // _WIDTH, _WIDTH)).astype(U8)
    return Example(byte_chain.__doc__ or "", g.model(), {"x": x_})


def image(size: int) -> Example:
    """u8 NHWC to normalized f32 NCHW"""
    g = Graph()
    pixels = g.op("Cast", g.input("pixels", U8, "N", "H", "W", 3), to=TensorProto.FLOAT)
    turned = g.op("Transpose", g.op("Div", pixels, g.number(255.0)), perm=[0, 3, 1, 2])
    mean = g.constant(np.array([0.485, 0.456, 0.406], F32).reshape(1, 3, 1, 1))
    deviation = g.constant(np.array([0.229, 0.224, 0.225], F32).reshape(1, 3, 1, 1))
    g.output(g.op("Div", g.op("Sub", turned, mean), deviation), "out", F32, ("N", 3, "H", "W"))
    width = 256
    height = size // (4 * 3 * width)
    drawn = np.random.default_rng(1).integers(0, 256, (1, height, width, 3))
    return Example(image.__doc__ or "", g.model(), {"pixels": drawn.astype(U8)})


def int_chain(size: int, dtype: type[np.generic] = np.int32) -> Example:
    """clip, where and comparisons of int32"""
    g = Graph()
    x, y = (g.input(name, dtype, *ROWS) for name in "xy")
    low, high, zero, seven = (g.constant(dtype(value)) for value in (-1000, 1000, 0, 7))
    moved = g.op("Add", g.op("Mul", x, seven), y)
    clipped = g.op("Clip", moved, low, high)
    keep = g.op("And", g.op("Greater", y, zero), g.op("Less", x, high))
    chosen = g.op("Where", keep, clipped, g.op("Sub", zero, y))
    g.output(chosen, "out", dtype, ROWS)
    rows = size // (np.dtype(dtype).itemsize * _WIDTH)
    random = np.random.default_rng(1)
    feeds: Feeds = {name: random.integers(-2000, 2000, (rows, _WIDTH)).astype(dtype) for name in "xy"}
    return Example(int_chain.__doc__ or "", g.model(), feeds)


def long_chain(size: int) -> Example:
    """the same of int64"""
    made = int_chain(size, np.int64)
    return Example(long_chain.__doc__ or "", made.model, made.feeds)


PATTERNS: dict[str, Callable[[int], Example]] = {
    made.__name__: made
    for made in (
        gate,
        bias_gelu_tanh,
        bias_gelu_erf,
        rms_norm,
        ada_ln,
        add_rms_norm,
        masked_softmax,
        rotary,
        byte_chain,
        image,
        int_chain,
        long_chain,
    )
}
