"""What was seen of one value, in a run or in several."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeGuard

import numpy as np

from graphopt import ir
from graphopt.errors import InvalidModel
from graphopt.ir.signature import Port, notation
from graphopt.util.element_types import numpy_type

#: Contents are kept of tensors with no more elements than this.
_MOST_INTS = 16
#: A size, or the symbol of a dim that varied: equal symbols were of equal size in every run.
Dim = int | str
#: The size of a dim of which nothing is told: not even that it equals another that is written so.
ANY = "?"
#: Kinds of numpy types that hold strings.
STRINGS = "OSU"


@dataclass(frozen=True)
class Seen:
    """What was seen of one value, or what is assumed of it.

    Attributes:
        type: as onnxruntime writes it, such as ``tensor(float)``.
        shape: sizes, and symbols where they varied (:data:`graphopt.ir.ANONYMOUS_DIMS` stand for any
            size, each time); ``None`` if the rank varied, or it is no tensor.
        ints: the contents, flat, of a small tensor of integers or booleans that were the same in every run;
            all sizes are known then.
        always: whether it was there in every run.

    Raises:
        InvalidModel: ``shape`` holds another number of elements than ``ints``.
    """

    type: str
    shape: tuple[Dim, ...] | None = None
    ints: tuple[int, ...] | None = None
    always: bool = True

    def __post_init__(self) -> None:
        if self.ints is not None and not _are_elements(self.ints, self.shape):
            raise InvalidModel(f"{list(self.ints)} can't be the contents of {replace(self, ints=None)}")

    @property
    def is_static(self) -> bool:
        """Whether all sizes are known."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def __str__(self) -> str:
        ints = "" if self.ints is None else f" = {', '.join(map(str, self.ints))}"
        return f"{notation(self.type, self.shape)}{ints}" + ("" if self.always else ", or absent")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; what says nothing is left out."""
        found: dict[str, Any] = {"type": self.type}
        if self.shape is not None:
            found["shape"] = list(self.shape)
        if self.ints is not None:
            found["ints"] = list(self.ints)
        if not self.always:
            found["always"] = False
        return found

    @classmethod
    def from_dict(cls, data: Any) -> Seen:
        """Read what :meth:`to_dict` made.

        Raises:
            InvalidModel: it is something else.
        """
        if not isinstance(data, dict) or not isinstance(data.get("type"), str):
            raise InvalidModel("what was seen of a value has no type")
        shape, ints, always = data.get("shape"), data.get("ints"), data.get("always", True)
        if shape is not None and not (isinstance(shape, list) and all(map(_is_dim, shape))):
            raise InvalidModel(f"{shape!r} is no shape")
        if ints is not None and not (isinstance(ints, list) and all(type(item) is int for item in ints)):
            raise InvalidModel(f"{ints!r} are no integers")
        if type(always) is not bool:
            raise InvalidModel(f"{always!r} is neither true nor false")
        if ints is not None and not _are_of(ints, data["type"]):
            raise InvalidModel(f"{ints!r} can't be the contents of {data['type']}")
        return cls(
            data["type"],
            None if shape is None else tuple(shape),
            None if ints is None else tuple(ints),
            always,
        )


def contents_of(value: Any) -> tuple[int, ...] | None:
    """The contents of a small tensor of integers or booleans, flat; ``None`` for other things.

    They are few, and each fits into 64 bits with a sign.
    """
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "iub":
        return None
    if not 0 < value.size <= _MOST_INTS:
        return None
    found = tuple(map(int, np.ravel(value)))
    return found if max(found) < 2**63 else None


def _are_elements(ints: tuple[int, ...], shape: tuple[Dim, ...] | None) -> bool:
    """Whether a tensor of ``shape`` has as many elements as ``ints``."""
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    return shape is not None and len(sizes) == len(shape) and len(ints) == prod(sizes)


def _are_of(ints: list[int], type_: str) -> bool:
    """Whether elements of ``type_`` can be ``ints``, each of which fits into 64 bits with a sign."""
    whole = re.fullmatch(r"tensor\((u?int\d+|bool)\)", type_) is not None
    return whole and all(-(2**63) <= item < 2**63 for item in ints)


def is_symbol(dim: object) -> TypeGuard[str]:
    """Whether ``dim`` stands for one size, wherever it is written."""
    return isinstance(dim, str) and dim not in ir.ANONYMOUS_DIMS


def _is_dim(dim: Any) -> bool:
    return (type(dim) is int and dim >= 0) or (isinstance(dim, str) and dim != "")


def merged(one: Mapping[str, Seen], other: Mapping[str, Seen]) -> dict[str, Seen]:
    """What both runs, or sets of runs, have in common, value by value.

    Dims that differ become symbols, and those that were equal to each other on both sides share one.
    The seed's ``ProfilingRecord::mergeSymbolicShapes`` does the same.
    """
    symbols: dict[tuple[Dim, Dim], str] = {}

    def both(a: Dim, b: Dim) -> Dim:
        if isinstance(a, int) and a == b:
            return a
        if a in ir.ANONYMOUS_DIMS or b in ir.ANONYMOUS_DIMS:
            return ANY
        return symbols.setdefault((a, b), f"d{len(symbols)}")

    found: dict[str, Seen] = {}
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if a is None or b is None:
            alone = a or b
            assert alone is not None
            shape = None if alone.shape is None else tuple(both(dim, dim) for dim in alone.shape)
            found[name] = replace(alone, shape=shape, always=False)
            continue
        shape = None
        if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
            shape = tuple(both(x, y) for x, y in zip(a.shape, b.shape, strict=True))
        found[name] = Seen(
            a.type if a.type == b.type else "",
            shape,
            a.ints if a.ints == b.ints and a.shape == b.shape else None,
            a.always and b.always,
        )
    return found


def observe(
    types: Mapping[str, str], values: Mapping[str, Any], *, contents: Container[str] | None = None
) -> dict[str, Seen]:
    """What is seen of those ``values`` that are there, in the order of ``types``.

    Args:
        types: by name, as onnxruntime writes them.
        values: arrays by name; others, too.
        contents: the names of those whose contents count; by default all.
    """
    found = {}
    for name, type_ in types.items():
        value = values.get(name)
        if value is None:
            continue
        shape = _shape(type_, value)
        counts = shape is not None and (contents is None or name in contents)
        found[name] = Seen(type_, shape, contents_of(value) if counts else None)
    return found


def unfit(port: Port, value: Any) -> str | None:
    """Why nothing can be specialized for an input like that; ``None`` if something can.

    It would not get through guards, or onnxruntime does not take it.
    """
    if value is None:
        return f"{port.name!r} is not fed" if port.role == "required" and port.kind == "tensor" else None
    if port.kind != "tensor":
        return None
    shape = _shape(port.type, value)
    if shape is None:
        return f"{port.name!r} is no array"
    if not is_of(value.dtype, port.type):
        return f"{port.name!r} holds {value.dtype}, not {port.element}"
    if 0 in shape:
        return f"{port.name!r} is empty"
    return None if port.takes(shape) else f"{port.name!r} is not of the declared shape"


def _shape(type_: str, value: Any) -> tuple[int, ...] | None:
    """The sizes of a tensor; ``None`` for a sequence, a map or an optional."""
    shape = getattr(value, "shape", None)
    if not type_.startswith("tensor(") or not isinstance(shape, tuple):  # a method, as onnxruntime's own
        return None
    return tuple(map(int, shape))


def is_of(dtype: Any, text: str) -> bool:
    """Whether arrays of ``dtype``, which may be another library's, are of type ``text``."""
    wanted = numpy_type(text)
    return (
        wanted is None
        or dtype == wanted
        or (wanted.kind == "O" and getattr(dtype, "kind", None) in (*STRINGS,))
    )
