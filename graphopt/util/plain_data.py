"""Dataclasses as plain data for JSON, and back, by the annotations of their fields."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

_SCALARS = (bool, int, float, str, types.NoneType)


def to_plain(value: Any) -> Any:
    """``value`` as lists, dicts and scalars; a mapping becomes a list of pairs.

    Raises:
        TypeError: ``value`` contains an object other than dataclasses, enumerations and collections.
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, _SCALARS):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "item"):  # a number of numpy
        return to_plain(value.item())
    raise TypeError(f"no plain data: {type(value).__name__}")


def from_plain(kind: Any, data: Any, names: Mapping[str, Any]) -> Any:
    """The value of the type ``kind`` that :func:`to_plain` converted to ``data``.

    Args:
        names: the classes that modules of dataclasses import for type checkers only.

    Raises:
        ValueError, KeyError, TypeError: ``data`` has another structure.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        others = [one for one in arguments if one is not types.NoneType]
        if data is None or all(one in _SCALARS for one in others):
            return data
        (kind,) = others
        return from_plain(kind, data, names)
    if kind in _SCALARS or origin is Literal:
        return data
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, localns=dict(names))
        fields = {field.name for field in dataclasses.fields(kind)}
        if fields != set(data):
            raise ValueError(f"other fields than those of {kind}")
        return kind(**{name: from_plain(hints[name], item, names) for name, item in data.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[data]
    if origin is Counter:
        return Counter({from_plain(arguments[0], key, names): count for key, count in data})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key_kind, kind = arguments
        return {from_plain(key_kind, key, names): from_plain(kind, item, names) for key, item in data}
    if origin is list:
        return [from_plain(arguments[0], item, names) for item in data]
    if origin is tuple and arguments[1:] == (...,):
        return tuple(from_plain(arguments[0], item, names) for item in data)
    if origin is tuple and len(arguments) == len(data):
        return tuple(from_plain(one, item, names) for one, item in zip(arguments, data, strict=True))
    raise TypeError(f"no plain data of the type {kind}")
