"""Builders of a node of each operator from the values of a graph.

A builder gets the grower and the operands that are fixed already, by index, and returns the
output of what it added (or a tuple of outputs), or ``None`` where it found nothing that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.graphs.grower import FLOATS, INTS, SMALL_INTS, Grower, has_axes, is_bool, is_float, is_number
from tests.fuzz.graphs.sizes import size_vector, view

Given = Mapping[int, str]
Builder = Callable[[Grower, str, Given], Any]

OPERATORS: dict[str, Builder] = {}
_SINCE: dict[str, int] = {}


def operator(*names: str, since: int = 1) -> Callable[[Builder], Builder]:
    """Register a builder for operators that exist from opset ``since`` on."""

    def register(builder: Builder) -> Builder:
        OPERATORS.update(dict.fromkeys(names, builder))
        _SINCE.update(dict.fromkeys(names, since))
        return builder

    return register


def grow(g: Grower, op_type: str, given: Given | None = None) -> Any:
    """Add a node of ``op_type``; ``None`` if that can't be."""
    if _SINCE[op_type] > g.opset:
        return None
    return OPERATORS[op_type](g, op_type, given or {})


def known(g: Grower) -> list[str]:
    """The operators that the grower's opset has."""
    return [name for name in OPERATORS if _SINCE[name] <= g.opset]


# Elementwise ----------------------------------------------------------------------------------


@operator(
    "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil", "Sin", "Cos", "Atan"
)
@operator("Elu", "LeakyRelu", "Selu", "Softplus", "Softsign", "HardSigmoid")
@operator("Erf", "IsNaN", "Shrink", since=9)
@operator("IsInf", "ThresholdedRelu", since=10)
@operator("Round", since=11)
@operator("Celu", since=12)
@operator("HardSwish", since=14)
@operator("Mish", since=18)
@operator("Swish", since=24)
@operator("Gelu", since=20)
def unary(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float)
    attributes: dict[str, Any] = {}
    if op_type in ("LeakyRelu", "Elu", "ThresholdedRelu") and g.chance(50):
        attributes["alpha"] = g.choose(0.0, 0.5, 1.0, 2.0)
    return x and g.op(op_type, x, **attributes)


@operator("Abs", "Neg")
@operator("Sign", since=9)
def unary_number(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_number)
    return x and g.op(op_type, x)


@operator("Identity")
def identity(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0)
    return x and g.op(op_type, x)


@operator("Not")
def negation(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_bool)
    return x and g.op(op_type, x)


@operator("BitwiseNot", since=18)
def bitwise_negation(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype.kind in "iu")
    return x and g.op(op_type, x)


def _pair(g: Grower, given: Given, test: Callable[[Any], bool], constant: int = 50) -> tuple[str, str] | None:
    x = given.get(0) or g.operand(given, 1, test)
    if x is None:
        return None
    if 0 in given and 1 in given:
        return given[0], given[1]
    y = g.partner(x, constant)
    swap = 1 in given if given else g.chance(40)
    return (y, x) if swap else (x, y)


@operator("Add", "Sub", "Mul")
def arithmetic(g: Grower, op_type: str, given: Given) -> Any:
    pair = _pair(g, given, is_number)
    return pair and g.op(op_type, *pair)


@operator("Div", "Pow")
def division(g: Grower, op_type: str, given: Given) -> Any:
    pair = _pair(g, given, is_float if op_type == "Pow" or g.chance(70) else is_number, constant=80)
    return pair and g.op(op_type, *pair)


@operator("Mod", since=10)
def modulo(g: Grower, op_type: str, given: Given) -> Any:
    pair = _pair(g, given, is_number, constant=90)
    return pair and g.op(op_type, *pair, fmod=1 if is_float(g.array(pair[0])) or g.chance(30) else None)


@operator("Equal", "Greater", "Less")
@operator("GreaterOrEqual", "LessOrEqual", since=12)
def comparison(g: Grower, op_type: str, given: Given) -> Any:
    pair = _pair(g, given, is_bool if op_type == "Equal" and g.chance(20) else is_number)
    return pair and g.op(op_type, *pair)


@operator("And", "Or", "Xor")
def logic(g: Grower, op_type: str, given: Given) -> Any:
    pair = _pair(g, given, is_bool)
    return pair and g.op(op_type, *pair)


@operator("BitwiseAnd", "BitwiseOr", "BitwiseXor", since=18)
def bitwise(g: Grower, op_type: str, given: Given) -> Any:
    pair = _pair(g, given, lambda x: x.dtype.kind in "iu")
    return pair and g.op(op_type, *pair)


@operator("BitShift", since=11)
def shift(g: Grower, op_type: str, given: Given) -> Any:
    pair = _pair(g, given, lambda x: x.dtype.kind == "u")
    return pair and g.op(op_type, *pair, direction=g.choose("LEFT", "RIGHT"))


@operator("PRelu")
def prelu(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float)
    return x and g.op(op_type, x, given.get(1) or g.partner(x, 80))


@operator("Sum", "Max", "Min", "Mean")
def variadic(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float if g.chance(70) or op_type in ("Sum", "Mean") else is_number)
    if x is None:
        return None
    rest = [g.partner(x) for _ in range(g.choose(0, 1, 1, 1, 2))]
    return g.op(op_type, x, *(given.get(index + 1, name) for index, name in enumerate(rest)))


@operator("Where", since=9)
def where(g: Grower, op_type: str, given: Given) -> Any:
    a = g.operand(given, 1, lambda x: x.dtype.kind in "fi")
    if a is None:
        return None
    b = given.get(2) or g.partner(a)
    condition = given.get(0) or (g.chance(70) and g.pick(is_bool))
    if not condition:
        condition = g.constant(g.contents(np.bool_, g.partner_shape(a)))
    return g.op(op_type, condition, a, b)


@operator("Clip")
def clip(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float if g.opset < 12 or g.chance(80) else is_number)
    if x is None:
        return None
    low = g.choose(None, 0, -1, 2)
    high = g.choose(None, 1, 6, 3)
    if g.opset < 11:
        return g.op(
            op_type, x, min=None if low is None else float(low), max=None if high is None else float(high)
        )
    bounds = [None if n is None else g.constant(n, g.dtype(x)) for n in (low, high)]
    return g.op(op_type, x, given.get(1, bounds[0]), given.get(2, bounds[1]))


@operator("Cast")
def cast(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0)
    if x is None:
        return None
    to = g.choose(*FLOATS, *INTS, np.bool_, np.float32, np.float32, np.uint8)
    if is_float(g.array(x)) and np.dtype(to).kind in "iu":
        # the result for values out of range depends on the kernel and the position
        x = g.op("Sin", x)
    return x and g.op(op_type, x, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


@operator("CastLike", since=15)
def cast_like(g: Grower, op_type: str, given: Given) -> Any:
    x, y = g.operand(given, 0), g.operand(given, 1, lambda x: x.dtype.kind == "f")
    return x and y and g.op(op_type, x, y)


@operator("Dropout", since=7)
def dropout(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float)
    if x is None:
        return None
    outputs = g.choose(1, 1, 2) if g.opset >= 10 else 1
    if g.opset < 12:
        return g.op(op_type, x, outputs=outputs, ratio=0.5)
    training = g.constant(g.chance(40)) if g.chance(50) else None
    ratio = g.constant(g.choose(0.0, 0.5), np.float32) if g.chance(60) else None
    return g.op(op_type, x, ratio, training, outputs=outputs, seed=g.choose(None, 3))


@operator("CumSum", since=11)
def cumulative_sum(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_number, has_axes)
    return x and g.op(op_type, x, g.constant(g.number(0, g.rank(x) - 1)), exclusive=g.choose(0, 1))


@operator("Trilu", since=14)
def triangle(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_number, lambda x: x.ndim >= 2)
    return x and g.op(op_type, x, upper=g.choose(0, 1))


# Layout ---------------------------------------------------------------------------------------


@operator("Transpose")
def transpose(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0)
    if x is None:
        return None
    perm = list(range(g.rank(x)))
    if g.chance(50) and g.rank(x) > 1:
        a, b = g.random.sample(perm, 2)
        perm[a], perm[b] = perm[b], perm[a]
    else:
        g.random.shuffle(perm)
    return g.op(op_type, x, perm=None if g.chance(10) else perm)


@operator("Reshape")
def reshape(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0)
    return x and view(g, x)


@operator("Flatten")
def flatten(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float)
    return x and g.op(op_type, x, axis=g.number(0, g.rank(x)))


@operator("Squeeze")
def squeeze(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: 1 in x.shape)
    if x is None:
        return None
    ones = [axis for axis, dim in enumerate(g.static(x)) if dim == 1]
    if not ones:
        x = grow(g, "Unsqueeze", {0: x})
        return x and squeeze(g, op_type, {0: x})
    axes = g.some(ones)
    if g.opset > 10 and g.chance(40):
        axes = [axis - g.rank(x) for axis in axes]
    return g.with_ints(op_type, 13, x, "axes", axes)


@operator("Unsqueeze")
def unsqueeze(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.ndim < 4)
    if x is None:
        return None
    count = g.choose(1, 1, 2)
    axes = g.random.sample(range(g.rank(x) + count), count)
    if g.opset > 10 and g.chance(40):
        axes = [axis - g.rank(x) - count for axis in axes]
    return g.with_ints(op_type, 13, x, "axes", axes)


@operator("Slice")
def slices(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes)
    if x is None or not g.rank(x):
        return None
    axes = g.some(range(g.rank(x)))
    starts, ends, steps = [], [], []
    for axis in axes:
        size = g.shape(x)[axis]
        step = g.choose(1, 1, 1, 2, -1) if g.opset >= 10 else 1
        if step > 0:
            starts.append(g.choose(0, 0, 1, -1, -2, g.number(-size, size)))
            ends.append(g.choose(size, -1, 2, 2**31 - 1, 2**63 - 1, 1))
        else:
            starts.append(g.choose(-1, size - 1, 2**31 - 1))
            ends.append(g.choose(-(2**63), -(2**31), -size - 1, 0))
        steps.append(step)
    if g.opset < 10:
        return g.op(op_type, x, axes=axes, starts=starts, ends=ends)
    if g.chance(30):
        axes = [axis - g.rank(x) for axis in axes]
    dtype = np.int64
    given_ends: str | None = g.ints(*ends)
    if len(axes) == 1 and g.chance(20):
        given_ends = size_vector(g, [((0, 0), (x, axes[0] % g.rank(x)))]) or given_ends
    steps_name = g.ints(*steps) if any(step != 1 for step in steps) or g.chance(40) else None
    return g.op(op_type, x, g.ints(*starts, dtype=dtype), given_ends, g.ints(*axes), steps_name)


@operator("Gather")
def gather(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes)
    if x is None or not g.rank(x):
        return None
    axis = g.number(0, g.rank(x) - 1)
    low = -1 if g.opset >= 11 else 0
    shape = g.choose([], [], [1], [2], [1, 2])
    size = min(g.shape(x)[axis], 2)
    if not size:
        return None
    indices = np.array([g.number(low, size - 1) for _ in range(int(np.prod(shape)))], np.int64).reshape(shape)
    told = axis - g.rank(x) if g.chance(30) and g.opset >= 11 else axis
    found = given.get(1)
    if found is None and g.chance(15):
        found = g.pick(lambda i: i.dtype.kind == "i" and i.size > 0 and i.min() >= 0 and i.max() < size)
    return g.op(op_type, x, found or g.constant(indices, g.choose(np.int64, np.int64, np.int32)), axis=told)


@operator("GatherElements", since=11)
def gather_elements(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes)
    if x is None:
        return None
    shape = [1 if dim is None else dim for dim in g.static(x)]
    return g.op(op_type, x, g.constant(np.zeros(shape, np.int64)), axis=g.number(0, g.rank(x) - 1))


@operator("GatherND", since=11)
def gather_nd(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes)
    if x is None or 0 in g.shape(x):
        return None
    depth = g.number(1, min(2, g.rank(x)))
    return g.op(op_type, x, g.constant(np.zeros([*g.choose([], [1], [2]), depth], np.int64)))


@operator("ScatterND", since=11)
def scatter(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes, is_number)
    if x is None or g.static(x)[0] is None:
        return None
    updates = g.pick(lambda u: u.shape == g.shape(x) and u.dtype == g.dtype(x))
    indices = np.arange(g.shape(x)[0], dtype=np.int64).reshape(-1, 1)
    return updates and g.op(op_type, x, g.constant(indices), given.get(2, updates))


@operator("Concat")
def concat(g: Grower, op_type: str, given: Given) -> Any:
    x = next((given[i] for i in sorted(given)), None) or g.pick(has_axes)
    if x is None or not g.rank(x):
        return None
    axis = g.number(0, g.rank(x) - 1)
    array = g.array(x)

    def fits(y: Any) -> bool:
        return y.dtype == array.dtype and y.ndim == array.ndim and all(
            a == b for i, (a, b) in enumerate(zip(array.shape, y.shape, strict=True)) if i != axis
        )  # fmt: skip

    parts = [given.get(0) or x]
    for index in range(g.choose(0, 1, 1, 2)):
        part = given.get(index + 1) or g.pick(fits)
        if part is None or g.chance(25):
            shape = [1 if dim is None else dim for dim in g.static(x)]
            shape[axis] = g.choose(1, 2, 0)
            if all(dim is not None for i, dim in enumerate(g.static(x)) if i != axis):
                part = g.constant(g.contents(array.dtype, shape))
        parts.append(part or x)
    others = [[size for i, size in enumerate(g.sizes(part)) if i != axis] for part in parts]
    if any(other != others[0] for other in others):
        return None  # onnxruntime would accept it if it is empty, and leave the result unwritten
    told = axis - g.rank(x) if g.opset > 10 and g.chance(30) else axis
    return g.op(op_type, *parts, axis=told)


@operator("Split")
def split(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes, lambda x: x.dtype.kind in "fi")
    if x is None or not g.rank(x):
        return None
    axes = [axis for axis, dim in enumerate(g.static(x)) if dim]
    if not axes:
        return None
    axis = g.choose(*axes)
    size = g.shape(x)[axis]
    count = min(size, g.choose(1, 2, 2, 3))
    sizes = [size // count] * (count - 1)
    sizes.append(size - sum(sizes))
    if len(set(sizes)) == 1 and g.chance(40):
        return g.op(op_type, x, outputs=count, axis=axis, num_outputs=count if g.opset >= 18 else None)
    return g.with_ints(op_type, 13, x, "split", sizes, outputs=count, axis=axis)


@operator("Pad")
def pad(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, has_axes)
    if x is None:
        return None
    pads = [g.choose(0, 0, 0, 1, 2, -1) for _ in range(2 * g.rank(x))]
    mode = g.choose(None, None, "constant", "edge", "reflect")
    if g.opset < 11:
        return g.op(op_type, x, pads=pads, mode=mode, value=g.choose(None, 0.0, 1.5))
    value = g.constant(g.choose(0, 0, 1, -0.0), g.dtype(x)) if g.chance(40) else None
    axes = None
    if g.opset >= 18 and g.chance(30) and g.rank(x):
        chosen = g.some(range(g.rank(x)))
        pads = [pads[axis] for axis in chosen] * 2
        axes = g.ints(*chosen)
    return g.op(op_type, x, g.ints(*pads), value, axes, mode=mode)


@operator("Expand", since=8)
def expand(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0)
    if x is None:
        return None
    if g.chance(50):
        return g.op(op_type, x, g.ints(*g.partner_shape(x)))
    array = g.array(x)
    y = g.pick(lambda y: y.ndim <= 4 and _broadcast(array, y))
    shape = y and g.op("Shape", y)
    return shape and g.op(op_type, x, shape)


def _broadcast(x: Any, y: Any) -> bool:
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return False
    return True


@operator("Tile")
def tile(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: 0 < x.ndim <= 3)
    return x and g.op(op_type, x, g.ints(*(g.choose(1, 1, 1, 2) for _ in range(g.rank(x)))))


@operator("DepthToSpace", "SpaceToDepth")
def depth(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, lambda x: x.ndim == 4)
    return x and g.op(op_type, x, blocksize=g.choose(1, 2, 2))


@operator("Resize", since=11)
def resize(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype == np.float32 and 1 <= x.ndim <= 4)
    if x is None:
        return None
    scales = g.constant([g.choose(1.0, 1.0, 1.0, 2.0) for _ in range(g.rank(x))], np.float32)
    roi = g.constant([], np.float32) if g.opset < 13 else None
    return g.op(op_type, x, roi, scales, mode=g.choose("nearest", "nearest", "linear"))


# Numbers over axes ----------------------------------------------------------------------------


@operator("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
@operator("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduction(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float if g.chance(80) else is_number)
    if x is None:
        return None
    keep = g.choose(None, 0, 1)
    if not g.rank(x) or g.chance(15):
        return g.op(op_type, x, keepdims=keep)
    axes = g.some(range(g.rank(x)))
    if g.opset >= 11 and None not in g.static(x) and g.chance(60):
        # onnxruntime returns wrong shapes for negative axes of a tensor without elements
        axes = [axis - g.rank(x) for axis in axes]
    return g.with_ints(op_type, 13 if op_type == "ReduceSum" else 18, x, "axes", axes, keepdims=keep)


@operator("ArgMax", "ArgMin")
def argument(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, has_axes)
    return (
        x and g.rank(x) and g.op(op_type, x, axis=g.number(0, g.rank(x) - 1), keepdims=g.choose(None, 0, 1))
    )


@operator("Softmax", "LogSoftmax")
def softmax(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, has_axes)
    return x and g.rank(x) and g.op(op_type, x, axis=g.choose(None, g.number(0, g.rank(x) - 1)))


@operator("TopK", since=10)
def top(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, has_axes)
    return x and g.op(op_type, x, g.ints(g.choose(1, 1, 2)), outputs=2, axis=g.number(0, g.rank(x) - 1))


# Linear ---------------------------------------------------------------------------------------


def _weight(g: Grower, dtype: Any, *shape: int) -> str:
    """A weight: numbers of ordinary size, now and then an input."""
    array = np.asarray(g.numbers(dtype, shape))
    made = g.input(dtype, list(shape)) if g.chance(10) else None
    return made or g.constant(array)


@operator("MatMul")
def matmul(g: Grower, op_type: str, given: Given) -> Any:
    if 1 in given and 0 not in given:
        y = given[1]
        rows = g.static(y)[-2] if g.rank(y) > 1 else (g.static(y) or [None])[0]
        return rows and g.op(op_type, _weight(g, g.dtype(y), *g.choose([2], [3], [2, 3], []), rows), y)
    x = g.operand(given, 0, is_float, has_axes)
    if x is None or not g.rank(x):
        return None
    size = g.shape(x)[-1]
    y = given.get(1)
    if y is None and g.chance(25):
        y = g.pick(is_float, lambda y: y.ndim > 1 and y.shape[-2] == size and y.dtype == g.dtype(x))
    if y is None and g.static(x)[-1] is not None:
        y = _weight(g, g.dtype(x), *g.choose([], [], [1], [2]), size, g.choose(1, 2, 3, 4))
    return y and g.op(op_type, x, y)


@operator("Gemm", since=7)
def gemm(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, lambda x: x.ndim == 2)
    if x is None or g.rank(x) != 2:
        return None
    trans_a, trans_b = g.choose(None, 0, 1), g.choose(None, 0, 1)
    inner = g.static(x)[0 if trans_a else 1]
    y = given.get(1)
    width = g.choose(1, 2, 3)
    if y is None:
        if inner is None:
            return None
        y = _weight(g, g.dtype(x), *((width, inner) if trans_b else (inner, width)))
    elif g.rank(y) == 2:
        width = g.shape(y)[0 if trans_b else 1]
    c = given.get(2)
    if c is None and (g.opset < 11 or g.chance(60)):
        c = _weight(g, g.dtype(x), *g.choose([], [1], [width], [1, width]))
    scales = {name: g.choose(None, None, 1.0, 0.5, 2.0, 0.0) for name in ("alpha", "beta")}
    return g.op(op_type, x, y, c, transA=trans_a, transB=trans_b, **scales)


def _windows(g: Grower, x: str, rank: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if g.chance(30):
        attributes["strides"] = [g.choose(1, 2) for _ in range(rank)]
    match g.choose("none", "none", "pads", "pads", "auto"):
        case "pads":
            attributes["pads"] = [g.choose(0, 1) for _ in range(2 * rank)]
        case "auto":
            attributes["auto_pad"] = g.choose("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    return attributes


def image(g: Grower) -> str | None:
    """A float32 tensor with channels and one or two further dims; perhaps a new input."""
    found = g.pick(lambda x: x.dtype == np.float32 and x.ndim in (3, 4) and min(x.shape[2:]) > 1)
    if found is not None and g.static(found)[1] is not None:
        return found
    return g.input(np.float32, ["N", g.choose(2, 4), *g.choose(["H", "W"], [5, 5], ["H"], [4, "H"])])


@operator("Conv", "ConvTranspose")
def convolution(g: Grower, op_type: str, given: Given) -> Any:
    x = given.get(0) or image(g)
    if x is None or g.rank(x) < 3 or g.static(x)[1] is None:
        return None
    rank, channels = g.rank(x) - 2, g.shape(x)[1]
    group = g.choose(1, 1, 1, channels) if channels else 1
    kernel = [g.choose(1, 2, 3) for _ in range(rank)]
    if op_type == "Conv":
        outputs = group * g.choose(1, 2)
        weight = [outputs, channels // group, *kernel]
    else:
        outputs = group * g.choose(1, 2)
        weight = [channels, outputs // group, *kernel]
    w = given.get(1) or _weight(g, g.dtype(x), *weight)
    b = given.get(2) or (g.constant(g.contents(g.dtype(x), [outputs])) if g.chance(50) else None)
    return g.op(op_type, x, w, b, group=group if group > 1 else None, **_windows(g, x, rank))


@operator("MaxPool", "AveragePool", since=7)
def pool(g: Grower, op_type: str, given: Given) -> Any:
    x = given.get(0) or image(g)
    if x is None or g.rank(x) < 3:
        return None
    rank = g.rank(x) - 2
    attributes = _windows(g, x, rank)
    if g.opset >= 10 and g.chance(20):
        attributes["ceil_mode"] = 1
    if op_type == "AveragePool" and g.chance(40):
        attributes["count_include_pad"] = 1
    return g.op(op_type, x, kernel_shape=[g.choose(1, 2, 2, 3) for _ in range(rank)], **attributes)


@operator("GlobalAveragePool", "GlobalMaxPool")
def global_pool(g: Grower, op_type: str, given: Given) -> Any:
    x = given.get(0) or image(g)
    return x and g.op(op_type, x)


@operator("BatchNormalization", since=7)
def batchnorm(g: Grower, op_type: str, given: Given) -> Any:
    x = given.get(0) or image(g)
    if x is None or g.rank(x) < 2 or g.static(x)[1] is None:
        return None
    parameters = [g.numbers(g.dtype(x), [g.shape(x)[1]]) for _ in range(4)]
    parameters[3] = np.abs(parameters[3])
    if g.opset >= 14 and g.scope.kind != "body" and g.chance(8):
        names = [g.constant(parameter) for parameter in parameters]
        result = g.op(op_type, x, *names, outputs=3, training_mode=1)
        for name in names[2:]:  # onnxruntime updates statistics in place, so they may have no other readers
            g.forget(name)
        return result
    return g.op(op_type, x, *map(g.constant, parameters), epsilon=g.choose(None, 0.001))


@operator("InstanceNormalization")
def instance_norm(g: Grower, op_type: str, given: Given) -> Any:
    x = given.get(0) or image(g)
    if x is None or g.rank(x) < 3 or g.static(x)[1] is None:
        return None
    return g.op(op_type, x, *(g.constant(g.numbers(g.dtype(x), [g.shape(x)[1]])) for _ in range(2)))


@operator("GroupNormalization", since=21)
def group_norm(g: Grower, op_type: str, given: Given) -> Any:
    x = given.get(0) or image(g)
    if x is None or g.rank(x) < 3 or g.static(x)[1] is None:
        return None
    channels = g.shape(x)[1]
    groups = g.choose(*(number for number in (1, 2, channels) if number and channels % number == 0))
    parameters = (g.constant(g.numbers(g.dtype(x), [channels])) for _ in range(2))
    return g.op(op_type, x, *parameters, num_groups=groups)


@operator("LayerNormalization", since=17)
def layer_norm(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, has_axes)
    if x is None or g.static(x)[-1] is None:
        return None
    return g.op(op_type, x, g.constant(g.numbers(g.dtype(x), [g.shape(x)[-1]])))


@operator("RMSNormalization", since=23)
def rms_norm(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, has_axes)
    if x is None or g.static(x)[-1] is None:
        return None
    return g.op(op_type, x, g.constant(g.numbers(g.dtype(x), [g.shape(x)[-1]])))


@operator("Attention", since=23)
def attention(g: Grower, op_type: str, given: Given) -> Any:
    q = g.operand(given, 0, is_float, lambda x: x.ndim == 4 and x.size > 0)
    k = given.get(1, q)
    v = given.get(2, k)
    if q is None or k is None or v is None or g.rank(k) != 4 or g.shape(k) != g.shape(v):
        return None
    sizes = [(batch, heads, size) for batch, heads, _, size in (g.shape(q), g.shape(k))]
    return g.op(op_type, q, k, v) if sizes[0] == sizes[1] and 0 not in g.shape(k) else None


@operator("RotaryEmbedding", since=23)
def rotary_embedding(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, lambda x: x.ndim == 4 and x.shape[3] % 2 == 0)
    if x is None or g.rank(x) != 4 or None in g.static(x) or g.shape(x)[3] % 2:
        return None
    batch, _, length, size = g.shape(x)
    tables = [g.constant(g.numbers(g.dtype(x), [batch, length, size // 2])) for _ in range(2)]
    return g.op(op_type, x, given.get(1, tables[0]), given.get(2, tables[1])) if len(given) < 2 else None


@operator("Einsum", since=12)
def einsum(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, lambda x: 2 <= x.ndim <= 3)
    if x is None or not 2 <= g.rank(x) <= 3:
        return None
    letters = "ij" if g.rank(x) == 2 else "bij"
    if g.chance(40) and g.static(x)[-1] is not None:
        y = _weight(g, g.dtype(x), g.shape(x)[-1], 2)
        return g.op(op_type, x, y, equation=f"{letters},jk->{letters[:-1]}k")
    target = g.random.sample(letters, g.number(1, len(letters)))
    return g.op(op_type, x, equation=f"{letters}->{''.join(target)}")


# Quantization ---------------------------------------------------------------------------------


def _scale(g: Grower, zero: Any) -> list[str | None]:
    scale = g.constant(g.choose(0.5, 0.25, 0.1), np.float32)
    return [scale, g.constant(g.choose(0, 3, 128) % 128 if zero == np.int8 else g.choose(0, 128), zero)]


@operator("QuantizeLinear", since=10)
def quantize(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype == np.float32)
    # from opset 21 on, a Transpose behind a DequantizeLinear of int8 creates models that onnxruntime rejects
    return x and g.op(op_type, x, *_scale(g, g.choose(*SMALL_INTS) if g.opset < 21 else np.uint8))


@operator("DequantizeLinear", since=10)
def dequantize(g: Grower, op_type: str, given: Given) -> Any:
    types = SMALL_INTS if g.opset < 21 else (np.uint8,)
    x = g.operand(given, 0, lambda x: x.dtype in types)
    if x is None:
        if g.chance(50):
            x = g.constant(g.numbers(g.choose(*types), g.choose([3], [2, 3], [1, 2, 3])))
        else:
            x = quantize(g, "QuantizeLinear", {})
    return x and g.op(op_type, x, *_scale(g, g.dtype(x)))


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype == np.float32)
    return x and g.op(op_type, x, outputs=3)


@operator("MatMulInteger", since=10)
def matmul_integer(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes, lambda x: x.dtype == np.uint8)
    if x is None or not g.rank(x) or g.static(x)[-1] is None:
        return None
    return g.op(op_type, x, g.constant(g.numbers(np.int8, [g.shape(x)[-1], 2])))


@operator("ConvInteger", since=10)
def conv_integer(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype == np.uint8 and x.ndim == 4)
    if x is None or g.rank(x) < 3 or g.static(x)[1] is None:
        return None
    w = g.constant(g.numbers(np.uint8, [2, g.shape(x)[1], *[2] * (g.rank(x) - 2)]))
    zero = g.constant(g.choose(0, 3), np.uint8) if g.chance(60) else None
    return g.op(op_type, x, w, zero)


@operator("QLinearConv", since=10)
def qlinear_conv(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype == np.uint8 and x.ndim == 4)
    if x is None or g.rank(x) < 3 or g.static(x)[1] is None:
        return None
    w = g.constant(g.numbers(np.uint8, [2, g.shape(x)[1], *[1] * (g.rank(x) - 2)]))
    bias = given.get(8) or g.constant(g.choose([0, 0], [5, -3]), np.int32)
    return g.op(op_type, x, *_scale(g, np.uint8), w, *_scale(g, np.uint8), *_scale(g, np.uint8), bias)


@operator("LSTM", "GRU", "RNN", since=14)
def recurrent(g: Grower, op_type: str, given: Given) -> Any:
    """One forward layer; some inputs are zeros, or repeat defaults."""
    x = g.operand(given, 0, lambda x: x.dtype == np.float32 and x.ndim == 3 and x.size > 0)
    if x is None or g.static(x)[-1] is None:
        return None
    width, gates = g.shape(x)[-1], {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    w = g.constant(g.numbers(np.float32, [1, gates * 2, width]))
    r = g.constant(g.numbers(np.float32, [1, gates * 2, 2]))
    b = g.constant(np.zeros([1, gates * 4], np.float32)) if g.chance(40) else None
    if None not in g.static(x)[:2]:
        steps, batch = g.shape(x)[:2]
        lengths = g.constant(np.full([batch], steps, np.int32)) if g.chance(40) else None
        state = g.constant(np.zeros([1, batch, 2], np.float32)) if g.chance(60) else None
    else:
        lengths = state = None
    return g.op(op_type, x, w, r, b, lengths, state, hidden_size=2)


# Shapes as data -------------------------------------------------------------------------------


@operator("Shape")
def shape(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes)
    if x is None:
        return None
    cut = {"start": g.choose(None, 0, 1, -1), "end": g.choose(None, 1, -1)} if g.opset >= 15 else {}
    return g.op(op_type, x, **(cut if g.chance(30) else {}))


@operator("Size")
def size(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0)
    return x and g.op(op_type, x)


@operator("ConstantOfShape", since=9)
def constant_of_shape(g: Grower, op_type: str, given: Given) -> Any:
    like = g.operand(given, 0, lambda x: x.ndim <= 3)
    if like is None:
        return None
    wanted = like if 0 in given else g.op("Shape", like)
    if wanted is None:
        return None
    dtype = g.choose(np.float32, np.float32, np.int64, np.bool_)
    value = helper.make_tensor(
        "value", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [1], [g.special(dtype)]
    )
    return g.op(op_type, wanted, value=None if g.chance(20) else value)


@operator("Range", since=11)
def ranges(g: Grower, op_type: str, given: Given) -> Any:
    x = g.pick(has_axes)
    if x is None:
        return None
    vector = g.op("Shape", x)
    end = vector and g.op("Gather", vector, g.constant(g.number(0, g.rank(x) - 1)), axis=0)
    return end and g.op(op_type, g.constant(g.choose(0, 0, 1)), end, g.constant(g.choose(1, 1, 2)))


@operator("Upsample", since=7)
def upsample(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype == np.float32 and x.ndim in (2, 4))
    if x is None or g.opset > 9:
        return None
    scales = [1.0] * (g.rank(x) - 2) + [g.choose(1.0, 1.0, 2.0) for _ in range(2)]
    if g.opset < 9:
        return g.op(op_type, x, scales=scales, mode="nearest")
    return g.op(op_type, x, g.constant(scales, np.float32), mode="nearest")


@operator("NonZero", since=9)
def nonzero(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, has_axes, is_bool)
    return x and g.op(op_type, x)


@operator("EyeLike", since=9)
def eye(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.ndim == 2 and x.dtype == np.float32)
    return x and g.op(op_type, x)


# Sequences and optionals ----------------------------------------------------------------------


@operator("SequenceConstruct", since=11)
def sequence(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float)
    if x is None:
        return None
    dtype, rank = g.dtype(x), g.rank(x)
    rest = [g.pick(lambda y: y.dtype == dtype and y.ndim == rank) for _ in range(g.choose(0, 1, 2))]
    return g.op(op_type, x, *(given.get(i + 1) or name for i, name in enumerate(rest)))


@operator("SplitToSequence", since=11)
def split_to_sequence(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, is_float, has_axes)
    if x is None or not g.rank(x):
        return None
    axis = g.number(0, g.rank(x) - 1)
    if g.chance(50):
        return g.op(op_type, x, axis=axis, keepdims=g.choose(None, 0, 1))
    return g.op(op_type, x, g.constant(g.choose(1, 2)), axis=axis)


@operator("SequenceAt", since=11)
def sequence_at(g: Grower, op_type: str, given: Given) -> Any:
    s = given.get(0) or g.pick_sequence()
    return s and g.op(op_type, s, g.constant(g.choose(0, 0, -1, 1)))


@operator("SequenceLength", since=11)
def sequence_length(g: Grower, op_type: str, given: Given) -> Any:
    s = given.get(0) or g.pick_sequence()
    return s and g.op(op_type, s)


@operator("SequenceInsert", since=11)
def sequence_insert(g: Grower, op_type: str, given: Given) -> Any:
    s = given.get(0) or g.pick_sequence()
    if s is None:
        return None
    like = g.scope.values[s][0]
    x = g.pick(lambda x: x.dtype == like[0].dtype and x.ndim == like[0].ndim)
    return x and g.op(op_type, s, x, g.constant(g.choose(0, -1, 1)) if g.chance(50) else None)


@operator("SequenceErase", since=11)
def sequence_erase(g: Grower, op_type: str, given: Given) -> Any:
    s = given.get(0) or g.pick_sequence()
    return s and g.op(op_type, s, g.constant(g.choose(0, -1, 1)) if g.chance(60) else None)


@operator("SequenceEmpty", since=11)
def sequence_empty(g: Grower, op_type: str, given: Given) -> Any:
    return None  # a sequence without elements can't be fed to try further nodes


@operator("ConcatFromSequence", since=11)
def concat_from_sequence(g: Grower, op_type: str, given: Given) -> Any:
    s = given.get(0) or g.pick_sequence()
    if s is None:
        return None
    rank = g.scope.values[s][0][0].ndim
    return g.op(op_type, s, axis=g.number(0, max(rank - 1, 0)), new_axis=g.choose(None, 0, 1))


@operator("Optional", "OptionalGetElement", "OptionalHasElement", since=18)
def optional(g: Grower, op_type: str, given: Given) -> Any:
    """Optionals can't be fed, so their producers and readers are run together."""
    x = g.operand(given, 0, is_float)
    return x and op_type != "Optional" and g.op(op_type, x)


# Randomness -----------------------------------------------------------------------------------


@operator("RandomNormalLike", "RandomUniformLike")
def random_like(g: Grower, op_type: str, given: Given) -> Any:
    x = g.operand(given, 0, lambda x: x.dtype == np.float32)
    return x and g.op(op_type, x)


@operator("RandomNormal", "RandomUniform")
def random_numbers(g: Grower, op_type: str, given: Given) -> Any:
    return g.op(op_type, shape=g.choose([2], [1, 3], [2, 3]), dtype=TensorProto.FLOAT)


#: Operators whose results differ from run to run, which hides what comes after them.
RANDOM = ("RandomNormalLike", "RandomUniformLike", "RandomNormal", "RandomUniform")
