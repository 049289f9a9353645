"""Normalization: axes, groups, statistics of the batch, shapes of scale and bias, further outputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

_RANDOM = np.random.default_rng(5)
#: numpy types by element type of the text format.
_PRECISIONS = {"float": np.float32, "double": np.float64}
_SHAPES = ((4, 3), (4, 3, 5), (2, 3, 4, 2), (2, 3, 2, 1, 2))


def cases() -> Iterator[Case]:
    """Normalization of batches, over the last axes, of sums, by instance and by group."""
    yield from _batch()
    yield from _layer()
    yield from _root_mean_square()
    yield from _skip()
    yield from _instance_and_group()


def _numbers(precision: str, *shape: int) -> np.ndarray:
    return np.asarray(_RANDOM.standard_normal(shape)).astype(_PRECISIONS[precision])


def _dims(shape: tuple[int, ...], known: bool = False, letters: str = "NCDEF") -> str:
    """The dims of a type, symbolic or static."""
    names = [str(size) for size in shape] if known else list(letters[: len(shape)])
    return f"[{','.join(names)}]"


# Normalizations -------------------------------------------------------------------------------


def _batch() -> Iterator[Case]:
    for shape in _SHAPES:
        for precision in _PRECISIONS:
            for known in (False, True):
                yield _batch_case(precision, shape, known, training=False)
                yield _batch_case(precision, shape, known, training=True)
    for momentum in (0.0, 0.5, 1.0):
        yield _batch_case("double", (4, 3, 5), False, training=True, momentum=momentum)
    yield _batch_case("float", (6,), False, training=False)
    yield _batch_case("double", (6,), False, training=True)
    yield _batch_case("float", (1, 3, 7), False, training=True)


def _batch_case(
    precision: str, shape: tuple[int, ...], known: bool, *, training: bool, momentum: float = 0.75
) -> Case:
    channels = shape[1] if len(shape) > 1 else 1
    vector = f"{precision}[{channels if known or len(shape) == 1 else 'C'}]"
    attributes = f"epsilon=0.01, momentum={momentum}, training_mode={int(training)}"
    text = f"""m ({precision}{_dims(shape, known)} x, {vector} s, {vector} b, {vector} m, {vector} v)
        => ({precision}{_dims(shape, known)} y{f", {vector} n, {vector} w" if training else ""})
        {{ y{", n, w" if training else ""} = BatchNormalization<{attributes}>(x, s, b, m, v) }}"""
    feeds = {
        "x": _numbers(precision, *shape),
        **{name: _numbers(precision, channels) for name in "sbm"},
        "v": np.exp(_numbers(precision, channels)),
    }

    def torch(x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        places = [axis for axis in range(x.dim()) if axis != 1]
        running = ()
        if training:
            batch = x.mean(places, keepdim=True)
            spread = ((x - batch) ** 2).mean(places)
            batch = batch.reshape(-1)
            pairs = ((mean, batch), (variance, spread))
            running = tuple(momentum * old + (1 - momentum) * new for old, new in pairs)
            mean, variance = batch, spread
        columns = [value.reshape(-1, *[1] * max(x.dim() - 2, 0)) for value in (scale, bias, mean, variance)]
        y = columns[0] * (x - columns[2]) / (columns[3] + 0.01).sqrt() + columns[1]
        return (y, *running) if training else y

    kind = "training" if training else "inference"
    label = f"BatchNormalization {kind} {precision} {_dims(shape, known)} {momentum}"
    return Case(label, text, feeds, torch)


#: Normalized axes, and shapes of scale and bias, for x of [2, 3, 4].
_SCALES = {
    -1: ((4,), (1,), (3, 4), (3, 1), (2, 1, 4)),
    2: ((4,), (1, 4)),
    1: ((3, 4), (4,), (3, 1), (1,), (2, 3, 4)),
    -2: ((3, 4),),
    0: ((2, 3, 4), (4,)),
}


def _layer() -> Iterator[Case]:
    from torch.nn import functional

    def layer(axis: int, statistics: bool) -> Any:
        def torch(x: Any, scale: Any, bias: Any = 0) -> Any:
            whole = x.shape[axis:]
            y = functional.layer_norm(x, whole, eps=0.01) * scale + bias
            if not statistics:
                return y
            axes = list(range(axis % x.dim(), x.dim()))
            spread = ((x - x.mean(axes, keepdim=True)) ** 2).mean(axes, keepdim=True)
            return y, x.mean(axes, keepdim=True), (spread + 0.01) ** -0.5

        return torch

    for axis, shapes in _SCALES.items():
        for shape in shapes:
            for bias in (False, True):
                for known in (False, True):
                    yield _layer_case("float", axis, shape, bias, known, layer(axis, False))
        yield _layer_case("double", axis, shapes[0], True, False, layer(axis, False))
        for known in (False, True):
            yield _layer_case("float", axis, shapes[0], True, known, layer(axis, True), statistics=True)
    text = """m (float[A,B] x, float[B] s, float[B] b) => (float[A,B] y)
        { y = LayerNormalization<epsilon=0.01>(x, s, b) }"""
    for shape in ((5, 1), (1, 6)):
        feeds = {"x": _numbers("float", *shape), **{name: _numbers("float", shape[1]) for name in "sb"}}
        yield Case(f"LayerNormalization {shape}", text, feeds, layer(-1, False))


def _layer_case(
    precision: str,
    axis: int,
    shape: tuple[int, ...],
    bias: bool,
    known: bool,
    torch: Any,
    statistics: bool = False,
) -> Case:
    names = "sb" if bias else "s"
    dims = _dims(shape, known, "UVW")
    declared = ", ".join(f"{precision}{dims} {name}" for name in names)
    results = ", float[I,J,K] m, float[I,J,K] r" if statistics else ""
    whole = _dims((2, 3, 4), known)
    call = f"LayerNormalization<axis={axis}, epsilon=0.01>(x, {', '.join(names)})"
    text = f"""m ({precision}{whole} x, {declared}) => ({precision}{whole} y{results})
        {{ y{", m, r" if statistics else ""} = {call} }}"""
    feeds = {"x": _numbers(precision, 2, 3, 4), **{name: _numbers(precision, *shape) for name in names}}
    told = f"{' bias' if bias else ''}{' statistics' if statistics else ''}{' known' if known else ''}"
    return Case(f"LayerNormalization {precision} axis={axis} {shape}{told}", text, feeds, torch)


def _root_mean_square() -> Iterator[Case]:
    def norm(axis: int) -> Any:
        def torch(x: Any, scale: Any) -> Any:
            axes = list(range(axis % x.dim(), x.dim()))
            return x / ((x * x).mean(axes, keepdim=True) + 0.01).sqrt() * scale

        return torch

    for axis, shapes in _SCALES.items():
        for shape in shapes:
            dims = _dims(shape, letters="UVW")
            for precision in _PRECISIONS:
                text = f"""m ({precision}[A,B,C] x, {precision}{dims} s) => ({precision}[A,B,C] y)
                    {{ y = RMSNormalization<axis={axis}, epsilon=0.01>(x, s) }}"""
                feeds = {"x": _numbers(precision, 2, 3, 4), "s": _numbers(precision, *shape)}
                label = f"RMSNormalization {precision} axis={axis} {shape}"
                yield Case(label, text, feeds, norm(axis), opset=23)
        if axis in (-1, 1):
            text = text.replace("RMS", "SimplifiedLayer").replace("double", "float")
            dims = ",".join("UVW"[: len(shapes[0])])
            text = f"""m (float[A,B,C] x, float[{dims}] s) => (float[A,B,C] y)
                {{ y = SimplifiedLayerNormalization<axis={axis}, epsilon=0.01>(x, s) }}"""
            feeds = {"x": _numbers("float", 2, 3, 4), "s": _numbers("float", *shapes[0])}
            yield Case(f"SimplifiedLayerNormalization axis={axis}", text, feeds, norm(axis))


def _skip() -> Iterator[Case]:
    """Normalization of a sum, with or without a bias in the sum, and with the sum as a further output."""
    from torch.nn import functional

    def torch(layer: bool, inner: bool, returned: bool) -> Any:
        def skip(x: Any, k: Any, scale: Any, *rest: Any) -> Any:
            total = x + k + (rest[-1] if inner else 0)
            if layer:
                y = functional.layer_norm(total, total.shape[-1:], eps=0.01) * scale
                y = y + rest[0] if len(rest) > inner else y
            else:
                y = total / ((total * total).mean(-1, keepdim=True) + 0.01).sqrt() * scale
            return (y, total) if returned else y

        return skip

    kinds = (("Layer", False), ("Layer", True), ("SimplifiedLayer", False))
    for shape, inner, returned, (kind, outer) in product(
        ((2, 3, 4), (1, 3, 4), (3, 4)), (False, True), (False, True), kinds
    ):
        name = f"Skip{kind}Normalization"
        vectors = ["g", *(["b"] if outer else []), *(["c"] if inner else [])]
        operands = ["x", "k", *vectors]
        if kind == "Layer" and inner and not outer:
            operands.insert(3, "")
        declared = ", ".join(f"float[D] {vector}" for vector in vectors)
        results = ("float[N,S,D] y, float[N,S,D] t", "y, , , t") if returned else ("float[N,S,D] y", "y")
        text = f"""m (float[N,S,D] x, float{_dims(shape, True)} k, {declared}) => ({results[0]})
            {{ {results[1]} = com.microsoft.{name}<epsilon=0.01>({", ".join(operands)}) }}"""
        feeds = {"x": _numbers("float", 2, 3, 4), "k": _numbers("float", *shape)}
        feeds |= {vector: _numbers("float", 4) for vector in vectors}
        label = f"{name} {shape} {','.join(operands)}{' and the sum' if returned else ''}"
        function = torch(kind == "Layer", inner, returned)
        yield Case(label, text, feeds, function, domains=', "com.microsoft" : 1')


def _instance_and_group() -> Iterator[Case]:
    from torch.nn import functional

    def instance(x: Any, scale: Any, bias: Any) -> Any:
        return functional.instance_norm(x, weight=scale, bias=bias, eps=0.01)

    def group(groups: int, by_group: bool) -> Any:
        def torch(x: Any, scale: Any, bias: Any) -> Any:
            if by_group:
                scale, bias = (value.repeat_interleave(x.shape[1] // groups) for value in (scale, bias))
            return functional.group_norm(x, groups, scale, bias, eps=0.01)

        return torch

    for shape in ((2, 3, 5), (2, 3, 4, 2), (1, 3, 4, 2), (2, 3, 2, 3, 2)):
        for known in (False, True):
            dims, vector = _dims(shape, known), f"float[{shape[1] if known else 'C'}]"
            feeds = {"x": _numbers("float", *shape), "s": _numbers("float", 3), "b": _numbers("float", 3)}
            text = f"""m (float{dims} x, {vector} s, {vector} b) => (float{dims} y)
                {{ y = InstanceNormalization<epsilon=0.01>(x, s, b) }}"""
            for opset in (13, 20):
                yield Case(f"InstanceNormalization {dims} opset={opset}", text, feeds, instance, opset=opset)
    whole: tuple[tuple[int, ...], ...] = ((4, 6), (2, 6, 5), (2, 6, 3, 2), (1, 4, 2, 2, 2))
    for sizes, one, known, opset in product(whole, ("one", "two", "all"), (False, True), (18, 21)):
        groups = {"one": 1, "two": 2, "all": sizes[1]}[one]
        size = groups if opset < 21 else sizes[1]
        dims, vector = _dims(sizes, known), f"float[{size if known else 'S'}]"
        text = f"""m (float{dims} x, {vector} s, {vector} b) => (float{dims} y)
            {{ y = GroupNormalization<num_groups={groups}, epsilon=0.01>(x, s, b) }}"""
        feeds = {"x": _numbers("float", *sizes), **{name: _numbers("float", size) for name in "sb"}}
        label = f"GroupNormalization {dims} groups={groups} opset={opset}"
        yield Case(label, text, feeds, group(groups, opset < 21), opset=opset)
