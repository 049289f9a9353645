"""A model with compiled groups."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.context import context_for
from graphopt.passes.pipelines import make_pipeline
from tests.model_testing import parse

TEXT = """g (float[N,C] x, float[C] b, uint8[N,C] u, float16[N,C] h) =>
    (float[N,C] gated, float[N,C] soft, float[N,C] pixels, float16[N,C] half, int64[N,C] counted)
    <float scale = {0.0078125}, float one = {1.0}, float zero = {0.0}, int64 three = {3}> {
    s = Sigmoid(x)
    m = Mul(x, s)
    gated = Add(m, b)
    a = Abs(x)
    soft = Softmax <axis = -1> (a)
    f = Cast <to = 1> (u)
    g1 = Mul(f, scale)
    g2 = Sub(g1, one)
    pixels = Max(g2, zero)
    h1 = Tanh(h)
    half = Mul(h1, h1)
    i = Cast <to = 7> (u)
    j = Mul(i, three)
    counted = Add(j, i)
}"""


def fused() -> tuple[ir.Model, ir.Model]:
    """The model without and with groups."""
    model = parse(TEXT)
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    return parse(TEXT), model


def feeds(rows: int, columns: int) -> dict[str, np.ndarray]:
    """Inputs, some of them not finite."""
    random = np.random.default_rng(rows * 1000 + columns)
    x = random.normal(0, 4, (rows, columns)).astype(np.float32)
    x.flat[::17] = np.inf
    x.flat[5::29] = np.nan
    return {
        "x": x,
        "b": random.normal(0, 1, columns).astype(np.float32),
        "u": random.integers(0, 256, (rows, columns), np.uint8),
        "h": random.normal(0, 2, (rows, columns)).astype(np.float16),
    }
