"""Reductions and normalizations: reference computations, and additions to random graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.fuzz.kernels.arithmetic import Arithmetic, Array
from tests.fuzz.kernels.graph_builder import Grower, Value
from tests.fuzz.kernels.pointwise import RealTypes

Reduction = Callable[[Arithmetic, str, Array, Sequence[int]], Array]


def _exponents(a: Arithmetic, t: str, x: Array, axes: Sequence[int]) -> tuple[Array, Array, Array]:
    top = np.max(x, axis=tuple(axes), keepdims=True)
    shifted = a.settle(x - top, t)
    return a.function(np.exp(shifted), t), shifted, top


def softmax(a: Arithmetic, t: str, x: Array, axes: Sequence[int]) -> Array:
    powers, _, _ = _exponents(a, t, x, axes)
    return a.settle(powers / a.total(powers, axes, t), t)


def log_softmax(a: Arithmetic, t: str, x: Array, axes: Sequence[int]) -> Array:
    powers, shifted, _ = _exponents(a, t, x, axes)
    return a.settle(shifted - a.function(np.log(a.total(powers, axes, t)), t), t)


def log_sum_exp(a: Arithmetic, t: str, x: Array, axes: Sequence[int]) -> Array:
    powers, _, top = _exponents(a, t, x, axes)
    return a.settle(top + a.function(np.log(a.total(powers, axes, t)), t), t)


def standardized(a: Arithmetic, t: str, x: Array, axes: Sequence[int], epsilon: float) -> Array:
    centred = a.settle(x - a.mean(x, axes, t), t)
    variance = a.mean(a.settle(centred * centred, t), axes, t)
    return a.settle(centred * a.settle(1 / a.settle(np.sqrt(a.settle(variance + epsilon, t)), t), t), t)


def _squares(a: Arithmetic, t: str, x: Array, axes: Sequence[int]) -> Array:
    return a.total(a.settle(x * x, t), axes, t)


#: Reductions of floats; axes are nonnegative, and keep size 1.
REAL: dict[str, Reduction] = {
    "ReduceSum": lambda a, t, x, axes: a.total(x, axes, t),
    "ReduceMean": lambda a, t, x, axes: a.mean(x, axes, t),
    "ReduceMax": lambda a, t, x, axes: a.furthest(np.maximum, x, axes),
    "ReduceMin": lambda a, t, x, axes: a.furthest(np.minimum, x, axes),
    "ReduceProd": lambda a, t, x, axes: a.product(x, axes, t),
    "ReduceSumSquare": _squares,
    "ReduceL1": lambda a, t, x, axes: a.total(np.abs(x), axes, t),
    "ReduceL2": lambda a, t, x, axes: a.settle(np.sqrt(_squares(a, t, x, axes)), t),
    "ReduceLogSum": lambda a, t, x, axes: a.function(np.log(a.total(x, axes, t)), t),
    "ReduceLogSumExp": log_sum_exp,
}
WHOLE: dict[str, tuple[Callable[..., Array], tuple[str, ...]]] = {
    "ReduceSum": (np.sum, ("i32", "i64")),
    "ReduceMax": (np.max, ("i8", "u8", "i32", "i64")),
    "ReduceMin": (np.min, ("i8", "u8", "i32", "i64")),
    "ReduceProd": (np.prod, ("i32", "i64")),
}


def axes_of(g: Grower, rank: int) -> list[int]:
    """Random axes, preferably the last ones."""
    kind = g.random.random()
    if kind < 0.55 or rank == 1:
        return [rank - 1]
    if kind < 0.7:
        return list(range(g.random.randrange(rank), rank))
    if kind < 0.85:
        return [g.random.randrange(rank)]
    return sorted(g.random.sample(range(rank), g.random.randint(1, rank)))


def reduce(g: Grower) -> Value | None:
    x = g.some(lambda value: bool(value.dims) and value.dtype in (*RealTypes, "i32", "i64", "i8", "u8"))
    if x is None:
        return None
    dtype, rank = x.dtype, len(x.dims)
    kinds = (
        list(REAL) if dtype in RealTypes else [kind for kind, (_, types) in WHOLE.items() if dtype in types]
    )
    weights = [4 if kind in ("ReduceSum", "ReduceMean", "ReduceMax") else 1 for kind in kinds]
    kind = g.random.choices(kinds, weights)[0]
    axes, keep = axes_of(g, rank), g.random.random() < 0.7
    dims = tuple(1 if axis in axes else dim for axis, dim in enumerate(x.dims) if keep or axis not in axes)

    def compute(a: Arithmetic, v: Array, *_: Array) -> Array:
        if dtype in RealTypes:
            found = REAL[kind](a, dtype, v, axes)
        else:
            found = WHOLE[kind][0](v, axis=tuple(axes), keepdims=True).astype(v.dtype)
        return found if keep else np.squeeze(found, tuple(axes))

    told = [axis - rank if g.random.random() < 0.5 else axis for axis in axes]
    if kind == "ReduceSum" or g.opset >= 18:
        return g.op(kind, [x, g.ints(*told)], dtype, dims, compute, keepdims=int(keep))
    return g.op(kind, [x], dtype, dims, compute, keepdims=int(keep), axes=told)


def norm(g: Grower) -> Value | None:
    """Softmax, LogSoftmax and normalizations."""
    x = g.some(lambda value: bool(value.dims) and value.dtype in RealTypes)
    if x is None:
        return None
    dtype, rank = x.dtype, len(x.dims)
    kind = g.random.choice(
        [
            "Softmax",
            "Softmax",
            "LogSoftmax",
            "LayerNormalization",
            "InstanceNormalization",
            "BatchNormalization",
        ]
    )
    if kind.endswith("oftmax"):
        axis = g.random.choice([rank - 1, rank - 1, g.random.randrange(rank)])
        function = softmax if kind == "Softmax" else log_softmax
        return g.op(kind, [x], dtype, x.dims, lambda a, v: function(a, dtype, v, [axis]), axis=axis)
    if kind == "LayerNormalization":
        return layer(g, x)
    channels = x.dims[1] if rank > 2 else None
    if kind == "BatchNormalization" and dtype == "f32" and isinstance(channels, int):
        return batch(g, x, channels)
    return instance(g, x, channels) if isinstance(channels, int) else None


def instance(g: Grower, x: Value, channels: int) -> Value:
    """InstanceNormalization."""
    dtype, rank = x.dtype, len(x.dims)
    scale, bias = (g.constant([g.random.gauss(1, 0.5) for _ in range(channels)], dtype) for _ in "sb")

    def compute(a: Arithmetic, v: Array, s: Array, b: Array) -> Array:
        found = standardized(a, dtype, v, range(2, rank), 1e-5)
        spread = (channels, *([1] * (rank - 2)))
        return a.settle(a.settle(found * s.reshape(spread), dtype) + b.reshape(spread), dtype)

    return g.op("InstanceNormalization", [x, scale, bias], dtype, x.dims, compute)


def batch(g: Grower, x: Value, channels: int) -> Value:
    """BatchNormalization by given statistics."""
    scale, bias, mean = (
        g.constant([g.random.gauss(center, 0.5) for _ in range(channels)], "f32") for center in (1, 0, 0)
    )
    variance = g.constant([g.random.uniform(0.5, 2) for _ in range(channels)], "f32")

    def compute(a: Arithmetic, v: Array, s: Array, b: Array, m: Array, w: Array) -> Array:
        root = a.settle(np.sqrt(a.settle(w + 1e-5, "f32")), "f32")
        factor = a.settle(s / root, "f32")
        shift = a.settle(b - a.settle(m * factor, "f32"), "f32")
        spread = (channels, *([1] * (len(x.dims) - 2)))
        return a.settle(a.settle(v * factor.reshape(spread), "f32") + shift.reshape(spread), "f32")

    return g.op("BatchNormalization", [x, scale, bias, mean, variance], "f32", x.dims, compute)


def layer(g: Grower, x: Value) -> Value | None:
    """LayerNormalization, if the trailing dims are static."""
    dtype, rank = x.dtype, len(x.dims)
    axis = rank - 1 if g.random.random() < 0.8 else g.random.randrange(rank)
    tail = x.dims[axis:]
    if not all(isinstance(dim, int) for dim in tail):
        return None
    shape = [int(dim) for dim in tail]
    draw = np.random.default_rng(g.random.randrange(1000))
    inputs = [x, g.constant(draw.normal(1, 0.3, shape), dtype)]
    if g.random.random() < 0.7:
        inputs.append(g.constant(draw.normal(0, 0.3, shape), dtype))
    epsilon = g.random.choice([1e-5, 1e-3])

    def compute(a: Arithmetic, v: Array, s: Array, b: Array | None = None) -> Array:
        found = a.settle(standardized(a, dtype, v, range(axis, rank), epsilon) * s, dtype)
        return found if b is None else a.settle(found + b, dtype)

    return g.op("LayerNormalization", inputs, dtype, x.dims, compute, axis=axis, epsilon=epsilon)


def root_mean_square(a: Arithmetic, t: str, x: Array, weight: Array, epsilon: float = 1e-5) -> Array:
    """RMSNormalization over the last axis."""
    mean = a.mean(a.settle(x * x, t), [x.ndim - 1], t)
    root = a.settle(np.sqrt(a.settle(mean + epsilon, t)), t)
    return a.settle(a.settle(x / root, t) * weight, t)
