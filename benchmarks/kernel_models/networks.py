"""Networks with memory-bound chains, and some with few such chains, which must not become slower."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from benchmarks.kernel_models import blocks, processing
from benchmarks.kernel_models.graph import Example, Graph

F32 = np.float32


def _conv(g: Graph, x: str, inward: int, outward: int, kernel: int, stride: int = 1, group: int = 1) -> str:
    pads = [kernel // 2] * 4
    weight = g.weight(outward, inward // group, kernel, kernel)
    bias = g.weight(outward, scale=0.1)
    return g.op(
        "Conv", x, weight, bias, pads=pads, strides=[stride] * 2, kernel_shape=[kernel] * 2, group=group
    )


def _classes(g: Graph, x: str, width: int, classes: int = 100) -> None:
    flat = g.op("Flatten", g.op("GlobalAveragePool", x))
    g.output(g.op("Gemm", flat, g.weight(width, classes), g.weight(classes)), "logits", F32, ("N", classes))


def _image(size: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(1).standard_normal((1, 3, size, size), F32)}


def depthwise(size: int = 128, widths: tuple[int, ...] = (32, 64, 128), depth: int = 2) -> Example:
    """depthwise convolutions, GroupNorm, SiLU, as in MobileNet"""
    g = Graph()
    x = g.input("image", F32, "N", 3, size, size)
    x, inward = _conv(g, x, 3, widths[0], 3, 2), widths[0]
    for width in widths:
        for index in range(depth):
            inner = 4 * inward
            y = blocks.silu(g, blocks.group_norm(g, _conv(g, x, inward, inner, 1), inner, 8))
            stride = 2 if index == 0 else 1
            y = _conv(g, y, inner, inner, 3, stride, inner)
            y = blocks.silu(g, blocks.group_norm(g, y, inner, 8))
            y = blocks.group_norm(g, _conv(g, y, inner, width, 1), width, 8)
            x = g.op("Add", x, y) if index else y
            inward = width
    _classes(g, x, inward)
    return Example(depthwise.__doc__ or "", g.model(), _image(size))


def cnn(size: int = 64, widths: tuple[int, ...] = (32, 64, 128)) -> Example:
    """residual CNN, its BatchNormalizations folded"""
    g = Graph()
    x = g.input("image", F32, "N", 3, size, size)
    x, inward = g.op("Relu", _conv(g, x, 3, widths[0], 3)), widths[0]
    for width in widths:
        x, inward = g.op("Relu", _conv(g, x, inward, width, 3, 2)), width
        y = _conv(g, g.op("Relu", _conv(g, x, width, width, 3)), width, width, 3)
        x = g.op("Relu", g.op("Add", x, y))
    _classes(g, x, inward)
    return Example(cnn.__doc__ or "", g.model(), _image(size))


def _linear(g: Graph, x: str, inward: int, outward: int, bias: bool = True) -> str:
    product = g.op("MatMul", x, g.weight(inward, outward))
    return g.op("Add", g.weight(outward, scale=0.1), product) if bias else product


def _heads(g: Graph, x: str, heads: int, width: int) -> str:
    split = g.op("Reshape", x, g.ints(0, 0, heads, width // heads))
    return g.op("Transpose", split, perm=[0, 2, 1, 3])


def _attention(g: Graph, q: str, k: str, v: str, mask: str, width: int, heads: int) -> str:
    turned = g.op("Transpose", k, perm=[0, 1, 3, 2])
    scores = g.op("Mul", g.op("MatMul", q, turned), g.number((width // heads) ** -0.5))
    weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
    joined = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    return g.op("Reshape", joined, g.ints(0, 0, width))


def _positions(g: Graph, ids: str) -> str:
    length = g.op("Gather", g.op("Shape", ids), g.constant(np.int64(1)), axis=0)
    return g.op("Range", g.constant(np.int64(0)), length, g.constant(np.int64(1)))


def _angles(g: Graph, places: str, head: int) -> tuple[str, str]:
    """Cosine and sine of the angles of rotary positions, [1, 1, S, head]."""
    column = g.op("Unsqueeze", g.op("Cast", places, to=TensorProto.FLOAT), g.ints(0, 2))
    inverse = (10000.0 ** (-np.arange(0, head, 2) / head)).astype(F32).reshape(1, 1, -1)
    angles = g.op("MatMul", column, g.constant(inverse))
    both = g.op("Unsqueeze", g.op("Concat", angles, angles, axis=-1), g.ints(1))
    return g.op("Cos", both), g.op("Sin", both)


def llama(
    width: int = 256, layers: int = 4, heads: int = 8, hidden: int = 704, words: int = 1000, length: int = 128
) -> Example:
    """small Llama: RMSNorm, rotary positions, masked attention, SwiGLU"""
    g = Graph()
    ids = g.input("input_ids", np.int64, "batch", "sequence")
    shown = g.input("attention_mask", np.int64, "batch", "sequence")
    x = g.op("Gather", g.weight(words, width, scale=1), ids)
    places = _positions(g, ids)
    cos, sin = _angles(g, places, width // heads)
    queries, keys = g.op("Unsqueeze", places, g.ints(1)), g.op("Unsqueeze", places, g.ints(0))
    causal = g.op("Unsqueeze", g.op("LessOrEqual", keys, queries), g.ints(0, 1))
    present = g.op("Unsqueeze", g.op("Cast", shown, to=TensorProto.BOOL), g.ints(1, 2))
    allowed = g.op("And", causal, present)
    mask = g.op("Where", allowed, g.number(0.0), g.number(float(np.finfo(F32).min)))
    for _ in range(layers):
        normal = blocks.rms_norm(g, x, g.near_one(width))
        q, k, v = (_heads(g, _linear(g, normal, width, width, False), heads, width) for _ in range(3))
        half = width // heads // 2
        q, k = (blocks.rotate(g, part, cos, sin, half) for part in (q, k))
        mixed = _linear(g, _attention(g, q, k, v, mask, width, heads), width, width, False)
        x = g.op("Add", x, mixed)
        normal = blocks.rms_norm(g, x, g.near_one(width))
        gate = blocks.silu(g, _linear(g, normal, width, hidden, False))
        inner = g.op("Mul", gate, _linear(g, normal, width, hidden, False))
        x = g.op("Add", x, _linear(g, inner, hidden, width, False))
    x = blocks.rms_norm(g, x, g.near_one(width))
    g.output(_linear(g, x, width, words, False), "logits", F32, ("batch", "sequence", words))
    return Example(llama.__doc__ or "", g.model(), _tokens(words, length))


def bert(
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    hidden: int = 1024,
    words: int = 1000,
    length: int = 128,
) -> Example:
    """encoder like BERT: LayerNorm, masked attention, GELU"""
    g = Graph()
    ids = g.input("input_ids", np.int64, "batch", "sequence")
    shown = g.input("attention_mask", np.int64, "batch", "sequence")
    where = g.op("Gather", g.weight(512, width, scale=1), _positions(g, ids))
    x = g.op("Add", g.op("Gather", g.weight(words, width, scale=1), ids), where)
    present = g.op("Cast", g.op("Unsqueeze", shown, g.ints(1, 2)), to=TensorProto.FLOAT)
    mask = g.op("Mul", g.op("Sub", g.number(1.0), present), g.number(float(np.finfo(F32).min)))

    def norm(x: str) -> str:
        return g.op("LayerNormalization", x, g.near_one(width), g.weight(width, scale=0.1), epsilon=1e-12)

    x = norm(x)
    for _ in range(layers):
        q, k, v = (_heads(g, _linear(g, x, width, width), heads, width) for _ in range(3))
        mixed = _linear(g, _attention(g, q, k, v, mask, width, heads), width, width)
        x = norm(g.op("Add", mixed, x))
        inner = blocks.gelu_erf(g, _linear(g, x, width, hidden))
        x = norm(g.op("Add", _linear(g, inner, hidden, width), x))
    g.output(x, "hidden", F32, ("batch", "sequence", width))
    return Example(bert.__doc__ or "", g.model(), _tokens(words, length))


def _tokens(words: int, length: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(1).integers(0, words, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones((1, length), np.int64)}


NETWORKS: dict[str, Callable[[], Example]] = {
    made.__name__: made
    for made in (
        processing.image_input,
        processing.detector_output,
        processing.log_mel,
        processing.losses,
        depthwise,
        llama,
        bert,
        cnn,
    )
}
