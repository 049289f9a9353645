"""Resize, GridSample, Einsum, spectra and determinants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

_RANDOM = np.random.default_rng(3)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def cases() -> Iterator[Case]:
    """All cases of the family."""
    yield from _interpolations()
    yield from _grids()
    yield from _einsums()
    yield from _spectra()
    yield from _determinants()


def _numbers(*shape: int, single: bool = False) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(np.float32 if single else np.float64)


def _dims(first: int, count: int) -> str:
    return ",".join(_LETTERS[first : first + count])


# Resize ------------------------------------------------------------------------------------


def _interpolations() -> Iterator[Case]:
    from torch.nn import functional

    modes: dict[int, tuple[str, ...]] = {
        1: ("nearest", "linear"),
        2: ("nearest", "bilinear", "bicubic"),
        3: ("nearest", "trilinear"),
    }
    sizes: dict[int, list[tuple[int, ...]]] = {
        1: [(14,), (5,)],
        2: [(10, 12), (7, 9), (3, 4)],
        3: [(6, 8, 10), (5, 3, 7)],
    }
    shapes = {1: (2, 3, 7), 2: (2, 3, 5, 6), 3: (1, 2, 3, 4, 5)}
    for count, names in modes.items():
        shape = shapes[count]
        x = _numbers(*shape, single=True)
        for mode in names:
            for align in (False, True) if mode != "nearest" else (None,):
                for size in sizes[count]:
                    yield _interpolation(x, mode, align, size, functional.interpolate)
    x = _numbers(2, 3, 8, 9, single=True)
    for mode in ("bilinear", "bicubic"):
        for size in [(4, 3), (5, 7), (12, 13)]:  # with aligned corners the two have different semantics
            yield _interpolation(x, mode, False, size, functional.interpolate, antialias=True)
    for factor in (2, 3, 4, 5):
        yield from _by_factor(factor, functional.interpolate)


def _interpolation(
    x: np.ndarray,
    mode: str,
    align: bool | None,
    size: Sequence[int],
    interpolate: Callable[..., Any],
    antialias: bool = False,
) -> Case:
    name = mode.removeprefix("bi").removeprefix("tri")
    how = "asymmetric" if align is None else "align_corners" if align else "half_pixel"
    attributes = f'mode="{name}", coordinate_transformation_mode="{how}", nearest_mode="floor"'
    attributes += ", antialias=1, exclude_outside=1" if antialias else ""
    if antialias and name == "cubic":  # as in PIL, and torch
        attributes += ", cubic_coeff_a=-0.5"
    rank = x.ndim
    text = f"""m (float[{_dims(0, rank)}] x, int64[{rank}] s) => (float[{_dims(rank, rank)}] y)
        {{ y = Resize<{attributes}>(x, , , s) }}"""
    sizes = np.array([*x.shape[:2], *size], np.int64)

    def function(x: Any, s: Any) -> Any:
        more = {"antialias": True} if antialias else {}
        return interpolate(x, tuple(size), mode=mode, align_corners=align, **more)

    label = f"Resize {mode} align_corners={align} {x.shape[2:]} to {tuple(size)} antialias={antialias}"
    return Case(label, text, {"x": x, "s": sizes}, function)


def _by_factor(factor: int, interpolate: Callable[..., Any]) -> Iterator[Case]:
    """Upsampling by an integer factor, which has its own gradient."""
    for shape, how in [((2, 3, 5, 6), ("asymmetric", "half_pixel")), ((1, 2, 98, 3), ("half_pixel",))]:
        x = _numbers(*shape, single=True)
        for coordinates in how:
            for mode in ("nearest", "bilinear"):
                if mode == "bilinear" and coordinates == "asymmetric":
                    continue
                rounding = "floor" if coordinates == "asymmetric" else "round_prefer_floor"
                dims = "H,W" if factor % 2 else f"{shape[2]},{shape[3]}"
                text = f"""m (float[N,C,{dims}] x) => (float[D,E,F,G] y) {{
                    s = Constant<value = float[4] {{1, 1, {factor}, {factor}}}>()
                    y = Resize<mode="{mode.removeprefix("bi")}", nearest_mode="{rounding}",
                        coordinate_transformation_mode="{coordinates}">(x, , s) }}"""

                def function(x: Any, mode: str = mode) -> Any:
                    align = None if mode == "nearest" else False
                    return interpolate(x, scale_factor=factor, mode=mode, align_corners=align)

                label = f"Resize {mode} {coordinates} {shape[2:]} times {factor}"
                yield Case(label, text, {"x": x}, function)


# GridSample --------------------------------------------------------------------------------


def _grids() -> Iterator[Case]:
    from torch.nn import functional

    names = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    for count in (2, 3):
        shape, points = ((2, 3, 4, 5), (3, 7)) if count == 2 else ((2, 3, 3, 4, 5), (2, 3, 4))
        for mode, name in names.items():
            if mode == "cubic" and count == 3:
                continue
            for padding in ("zeros", "border", "reflection"):
                for align in (0, 1):
                    x = _numbers(*shape)
                    grid = _RANDOM.uniform(-2.5, 2.5, (2, *points, count))
                    own, given, result = (_dims(first, count + 2) for first in (0, 5, 10))
                    how = f'mode="{mode}", padding_mode="{padding}", align_corners={align}'
                    text = f"""m (double[{own}] x, double[{given}] g) => (double[{result}] y)
                        {{ y = GridSample<{how}>(x, g) }}"""

                    def function(
                        x: Any, g: Any, name: str = name, padding: str = padding, align: int = align
                    ) -> Any:
                        return functional.grid_sample(x, g, name, padding, bool(align))

                    label = f"GridSample {count}d {mode} {padding} align_corners={align}"
                    yield Case(label, text, {"x": x, "g": grid}, function)


# Einsum ------------------------------------------------------------------------------------

#: Equations, and the shapes of their operands.
_EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("i->i", [(3,)]),
    ("i->", [(3,)]),
    ("ij->ji", [(3, 4)]),
    ("ij->j", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("ji", [(3, 4)]),
    ("ii->i", [(3, 3)]),
    ("ii->", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("bii->bi", [(2, 3, 3)]),
    ("bii->b", [(2, 3, 3)]),
    ("...ii->...i", [(2, 4, 3, 3)]),
    ("ijj->ij", [(2, 3, 3)]),
    ("iijj->ij", [(2, 2, 3, 3)]),
    ("ijij->ij", [(2, 3, 2, 3)]),
    ("iii->i", [(3, 3, 3)]),
    ("i,i", [(3,), (3,)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,j->ji", [(3,), (4,)]),
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,kj->ik", [(2, 3), (4, 3)]),
    ("ij,jk->ki", [(2, 3), (3, 4)]),
    ("ij,kl->ik", [(2, 3), (4, 5)]),
    ("ij,ij->", [(2, 3), (2, 3)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bij,jk->bik", [(2, 3, 4), (4, 5)]),
    ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("bhij,bjhd->bihd", [(2, 2, 3, 4), (2, 4, 2, 5)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (1, 4, 5)]),
    ("...ij,...jk->...ik", [(6, 2, 3, 4), (6, 1, 4, 5)]),
    ("...ij,...jk", [(2, 1, 3, 4), (1, 5, 4, 5)]),
    ("i...,i...->...", [(3, 4, 5), (3, 4, 5)]),
    ("i...,i...->i...", [(3, 4, 5), (3, 1, 5)]),
    ("...i->i...", [(2, 3, 4)]),
    ("i...->...", [(2, 3, 4)]),
    ("...,...->...", [(2, 3), (1, 3)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ij,ik,jk->i", [(2, 3), (2, 4), (3, 4)]),
    ("i,i,i->i", [(3,), (3,), (3,)]),
    ("bi,bj,ijk->bk", [(2, 3), (2, 4), (3, 4, 5)]),
    ("ii,ij->j", [(3, 3), (3, 4)]),
    ("ij,jj->i", [(2, 3), (3, 3)]),
    ("ij,jk->ik", [(2, 3), (1, 4)]),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
    ("aBc,cBd->adB", [(2, 3, 4), (4, 3, 5)]),
    ("bchw,co->bohw", [(2, 3, 4, 5), (3, 6)]),
    ("nctv,vw->nctw", [(2, 3, 4, 5), (5, 5)]),
]


def _einsums() -> Iterator[Case]:
    import torch

    for equation, shapes in _EQUATIONS:
        feeds = {f"x{index}": _numbers(*shape) for index, shape in enumerate(shapes)}
        first = 0
        inputs = []
        for name, shape in zip(feeds, shapes, strict=True):
            inputs.append(f"double[{_dims(first, len(shape))}] {name}")
            first += len(shape)
        rank = torch.einsum(equation, *map(torch.tensor, feeds.values())).ndim
        result = f"double[{_dims(first, rank)}]" if rank else "double"
        text = f"""m ({", ".join(inputs)}) => ({result} y)
            {{ y = Einsum<equation="{equation}">({", ".join(feeds)}) }}"""

        def function(*operands: Any, equation: str = equation) -> Any:
            return torch.einsum(equation, *operands)

        yield Case(f"Einsum {equation} {shapes}", text, feeds, function)


# Fourier transforms ------------------------------------------------------------------------


def _spectra() -> Iterator[Case]:
    for points in (None, 5, 6, 8, 9):
        for axis in (1, -2):
            for version in (17, 20):
                yield from _transforms(points, axis, version)
    yield from _short_times()


def _transforms(points: int | None, axis: int, version: int) -> Iterator[Case]:
    import torch

    dim = axis if axis > 0 else axis + 1

    def full(x: Any, *_: Any) -> Any:
        return torch.view_as_real(torch.fft.fft(_complex(x), points, dim))

    def back(x: Any, *_: Any) -> Any:
        return torch.view_as_real(torch.fft.ifft(_complex(x), points, dim))

    def half(x: Any, *_: Any) -> Any:
        return torch.view_as_real(torch.fft.rfft(x[..., 0], points, dim))

    def half_back(x: Any, *_: Any) -> Any:
        return torch.fft.irfft(_complex(x), points, dim)[..., None]

    kinds: dict[str, tuple[int, dict[str, int], Callable[..., Any]]] = {
        "real": (1, {}, full),
        "complex": (2, {}, full),
        "inverse": (2, {"inverse": 1}, back),
        "one-sided": (1, {"onesided": 1}, half),
        "one-sided inverse": (2, {"inverse": 1, "onesided": 1}, half_back),
    }
    length: dict[str, np.ndarray] = {} if points is None else {"n": np.array(points)}
    declared = "".join(f", int64 {name}" for name in length)
    for kind, (parts, attributes, function) in kinds.items():
        axes = ""
        inputs = ["x", *(length or [""])]
        if version < 20:
            attributes = {"axis": axis, **attributes}
        else:
            axes = f"a = Constant<value = int64 {{{axis}}}>()"
            inputs.append("a")
        flags = ", ".join(f"{name}={value}" for name, value in attributes.items())
        call = f"DFT{f'<{flags}>' if flags else ''}({', '.join(inputs).removesuffix(', ')})"
        text = f"m (double[A,B,C,{parts}] x{declared}) => (double[D,E,F,G] y) {{ {axes} y = {call} }}"
        shape = [2, 6, 7, parts]
        if parts == 2 and "onesided" in attributes and points:
            shape[axis] = points // 2 + 1  # for other lengths, onnxruntime computes other signals
        feeds = {"x": _numbers(*shape), **length}
        label = f"DFT {kind} opset={version} axis={axis} length={points}"
        yield Case(label, text, feeds, function, opset=version)


def _complex(x: Any) -> Any:
    import torch

    return torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0] + 0j


def _short_times() -> Iterator[Case]:
    import torch

    for onesided in (0, 1):
        for parts in (1,) if onesided else (1, 2):
            for step in (2, 5, 8):
                for windowed in (False, True):
                    feeds = {"x": _numbers(2, 21, parts), "step": np.array(step)}
                    window = ", double[W] w" if windowed else ", int64 n"
                    feeds["w" if windowed else "n"] = _numbers(7) if windowed else np.array(7)
                    given = "w" if windowed else ", n"
                    text = f"""m (double[A,B,{parts}] x, int64 step{window}) => (double[C,D,E,2] y)
                        {{ y = STFT<onesided={onesided}>(x, step, {given}) }}"""

                    def function(
                        x: Any, step: Any, w: Any, windowed: bool = windowed, onesided: int = onesided
                    ) -> Any:
                        frames = x.unfold(1, 7, int(step)).transpose(2, 3)
                        frames = frames * w[:, None] if windowed else frames
                        transform = (
                            torch.fft.rfft(frames[..., 0], dim=2)
                            if onesided
                            else torch.fft.fft(_complex(frames), dim=2)
                        )
                        return torch.view_as_real(transform)

                    label = f"STFT onesided={onesided} parts={parts} step={step} window={windowed}"
                    yield Case(label, text, feeds, function)


# Det ---------------------------------------------------------------------------------------


def _determinants() -> Iterator[Case]:
    import torch

    for lead in ((), (2,), (2, 3)):
        for size in (1, 2, 3, 5, 8):
            for dynamic in (False, True):
                x = _numbers(*lead, size, size, single=True)
                dims = _dims(0, x.ndim) if dynamic else ",".join(map(str, x.shape))
                text = f"m (float[{dims}] x) => (float[{_dims(8, len(lead))}] y) {{ y = Det(x) }}"
                text = text.replace("float[] y", "float y")
                yield Case(f"Det {x.shape} dynamic={dynamic}", text, {"x": x}, torch.linalg.det)
    for size, missing in ((3, 1), (4, 1), (4, 2)):
        x = _numbers(size, size, single=True)
        x[:missing] = x[-1:]
        text = "m (float[A,B] x) => (float y) { y = Det(x) }"
        yield Case(f"Det singular {size} rank={size - missing}", text, {"x": x}, _leibniz)


def _leibniz(x: Any) -> Any:
    """The determinant as a sum over permutations, whose gradient is correct for singular matrices."""
    import itertools

    size = x.shape[0]
    total = 0
    for order in itertools.permutations(range(size)):
        swaps = sum(order[i] > order[j] for i in range(size) for j in range(i + 1, size))
        term = x[0, order[0]]
        for row in range(1, size):
            term = term * x[row, order[row]]
        total = total + (-1) ** swaps * term
    return total
