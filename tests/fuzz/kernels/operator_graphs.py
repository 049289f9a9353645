"""Graphs of one operator each: all operators with kernels, for all types, broadcast in many ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.kernels import pointwise, reductions, views
from tests.fuzz.kernels.arithmetic import DTYPES, FLOATS, INTS, Arithmetic, Array
from tests.fuzz.kernels.graph_builder import Dim, Grower, Value, broadcast
from tests.fuzz.kernels.pointwise import RealTypes
from tests.fuzz.kernels.random_graphs import RandomGraph

Shape = tuple[Dim, ...]
Named = tuple[str, RandomGraph]

_SHAPE: Shape = ("N", 3, "M")
#: Shapes of a second operand.
_PARTNERS: tuple[Shape, ...] = (_SHAPE, ("M",), ("N", 1, 1), (3, 1), (1, 1, "M"), ())
_SIZES: tuple[dict[str, int], ...] = (
    {"N": 7, "M": 13},
    {"N": 1, "M": 1},
    {"N": 0, "M": 5},
    {"N": 2, "M": 257},
)
#: Reductions without kernels.
_LEFT = ("ReduceLogSum", "ReduceLogSumExp")
_CONTRIB = "com.microsoft"


def operator_graphs() -> Iterator[Named]:
    """All graphs, with descriptive names. Inputs contain special values, except for those of moves."""
    for family in (
        _unary,
        _whole,
        _pairs,
        _truths,
        _choices,
        _casts,
        _quantizers,
        _reductions,
        _norms,
        _contributed,
        _moves,
    ):
        yield from family()


def _graph(build: Callable[[Grower], Value], opset: int = 20, special: bool = True) -> RandomGraph:
    grower = Grower(Random(0), opset=opset)
    return RandomGraph(0, grower, [build(grower)], special, _SIZES)


def _of(
    kind: str,
    inputs: list[tuple[str, Shape]],
    result: str,
    compute: Callable[..., Array],
    *constants: tuple[Any, str],
    dims: Shape | None = None,
    opset: int = 20,
    **attributes: Any,
) -> RandomGraph:
    """A graph of one node that reads ``inputs``, then ``constants``."""

    def build(g: Grower) -> Value:
        values = [g.input(dtype, *shape) for dtype, shape in inputs]
        values += [g.constant(array, dtype) for array, dtype in constants]
        shape = broadcast(*(value.dims for value in values)) if dims is None else dims
        assert shape is not None
        return g.op(kind, values, result, shape, compute, **attributes)

    return _graph(build, opset)


def _typed(function: Callable[..., Array], dtype: str, **attributes: Any) -> Callable[..., Array]:
    return lambda a, *values: function(a, dtype, *values, **attributes)


def _plain(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, *values: np.asarray(function(*values))


def _unary() -> Iterator[Named]:
    for kind, (compute, _, choices) in pointwise.REAL.items():
        for dtype in RealTypes:
            for attributes in choices:
                function = _typed(compute, dtype, **attributes)
                yield (
                    f"{kind} {dtype} {attributes}",
                    _of(kind, [(dtype, _SHAPE)], dtype, function, **attributes),
                )
    for dtype in RealTypes:
        yield f"IsNaN {dtype}", _of("IsNaN", [(dtype, _SHAPE)], "bool", _plain(np.isnan))
        yield f"IsInf {dtype}", _of("IsInf", [(dtype, _SHAPE)], "bool", _plain(np.isinf))
    swish = _typed(pointwise.swish, "f32", alpha=1.0)
    yield "Swish", _of("Swish", [("f32", _SHAPE)], "f32", swish, opset=24)
    for alpha in (1.0, 0.5):
        function = _typed(pointwise.celu, "f32", alpha=alpha)
        yield f"Celu {alpha}", _of("Celu", [("f32", _SHAPE)], "f32", function, alpha=alpha)


def _whole() -> Iterator[Named]:
    for kind, (function, types) in pointwise.WHOLE.items():
        for dtype in types:
            yield f"{kind} {dtype}", _of(kind, [(dtype, _SHAPE)], dtype, _plain(function))
    for dtype in INTS:
        for kind, divide in (("Div", pointwise.divided), ("Mod", np.mod)):
            for divisor in (3, 7) if dtype == "u8" else (3, -7):
                found = _of(kind, [(dtype, _SHAPE)], dtype, _plain(divide), (divisor, dtype))
                yield f"{kind} {dtype} {divisor}", found


def _pairs() -> Iterator[Named]:
    for kind, compute in pointwise.REAL_PAIRS.items():
        for dtype in RealTypes:
            attributes = {"fmod": 1} if kind == "Mod" else {}
            for dims in _PARTNERS if kind in ("Add", "Div") else _PARTNERS[:2]:
                inputs = [(dtype, _SHAPE), (dtype, dims)]
                yield (
                    f"{kind} {dtype} {dims}",
                    _of(kind, inputs, dtype, _typed(compute, dtype), **attributes),
                )
    for kind, function in pointwise.WHOLE_PAIRS.items():
        for dtype in INTS:
            yield f"{kind} {dtype}", _of(kind, [(dtype, _SHAPE), (dtype, ("M",))], dtype, _plain(function))
    for exponent in (2.0, 3.0, -1.0, 0.5, 1.7):
        power = _typed(pointwise.REAL_PAIRS["Pow"], "f32")
        yield f"Pow {exponent}", _of("Pow", [("f32", _SHAPE)], "f32", power, (exponent, "f32"))


def _truths() -> Iterator[Named]:
    for kind, compare in pointwise.COMPARISONS.items():
        for dtype in (*RealTypes, *INTS, *(["bool"] if kind == "Equal" else [])):
            yield f"{kind} {dtype}", _of(kind, [(dtype, _SHAPE), (dtype, ("M",))], "bool", _plain(compare))
    for kind, join in pointwise.LOGIC.items():
        yield kind, _of(kind, [("bool", _SHAPE), ("bool", ("M",))], "bool", _plain(join))
    yield "Not", _of("Not", [("bool", _SHAPE)], "bool", _plain(np.logical_not))


def _choices() -> Iterator[Named]:
    for dtype in (*RealTypes, *INTS):
        inputs: list[tuple[str, Shape]] = [("bool", ("N", 1, "M")), (dtype, _SHAPE), (dtype, ())]
        yield f"Where {dtype}", _of("Where", inputs, dtype, _plain(np.where))
        for bounds in ((-1, 2), (0, None), (None, 3)):

            def clip(g: Grower, dtype: str, bounds: tuple[Any, Any]) -> Value:
                return pointwise.clipped(g, g.input(dtype, *_SHAPE), bounds)

            yield f"Clip {dtype} {bounds}", _graph(partial(clip, dtype=dtype, bounds=bounds))


def _as(a: Arithmetic, v: Array, dtype: str) -> Array:
    return a.settle(v, dtype, roundings=2.0)


def _casts() -> Iterator[Named]:
    to_half = _of(
        "CastLike", [("f32", _SHAPE), ("f16", ())], "f16", lambda a, v, _: _as(a, v, "f16"), dims=_SHAPE
    )
    yield "CastLike", to_half
    for dtype in DTYPES:
        for to in DTYPES:
            if dtype == to or (dtype in FLOATS and to in INTS):
                continue  # values out of range, and NaN, may become any integer

            def cast(g: Grower, dtype: str, to: str) -> Value:
                found = pointwise.cast_to(g, g.input(dtype, *_SHAPE), to, tame=False)
                assert found is not None
                return found

            yield f"Cast {dtype} {to}", _graph(partial(cast, dtype=dtype, to=to))


def _quantizers() -> Iterator[Named]:
    """One scale as a number or an input, and one scale per index of an axis, with and without zero points."""
    many = np.array([0.05, 0.1, 0.3])
    for domain in ("", _CONTRIB):
        for dtype, zero, zeros in (("u8", 128, [0, 7, 255]), ("i8", -3, [-128, 0, 127])):
            one, each = ((0.1, "f32"), (zero, dtype)), ((many, "f32"), (zeros, dtype))
            x, q = ("f32", _SHAPE), (dtype, _SHAPE)
            quantize = partial(pointwise.quantized, dtype=dtype)
            for kind, read, to, compute in (
                ("QuantizeLinear", x, dtype, quantize),
                ("DequantizeLinear", q, "f32", pointwise.dequantized),
            ):
                name = f"{kind} {domain} {dtype}"
                yield f"{name} one", _of(kind, [read], to, compute, *one, domain=domain)
                yield (
                    f"{name} each",
                    _of(kind, [read], to, compute, *each, axis=1, dims=_SHAPE, domain=domain),
                )
                inputs: list[tuple[str, Shape]] = [read, ("f32", ()), (dtype, ())]
                yield f"{name} inputs", _of(kind, inputs, to, compute, domain=domain)
    unsigned = partial(pointwise.quantized, dtype="u8")
    yield (
        "QuantizeLinear without zero",
        _of("QuantizeLinear", [("f32", _SHAPE)], "u8", unsigned, (0.3, "f32")),
    )
    yield (
        "DequantizeLinear of i32",
        _of("DequantizeLinear", [("i32", _SHAPE)], "f32", pointwise.dequantized, (0.3, "f32")),
    )


def _reductions() -> Iterator[Named]:
    for axes in ([2], [1], [0], [1, 2], [0, 2], [0, 1, 2]):
        dims = tuple(1 if axis in axes else dim for axis, dim in enumerate(_SHAPE))
        told = (axes, "i64")
        for kind, compute in reductions.REAL.items():
            if kind in _LEFT:
                continue
            for dtype in RealTypes if axes == [2] else ("f32",):

                def real(
                    a: Arithmetic, v: Array, _: Array, f: Any = compute, t: str = dtype, x: Any = axes
                ) -> Array:
                    return f(a, t, v, x)

                yield f"{kind} {dtype} {axes}", _of(kind, [(dtype, _SHAPE)], dtype, real, told, dims=dims)
        for kind, (function, types) in reductions.WHOLE.items():
            for dtype in types if axes in ([2], [1]) else ():

                def whole(a: Arithmetic, v: Array, _: Array, f: Any = function, x: Any = axes) -> Array:
                    return f(v, axis=tuple(x), keepdims=True).astype(v.dtype)

                yield f"{kind} {dtype} {axes}", _of(kind, [(dtype, _SHAPE)], dtype, whole, told, dims=dims)


def _norms() -> Iterator[Named]:
    for dtype in RealTypes:
        for kind, function in (("Softmax", reductions.softmax), ("LogSoftmax", reductions.log_softmax)):
            for axis in (2, 1, 0):
                compute = _typed(function, dtype, axes=[axis])
                yield f"{kind} {dtype} {axis}", _of(kind, [(dtype, _SHAPE)], dtype, compute, axis=axis)

        def layer(g: Grower, dtype: str) -> Value:
            found = reductions.layer(g, g.input(dtype, "N", 3, 65))
            assert found is not None
            return found

        def instance(g: Grower, dtype: str) -> Value:
            return reductions.instance(g, g.input(dtype, "N", 3, 5, "M"), 3)

        yield f"LayerNormalization {dtype}", _graph(partial(layer, dtype=dtype))
        yield f"InstanceNormalization {dtype}", _graph(partial(instance, dtype=dtype))
    for dims in (("N", 3, 5, "M"), ("N", 65)):

        def batch(g: Grower, dims: tuple[int | str, ...]) -> Value:
            channels = dims[1]
            assert isinstance(channels, int)
            return reductions.batch(g, g.input("f32", *dims), channels)

        yield f"BatchNormalization {len(dims)}d", _graph(partial(batch, dims=dims))
    weight = (np.random.default_rng(0).normal(1, 0.2, 65), "f32")
    compute = _typed(reductions.root_mean_square, "f32")
    kind = "RMSNormalization"
    yield kind, _of(kind, [("f32", ("N", 3, 65))], "f32", compute, weight, opset=23, epsilon=1e-5)


def _contributed() -> Iterator[Named]:
    x, bias = ("f32", ("N", 3, 65)), (np.random.default_rng(0).normal(0, 1, 65), "f32")
    for kind, function, constants in (
        ("QuickGelu", pointwise.swish, []),
        ("Gelu", pointwise.gelu, []),
        ("FastGelu", pointwise.gelu_tanh, []),
        ("FastGelu", lambda a, t, v, b: pointwise.gelu_tanh(a, t, a.settle(v + b, t)), [bias]),
        ("BiasGelu", lambda a, t, v, b: pointwise.gelu(a, t, a.settle(v + b, t)), [bias]),
    ):
        found = _of(kind, [x], "f32", _typed(function, "f32"), *constants, domain=_CONTRIB)
        yield f"{kind} of onnxruntime, {len(constants)} constants", found


def _moves() -> Iterator[Named]:
    """Moves between computations: free moves at the ends of groups are removed."""
    for move in dict.fromkeys(views.MOVES):
        for dtype in _ACTIVE:
            for seed in range(3):

                def build(g: Grower, move: Any, dtype: str, seed: int) -> Value:
                    _active(g, g.input(dtype, "N", 6, 1, "M"))
                    g.random, g.values = Random(seed), g.values[-1:]
                    return _active(g, move(g) or g.values[-1])

                graph = _graph(partial(build, move=move, dtype=dtype, seed=seed), special=False)
                if len(graph.grower.nodes) > 2:
                    yield f"{move.__name__} {dtype} {seed}", graph


#: A computation for each type.
_ACTIVE = {"f32": ("Neg", np.negative), "f16": ("Neg", np.negative), "i64": ("Neg", np.negative),
           "u8": ("BitwiseNot", np.invert), "bool": ("Not", np.logical_not)}  # fmt: skip


def _active(g: Grower, x: Value) -> Value:
    kind, function = _ACTIVE[x.dtype]
    return g.op(kind, [x], x.dtype, x.dims, _plain(function))
