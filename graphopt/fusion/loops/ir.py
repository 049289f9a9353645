"""Kernels as loops over elements: what stands between a group of nodes and the code of some device.

A kernel computes all elements of its outputs in one nest of loops over ``axes``, outermost first. Its body
is a list of instructions in SSA form, each of which computes one element for each point of the loops that it
depends on. That follows from the accesses of what it reads; a reduction depends on no ``reduced`` axis.

For ``y = softmax(x)`` over the rows of an array of N x C, with N and C known when the kernel runs::

    axes     0: N, 1: C (reduced)
    %0 = load x[C * i0 + i1]
    %1 = reduce_max %0
    %2 = sub %0 %1
    %3 = exp %2
    %4 = reduce_sum %3
    %5 = div %3 %4
    store y[C * i0 + i1] = %5
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Element(Enum):
    """Types of elements, by the names that the IR uses; the value is the type's number in ONNX."""

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
        """What an element takes in memory."""
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        """Whether it holds real numbers."""
        return self in (Element.F32, Element.F16, Element.BF16)

    @property
    def computed(self) -> Element:
        """The type in which instructions hold it: real numbers are computed in single precision."""
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
    """``factor`` times the product of ``symbols``; equal ones compare equal.

    Attributes:
        symbols: indices into :attr:`Kernel.symbols`, ascending; one may stand there several times.
    """

    factor: int
    symbols: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "symbols", tuple(sorted(self.symbols)) if self.factor else ())

    def __mul__(self, other: Size) -> Size:
        return Size(self.factor * other.factor, self.symbols + other.symbols)

    @property
    def constant(self) -> int | None:
        """The number, where it depends on no symbol."""
        return None if self.symbols else self.factor


ZERO, ONE = Size(0), Size(1)


@dataclass(frozen=True)
class Symbol:
    """A size that is known when the kernel runs: a dim of an input."""

    input: int
    axis: int


@dataclass(frozen=True)
class Axis:
    """A loop from 0 to ``size``, which may be 0.

    Attributes:
        reduced: reductions go over it. All reductions of a kernel go over all of its reduced axes.
    """

    size: Size
    reduced: bool = False


@dataclass(frozen=True)
class Port:
    """An input or output: a dense tensor in row-major order.

    Attributes:
        element: the type of its elements in memory.
        dims: its shape. A kernel checks those of its inputs when it runs, and makes those of its outputs.
    """

    element: Element
    dims: tuple[Size, ...]


@dataclass(frozen=True)
class Access:
    """An element of a port: ``offset + sum(strides[k] * i[k])``, counted in elements.

    Attributes:
        port: index of the input or output.
        strides: one for each axis of the kernel; :data:`ZERO` where it makes no difference. May be negative.
    """

    port: int
    strides: tuple[Size, ...]
    offset: Size = ZERO


@dataclass(frozen=True)
class Instruction:
    """One step of a kernel.

    Attributes:
        op: one of :data:`OPS`.
        element: the type of the result, one of the ``computed`` types.
        args: indices of earlier instructions of the body.
        access: what ``load`` reads; it widens f16 and bf16.
        value: what ``constant`` is: an int, a float (of any bits) or a bool.
        size: what ``extent`` is: that many, as a number of type ``element``.
        into: the type whose precision ``round`` keeps: f16 or bf16.
    """

    op: str
    element: Element
    args: tuple[int, ...] = ()
    access: Access | None = None
    value: float | int | bool | None = None
    size: Size | None = None
    into: Element | None = None


#: How many operands each op takes. All operands of an op have one type, but for the first of ``select``,
#: which is bool; the result has it, too, but for comparisons, ``isnan``, ``isinf`` (bool) and ``cast``.
#:
#: ``min`` and ``max`` give NaN where an operand is NaN; ``div`` and ``mod`` of integers go towards zero and
#: take the sign of the dividend, as in C, and never divide by 0 or by -1; ``round_even`` is Round of ONNX,
#: ``trunc`` cuts off. ``cast`` follows C; out of range of the target, and for NaN, any number may come out,
#: but no trap. To bool it tells whether a value is not 0. ``round`` rounds to the precision of ``into``, and
#: stays f32. Integers wrap around.
OPS: dict[str, int] = {
    "load": 0, "constant": 0, "extent": 0,
    "add": 2, "sub": 2, "mul": 2, "div": 2, "mod": 2, "fmod": 2, "min": 2, "max": 2, "pow": 2,
    "neg": 1, "abs": 1, "sqrt": 1, "exp": 1, "log": 1, "tanh": 1, "sigmoid": 1, "erf": 1, "sin": 1, "cos": 1,
    "floor": 1, "ceil": 1, "round_even": 1, "trunc": 1, "round": 1, "cast": 1,
    "lt": 2, "le": 2, "eq": 2, "isnan": 1, "isinf": 1,
    "and": 2, "or": 2, "xor": 2, "not": 1, "shl": 2, "shr": 2,
    "select": 3,
    "reduce_sum": 1, "reduce_prod": 1, "reduce_max": 1, "reduce_min": 1,
}  # fmt: skip

#: Ops that take many instructions.
COSTLY = frozenset({"exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "pow", "fmod"})


@dataclass(frozen=True)
class Store:
    """``instruction`` is written to an output. It stands at all axes, or at those that are not reduced."""

    access: Access
    instruction: int


@dataclass(frozen=True)
class Piece:
    """What is computed for a part of the iterations; the pieces of a kernel cover them all.

    Attributes:
        body: the instructions.
        stores: what is written.
        start, stop: the part of the axis :attr:`Kernel.cut` that it is for.
    """

    body: tuple[Instruction, ...]
    stores: tuple[Store, ...]
    start: Size = ZERO
    stop: Size | None = None


@dataclass(frozen=True)
class Kernel:
    """A group as loops.

    Attributes:
        name: of the function that it is the kernel of; an identifier in C.
        inputs, outputs: what goes in and comes out.
        symbols: sizes that are known when it runs.
        axes: the loops, outermost first. The reduced ones stand in a row, at the end or before one last axis.
        pieces: one, or several along the axis ``cut``, which is not reduced.
        cut: index of that axis.
        in_place: pairs of an input and an output that may share memory: the element that an iteration writes
            is the only one of the input that it reads, and both types take as many bytes.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    symbols: tuple[Symbol, ...]
    axes: tuple[Axis, ...]
    pieces: tuple[Piece, ...]
    cut: int | None = None
    in_place: tuple[tuple[int, int], ...] = field(default=())

    @property
    def reduced(self) -> tuple[int, ...]:
        """Indices of the axes that reductions go over."""
        return tuple(index for index, axis in enumerate(self.axes) if axis.reduced)


def single(value: float) -> float:
    """The number of single precision that is nearest."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def text(kernel: Kernel) -> str:
    """The kernel as text, one instruction a line, for people and golden files."""
    return "\n".join(_lines(kernel)) + "\n"


def _lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}"
    for kind, ports in (("in", kernel.inputs), ("out", kernel.outputs)):
        for index, port in enumerate(ports):
            yield f"  {kind}{index}: {port.element.name.lower()}[{', '.join(map(_size, port.dims))}]"
    for index, symbol in enumerate(kernel.symbols):
        yield f"  s{index} = in{symbol.input}.shape[{symbol.axis}]"
    for index, axis in enumerate(kernel.axes):
        yield f"  for i{index} < {_size(axis.size)}{' (reduced)' if axis.reduced else ''}"
    for piece in kernel.pieces:
        if kernel.cut is not None:
            stop = kernel.axes[kernel.cut].size if piece.stop is None else piece.stop
            yield f"  where {_size(piece.start)} <= i{kernel.cut} < {_size(stop)}"
        for index, step in enumerate(piece.body):
            yield f"    %{index}: {step.element.name.lower()} = {_step(step)}"
        for store in piece.stores:
            yield f"    out{_access(store.access)} = %{store.instruction}"


def _step(step: Instruction) -> str:
    words = [step.op, *(f"%{arg}" for arg in step.args)]
    if step.access is not None:
        words.append(f"in{_access(step.access)}")
    if step.op == "constant":
        words.append(repr(step.value))
    if step.size is not None:
        words.append(_size(step.size))
    if step.into is not None:
        words.append(step.into.name.lower())
    return " ".join(words)


def _access(access: Access) -> str:
    terms = [_scaled(stride, f"i{axis}") for axis, stride in enumerate(access.strides) if stride.factor]
    if access.offset.factor or not terms:
        terms.append(_size(access.offset))
    return f"{access.port}[{' + '.join(terms)}]"


def _scaled(stride: Size, name: str) -> str:
    return name if stride == ONE else f"{_size(stride)}*{name}"


def _size(size: Size) -> str:
    factors = [f"s{symbol}" for symbol in size.symbols]
    if size.factor != 1 or not factors:
        factors.insert(0, str(size.factor))
    return "*".join(factors)
