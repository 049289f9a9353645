"""Launches: the contract between the device code of a kernel and the host part that runs it.

The host part of a kernel computes sizes from the shapes of the inputs, allocates outputs and scratch buffers,
and launches device functions in order on one stream. A launch is skipped if its condition fails or if it has
no blocks. Grids are one-dimensional, with at most ``MOST_BLOCKS`` blocks; device functions have grid-stride
loops.
"""

from __future__ import annotations

from graphopt.fusion.loops.ir import ZERO, Size
from graphopt.util.lazy_dataclass import dataclass

#: Maximum number of blocks of a launch.
MOST_BLOCKS = 2**31 - 1
#: Minimum count for which a launch uses the function with 64-bit indices. Half of the range of 32 bits leaves
#: space for the last step of a grid-stride loop, beyond its end.
WIDE_FROM = 2**30


@dataclass(frozen=True)
class Extent:
    """The number of steps from ``start`` to ``stop``: ceil((stop - start) / step)."""

    stop: Size
    start: Size = ZERO
    step: int = 1


#: A product of extents; 1 if empty.
Count = tuple[Extent, ...]


@dataclass(frozen=True)
class GridDim:
    """The number of blocks: ceil(product of ``extents`` / ``per_block``)."""

    extents: Count
    per_block: int = 1


@dataclass(frozen=True)
class Input:
    """The address of an input of the kernel."""

    index: int


@dataclass(frozen=True)
class Output:
    """The address of an output of the kernel."""

    index: int


@dataclass(frozen=True)
class Scratch:
    """The address of a scratch buffer, an element of :attr:`DeviceKernel.scratch`."""

    index: int


@dataclass(frozen=True)
class SizeValue:
    """A size, as a 64-bit integer."""

    size: Size


Argument = Input | Output | Scratch | SizeValue


@dataclass(frozen=True)
class Bound:
    """Whether a product of extents is at least ``least`` and, unless it is ``None``, at most ``most``."""

    count: Count
    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Condition:
    """Whether all of ``bounds`` hold; if ``negated``, whether at least one does not."""

    bounds: tuple[Bound, ...]
    negated: bool = False


@dataclass(frozen=True)
class Buffer:
    """Scratch memory for the duration of the launches, aligned to 16 bytes.

    Attributes:
        count: number of elements; the buffer is allocated only if one of its launches is not skipped.
        bytes: size of an element.
    """

    count: Count
    bytes: int


@dataclass(frozen=True)
class Launch:
    """A launch of a device function.

    Attributes:
        function: its name. If ``counts`` is not empty, there are ``{function}_32`` and ``{function}_64``,
            whose indices have 32 and 64 bits.
        block: threads per block.
        arguments: pointers, and sizes as 64-bit integers.
        shared: bytes of static shared memory, for information.
        counts: the function with 64-bit indices is required if one of them is at least ``WIDE_FROM``; if
            empty, there is only one function.
        condition: the sizes for which the launch is not skipped.
    """

    function: str
    grid: GridDim
    block: int
    arguments: tuple[Argument, ...]
    shared: int = 0
    counts: tuple[Count, ...] = ()
    condition: Condition | None = None


@dataclass(frozen=True)
class DeviceKernel:
    """The device code of a kernel, without the preamble that the kernels of a module share."""

    text: str
    launches: tuple[Launch, ...]
    scratch: tuple[Buffer, ...] = ()
