"""Conv and ConvTranspose in one to three dimensions, Col2Im, and a small network, in single precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any

import numpy as np

from benchmarks.torch_gradients.common import Case

#: Static sizes of the model: all, all but the batch, channels and kernels, all but kernels, none.
_KNOWN = ("all", "sample", "channels", "w", "none")
#: Groups, channels of x, channels of y.
_GROUPS = ((1, 3, 4), (2, 4, 6), (4, 4, 4), (3, 3, 6))


@dataclass
class _Setting:
    """One configuration.

    Attributes:
        kernel: its sizes.
        pads: before all axes and after them, as in ONNX.
        known: the static sizes of the model, one of ``_KNOWN``.
        further: ``output_padding``.
        shape: ``output_shape``.
        written: attributes that are written even if they have default values.
    """

    kernel: Sequence[int]
    sizes: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int] = ()
    auto: str = "NOTSET"
    group: int = 1
    inner: int = 3
    outer: int = 4
    bias: bool = True
    known: str = "all"
    further: Sequence[int] = ()
    shape: Sequence[int] = ()
    written: Sequence[str] = ("dilations", "kernel_shape", "strides")

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def attributes(self) -> dict[str, Any]:
        """The attributes with other values than the defaults, and the attributes in ``written``."""
        told: dict[str, Any] = {
            "auto_pad": self.auto if self.auto != "NOTSET" else None,
            "dilations": self.dilations if "dilations" in self.written or max(self.dilations) > 1 else None,
            "group": self.group if self.group > 1 else None,
            "kernel_shape": self.kernel if "kernel_shape" in self.written else None,
            "output_padding": self.further or None,
            "output_shape": self.shape or None,
            "pads": self.pads or None,
            "strides": self.strides if "strides" in self.written or max(self.strides) > 1 else None,
        }
        return {name: value for name, value in told.items() if value is not None}


def cases() -> Iterator[Case]:
    """All combinations of some strides, groups and ranks, with varying other attributes."""
    yield from _convs()
    yield from _same_convs()
    yield from _transposes()
    yield from _shaped_transposes()
    yield from _columns()
    yield _network()


def _convs() -> Iterator[Case]:
    kernels: dict[int, Iterator[Sequence[int]]] = {
        1: cycle([(3,), (1,), (4,), (11,)]),
        2: cycle([(3, 3), (1, 1), (3, 2), (5, 4), (1, 3), (2, 1)]),
        3: cycle([(2, 3, 1), (1, 1, 1), (3, 3, 2), (1, 2, 2)]),
    }
    sizes: dict[int, Sequence[int]] = {1: (14,), 2: (11, 12), 3: (7, 6, 5)}
    moves = [
        ((1, 1, 1), (1, 1, 1), ()),
        ((1, 1, 1), (1, 1, 1), (1, 1, 1)),
        ((2, 2, 2), (1, 1, 1), (1, 0, 1)),
        ((3, 1, 2), (1, 1, 1), (0, 2, 1)),
        ((1, 1, 1), (2, 2, 2), (2, 2, 1)),
        ((2, 3, 1), (2, 1, 2), (1, 3, 2)),
        ((3, 2, 2), (1, 2, 3), (2, 1, 4)),
        ((4, 4, 3), (1, 1, 1), ()),
    ]
    known, written = cycle(_KNOWN), cycle([(), ("strides", "kernel_shape"), ("dilations",)])
    for (strides, dilations, pads), (group, inner, outer), rank in product(moves, _GROUPS, (1, 2, 3)):
        kernel = next(kernels[rank])
        told = next(known)
        margins = (*pads[:rank], *(reversed(pads[:rank]))) if pads else ()
        enough = [
            max(size, (k - 1) * d + 1) for size, k, d in zip(sizes[rank], kernel, dilations, strict=False)
        ]
        setting = _Setting(
            kernel, enough, strides[:rank], dilations[:rank], margins, "NOTSET", group, inner, outer,
            bias=told != "all", known=told, written=next(written),
        )  # fmt: skip
        yield _conv(setting)


def _same_convs() -> Iterator[Case]:
    known = cycle(_KNOWN)
    for auto, stride, kernel, size in product(("SAME_UPPER", "SAME_LOWER"), (1, 2, 3), (1, 2, 3, 4), (7, 9)):
        setting = _Setting(
            (kernel, 3), (size, 8), (stride, 2 if stride > 1 else 1), (1, 1), auto=auto, known=next(known)
        )
        yield _conv(setting)
    for auto, told in product(("SAME_UPPER", "SAME_LOWER", "VALID"), _KNOWN):
        for sides in ((6, 5), (3, 2)):
            yield _conv(_Setting(sides, (13, 12), (2, 3), (1, 1), auto=auto, group=2, inner=4, known=told))
        yield _conv(_Setting((4,), (13,), (3,), (1,), auto=auto, known=told, written=()))


def _transposes() -> Iterator[Case]:
    kernels: dict[int, Iterator[Sequence[int]]] = {
        1: cycle([(3,), (1,), (4,), (10,)]),
        2: cycle([(3, 3), (2, 2), (3, 2), (4, 5), (1, 1)]),
        3: cycle([(2, 3, 1), (3, 3, 2), (1, 2, 2)]),
    }
    sizes: dict[int, Sequence[int]] = {1: (7,), 2: (5, 6), 3: (4, 3, 4)}
    moves = [
        ((1, 1, 1), (1, 1, 1), (), ()),
        ((2, 2, 2), (1, 1, 1), (1, 0, 0), (1, 1, 1)),
        ((2, 2, 2), (1, 1, 1), (0, 1, 0), ()),
        ((1, 1, 1), (2, 2, 2), (1, 1, 0), ()),
        ((3, 2, 2), (2, 1, 1), (0, 0, 1), (2, 0, 1)),
    ]
    known = cycle(_KNOWN)
    for (strides, dilations, pads, further), (group, inner, outer), rank in product(
        moves, _GROUPS, (1, 2, 3)
    ):
        margins = (*pads[:rank], *([0] * rank)) if pads else ()
        told = next(known)
        setting = _Setting(
            next(kernels[rank]), sizes[rank], strides[:rank], dilations[:rank], margins, "NOTSET", group,
            inner, outer, bias=told != "w", known=told, further=further[:rank],
        )  # fmt: skip
        yield _transpose(setting)


def _shaped_transposes() -> Iterator[Case]:
    for auto, told in product(("SAME_UPPER", "SAME_LOWER"), _KNOWN):
        for kernel, stride in ((3, 2), (4, 2), (2, 3), (3, 1)):
            setting = _Setting((kernel, 3), (4, 5), (stride, 2), (1, 1), auto=auto, known=told)
            yield _transpose(setting)
    for auto, told in product(("NOTSET", "SAME_UPPER", "SAME_LOWER"), _KNOWN):
        for shape, further in (((8, 10), ()), ((7, 9), ()), ((9, 8), (1, 1)), ((10, 12), ())):
            setting = _Setting(
                (3, 4), (4, 5), (2, 2), (1, 1), auto=auto, known=told, further=further, shape=shape
            )
            yield _transpose(setting)


def _conv(setting: _Setting) -> Case:
    from torch.nn import functional

    convolution = (functional.conv1d, functional.conv2d, functional.conv3d)[setting.rank - 1]
    before, after = _margins(setting)
    pairs = [number for pair in zip(reversed(before), reversed(after), strict=True) for number in pair]

    def torch(x: Any, w: Any, b: Any = None) -> Any:
        x = functional.pad(x, pairs)
        return convolution(x, w, b, setting.strides, 0, setting.dilations, setting.group)

    return _case("Conv", setting, (setting.outer, setting.inner // setting.group), torch)


def _margins(setting: _Setting) -> tuple[list[int], list[int]]:
    if setting.auto.startswith("SAME"):
        totals = [
            max((-(-size // stride) - 1) * stride + kernel - size, 0)
            for size, stride, kernel in zip(setting.sizes, setting.strides, setting.kernel, strict=True)
        ]
        return _halves(totals, setting.auto)
    pads = list(setting.pads or (0,) * 2 * setting.rank)
    return pads[: setting.rank], pads[setting.rank :]


def _halves(totals: Sequence[int], auto: str) -> tuple[list[int], list[int]]:
    smaller = [total // 2 for total in totals]
    larger = [total - half for total, half in zip(totals, smaller, strict=True)]
    return (smaller, larger) if auto == "SAME_UPPER" else (larger, smaller)


def _transpose(setting: _Setting) -> Case:
    from torch.nn import functional

    rank = setting.rank
    convolution = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[
        rank - 1
    ]
    further = list(setting.further or (0,) * rank)
    whole = [
        (size - 1) * stride + (kernel - 1) * dilation + 1 + more
        for size, stride, kernel, dilation, more in zip(
            setting.sizes, setting.strides, setting.kernel, setting.dilations, further, strict=True
        )
    ]
    if setting.shape or setting.auto.startswith("SAME"):
        wanted = setting.shape or [
            size * stride for size, stride in zip(setting.sizes, setting.strides, strict=True)
        ]
        surplus = [size - want for size, want in zip(whole, wanted, strict=True)]
        before, after = _halves([max(number, 0) for number in surplus], setting.auto)
        if setting.shape:
            further = [more - min(number, 0) for more, number in zip(further, surplus, strict=True)]
    else:
        before, after = _margins(setting)

    def torch(x: Any, w: Any, b: Any = None) -> Any:
        y = convolution(x, w, b, setting.strides, 0, further, setting.group, setting.dilations)
        for axis in range(rank):
            kept = y.shape[axis + 2] - before[axis] - after[axis]
            y = y.narrow(axis + 2, before[axis], kept)
        return y

    return _case("ConvTranspose", setting, (setting.inner, setting.outer // setting.group), torch)


def _case(op: str, setting: _Setting, channels: tuple[int, int], torch: Any) -> Case:
    random, rank = np.random.default_rng(1), setting.rank
    feeds = {
        "x": random.standard_normal((2, setting.inner, *setting.sizes)).astype(np.float32),
        "w": random.standard_normal((*channels, *setting.kernel)).astype(np.float32),
        "b": random.standard_normal(setting.outer).astype(np.float32),
    }
    if not setting.bias:
        del feeds["b"]
    dims = {name: [str(size) for size in value.shape] for name, value in feeds.items()}
    unknown: dict[str, Mapping[str, Sequence[int]]] = {
        "all": {},
        "sample": {"x": [0]},
        "channels": {"x": [0, *range(2, rank + 2)]},
        "w": {"w": range(rank + 2)},
        "none": {"x": range(rank + 2), "w": range(rank + 2), "b": [0]},
    }
    for name, axes in unknown[setting.known].items():
        for axis in axes if name in dims else ():
            dims[name][axis] = f"{name.upper()}{axis}"
    inputs = ", ".join(f"float[{','.join(sizes)}] {name}" for name, sizes in dims.items())
    told = ", ".join(f"{name} = {_text(value)}" for name, value in setting.attributes().items())
    results = ",".join(f"Y{axis}" for axis in range(rank + 2))
    called = f"{op}<{told}>" if told else op
    text = f"m ({inputs}) => (float[{results}] y) {{ y = {called}({', '.join(feeds)}) }}"
    label = f"{op} {rank}d kernel={setting.kernel} {told} known={setting.known}"
    return Case(label, text, feeds, torch)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value) if isinstance(value, int) else f"[{', '.join(map(str, value))}]"


def _columns() -> Iterator[Case]:
    from torch.nn import functional

    random = np.random.default_rng(1)
    for strides, dilations, pads, known in product(((1, 1), (2, 3)), ((1, 1), (2, 1)), (0, 1), (True, False)):
        image, block = (7, 9), (2, 3)
        steps = [
            (size + 2 * pads - (kernel - 1) * dilation - 1) // stride + 1
            for size, kernel, dilation, stride in zip(image, block, dilations, strides, strict=True)
        ]
        x = random.standard_normal((2, 3 * 6, steps[0] * steps[1])).astype(np.float32)
        sizes = {
            "i": np.array(image, np.int64),
            "k": np.array(block, np.int64),
        }

        def torch(x: Any, i: Any, k: Any, moves: Any = (dilations, pads, strides)) -> Any:
            return functional.fold(x, tuple(i.tolist()), tuple(k.tolist()), *moves)

        told = f"dilations = {list(dilations)}, pads = {[pads] * 4}, strides = {list(strides)}"
        shape = f"2, 18, {x.shape[2]}" if known else "A,B,C"
        inputs = f"float[{shape}] x, int64[2] i, int64[2] k"
        text = f"m ({inputs}) => (float[N,C,H,W] y) {{ y = Col2Im<{told}>(x, i, k) }}"
        yield Case(f"Col2Im {told} {known}", text, {"x": x, **sizes}, torch)


def _network() -> Case:
    from torch.nn import functional

    random = np.random.default_rng(1)
    shapes = {
        "x": (2, 3, 9, 8), "w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "w3": (12, 8, 1, 1),
        "w4": (12, 12, 3, 3), "w5": (5, 12), "b5": (5,),
    }  # fmt: skip
    feeds = {name: random.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    dims = {name: ",".join(map(str, shape)) for name, shape in shapes.items()}
    dims["x"] = "N,3,H,W"
    inputs = ", ".join(f"float[{sizes}] {name}" for name, sizes in dims.items())
    text = f"""m ({inputs}, int64[N] t) => (float loss) {{
        a = Conv<pads=[1,1,1,1]>(x, w1, b1)
        b = Relu(a)
        c = Conv<pads=[1,1,1,1], strides=[2,2], group=8>(b, w2)
        d = Relu(c)
        e = Conv(d, w3)
        f = Relu(e)
        g = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(f, w4)
        axes = Constant<value = int64[2] {{2, 3}}>()
        h = ReduceMean<keepdims=0>(g, axes)
        logits = Gemm<transB=1>(h, w5, b5)
        loss = SoftmaxCrossEntropyLoss(logits, t)
    }}"""

    def torch(x: Any, w1: Any, b1: Any, w2: Any, w3: Any, w4: Any, w5: Any, b5: Any, t: Any) -> Any:
        y = functional.relu(functional.conv2d(x, w1, b1, padding=1))
        y = functional.relu(functional.conv2d(y, w2, stride=2, padding=1, groups=8))
        y = functional.relu(functional.conv2d(y, w3))
        y = functional.conv2d(functional.pad(y, (0, 1, 1, 1)), w4, stride=2)
        return functional.cross_entropy(functional.linear(y.mean((2, 3)), w5, b5), t)

    return Case("Conv network", text, {**feeds, "t": np.array([1, 4])}, torch)
