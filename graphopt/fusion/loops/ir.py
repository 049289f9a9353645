"""The loop IR: a kernel as loops over elements, independent of the device.

A kernel computes all elements of its outputs in one loop nest over ``axes``, outermost first. Its body is a
list of instructions in SSA form. An instruction is evaluated for each point of the axes that it depends on,
which follow from the accesses of its loads; a reduction depends on no ``reduced`` axis.

For ``y = softmax(x)`` over the rows of an N × C matrix, with N and C known when the kernel runs::

    axes     0: N, 1: C (reduced)
    %0 = load x[C * i0 + i1]
    %1 = reduce_max %0
    %2 = sub %0 %1
    %3 = exp %2
    %4 = reduce_sum %3
    %5 = div %3 %4
    store y[C * i0 + i1] = %5

:mod:`graphopt.fusion.loops.instructions` defines the instructions,
:mod:`graphopt.fusion.loops.interpreter` their reference semantics, and
:mod:`graphopt.fusion.loops.printer` the text form.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import reduce

from graphopt.util.lazy_dataclass import dataclass


class CantFuse(Exception):
    """Nodes can't be computed in one kernel; the message is the reason."""


class Element(Enum):
    """Element types; the value is the type's number in ONNX."""

    F32 = 1
    U8 = 2
    I8 = 3
    I32 = 6
    I64 = 7
    BOOL = 9
    F16 = 10
    BF16 = 16

    @property
    def bytes(self) -> int:
        """The size of an element in memory, in bytes."""
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self in (Element.F32, Element.F16, Element.BF16)

    @property
    def computed(self) -> Element:
        """The type of values in registers: floats are computed in single precision."""
        return Element.F32 if self.is_float else self


_BYTES = {
    Element.F32: 4,
    Element.U8: 1,
    Element.I8: 1,
    Element.I32: 4,
    Element.I64: 8,
    Element.BOOL: 1,
    Element.F16: 2,
    Element.BF16: 2,
}


@dataclass(frozen=True)
class Size:
    """``factor`` times the product of ``symbols``; equal sizes compare equal.

    Attributes:
        symbols: indices into :attr:`Kernel.symbols`, ascending, possibly repeated.
    """

    factor: int
    symbols: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbols", tuple(sorted(self.symbols)) if self.factor else ())

    def __mul__(self, other: Size) -> Size:
        return Size(self.factor * other.factor, self.symbols + other.symbols)

    @property
    def constant(self) -> int | None:
        """The number; ``None`` if it depends on symbols."""
        return None if self.symbols else self.factor


ZERO, ONE = Size(0), Size(1)


def product(sizes: Iterable[Size]) -> Size:
    """The product of ``sizes``."""
    return reduce(operator.mul, sizes, ONE)


@dataclass(frozen=True)
class Symbol:
    """A dimension of an input, known when the kernel runs."""

    input: int
    axis: int


@dataclass(frozen=True)
class Axis:
    """A loop from 0 to ``size``, which may be 0.

    Attributes:
        reduced: whether reductions iterate over the axis. Each reduction of a kernel iterates over all
            reduced axes.
    """

    size: Size
    reduced: bool = False


@dataclass(frozen=True)
class Port:
    """An input or output: a dense tensor in row-major order.

    Attributes:
        element: the element type in memory.
        dims: the shape. A kernel checks the shapes of its inputs when it runs.
    """

    element: Element
    dims: tuple[Size, ...]


@dataclass(frozen=True)
class Access:
    """The element ``offset + sum(strides[k] * i[k])`` of a port.

    Attributes:
        port: index of the input or output.
        strides: one per axis of the kernel, in elements; may be negative.
    """

    port: int
    strides: tuple[Size, ...]
    offset: Size = ZERO


@dataclass(frozen=True)
class Instruction:
    """One instruction of a segment.

    Attributes:
        op: a name in :data:`graphopt.fusion.loops.instructions.OPS`.
        element: the type of the result, a ``computed`` type.
        args: indices of earlier instructions.
        access: the operand of ``load``, which converts f16 and bf16 to f32.
        value: the operand of ``constant``: an int, a float (of any bit pattern) or a bool.
        size: the operand of ``extent``, converted to ``element``.
        into: the type to whose precision ``round`` rounds: f16 or bf16.
    """

    op: str
    element: Element
    args: tuple[int, ...] = ()
    access: Access | None = None
    value: float | int | bool | None = None
    size: Size | None = None
    into: Element | None = None

    @property
    def is_reduction(self) -> bool:
        """Whether the instruction reduces over the reduced axes."""
        return self.op.startswith("reduce_")


@dataclass(frozen=True)
class Store:
    """Writes the result of ``instruction`` to an output, at all axes or at all axes that are not reduced."""

    access: Access
    instruction: int


@dataclass(frozen=True)
class Segment:
    """The computation for a part of the iteration space; the segments of a kernel cover all of it.

    Attributes:
        start, stop: range along :attr:`Kernel.split_axis`; a ``stop`` of ``None`` is the end of the axis.
    """

    body: tuple[Instruction, ...]
    stores: tuple[Store, ...]
    start: Size = ZERO
    stop: Size | None = None


@dataclass(frozen=True)
class Kernel:
    """A group in the loop IR.

    Attributes:
        name: name of the function that it implements; an identifier of C.
        symbols: sizes known when the kernel runs.
        axes: the loops, outermost first. Reduced axes are adjacent, at the end or followed by one last axis.
        segments: one, or several along ``split_axis``, which is not reduced.
        split_axis: index of the axis that is split into segments.
        in_place: pairs of an input and an output that may share memory: each iteration reads only the element
            of the input that it overwrites, and the element sizes are equal.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    symbols: tuple[Symbol, ...]
    axes: tuple[Axis, ...]
    segments: tuple[Segment, ...]
    split_axis: int | None = None
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def reduced(self) -> tuple[int, ...]:
        """Indices of the reduced axes."""
        return tuple(index for index, axis in enumerate(self.axes) if axis.reduced)

    def bounds(self, segment: Segment) -> list[tuple[Size, Size]]:
        """The range of each loop in ``segment``."""
        found = [(ZERO, axis.size) for axis in self.axes]
        if self.split_axis is not None:
            size = self.axes[self.split_axis].size
            found[self.split_axis] = (segment.start, size if segment.stop is None else segment.stop)
        return found


def live_instructions(body: Sequence[Instruction], results: Iterable[int]) -> list[int]:
    """Indices of the instructions that ``results`` depend on, ascending."""
    live = set(results)
    for index in reversed(range(len(body))):
        if index in live:
            live.update(body[index].args)
    return sorted(live)


def single(value: float) -> float:
    """The nearest number of single precision."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
