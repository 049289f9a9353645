"""Profiles of single values: type, shape and contents, as observed in one or more runs."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import replace
from math import prod
from typing import Any, TypeGuard

import numpy as np

from graphopt import ir
from graphopt.errors import InvalidModel
from graphopt.ir.signature import Port, notation
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import LOW_TYPES, numpy_type

#: Maximum number of elements of a tensor whose contents are recorded.
MOST_INTS = 16
#: A size, or the symbol of a dim that varied: dims with equal symbols had equal sizes in every run.
Dim = int | str
#: An unconstrained dim. Two such dims need not be equal.
ANY = "?"
#: The largest size of a dim, and the largest integer in contents.
_LARGEST = 2**63 - 1
#: Types in onnxruntime's notation, apart from :data:`LOW_TYPES`.
_TYPE = re.compile(
    r"tensor\((float|double|float16|u?int(8|16|32|64)|bool|string|complex(64|128))\)"
    r"|(sparse_tensor|seq|map|optional)\(.+\)"
)
#: Kinds of numpy types for strings.
STRINGS = "OSU"


@dataclass(frozen=True)
class ValueProfile:
    """The observed, or assumed, type, shape and contents of one value.

    Attributes:
        type: its type in onnxruntime's notation, such as ``tensor(float)``; empty if it varied.
        shape: sizes, and symbols for sizes that varied (:data:`graphopt.ir.ANONYMOUS_DIMS` represent any
            size, independently of each other); ``None`` if the rank varied, or the value is not a tensor.
        ints: the flattened contents of a small tensor of integers or booleans, if they were equal in every
            run; requires a static shape.
        always: whether the value was present in every run.

    Raises:
        InvalidModel: the numbers of elements of ``shape`` and ``ints`` differ.
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
        """Whether the shape is known and has no symbols."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def __str__(self) -> str:
        ints = "" if self.ints is None else f" = {', '.join(map(str, self.ints))}"
        return f"{notation(self.type, self.shape)}{ints}" + ("" if self.always else ", or absent")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without default values."""
        found: dict[str, Any] = {"type": self.type}
        if self.shape is not None:
            found["shape"] = list(self.shape)
        if self.ints is not None:
            found["ints"] = list(self.ints)
        if not self.always:
            found["always"] = False
        return found

    @classmethod
    def from_dict(cls, data: Any) -> ValueProfile:
        """Parse the result of :meth:`to_dict`.

        Raises:
            InvalidModel: ``data`` is malformed.
        """
        if not isinstance(data, dict) or not isinstance(data.get("type"), str):
            raise InvalidModel("malformed value profile: no type")
        if not _is_type(data["type"]):
            raise InvalidModel(f"malformed type: {data['type']!r}")
        shape, ints, always = data.get("shape"), data.get("ints"), data.get("always", True)
        if shape is not None and not (isinstance(shape, list) and all(map(_is_dim, shape))):
            raise InvalidModel(f"malformed shape: {shape!r}")
        if shape is not None and not data["type"].startswith(("tensor(", "sparse_tensor(")) and data["type"]:
            raise InvalidModel(f"malformed shape: {data['type']} has none")
        if ints is not None and not (isinstance(ints, list) and all(type(item) is int for item in ints)):
            raise InvalidModel(f"malformed contents, not integers: {ints!r}")
        if type(always) is not bool:
            raise InvalidModel(f"malformed always, not a boolean: {always!r}")
        if ints is not None and not _are_of(ints, data["type"]):
            raise InvalidModel(f"{ints!r} can't be the contents of {data['type']}")
        return cls(
            data["type"],
            None if shape is None else tuple(shape),
            None if ints is None else tuple(ints),
            always,
        )


def contents_of(value: Any) -> tuple[int, ...] | None:
    """The flattened contents of a small tensor of integers or booleans that fit into int64, or ``None``."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "iub":
        return None
    if not 0 < value.size <= MOST_INTS:
        return None
    found = tuple(map(int, np.ravel(value)))
    return found if max(found) < 2**63 else None


def _are_elements(ints: tuple[int, ...], shape: tuple[Dim, ...] | None) -> bool:
    """Whether ``shape`` is static and has as many elements as ``ints``."""
    sizes = [dim for dim in shape or () if isinstance(dim, int)]
    return shape is not None and len(sizes) == len(shape) and len(ints) == prod(sizes)


def _are_of(ints: list[int], type_: str) -> bool:
    """Whether ``ints``, which have to fit into int64, are values of the integer or boolean type ``type_``."""
    if re.fullmatch(r"tensor\((u?int\d+|bool)\)", type_) is None or (dtype := numpy_type(type_)) is None:
        return False
    if dtype.kind == "b":
        return set(ints) <= {0, 1}
    import ml_dtypes

    limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return all(limits.min <= item <= min(limits.max, _LARGEST) for item in ints)


def _is_type(text: str) -> bool:
    """Whether ``text`` is a type in onnxruntime's notation, or empty for a type that varied."""
    return text == "" or text in LOW_TYPES or _TYPE.fullmatch(text) is not None


def is_symbol(dim: object) -> TypeGuard[str]:
    """Whether ``dim`` is a named symbol: all its occurrences represent one size."""
    return isinstance(dim, str) and dim not in ir.ANONYMOUS_DIMS


def _is_dim(dim: Any) -> bool:
    return (type(dim) is int and 0 <= dim <= _LARGEST) or (isinstance(dim, str) and dim != "")


def merged(one: Mapping[str, ValueProfile], other: Mapping[str, ValueProfile]) -> dict[str, ValueProfile]:
    """The profiles common to two sets of runs, by value.

    Sizes that differ become symbols. Dims with equal sizes on each side have the same symbol, as in PyTorch's
    ``ProfilingRecord::mergeSymbolicShapes``.
    """
    symbols: dict[tuple[Dim, Dim], str] = {}

    def both(a: Dim, b: Dim) -> Dim:
        if isinstance(a, int) and a == b:
            return a
        if a in ir.ANONYMOUS_DIMS or b in ir.ANONYMOUS_DIMS:
            return ANY
        return symbols.setdefault((a, b), f"d{len(symbols)}")

    found: dict[str, ValueProfile] = {}
    for name in dict.fromkeys([*one, *other]):
        a, b = one.get(name), other.get(name)
        if a is None or b is None:
            for single in filter(None, (a, b)):
                shape = None if single.shape is None else tuple(both(dim, dim) for dim in single.shape)
                found[name] = replace(single, shape=shape, always=False)
            continue
        shape = None
        if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
            shape = tuple(both(x, y) for x, y in zip(a.shape, b.shape, strict=True))
        found[name] = ValueProfile(
            a.type if a.type == b.type else "",
            shape,
            a.ints if a.ints == b.ints and a.shape == b.shape else None,
            a.always and b.always,
        )
    return found


def observe(
    types: Mapping[str, str], values: Mapping[str, Any], *, contents: Container[str] | None = None
) -> dict[str, ValueProfile]:
    """Profiles of the ``values`` that are present, in the order of ``types``.

    Args:
        types: types by name, in onnxruntime's notation.
        values: arrays, sequences or maps by name.
        contents: names of the values whose contents are recorded; by default all.
    """
    found = {}
    for name, type_ in types.items():
        value = values.get(name)
        if value is None:
            continue
        shape = _shape(type_, value)
        counts = shape is not None and (contents is None or name in contents)
        found[name] = ValueProfile(type_, shape, contents_of(value) if counts else None)
    return found


def obstacle_to_specialization(port: Port, value: Any) -> str | None:
    """The reason why no specialization can be made for this input, or ``None``.

    Guards or onnxruntime would reject the input.
    """
    if value is None:
        return f"{port.name!r} is not fed" if port.role == "required" and port.kind == "tensor" else None
    if port.kind != "tensor":
        return None
    shape = _shape(port.type, value)
    if shape is None:
        return f"{port.name!r} is not an array"
    if not has_type(value.dtype, port.type):
        return f"{port.name!r} holds {value.dtype}, not {port.element}"
    if 0 in shape:
        return f"{port.name!r} is empty"
    return None if port.accepts(shape) else f"{port.name!r} does not have the declared shape"


def _shape(type_: str, value: Any) -> tuple[int, ...] | None:
    """The sizes of a tensor; ``None`` for other kinds of values."""
    shape = getattr(value, "shape", None)
    if not type_.startswith("tensor(") or not isinstance(shape, tuple):  # OrtValue.shape is a method
        return None
    return tuple(map(int, shape))


def has_type(dtype: Any, text: str) -> bool:
    """Whether ``dtype``, which may be of another array library, matches the onnxruntime type ``text``."""
    wanted = numpy_type(text)
    return (
        wanted is None
        or dtype == wanted
        or (wanted.kind == "O" and getattr(dtype, "kind", None) in (*STRINGS,))
    )
