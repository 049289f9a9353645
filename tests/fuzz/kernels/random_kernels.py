"""Random kernels of graphopt.fusion.loops.ir: all types, layouts, segments and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.fusion.loops.interpreter import TYPES, number
from graphopt.fusion.loops.ir import (
    ONE,
    ZERO,
    Access,
    Axis,
    Element,
    Instruction,
    Kernel,
    Port,
    Segment,
    Size,
    Store,
    Symbol,
)  # fmt: skip

SYMBOLS = (0, 1, 2, 3, 7, 16, 17, 33)
NUMBERS = (1, 2, 3, 4, 5, 8, 17, 32, 67)
_INTEGERS = (Element.I8, Element.U8, Element.I32, Element.I64)


class Generator:
    """Generates kernels from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.seed = seed

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.random.integers(len(options)))]

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def kernel(self, elements: Sequence[Element] = tuple(Element)) -> Kernel:
        rank = int(self.random.integers(1, 5))
        symbols: list[Symbol] = []
        axes: list[Axis] = []
        kind = self.pick(["flat", "flat", "rows", "columns"])
        reduced: set[int] = set()
        if kind == "rows":
            reduced = set(range(rank - int(self.random.integers(1, min(rank, 2) + 1)), rank))
        elif kind == "columns" and rank > 1:
            reduced = set(range(rank - 1 - int(self.random.integers(1, min(rank - 1, 2) + 1)), rank - 1))
        for axis in range(rank):
            size = Size(self.pick(NUMBERS))
            if self.chance(0.5):
                size = Size(1, (len(symbols),))
                symbols.append(Symbol(0, axis))
            axes.append(Axis(size, axis in reduced))
        cut, bounds = self.cuts(axes)
        self.axes = axes
        full = tuple(axis.size for axis in axes)
        inputs = [Port(self.pick(elements), full)]
        self.layouts: list[tuple[Size, ...]] = [self.strides(range(rank))]
        offsets = [ZERO]
        for _ in range(int(self.random.integers(1, 4))):
            dims, strides, offset = self.layout(rank)
            inputs.append(Port(self.pick(elements), dims))
            self.layouts.append(strides)
            offsets.append(offset)
        self.inputs, self.offsets = inputs, offsets
        segments, outputs = [], []
        count = int(self.random.integers(1, 3))
        shapes = [bool(reduced) and self.chance(0.5) for _ in range(count)]
        wanted = [self.pick(elements) for _ in range(count)]
        for start, stop in bounds:
            body = Body(self, bool(reduced))
            body.grow(int(self.random.integers(3, 12)))
            stores = []
            for index in range(count):
                value = body.value_for(wanted[index], whole=not shapes[index])
                kept = [axis for axis in range(rank) if not (shapes[index] and axis in reduced)]
                stores.append(Store(Access(index, self.strides(kept)), value))
            segments.append(Segment(tuple(body.steps), tuple(stores), start, stop))
        for index in range(count):
            dims = tuple(axis.size for axis in axes if not (shapes[index] and axis.reduced))
            outputs.append(Port(wanted[index], dims))
        in_place = ()
        alone = all(
            step.access is None or step.access.port != 0 or step.access.strides == self.layouts[0]
            for segment in segments for step in segment.body
        )  # fmt: skip
        if not shapes[0] and outputs[0].element.bytes == inputs[0].element.bytes and alone:
            in_place = ((0, 0),)
        return Kernel(
            f"random{self.seed}",
            tuple(inputs),
            tuple(outputs),
            tuple(symbols),
            tuple(axes),
            tuple(segments),
            cut,
            in_place,
        )

    def cuts(self, axes: list[Axis]) -> tuple[int | None, list[tuple[Size, Size | None]]]:
        possible = [i for i, axis in enumerate(axes) if not axis.reduced and (axis.size.constant or 0) > 2]
        if not possible or not self.chance(0.3):
            return None, [(ZERO, None)]
        cut = self.pick(possible)
        middle = Size(int(self.random.integers(1, axes[cut].size.constant or 2)))
        return cut, [(ZERO, middle), (middle, None)]

    def strides(self, order: Sequence[int]) -> tuple[Size, ...]:
        """The strides of a dense tensor whose dims are the axes of ``order``."""
        found = [ZERO] * len(self.axes)
        stride = ONE
        for axis in reversed(order):
            found[axis] = stride
            stride = stride * self.axes[axis].size
        return tuple(found)

    def layout(self, rank: int) -> tuple[tuple[Size, ...], tuple[Size, ...], Size]:
        order = [axis for axis in range(rank) if self.chance(0.65)]
        if self.chance(0.25):
            self.random.shuffle(order)
        dims, strides, offset = [], [ZERO] * rank, ZERO
        stride = ONE
        for axis in reversed(order):
            size = self.axes[axis].size
            strides[axis] = stride
            dim = size
            if size.constant is not None and stride.constant is not None and self.chance(0.3):
                first, after = int(self.random.integers(0, 3)), int(self.random.integers(0, 3))
                every = int(self.random.integers(1, 3))
                dim = Size(first + size.constant * every + after)
                start = first
                if self.chance(0.3):
                    start, every = first + (size.constant - 1) * every, -every
                strides[axis] = Size(stride.constant * every)
                offset = Size(offset.factor + start * stride.constant)
            dims.insert(0, dim)
            stride = stride * dim
        return tuple(dims), tuple(strides), offset

    def feeds(self, kernel: Kernel) -> list[np.ndarray]:
        """Inputs for a kernel, for random values of its symbols."""
        values = [self.pick(SYMBOLS) for _ in kernel.symbols]
        return [
            self.array(port.element, [number(dim, values) for dim in port.dims]) for port in kernel.inputs
        ]

    def array(self, element: Element, shape: list[int]) -> np.ndarray:
        if element is Element.BOOL:
            return self.random.random(shape) < 0.5
        if element.is_float:
            values = self.random.standard_normal(shape)
            if self.chance(0.2) and values.size:
                special = self.random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1.0], values.shape)
                values = np.where(self.random.random(shape) < 0.05, special, values)
            return values.astype(np.float32).astype(TYPES[element])
        low = 0 if element is Element.U8 else -100
        return self.random.integers(low, 100, shape).astype(TYPES[element])


class Body:
    """The instructions of a segment under construction."""

    def __init__(self, generator: Generator, reduces: bool) -> None:
        self.of, self.reduces = generator, reduces
        self.steps: list[Instruction] = []
        self.exact: list[bool] = []
        self.varies: list[bool] = []

    def add(self, op: str, element: Element, *args: int, exact: bool = True, **more: Any) -> int:
        self.steps.append(Instruction(op, element, args, **more))
        self.exact.append(exact and all(self.exact[arg] for arg in args))
        varies = any(self.varies[arg] for arg in args)
        access = more.get("access")
        if access is not None:
            varies = any(
                stride.factor and axis.reduced
                for stride, axis in zip(access.strides, self.of.axes, strict=True)
            )
        self.varies.append(varies and not op.startswith("reduce_"))
        return len(self.steps) - 1

    def grow(self, count: int) -> None:
        pick = self.of.pick
        for port, layout in enumerate(self.of.layouts):
            element = self.of.inputs[port].element.computed
            self.add("load", element, access=Access(port, layout, self.of.offsets[port]))
        for _ in range(count):
            element = pick([step.element for step in self.steps])
            choice = pick(["plain", "plain", "plain", "constant", "cast", "compare", "reduce"])
            if choice == "constant":
                self.constant(element)
            elif choice == "cast":
                self.cast(
                    self.any(element),
                    pick([Element.F32, Element.I32, Element.I8, Element.U8, Element.BOOL, Element.I64]),
                )
            elif choice == "reduce" and self.reduces:
                self.reduce(element)
            elif choice == "compare":
                self.compare(element)
            else:
                self.plain(element)

    def any(self, element: Element, exact: bool = False) -> int:
        found = [
            i for i, step in enumerate(self.steps) if step.element is element and (self.exact[i] or not exact)
        ]
        return self.of.pick(found) if found else self.constant(element)

    def constant(self, element: Element) -> int:
        pick = self.of.pick
        if element is Element.BOOL:
            return self.add("constant", element, value=self.of.chance(0.5))
        if element is Element.F32:
            return self.add("constant", element, value=pick([0.0, -0.0, 1.0, -1.5, 0.1, 3.0]))
        return self.add("constant", element, value=int(pick([0, 1, 2, 5, 100])))

    def cast(self, arg: int, element: Element) -> int:
        source = self.steps[arg].element
        if source is element:
            return arg
        if source is Element.F32 and element is not Element.BOOL:
            if not self.exact[arg]:
                arg = self.any(Element.F32, exact=True)
            # in range: the result is unspecified outside
            finite = self.add(
                "select", Element.F32, self.add("isnan", Element.BOOL, arg), self.constant(Element.F32), arg
            )
            low = self.add("constant", Element.F32, value=0.0 if element is Element.U8 else -100.0)
            high = self.add("constant", Element.F32, value=100.0)
            arg = self.add("min", Element.F32, self.add("max", Element.F32, finite, low), high)
        if source is Element.F32 and not self.exact[arg]:
            arg = self.any(Element.F32, exact=True)
        return self.add("cast", element, arg)

    def reduce(self, element: Element) -> None:
        op = self.of.pick(["sum", "max", "min"])
        if element is Element.BOOL:
            op = self.of.pick(["max", "min"])
        self.add(f"reduce_{op}", element, self.any(element), exact=op != "sum" or element is not Element.F32)

    def compare(self, element: Element) -> None:
        a, b = self.any(element, exact=True), self.any(element, exact=True)
        if element is Element.F32 and self.of.chance(0.3):
            self.add(self.of.pick(["isnan", "isinf"]), Element.BOOL, a)
            return
        yes = self.add(self.of.pick(["lt", "le", "eq"]), Element.BOOL, a, b)
        other = self.of.pick([step.element for step in self.steps])
        self.add("select", other, yes, self.any(other), self.any(other))

    def plain(self, element: Element) -> None:
        pick, a, b = self.of.pick, self.any(element), self.any(element)
        if element is Element.BOOL:
            op = pick(["and", "or", "xor", "not", "eq"])
            self.add(op, element, *([a] if op == "not" else [a, b]))
        elif element is Element.F32:
            op = pick(["add", "sub", "mul", "div", "min", "max", "neg", "abs", "sqrt", "exp", "log", "tanh", "sigmoid",
                       "erf", "sin", "cos", "pow", "floor", "ceil", "round_even", "trunc", "round", "fmod"])  # fmt: skip
            if op in ("floor", "ceil", "round_even", "trunc", "round", "fmod", "div"):
                a, b = self.any(element, exact=True), self.any(element, exact=True)
            exact = op not in ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "pow")
            if op in ("add", "sub", "mul", "div", "min", "max", "pow", "fmod"):
                self.add(op, element, a, b, exact=exact)
            elif op == "round":
                self.add(op, element, a, into=pick([Element.F16, Element.BF16]))
            else:
                self.add(op, element, a, exact=exact)
        else:
            op = pick(
                [
                    "add",
                    "sub",
                    "mul",
                    "min",
                    "max",
                    "neg",
                    "abs",
                    "div",
                    "mod",
                    "shl",
                    "shr",
                    "not",
                    "and",
                    "xor",
                ]
            )
            if op in ("div", "mod"):
                b = self.add("constant", element, value=int(pick([1, 3, 7])))
            self.add(op, element, *([a] if op in ("neg", "abs", "not") else [a, b]))

    def value_for(self, element: Element, whole: bool) -> int:
        """A value that can be stored as ``element``, without reduced axes unless ``whole``."""
        found = [
            index for index, step in enumerate(self.steps)
            if step.element is element.computed and (whole or not self.varies[index])
        ]  # fmt: skip
        if found:
            return self.of.pick(found[-4:])
        source = self.any(self.of.pick([step.element for step in self.steps]))
        if not whole and self.varies[source]:
            op = "sum" if self.steps[source].element is not Element.BOOL else "max"
            exact = self.steps[source].element is not Element.F32
            source = self.add(f"reduce_{op}", self.steps[source].element, source, exact=exact)
        if self.steps[source].element is Element.F32 and not self.exact[source]:
            return self.constant(element.computed)
        result = self.cast(source, element.computed)
        return result if whole or not self.varies[result] else self.constant(element.computed)
