"""Elementwise operators: reference computations, and additions to random graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.kernels.arithmetic import DTYPES, FLOATS, INTS, Arithmetic, Array
from tests.fuzz.kernels.graph_builder import Grower, Value, broadcast

#: An elementwise computation, given the arithmetic, the type, and the operands.
Element = Callable[..., Array]
RealTypes = ("f32", "f16")

_erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(a: Arithmetic, t: str, x: Array) -> Array:
    return a.function(np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))), t)


def erf(a: Arithmetic, t: str, x: Array) -> Array:
    return a.function(np.where(np.isnan(x), np.nan, _erf(np.nan_to_num(x))), t) if x.size else x


def gelu(a: Arithmetic, t: str, x: Array) -> Array:
    inner = a.settle(erf(a, t, a.settle(x * math.sqrt(0.5), t)) + 1, t)
    return a.settle(x * inner * 0.5, t)


def gelu_tanh(a: Arithmetic, t: str, x: Array) -> Array:
    cube = a.settle(x * x * x, t)
    inner = a.settle(math.sqrt(2 / math.pi) * a.settle(x + 0.044715 * cube, t), t)
    return a.settle(x * a.settle(a.function(np.tanh(inner), t) + 1, t) * 0.5, t)


def softplus(a: Arithmetic, t: str, x: Array) -> Array:
    small = a.function(np.log1p(a.function(np.exp(-np.abs(x)), t)), t)
    return a.settle(np.maximum(x, 0) + small, t)


def exponential(a: Arithmetic, t: str, x: Array, alpha: float, gamma: float = 1.0) -> Array:
    below = a.settle(alpha * a.settle(a.function(np.exp(np.minimum(x, 0)), t) - 1, t), t)
    return a.settle(gamma * np.where(x > 0, x, np.where(np.isnan(x), x, below)), t)


def hard_sigmoid(a: Arithmetic, t: str, x: Array, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return np.clip(a.settle(a.settle(alpha * x, t) + beta, t), 0, 1)


def mish(a: Arithmetic, t: str, x: Array) -> Array:
    return a.settle(x * a.function(np.tanh(softplus(a, t, x)), t), t)


def quantized(a: Arithmetic, x: Array, scale: Array, zero: Array | None = None, *, dtype: str) -> Array:
    """QuantizeLinear along axis 1 with onnxruntime's result for NaN, the lowest integer."""
    limits = np.iinfo(DTYPES[dtype])
    quotient = a.settle(x / _along_axis_1(scale, x), "f32")
    offset = 0 if zero is None else _along_axis_1(zero, x).astype(np.float64)
    found = np.clip(np.rint(quotient) + offset, limits.min, limits.max)
    return np.where(np.isnan(found), limits.min, found).astype(DTYPES[dtype])


def dequantized(a: Arithmetic, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """DequantizeLinear along axis 1."""
    offset = 0 if zero is None else _along_axis_1(zero, x).astype(np.int64)
    return a.settle((x.astype(np.int64) - offset) * _along_axis_1(scale, x), "f32")


def _along_axis_1(parameter: Array, x: Array) -> Array:
    return parameter.reshape(-1, *([1] * (x.ndim - 2))) if parameter.size > 1 else parameter.reshape(())


def _basic(function: Callable[[Array], Array]) -> Element:
    return lambda a, t, x: a.settle(function(x), t)


def _function(function: Callable[[Array], Array]) -> Element:
    return lambda a, t, x: a.function(function(x), t)


#: By operator: the computation, the first opset with the operator, and attributes to choose from.
REAL: dict[str, tuple[Element, int, tuple[dict[str, Any], ...]]] = {
    "Neg": (_basic(np.negative), 13, ({},)),
    "Abs": (_basic(np.abs), 13, ({},)),
    "Sqrt": (_basic(np.sqrt), 13, ({},)),
    "Exp": (_function(np.exp), 13, ({},)),
    "Log": (_function(np.log), 13, ({},)),
    "Tanh": (_function(np.tanh), 13, ({},)),
    "Sigmoid": (sigmoid, 13, ({},)),
    "Erf": (erf, 13, ({},)),
    "Sin": (_function(np.sin), 7, ({},)),
    "Cos": (_function(np.cos), 7, ({},)),
    "Floor": (_basic(np.floor), 13, ({},)),
    "Ceil": (_basic(np.ceil), 13, ({},)),
    "Round": (_basic(np.rint), 11, ({},)),
    # for NaN: NaN in single and 0 in half precision, like in onnxruntime
    "Sign": (
        lambda a, t, x: a.settle(np.where(np.isnan(x) & (t != "f32"), 0.0, np.sign(x)), t), 13, ({},),
    ),
    "Reciprocal": (_basic(lambda x: 1 / x), 13, ({},)),
    "Relu": (lambda a, t, x: a.extreme(np.maximum, x, np.zeros_like(x)), 14, ({},)),
    "LeakyRelu": (
        lambda a, t, x, alpha=0.01: a.settle(np.where(x < 0, alpha * x, x), t), 16, ({}, {"alpha": 0.25}),
    ),
    "ThresholdedRelu": (
        lambda a, t, x, alpha=1.0: a.settle(np.where(x > alpha, x, 0.0), t), 10, ({}, {"alpha": 0.5}),
    ),
    "Elu": (lambda a, t, x, alpha=1.0: exponential(a, t, x, alpha), 6, ({}, {"alpha": 0.5})),
    "Selu": (lambda a, t, x: exponential(a, t, x, 1.6732632, 1.050701), 6, ({},)),
    "HardSigmoid": (hard_sigmoid, 6, ({}, {"alpha": 0.25, "beta": 0.375})),
    "HardSwish": (lambda a, t, x: a.settle(x * hard_sigmoid(a, t, x, 1 / 6, 0.5), t), 14, ({},)),
    "Softplus": (softplus, 1, ({},)),
    "Softsign": (lambda a, t, x: a.settle(x / a.settle(1 + np.abs(x), t), t), 1, ({},)),
    "Mish": (mish, 18, ({},)),
    "Gelu": (
        lambda a, t, x, approximate="none": (gelu if approximate == "none" else gelu_tanh)(a, t, x),
        20,
        ({}, {"approximate": "tanh"}),
    ),
}  # fmt: skip

#: Integer operators, with the types that onnxruntime supports.
WHOLE: dict[str, tuple[Callable[[Array], Array], tuple[str, ...]]] = {
    "Neg": (np.negative, ("i8", "i32", "i64")),
    "Abs": (np.abs, INTS),
    "Sign": (np.sign, INTS),
    "Relu": (lambda x: np.maximum(x, 0), ("i8", "i32")),
    "BitwiseNot": (np.invert, INTS),
}


def _power(a: Arithmetic, t: str, x: Array, y: Array) -> Array:
    return a.function(np.power(x, y), t)


#: Binary operators with operands of one type.
REAL_PAIRS: dict[str, Element] = {
    "Add": lambda a, t, x, y: a.settle(x + y, t),
    "Sub": lambda a, t, x, y: a.settle(x - y, t),
    "Mul": lambda a, t, x, y: a.settle(x * y, t),
    "Div": lambda a, t, x, y: a.settle(x / y, t),
    "Max": lambda a, t, x, y: a.extreme(np.maximum, x, y),
    "Min": lambda a, t, x, y: a.extreme(np.minimum, x, y),
    "Pow": _power,
    "Mod": lambda a, t, x, y: a.settle(np.fmod(x, y), t),
    "PRelu": lambda a, t, x, y: a.settle(np.where(x < 0, x * y, x), t),
    "Mean": lambda a, t, x, y: a.settle(a.settle(x + y, t) / 2, t),
    "Sum": lambda a, t, x, y: a.settle(x + y, t),
}
WHOLE_PAIRS: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
}
LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}


def divided(x: Array, y: Array) -> Array:
    """Integer division like in C."""
    rest = np.fmod(x, y)
    return (x - rest) // y


def unary(g: Grower) -> Value | None:
    x = g.some(lambda value: value.dtype in RealTypes)
    if x is None:
        return None
    names = [name for name, (_, since, _) in REAL.items() if since <= g.opset]
    kind = g.random.choice(names)
    compute, _, choices = REAL[kind]
    attributes = g.random.choice(choices)
    return g.op(kind, [x], x.dtype, x.dims, lambda a, v: compute(a, x.dtype, v, **attributes), **attributes)


def whole(g: Grower) -> Value | None:
    kind = g.random.choice(list(WHOLE))
    compute, types = WHOLE[kind]
    x = g.some(lambda value: value.dtype in types)
    if x is None or (kind == "BitwiseNot" and g.opset < 18):
        return None
    return g.op(kind, [x], x.dtype, x.dims, lambda a, v: compute(v).astype(v.dtype))


def partner(g: Grower, x: Value, *, spread: float = 2.0) -> Value:
    """An operand compatible with ``x``: a value of the graph, or a constant scalar or row."""
    other = g.some(lambda value: value.dtype == x.dtype and broadcast(x.dims, value.dims) is not None)
    if other is not None and g.random.random() < 0.6:
        return other
    rows = [1]
    if x.dims and isinstance(x.dims[-1], int) and g.random.random() < 0.5:
        rows = [x.dims[-1]]
    numbers = [g.random.gauss(0, spread) for _ in range(rows[0])]
    if x.dtype in INTS:
        numbers = [g.random.randrange(0 if x.dtype == "u8" else -9, 100) for _ in numbers]
    if x.dtype == "bool":
        numbers = [g.random.random() < 0.5 for _ in numbers]
    return g.constant(numbers if rows[0] > 1 else numbers[0], x.dtype)


def _shape(*values: Value) -> tuple[Any, ...]:
    found = broadcast(*(value.dims for value in values))
    assert found is not None
    return found


def binary(g: Grower) -> Value | None:
    x = g.some(lambda value: value.dtype in (*RealTypes, *INTS))
    if x is None:
        return None
    y = partner(g, x)
    if g.random.random() < 0.2:
        x, y = y, x
    dims = _shape(x, y)
    if x.dtype in INTS:
        if g.random.random() < 0.2:
            return _division(g, x)
        kind = g.random.choice([k for k in WHOLE_PAIRS if not k.startswith("Bitwise") or g.opset >= 18])
        function = WHOLE_PAIRS[kind]
        return g.op(kind, [x, y], x.dtype, dims, lambda a, u, v: function(u, v))
    weights = [6, 6, 6, 4, 2, 2, 1, 1, 1, 1, 1]
    kind = g.random.choices(list(REAL_PAIRS), weights)[0]
    compute = REAL_PAIRS[kind]
    if kind == "PRelu" and _shape(x, y) != x.dims:
        return None
    attributes = {"fmod": 1} if kind == "Mod" else {}
    dtype = x.dtype
    return g.op(kind, [x, y], dtype, dims, lambda a, u, v: compute(a, dtype, u, v), **attributes)


def _division(g: Grower, x: Value) -> Value:
    by = g.constant(g.random.choice([2, 3, 7, 10] if x.dtype == "u8" else [2, 3, -5, 7, 10]), x.dtype)
    if g.random.random() < 0.5:
        return g.op("Div", [x, by], x.dtype, x.dims, lambda a, u, v: divided(u, v))
    return g.op("Mod", [x, by], x.dtype, x.dims, lambda a, u, v: np.mod(u, v))


def compare(g: Grower) -> Value | None:
    x = g.some(lambda value: value.dtype in (*RealTypes, *INTS))
    if x is None:
        return None
    y = partner(g, x)
    kind = g.random.choice(list(COMPARISONS))
    return g.op(kind, [x, y], "bool", _shape(x, y), lambda a, u, v: COMPARISONS[kind](u, v))


def test_real(g: Grower) -> Value | None:
    x = g.some(lambda value: value.dtype in FLOATS)
    if x is None:
        return None
    if g.random.random() < 0.5:
        return g.op("IsNaN", [x], "bool", x.dims, lambda a, v: np.isnan(v))
    signs = g.random.choice(({}, {"detect_negative": 0}, {"detect_positive": 0}))

    def compute(a: Arithmetic, v: Array) -> Array:
        up, down = np.isposinf(v), np.isneginf(v)
        return np.asarray(
            (up & bool(signs.get("detect_positive", 1))) | (down & bool(signs.get("detect_negative", 1)))
        )

    return g.op("IsInf", [x], "bool", x.dims, compute, **signs)


def logic(g: Grower) -> Value | None:
    x = g.some(lambda value: value.dtype == "bool")
    if x is None:
        return None
    if g.random.random() < 0.3:
        return g.op("Not", [x], "bool", x.dims, lambda a, v: ~v)
    y = partner(g, x)
    kind = g.random.choice(list(LOGIC))
    return g.op(kind, [x, y], "bool", _shape(x, y), lambda a, u, v: LOGIC[kind](u, v))


def where(g: Grower) -> Value | None:
    condition = g.some(lambda value: value.dtype == "bool")
    if condition is None:
        return None
    x = g.some(
        lambda value: value.dtype in (*RealTypes, *INTS) and broadcast(condition.dims, value.dims) is not None
    )
    if x is None:
        return None
    y = partner(g, x)
    dims = broadcast(condition.dims, x.dims, y.dims)
    if dims is None:
        return None
    return g.op("Where", [condition, x, y], x.dtype, dims, lambda a, c, u, v: np.where(c, u, v))


def clip(g: Grower) -> Value | None:
    x = g.some(lambda value: value.dtype in (*RealTypes, *INTS))
    if x is None:
        return None
    return clipped(g, x, g.random.choice([(-1, 2), (0, 6), (0, None), (None, 3)]))


def swish(a: Arithmetic, t: str, x: Array, alpha: float = 1.702) -> Array:
    return a.settle(x * sigmoid(a, t, a.settle(alpha * x, t)), t)


def celu(a: Arithmetic, t: str, x: Array, alpha: float = 1.0) -> Array:
    below = a.settle(alpha * a.settle(a.function(np.exp(a.settle(np.minimum(x, 0) / alpha, t)), t) - 1, t), t)
    return a.settle(np.where(x > 0, x, np.where(np.isnan(x), x, below)), t)


def clipped(g: Grower, x: Value, bounds: tuple[float | None, float | None]) -> Value:
    low, high = bounds
    if x.dtype == "u8" and low is not None:
        low = abs(low)
    limits = [None if number is None else g.constant(number, x.dtype) for number in (low, high)]

    def compute(a: Arithmetic, v: Array, *_: Array) -> Array:
        # onnxruntime's default bounds are the largest numbers, not the infinities.
        limit = _largest(x.dtype)
        least, most = (-limit if low is None else low), (limit if high is None else high)
        if v.dtype.kind == "f":
            return a.extreme(
                np.minimum, a.extreme(np.maximum, v, np.full_like(v, least)), np.full_like(v, most)
            )
        found = v if low is None else np.maximum(v, v.dtype.type(low))
        return found if high is None else np.minimum(found, v.dtype.type(high))

    inputs = [x, *limits] if limits[1] is not None else [x, limits[0]]
    return g.op("Clip", inputs, x.dtype, x.dims, compute)


def _largest(dtype: str) -> float:
    return 65504.0 if dtype == "f16" else float(np.finfo(np.float32).max)


#: Range of floats that are cast to integers, beyond which the result is unspecified.
_RANGES = {"i8": (-128, 127), "u8": (0, 255), "i32": (-100000, 100000), "i64": (-100000, 100000)}


def cast(g: Grower, tame: bool = True) -> Value | None:
    x = g.some()
    if x is None:
        return None
    to = g.random.choice([kind for kind in ("f32", "f32", "f16", "bf16", *INTS, "bool") if kind != x.dtype])
    return cast_to(g, x, to, tame)


def cast_to(g: Grower, x: Value, to: str, tame: bool) -> Value | None:
    if x.dtype in FLOATS and to in INTS:
        if not tame or x.dtype == "bf16":
            return None
        x = clipped(
            g, x, _RANGES[to] if x.dtype == "f32" else (max(_RANGES[to][0], -1000), min(_RANGES[to][1], 1000))
        )

    def compute(a: Arithmetic, v: Array) -> Array:
        if to in FLOATS:
            wide = v.astype(np.float64)
            stored = wide.astype(DTYPES[to]).astype(np.float64)  # rounded here, and nowhere else on the way
            return stored if a.errors is None else a.settle(wide, to, roundings=2.0)
        if v.dtype.kind == "f" and to in INTS:
            return np.trunc(np.nan_to_num(v)).astype(DTYPES[to])
        return v.astype(DTYPES[to])

    return g.op("Cast", [x], to, x.dims, compute, to=int(helper.np_dtype_to_tensor_dtype(DTYPES[to])))
