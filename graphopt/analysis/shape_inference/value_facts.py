"""Facts about one value: dtype, shape, small contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import Dim, bounds, symbols

ShapeTuple: TypeAlias = tuple[Dim, ...]
Contents: TypeAlias = tuple[Dim, ...]

CONTENTS_LIMIT = 256
"""Contents are tracked for integer tensors of at most this many elements."""


class Fact:
    """Facts about one value. Immutable except for :attr:`contents`.

    Attributes:
        dtype: element type of a tensor; ``None`` if unknown or not a tensor.
        shape: dims of a tensor; ``None`` if the rank is unknown.
        contents: the elements of a small integer or boolean tensor (booleans as 0 and 1), in row-major order;
            only if every dim is an int. Unknown contents may be replaced by symbols later, which adds no
            information.
        fill: the common value of all elements of a computed value, if known;
            :meth:`graphopt.analysis.shape_inference.inference_engine.Inference.fill` includes constants.
        container: ``ir.SequenceType`` or ``ir.OptionalType``, with the facts common to all its elements in
            ``element``; ``None`` for a tensor.
        vacant: whether the fact describes the elements of an empty sequence.
        known_equal: the number of known equalities (see InferenceState) already substituted in the fact.
    """

    __slots__ = ("container", "contents", "dtype", "element", "fill", "known_equal", "shape", "vacant")

    def __init__(
        self,
        dtype: ir.DataType | None = None,
        shape: ShapeTuple | None = None,
        contents: Contents | None = None,
        *,
        container: type[ir.SequenceType] | type[ir.OptionalType] | None = None,
        element: Fact | None = None,
        vacant: bool = False,
        fill: np.generic | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.contents = contents
        self.container = container
        self.element = element
        self.vacant = vacant
        self.fill = fill
        self.known_equal = 0

    def __repr__(self) -> str:
        if self.container is not None:
            return f"{self.container.__name__}({self.element})"
        dims = "?" if self.shape is None else "x".join(map(str, self.shape))
        inside = "" if self.contents is None else " = " + ",".join(map(str, self.contents))
        return f"{self.dtype}[{dims}]{inside}"

    def same_as(self, other: Fact) -> bool:
        """Whether both facts are equivalent."""
        if self.element is not None and other.element is not None:
            return self.container is other.container and self.element.same_as(other.element)
        return (
            self.dtype == other.dtype
            and self.shape == other.shape
            and self.contents == other.contents
            and self.container is other.container
            and self.element is other.element
            and self.vacant == other.vacant
            and (self.fill is other.fill or same_number(self.fill, other.fill))
        )

    def filled(self, number: np.generic | None) -> Fact:
        """This fact, with the knowledge that all elements equal ``number``."""
        if number is None or self.container is not None or same_number(self.fill, number):
            return self
        contents = self.contents
        if contents is None and number.dtype.kind in "iub" and tracks_contents(self.dtype, self.shape):
            contents = (int(number),) * (element_count(self.shape) or 0)
        return Fact(self.dtype, self.shape, contents, vacant=self.vacant, fill=number)

    @property
    def type(self) -> ir.TypeProtocol | None:
        """The type; ``None`` unless the element type is also known."""
        if self.container is not None:
            element = self.element.type if self.element is not None else None
            return self.container(element) if element is not None else None
        return ir.TensorType(self.dtype) if self.dtype is not None else None


UNKNOWN = Fact()
"""The fact of an unknown value."""

ABSENT = Fact()
"""The fact of a function's input that its call omits."""

INTEGER_RANGES = {
    ir.DataType.BOOL: (0, 1),
    ir.DataType.INT8: (-(1 << 7), (1 << 7) - 1),
    ir.DataType.INT16: (-(1 << 15), (1 << 15) - 1),
    ir.DataType.INT32: (-(1 << 31), (1 << 31) - 1),
    ir.DataType.INT64: (-(1 << 63), (1 << 63) - 1),
    ir.DataType.UINT8: (0, (1 << 8) - 1),
    ir.DataType.UINT16: (0, (1 << 16) - 1),
    ir.DataType.UINT32: (0, (1 << 32) - 1),
    ir.DataType.UINT64: (0, (1 << 64) - 1),
}
"""The dtypes whose contents are tracked, with their minimum and maximum."""


#: Maximum absolute coefficient in an expression over sizes of tensors.
_LARGEST_SIZE = 1 << 31


def same_number(a: np.generic | None, b: np.generic | None) -> bool:
    """Whether both are the same number of the same type, bit by bit: -0.0 is not 0.0."""
    return a is not None and b is not None and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def joined(facts: Sequence[Fact], fresh: Callable[[str], Dim]) -> Fact:
    """The facts common to several values; ``fresh`` creates a symbol."""
    if not facts or any(fact.vacant for fact in facts):
        return UNKNOWN
    first, *others = facts
    if any(fact.container is not first.container for fact in others):
        return UNKNOWN
    if first.container is not None:
        elements = [fact.element for fact in facts if fact.element is not None]
        whole = len(elements) == len(facts)
        return Fact(container=first.container, element=joined(elements, fresh) if whole else None)
    dtype, shape, contents = first.dtype, first.shape, first.contents
    for other in others:
        contents = contents if contents == other.contents and shape == other.shape else None
        dtype = dtype if dtype == other.dtype else None
        if shape is None or other.shape is None or len(shape) != len(other.shape):
            shape = None
        else:
            shape = tuple(a if a == b else fresh("dim") for a, b in zip(shape, other.shape, strict=True))
    return Fact(dtype, shape, contents)


def element_count(shape: ShapeTuple | None) -> int | None:
    """The number of elements, if every dim is an int."""
    if shape is None:
        return None
    count = 1
    for dim in shape:
        if not isinstance(dim, int):
            return None
        count *= dim
    return count


def tracks_contents(dtype: ir.DataType | None, shape: ShapeTuple | None) -> bool:
    """Whether contents are tracked: for a small integer or boolean tensor of static shape."""
    if dtype not in INTEGER_RANGES:
        return False
    count = element_count(shape)
    return count is not None and count <= CONTENTS_LIMIT


def representable(dim: Dim, dtype: ir.DataType) -> bool:
    """Whether computing ``dim`` in ``dtype`` can't overflow.

    An expression over sizes of tensors is assumed to fit into 32 bits, because the model could not run
    otherwise. This is not assumed for narrow dtypes, or for expressions that contain contents of unknown
    sign, or numbers that can't be sizes.
    """
    least, most = INTEGER_RANGES[dtype]
    lo, hi = bounds(dim)
    if least <= lo and hi <= most:
        return True
    if isinstance(dim, int) or dtype.bitwidth < 32 or lo < least == 0:
        return False
    if any(abs(coefficient) > _LARGEST_SIZE for _, coefficient in dim.terms):
        return False
    return all(symbol.lo >= 0 for symbol in symbols(dim).values())


def constant_fact(tensor: ir.TensorProtocol) -> Fact:
    """The facts of a constant."""
    shape = tuple(int(dim) for dim in tensor.shape)  # type: ignore[arg-type]
    dtype = tensor.dtype
    contents = tuple(map(int, tensor.numpy().reshape(-1).tolist())) if tracks_contents(dtype, shape) else None
    return Fact(dtype, shape, contents)
