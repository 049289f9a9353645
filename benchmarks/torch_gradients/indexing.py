"""Operators that select, scatter, move and sum elements: axes, indices, steps, modes, zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

_KINDS = {"float64": "double", "float32": "float", "int64": "int64", "int32": "int32", "bool": "bool"}
_random = np.random.default_rng(1).standard_normal
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def cases() -> Iterator[Case]:
    """Each case in float64 with symbolic dims, and in float32 with static dims."""
    for made in (_gathers, _scatters, _parts, _margins, _sums, _others):
        for body, feeds, torch in made():
            opset = 26 if "CumProd" in body else 24 if "TensorScatter" in body else 19
            told = " ".join(map(_told, feeds.values()))
            for precision in (np.float64, np.float32):
                cast = {name: _cast(value, precision) for name, value in feeds.items()}
                yield Case(
                    f"{body.partition('=')[2].strip()} {told} {np.dtype(precision).name}",
                    _model(body, cast, known=precision is np.float32), cast, torch, opset,
                )  # fmt: skip


_Made = Iterator[tuple[str, Mapping[str, np.ndarray], Callable[..., Any]]]


def _told(value: np.ndarray) -> str:
    if value.dtype.kind == "f" or value.size > 4:
        return "x".join(map(str, value.shape)) or "scalar"
    return str(value.tolist()).replace(" ", "")


def _cast(value: np.ndarray, precision: type) -> np.ndarray:
    return value.astype(precision) if value.dtype == np.float64 else value


def _model(body: str, feeds: Mapping[str, np.ndarray], *, known: bool) -> str:
    inputs, letters = [], iter("ABCDEFGHIJKLMNOP")
    for name, value in feeds.items():
        dims = ",".join(str(size) if known else next(letters) for size in value.shape)
        inputs.append(f"{_KINDS[value.dtype.name]}{f'[{dims}]' if value.ndim else ''} {name}")
    return f"m ({', '.join(inputs)}) => ({_KINDS[feeds['x'].dtype.name]} y) {{ {body} }}"


def _gathers() -> _Made:
    import torch

    for shape in ((5,), (5, 3), (2, 5, 3), (80, 3)):
        for axis in range(-1, len(shape)):
            size = shape[axis]
            for kind in (np.int64, np.int32):
                several: tuple[Any, ...] = ([0, size - 1, -1, 0], [[1, 1], [-size, 0]], 1, [])
                for indices in (np.array(picks, kind) for picks in several):
                    if kind is np.int32 and indices.size != 4:
                        continue

                    def gather(x: Any, i: Any, axis: int = axis) -> Any:
                        last = axis % x.ndim
                        flat = i.reshape(-1).long() % x.shape[last]
                        shape = (*x.shape[:last], *i.shape, *x.shape[last + 1 :])
                        return x.index_select(last, flat).reshape(shape)

                    yield f"y = Gather<axis={axis}>(x, i)", {"x": _random(shape), "i": indices}, gather
    for axis, picks in ((0, [[0, 2, -1, 2]]), (1, [[3, 3], [0, -4], [1, 1]]), (-1, [[0] * 6] * 2)):
        feeds = {"x": _random((3, 4)), "i": np.array(picks)}
        yield (
            f"y = GatherElements<axis={axis}>(x, i)", feeds,
            lambda x, i, axis=axis: torch.gather(x, axis, i % x.shape[axis]),
        )  # fmt: skip
    several = ([[0, 1], [-1, 3], [0, 1]], [[2], [-3], [2]], [[[0, 0, 1]], [[0, 0, 1]]], [1, 1])
    for picks in several:
        feeds = {"x": _random((3, 4, 2)), "i": np.array(picks)}
        yield "y = GatherND(x, i)", feeds, lambda x, i: x[tuple(i.unbind(-1))]
    feeds = {"x": _random((2, 3, 4)), "i": np.array([[[0, 1], [0, 1]], [[-1, 1], [2, 0]]])}
    yield (
        "y = GatherND<batch_dims=1>(x, i)", feeds,
        lambda x, i: torch.stack([row[tuple(at.unbind(-1))] for row, at in zip(x, i, strict=True)]),
    )  # fmt: skip


def _scatters() -> _Made:
    import torch

    once = [(0, [[0, 1, 2, 1], [1, -1, 0, 0]]), (1, [[3, 0], [-2, 1], [0, 1]]), (-1, [[0]])]
    for axis, picks in once:
        feeds = {"x": _random((3, 4)), "i": np.array(picks), "u": _random(np.shape(picks))}
        yield (
            f"y = ScatterElements<axis={axis}>(x, i, u)", feeds,
            lambda x, i, u, axis=axis: x.scatter(axis, i % x.shape[axis], u),
        )  # fmt: skip
    for reduction, name in _REDUCTIONS.items():
        for axis, picks in (*once, (0, [[2] * 4] * 5), (1, [[1, 1, 1], [0, -4, 0]])):
            feeds = {"x": _random((3, 4)), "i": np.array(picks), "u": _random(np.shape(picks))}
            yield (
                f'y = ScatterElements<axis={axis}, reduction="{reduction}">(x, i, u)', feeds,
                lambda x, i, u, axis=axis, name=name: x.scatter_reduce(axis, i % x.shape[axis], u, name),
            )  # fmt: skip
        feeds = {"x": _random((4, 3)), "i": np.array([[1], [-3], [0], [1]]), "u": _random((4, 3))}
        yield (
            f'y = ScatterND<reduction="{reduction}">(x, i, u)', feeds,
            lambda x, i, u, name=name: (
                x.index_add(0, i[:, 0] % 4, u) if name == "sum"
                else x.scatter_reduce(0, (i % 4).expand(4, 3), u, name)
            ),
        )  # fmt: skip
        zeros = {**feeds, "u": np.array([[0.0, 1, 0], [2, 0, 0], [0, 3, 4], [5, 6, 7]])}
        if reduction == "mul":
            yield (
                'y = ScatterND<reduction="mul">(x, i, u)', zeros,
                lambda x, i, u: x.scatter_reduce(0, (i % 4).expand(4, 3), u, "prod"),
            )  # fmt: skip
    several: tuple[Any, ...] = ([[0, 1], [-1, 3], [1, 0]], [[2], [-3]], [[[0, 0]], [[0, 1]]])
    for indices in map(np.array, several):
        updates = _random((*indices.shape[:-1], *(3, 4, 2)[indices.shape[-1] :]))
        feeds = {"x": _random((3, 4, 2)), "i": indices, "u": updates}
        for reduction in ("none", "add"):
            yield (
                f'y = ScatterND<reduction="{reduction}">(x, i, u)', feeds,
                lambda x, i, u, adds=reduction == "add": x.index_put(tuple(i.unbind(-1)), u, accumulate=adds),
            )  # fmt: skip
    for mode in ("linear", "circular"):
        starts = np.array([1, 3] if mode == "circular" else [1, 0])

        def write(x: Any, u: Any, s: Any) -> Any:
            places = (s[:, None] + torch.arange(u.shape[1])) % x.shape[1]
            return x.scatter(1, places[:, :, None].expand(u.shape), u)

        feeds = {"x": _random((2, 4, 3)), "u": _random((2, 3, 3)), "s": starts}
        yield f'y = TensorScatter<mode="{mode}">(x, u, s)', feeds, write


def _parts() -> _Made:
    import torch

    for axis, start, end, step in (
        (0, 0, 4, 2), (0, 1, 99, 3), (1, -1, -99, -1), (1, 4, 0, -2), (0, -2, 2**62, 1), (-1, 3, 1, 1),
        (-1, 1, -1, 1)
    ):  # fmt: skip
        bounds = {
            name: np.array([number]) for name, number in zip("seat", (start, end, axis, step), strict=True)
        }
        known = " ".join(f"{name} = Constant<value_ints=[{value[0]}]>()" for name, value in bounds.items())

        def cut(x: Any, *_: Any, axis: int = axis, bounds: slice = slice(start, end, step)) -> Any:
            return x.index_select(axis, torch.tensor(list(range(x.shape[axis])[bounds]), dtype=torch.long))

        x = _random((4, 5))
        yield "y = Slice(x, s, e, a, t)", {"x": x, **bounds}, cut
        yield f"{known} y = Slice(x, s, e, a, t)", {"x": x}, cut
    for axis in (0, 1, -1):
        for largest in (0, 1):
            yield (
                f"y, i = TopK<axis={axis}, largest={largest}>(x, k)",
                {"x": _random((4, 5)), "k": np.array([3])},
                lambda x, k, axis=axis, largest=largest: torch.topk(x, 3, axis, bool(largest)).values,
            )
    bits = np.array([True, False, True])
    for axis in (0, 1, -1):
        yield (
            f"y = Compress<axis={axis}>(x, c)", {"x": _random((3, 4)), "c": bits},
            lambda x, c, axis=axis: x.index_select(axis, torch.nonzero(c)[:, 0]),
        )  # fmt: skip
    yield "y = Compress(x, c)", {"x": _random((3, 4)), "c": bits}, lambda x, c: x.flatten()[: len(c)][c]
    for upper, function in ((0, torch.tril), (1, torch.triu)):
        for k in (-5, -1, 0, 2):
            yield (
                f"y = Trilu<upper={upper}>(x, k)", {"x": _random((2, 3, 4)), "k": np.array(k)},
                lambda x, k, function=function: function(x, int(k)),
            )  # fmt: skip


def _margins() -> _Made:
    import torch

    for mode in ("constant", "reflect", "edge", "wrap"):
        for margins in ((0, 2, 1, 0), (2, 0, 0, 3), (1, 1, 1, 1), (0, 0, 0, 0)):
            pairs = tuple(zip(margins[:2], margins[2:], strict=True))

            def pad(x: Any, *_: Any, pairs: Any = pairs, mode: str = mode) -> Any:
                if mode == "constant":
                    return torch.nn.functional.pad(x, (*pairs[1], *pairs[0]))
                places = np.pad(np.arange(x.numel()).reshape(x.shape), pairs, mode=mode)  # type: ignore[call-overload]
                return x.flatten()[torch.tensor(places)]

            feeds = {"x": _random((4, 5)), "p": np.array(margins)}
            yield f'y = Pad<mode="{mode}">(x, p)', feeds, pad
    for margins in ((-1, 2, 1, -2), (1, 0, 2, 0)):
        yield (
            "y = Pad(x, p, v)", {"x": _random((4, 5)), "p": np.array(margins), "v": _random(())},
            lambda x, p, v: _padded(x, [int(n) for n in p], v),
        )  # fmt: skip
    yield (
        "y = Pad(x, p, v, a)",
        {"x": _random((4, 5)), "p": np.array([1, 2]), "v": _random(()), "a": np.array([-1])},
        lambda x, p, v, a: _padded(x, [0, 1, 0, 2], v),
    )


def _padded(x: Any, margins: list[int], v: Any) -> Any:
    """``x`` padded with ``v``, differentiable by ``v`` unlike torch's function."""
    import torch

    widths = (margins[1], margins[3], margins[0], margins[2])
    inside = torch.nn.functional.pad(torch.ones_like(x), widths)
    return torch.nn.functional.pad(x, widths) + (1 - inside) * v


def _sums() -> _Made:
    zeros = np.array([[2.0, 0, 3, 5], [0, 2, 0, 3], [2, 3, 5, 0], [0, 0, 0, 0]])
    for op, function in (("CumSum", "cumsum"), ("CumProd", "cumprod")):
        for axis in (0, 1, -1):
            for reverse in (0, 1):
                for exclusive in (0, 1):

                    def running(
                        x: Any,
                        a: Any,
                        function: str = function,
                        reverse: int = reverse,
                        exclusive: int = exclusive,
                    ) -> Any:
                        axis = int(a)
                        x = x.flip(axis) if reverse else x
                        y = getattr(x, function)(axis)
                        if exclusive:
                            first = y.narrow(axis, 0, 1).detach() * 0 + (function == "cumprod")
                            y = _joined(first, y, axis)
                        return y.flip(axis) if reverse else y

                    body = f"y = {op}<reverse={reverse}, exclusive={exclusive}>(x, a)"
                    for x in (_random((3, 4)), *([zeros] if op == "CumProd" else [])):
                        yield body, {"x": x, "a": np.array(axis)}, running


def _joined(first: Any, y: Any, axis: int) -> Any:
    import torch

    return torch.cat([first, y.narrow(axis, 0, y.shape[axis] - 1)], axis)


def _others() -> _Made:
    import torch

    for kind in (np.int64, np.int32):
        feeds = {"x": _random((4, 3, 2)), "s": np.array([1, 4, 2], np.int64), "i": np.array([0], kind)}
        yield (
            "z = ReverseSequence(x, s) y = Gather(z, i)", feeds,
            lambda x, s, i: torch.stack(
                [torch.cat([x[: int(n), j].flip(0), x[int(n) :, j]]) for j, n in enumerate(s)], 1
            )[i.long()],
        )  # fmt: skip
    yield (
        "y = DepthToSpace<blocksize=2, mode=\"CRD\">(x)", {"x": _random((1, 8, 2, 3))},
        lambda x: torch.nn.functional.pixel_shuffle(x, 2),
    )  # fmt: skip
    yield (
        "y = DepthToSpace<blocksize=2>(x)", {"x": _random((1, 8, 2, 3))},
        lambda x: torch.nn.functional.pixel_shuffle(
            x.reshape(1, 4, 2, 2, 3).transpose(1, 2).reshape(x.shape), 2
        ),
    )  # fmt: skip
    yield (
        "y = SpaceToDepth<blocksize=2>(x)", {"x": _random((1, 2, 4, 6))},
        lambda x: torch.nn.functional.pixel_unshuffle(x, 2).reshape(1, 2, 4, 2, 3).transpose(1, 2)
        .flatten(1, 2),
    )  # fmt: skip
    for repeats in ((2, 3), (1, 2), (3, 1)):
        yield (
            "y = Tile(x, r)", {"x": _random((2, 3)), "r": np.array(repeats)},
            lambda x, r: x.repeat(*(int(n) for n in r)),
        )  # fmt: skip
    for shape in ((2, 3, 4), (3, 1), (1,), (2, 1, 4)):
        yield (
            "y = Expand(x, s)", {"x": _random((3, 1)), "s": np.array(shape)},
            lambda x, s: x.expand(np.broadcast_shapes(tuple(x.shape), tuple(s.tolist()))),
        )  # fmt: skip
    for axis in (0, 1, -1):
        yield (
            f"a = Gather<axis={axis}>(x, i) y = Concat<axis={axis}>(x, a, x)",
            {"x": _random((3, 4)), "i": np.array([2, 2, 0])},
            lambda x, i, axis=axis: torch.cat([x, x.index_select(axis, i), x], axis),
        )
