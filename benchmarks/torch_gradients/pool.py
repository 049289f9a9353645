"""Pooling: kernels, strides, pads, dilations, ceil mode and counts, in one to three dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

_RANDOM = np.random.default_rng(2)
#: Spatial sizes of x, not divisible by any stride.
_SIZES = (8, 7, 6)


@dataclass(frozen=True)
class _Setting:
    """Attributes of a pool: ``kernel``, ``strides`` and ``dilations`` for each axis."""

    kernel: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[int]
    dilations: Sequence[int]
    ceil: int = 0
    auto: str = "NOTSET"

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def spelt(self, *more: str) -> str:
        """The attributes as ONNX text."""
        told = [f"kernel_shape={list(self.kernel)}", f"strides={list(self.strides)}", *more]
        if self.auto != "NOTSET":
            told.append(f'auto_pad="{self.auto}"')
        elif any(self.pads):
            told.append(f"pads={list(self.pads)}")
        if set(self.dilations) != {1}:
            told.append(f"dilations={list(self.dilations)}")
        if self.ceil:
            told.append("ceil_mode=1")
        return ", ".join(told)

    def windows(self, x: Any, outside: float, beyond: float | None = None) -> Any:
        """The elements of each window of a tensor along a last axis.

        Args:
            outside: the value in the pads.
            beyond: the value beyond the pads, in ceil mode.
        """
        from torch.nn import functional

        margins: list[int] = []
        more: list[int] = []
        for axis in reversed(range(self.rank)):
            begin, end, further = self._margins(axis, x.shape[axis + 2])
            margins += [begin, end]
            more += [0, further]
        x = functional.pad(x, margins, value=outside)
        x = functional.pad(x, more, value=outside if beyond is None else beyond)
        for axis, (k, s, d) in enumerate(zip(self.kernel, self.strides, self.dilations, strict=True)):
            x = x.unfold(axis + 2, (k - 1) * d + 1, s)[..., ::d]
        return x.flatten(2 + self.rank)

    def _margins(self, axis: int, size: int) -> tuple[int, int, int]:
        """Pads before and after an axis, and the extent of ceil mode beyond them."""
        s, reach = self.strides[axis], (self.kernel[axis] - 1) * self.dilations[axis] + 1
        if self.auto.startswith("SAME"):
            total = max((-(-size // s) - 1) * s + reach - size, 0)
            begin = (total + (self.auto == "SAME_LOWER")) // 2
            end = total - begin
        else:
            begin, end = self.pads[axis], self.pads[axis + self.rank]
        last, left = divmod(size + begin + end - reach, s)
        if self.ceil and left and (last + 1) * s < size + begin:
            last += 1
        return begin, end, max(0, last * s + reach - size - begin - end)

    def maxima(self, x: Any) -> Any:
        """MaxPool."""
        return self.windows(x, -np.inf).max(-1).values

    def means(self, x: Any, whole: int) -> Any:
        """AveragePool; pads count if ``whole``."""
        import torch

        count = self.windows(torch.ones_like(x), float(whole), 0.0).sum(-1)
        return self.windows(x, 0.0).sum(-1) / count

    def norms(self, x: Any, p: int) -> Any:
        """LpPool."""
        return self.windows(x.abs() ** p, 0.0).sum(-1) ** (1.0 / p)


def _grid() -> Iterator[_Setting]:
    """Overlapping and disjoint windows with and without pads, dilations and ceil mode."""
    for rank, kernel, stride in itertools.product((1, 2, 3), (2, 3), (1, 2, 3)):
        kernels, strides = (kernel,) * rank, (stride,) * rank
        for ceil in (0, 1) if stride > 1 else (0,):
            for pads in ((0,) * 2 * rank, (1,) * 2 * rank):
                yield _Setting(kernels, strides, pads, (1,) * rank, ceil)
            if rank < 3:
                yield _Setting(kernels, strides, (1, 0) * rank, (2,) * rank, ceil)
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        for rank, stride in ((1, 2), (2, 1), (2, 2), (3, 2)):
            yield _Setting((2, 3, 2)[:rank], (stride,) * rank, (0,) * 2 * rank, (1,) * rank, 0, auto)
    yield _Setting((1, 3), (2, 1), (0, 2, 0, 1), (1, 1))
    yield _Setting((3, 2), (1, 2), (2, 0, 0, 1), (1, 3), 1)


def cases() -> Iterator[Case]:
    """All pools."""
    for setting in _grid():
        yield _case(
            "MaxPool", setting, setting.spelt(), setting.maxima, opset=12 if setting.rank == 1 else 20
        )
        if setting.auto.startswith("SAME") or setting.ceil == 0 or setting.rank == 2:
            yield _case("MaxPool", setting, setting.spelt("storage_order=1"), setting.maxima, "double")
        for whole in (0, 1):
            yield _case(
                "AveragePool",
                setting,
                setting.spelt(*["count_include_pad=1"] * whole),
                lambda x, setting=setting, whole=whole: setting.means(x, whole),
                opset=20 if set(setting.dilations) != {1} else 13,
            )
        for p in (1, 2, 3):
            if p == 2 or setting.rank == 2:
                yield _case(
                    "LpPool",
                    setting,
                    setting.spelt(f"p={p}"),
                    lambda x, setting=setting, p=p: setting.norms(x, p),
                    opset=22,
                )
    yield from _of_torch()
    yield from _global()
    yield from _unpools()
    yield from _normalizations()
    yield from _regions()


def _case(
    function: str,
    setting: _Setting,
    spelt: str,
    torch: Callable[..., Any],
    precision: str = "float",
    opset: int = 20,
) -> Case:
    dims = ",".join("ABCDE"[: setting.rank + 2])
    text = f"m ({precision}[{dims}] x) => ({precision}[{dims.lower()}] y) {{ y = {function}<{spelt}>(x) }}"
    x = _numbers(2, 3, *_SIZES[: setting.rank], precision=precision)
    return Case(f"{function} {spelt} {precision}", text, {"x": x}, torch, opset=opset)


def _numbers(*shape: int, precision: str = "float") -> np.ndarray:
    """Numbers that differ from 0 and from each other by more than rounding errors."""
    count = int(np.prod(shape))
    order = _RANDOM.permutation(count).reshape(shape)
    numbers = (order - count / 2 + 0.25) * (4.0 / count)
    return np.asarray(numbers, np.float32 if precision == "float" else np.float64)


def _of_torch() -> Iterator[Case]:
    """Cases that torch's functions cover."""
    from torch.nn import functional

    for rank, (kernel, stride, pad), ceil in itertools.product(
        (1, 2, 3), ((2, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 0)), (0, 1)
    ):
        sizes = (kernel,) * rank, (stride,) * rank, (pad,) * 2 * rank
        for dilation in (1, 2):
            setting = _Setting(*sizes, (dilation,) * rank, ceil)
            largest = getattr(functional, f"max_pool{rank}d")
            yield _case(
                "MaxPool",
                setting,
                setting.spelt(),
                lambda x, f=largest, a=(kernel, stride, pad, dilation, bool(ceil)): f(x, *a),
                "double",
                opset=22,
            )
        setting = _Setting(*sizes, (1,) * rank, ceil)
        mean = getattr(functional, f"avg_pool{rank}d")
        for whole in (0, 1):
            yield _case(
                "AveragePool",
                setting,
                setting.spelt(f"count_include_pad={whole}"),
                lambda x, f=mean, a=(kernel, stride, pad, bool(ceil), bool(whole)): f(x, *a),
                opset=22,
            )


def _global() -> Iterator[Case]:
    """Global pools, including ties."""
    functions: dict[str, Callable[..., Any]] = {
        "GlobalAveragePool": lambda x, axes: x.mean(axes, keepdim=True),
        "GlobalMaxPool": lambda x, axes: x.amax(axes, keepdim=True),
    }
    for p in (1, 2, 3):
        functions[f"GlobalLpPool<p={p}>"] = lambda x, axes, p=p: x.norm(p, axes, keepdim=True)
    for (function, torch), rank in itertools.product(functions.items(), (1, 2, 3)):
        for ties in (False, True):
            x = _numbers(2, 3, *_SIZES[:rank])
            x = np.floor(x) + np.float32(0.5) if ties else x
            dims = ",".join("ABCDE"[: rank + 2])
            text = f"m (float[{dims}] x) => (float[{dims.lower()}] y) {{ y = {function}(x) }}"
            axes = tuple(range(2, rank + 2))
            label = f"{function} {rank}d{' with ties' * ties}"
            yield Case(label, text, {"x": x}, lambda x, f=torch, axes=axes: f(x, axes), opset=20)


def _unpools() -> Iterator[Case]:
    """MaxUnpool with the indices of a pool."""
    import torch as library
    from torch.nn import functional

    for rank, (kernel, stride) in itertools.product((1, 2, 3), ((2, 2), (3, 3), (2, 3))):
        full = _numbers(2, 3, *(kernel + stride * (size // 3) for size in _SIZES[:rank]))
        pool = getattr(functional, f"max_pool{rank}d_with_indices")
        unpool = getattr(functional, f"max_unpool{rank}d")
        pooled, places = pool(library.tensor(full), kernel, stride)
        planes = np.arange(6).reshape(2, 3, *[1] * rank) * int(np.prod(full.shape[2:]))
        dims = ",".join("ABCDE"[: rank + 2])
        attributes = f"kernel_shape={[kernel] * rank}, strides={[stride] * rank}"
        text = f"""m (float[{dims}] x, int64[{dims}] i) => (float[{dims.lower()}] y)
            {{ y = MaxUnpool<{attributes}>(x, i) }}"""
        feeds = {"x": np.asarray(pooled), "i": np.asarray(places) + planes}
        yield Case(
            f"MaxUnpool {attributes}",
            text,
            feeds,
            lambda x, i, f=unpool, p=places, a=(kernel, stride): f(x, p, *a),
        )


def _normalizations() -> Iterator[Case]:
    """LRN, LpNormalization and MeanVarianceNormalization."""
    from torch.nn import functional

    def local(x: Any, size: int, alpha: float, beta: float, bias: float) -> Any:
        before = (size - 1) // 2
        squares = functional.pad((x * x).transpose(1, -1), [before, size - 1 - before])
        sums = squares.unfold(-1, size, 1).sum(-1).transpose(1, -1)
        return x / (bias + alpha / size * sums) ** beta

    for size, shape in itertools.product((1, 3, 5), ((2, 7, 3, 4), (2, 4, 5, 1))):
        for alpha, beta, bias in ((0.5, 0.75, 1.0), (2.0, 0.5, 0.25)):
            attributes = f"size={size}, alpha={alpha}, beta={beta}, bias={bias}"
            text = f"m (float[A,B,C,D] x) => (float[A,B,C,D] y) {{ y = LRN<{attributes}>(x) }}"
            yield Case(
                f"LRN {attributes} {shape[1]} channels",
                text,
                {"x": _numbers(*shape)},
                lambda x, a=(size, alpha, beta, bias): local(x, *a),
            )
    for p, axis, precision in itertools.product((1, 2), (0, 1, -1), ("float", "double")):
        attributes = f"p={p}, axis={axis}"
        text = f"""m ({precision}[A,B,C] x) => ({precision}[A,B,C] y)
            {{ y = LpNormalization<{attributes}>(x) }}"""
        yield Case(
            f"LpNormalization {attributes} {precision}",
            text,
            {"x": _numbers(2, 3, 4, precision=precision)},
            lambda x, a=(p, axis): functional.normalize(x, *a),
        )
    for axes, opset in itertools.product(((0, 2, 3), (2, 3), (1,)), (13, 20)):
        text = f"""m (float[A,B,C,D] x) => (float[A,B,C,D] y)
            {{ y = MeanVarianceNormalization<axes={list(axes)}>(x) }}"""
        yield Case(
            f"MeanVarianceNormalization axes={axes} opset {opset}",
            text,
            {"x": _numbers(2, 3, 4, 5)},
            lambda x, axes=axes: (x - x.mean(axes, True)) / (x.std(axes, correction=0, keepdim=True) + 1e-9),
            opset=opset,
        )


def _regions() -> Iterator[Case]:
    """RoiAlign of regions within x, across its edges, and smaller than an element."""
    import torch as library

    def interpolated(plane: Any, y: Any, x: Any) -> Any:
        """Bilinear interpolation at a position; zero too far outside of x."""
        height, width = plane.shape[1:]
        if y < -1 or y > height or x < -1 or x > width:
            return [plane[:, 0, 0] * 0]
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        top, left = int(y), int(x)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        down, over = y - top, x - left
        return [
            plane[:, top, left] * (1 - down) * (1 - over),
            plane[:, top, right] * (1 - down) * over,
            plane[:, bottom, left] * down * (1 - over),
            plane[:, bottom, right] * down * over,
        ]

    def aligned(x: Any, rois: Any, images: Any, mode: str, scale: float, ratio: int, half: bool) -> Any:
        found = []
        for roi, image in zip(rois, images, strict=True):
            left, top, right, bottom = roi * scale - (0.5 if half else 0.0)
            tall, wide = bottom - top, right - left
            if not half:
                tall, wide = tall.clamp(min=1), wide.clamp(min=1)
            tall, wide = tall / 3, wide / 2
            rows, columns = (ratio or int(np.ceil(float(size.detach()))) for size in (tall, wide))
            for row, column in itertools.product(range(3), range(2)):
                corners = [
                    interpolated(
                        x[image],
                        top + row * tall + (i + 0.5) * tall / rows,
                        left + column * wide + (j + 0.5) * wide / columns,
                    )
                    for i, j in itertools.product(range(rows), range(columns))
                ]
                if mode == "max":
                    found.append(library.stack([c for some in corners for c in some]).max(0).values)
                else:
                    found.append(library.stack([sum(some) for some in corners]).mean(0))
        return library.stack(found).reshape(len(rois), 3, 2, -1).permute(0, 3, 1, 2)

    rois = [[0.37, 1.2, 5.1, 6.3], [-3.1, -2.2, 4.3, 5.1], [2.1, 2.2, 2.4, 2.7], [5.2, 3.3, 14.1, 12.4]]
    for mode, scale, ratio, half in itertools.product(("avg", "max"), (1.0, 0.5), (0, 1, 2), (False, True)):
        system = "half_pixel" if half else "output_half_pixel"
        attributes = (
            f'mode="{mode}", spatial_scale={scale}, sampling_ratio={ratio}, output_height=3, output_width=2'
        )
        text = f"""m (double[A,B,C,D] x, double[R,4] rois, int64[R] images) => (double[R,B,E,F] y)
            {{ y = RoiAlign<{attributes}, coordinate_transformation_mode="{system}">(x, rois, images) }}"""
        feeds = {
            "x": _numbers(2, 3, 7, 9, precision="double"),
            "rois": np.array(rois),
            "images": np.array([0, 1, 1, 0]),
        }
        yield Case(
            f"RoiAlign {attributes} {system}",
            text,
            feeds,
            lambda x, r, i, a=(mode, scale, ratio, half): aligned(x, r, i, *a),
        )
