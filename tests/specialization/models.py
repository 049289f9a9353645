"""Small models that benefit from specialization."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphopt import ir
from graphopt.profile import Profile, ValueProfile
from tests.model_testing import parse

#: Adds numbers that depend on the length of x to a product, and applies one of two operators to the sum.
_POSITIONS = """<ir_version: IR, opset_import: ["" : OPSET]>
g (float[B, N, 4] x, int64 mode) => (float[B, N, 4] y, int64[3] sizes)
<float[4, 4] w = {WEIGHT}, int64 one = {1}, int64 zero = {0}, int64[1] axis = {0}, int64[1] last = {1}, float half = {0.5},
 int64 two = {2}> {
    sizes = Shape(x)
    n = Gather(sizes, one)
    positions = Range(zero, n, one)
    row = Unsqueeze(positions, axis)
    column = Unsqueeze(positions, last)
    hidden = Greater(row, column)
    far = Cast <to = 1>(hidden)
    near = Mul(far, half)
    total = ReduceSum <keepdims = 0>(near, axis)
    vector = Unsqueeze(total, last)
    d = Div(vector, half)
    e = Exp(d)
    s = Sqrt(e)
    m = MatMul(x, w)
    a = Add(m, s)
    fast = Equal(mode, two)
    y = If (fast) <
        then_branch = t () => (float[B, N, 4] p) { p = Tanh(a) },
        else_branch = e () => (float[B, N, 4] q) { q0 = Sigmoid(a) q1 = Mul(q0, q0) q = Neg(q1) }
    >
}"""


def positions(*, opset: int = 17, ir_version: int = 8) -> ir.Model:
    """A model whose shape computations fold for a known length, and whose If folds for a known ``mode``."""
    weight = np.random.default_rng(0).standard_normal(16).round(3)
    text = _POSITIONS.replace("WEIGHT", ", ".join(map(str, weight)))
    return parse(text.replace("OPSET", str(opset)).replace("IR", str(ir_version)))


def profile_of(model: ir.Model, *runs: Mapping[str, np.ndarray]) -> Profile:
    """A profile of these runs, with given integer contents."""
    types = {np.dtype(np.float32): "tensor(float)", np.dtype(np.int64): "tensor(int64)"}
    profile = Profile(ir.fingerprint(model, names=True))
    for feeds in runs:
        profile = profile.with_run(
            {
                name: ValueProfile(
                    types[array.dtype],
                    array.shape,
                    tuple(array.ravel().tolist()) if array.dtype == np.int64 and array.size <= 4 else None,
                )
                for name, array in feeds.items()
            }
        )
    return profile


def feeds_of(batch: int, length: int, mode: int = 2) -> dict[str, np.ndarray]:
    """Inputs of :func:`positions`."""
    data = np.random.default_rng(batch * 100 + length).standard_normal((batch, length, 4))
    return {"x": data.astype(np.float32), "mode": np.array(mode, np.int64)}
