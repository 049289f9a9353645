"""Convert text to typed values: options of passes, settings, ``--set``, sizes and ranges of dims."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Container, Iterable
from enum import Enum
from pathlib import Path
from typing import NewType

from graphopt.errors import UsageError

#: First and last size of a dim; ``None`` if there is no last one.
Range = tuple[int, int | None]
#: A time in seconds, or text that :func:`parse_seconds` parses.
Seconds = NewType("Seconds", float)

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_BOOLS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


#: The maximum size of a dim.
_MOST = 2**63 - 1


def parse_natural(text: str) -> int:
    """A natural number in ASCII digits, such as the size of a dim, that fits into 64 bits.

    Raises:
        ValueError: the text is not such a number.
    """
    digits = text.strip().lstrip("0") or text.strip()[-1:]
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(_MOST)) or int(digits) > _MOST:
        raise ValueError("write a whole number below 2^63")
    return int(digits)


def _number(text: str) -> float:
    """A float in ASCII digits; Python itself also accepts ``1_0`` and the digits of all scripts."""
    if not text.isascii() or "_" in text:
        raise ValueError("write digits and a point")
    return float(text)


#: The maximum size of a dim, which ONNX stores in 64 bits.
_LARGEST = 2**63 - 1


def check_size(name: str, size: int) -> None:
    """Check that a dim can be fixed to ``size``.

    Raises:
        UsageError: ``size`` is less than 1, or above 2**63 - 1.
    """
    if size < 0:
        raise UsageError(f"can't fix dim {name!r} to {size}: sizes are positive")
    if size > _LARGEST:
        raise UsageError(f"can't fix dim {name!r} to {size}: ONNX has no sizes above {_LARGEST}")
    if size == 0:
        raise UsageError(
            f"can't fix dim {name!r} to 0: where a model declares 0, exporters mean any size",
            hint="leave it dynamic, which allows 0",
        )


def check_range(name: str, sizes: Range) -> None:
    """Check that a dim can have sizes in the range ``sizes``.

    Raises:
        UsageError: the range begins below 0, or contains no size above 0.
    """
    first, last = sizes
    text = f"{name}={first}:{'' if last is None else last}"
    if first < 0:
        raise UsageError(f"the range {text!r} of a dim begins below 0")
    if last is not None and last < max(first, 1):
        raise UsageError(f"the range {text!r} of a dim holds no size above 0")


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Parse ``batch=4``; the name may contain equals signs.

    Raises:
        UsageError: a text is malformed, or a dim has two sizes.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        number = natural_or_none(size)
        if not equals or not name or number is None:
            raise UsageError(f"can't read the dim {text!r}", hint="write NAME=SIZE, such as batch=4 or x@0=4")
        check_size(name, number)
        if sizes.setdefault(name, number) != number:
            raise UsageError(f"dim {name!r} is given two sizes")
    return sizes


def parse_ranges(texts: Iterable[str]) -> dict[str, Range]:
    """Parse ``seq=1:512``, ``seq=1:`` (no maximum) or ``seq=:512`` (from 0 on).

    Raises:
        UsageError: a text is malformed, or a dim has two ranges.
    """
    ranges: dict[str, Range] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        first, colon, last = (part.strip() for part in sizes.partition(":"))
        found = (natural_or_none(first or "0"), natural_or_none(last) if last else None)
        if not equals or not name or not colon or found[0] is None or (last and found[1] is None):
            raise UsageError(
                f"can't read the range of dim {text!r}", hint="write NAME=FIRST:LAST, such as seq=1:512"
            )
        check_range(name, (found[0], found[1]))
        if ranges.setdefault(name, (found[0], found[1])) != found:
            raise UsageError(f"dim {name!r} is given two ranges")
    return ranges


def parse_relations(texts: Iterable[str]) -> dict[str, str]:
    """Parse ``total=past+seq``: the size of a dim as an expression over other dims.

    Raises:
        UsageError: a text is malformed, or a dim has two relations.
    """
    relations: dict[str, str] = {}
    for text in texts:
        name, equals, right = (part.strip() for part in text.partition("="))
        if not equals or not name or not right:
            hint = "write NAME=EXPRESSION, such as total=past+seq"
            raise UsageError(f"can't read the relation of dims {text!r}", hint=hint)
        if relations.setdefault(name, right) != right:
            raise UsageError(f"dim {name!r} is given two relations")
    return relations


def natural_or_none(text: str) -> int | None:
    """:func:`parse_natural`, or ``None`` for text that is not such a number."""
    try:
        return parse_natural(text)
    except ValueError:
        return None


def split_names(texts: str | Iterable[str], known: Container[str | None] = ()) -> list[str]:
    """Names; a text may contain several, separated by commas, unless the text itself is a ``known`` name."""
    found: list[str] = []
    for text in [texts] if isinstance(texts, str) else texts:
        found += [text] if text in known else [part.strip() for part in text.split(",")]
    return [name for name in found if name]


def parse_size(text: str) -> int:
    """Bytes from text such as ``65536``, ``64KiB`` or ``1MB``.

    Raises:
        ValueError: the text is malformed.
    """
    match = re.fullmatch(r"\s*([+-]?\d+)(\.\d+)?\s*([a-zA-Z]*)\s*", text, re.ASCII)
    if match is None or match[3].upper() not in _UNITS or (match[2] and not match[3]):
        raise ValueError("write a whole number, or a size such as 64KiB or 1MB")
    unit = _UNITS[match[3].upper()]
    size = float(match[1] + match[2]) * unit if match[2] else int(match[1]) * unit
    if math.isinf(size):
        raise ValueError("write a size that some memory could have")
    return int(size)


def parse_seconds(text: str) -> Seconds:
    """Seconds from ``90``, ``60s``, ``2m``, ``1.5min`` or ``1h``, from 0 to ``inf``.

    Raises:
        ValueError: the text is malformed.
    """
    match = re.fullmatch(r"\s*(\S*?)\s*(s|m|min|h)?\s*", text.lower())
    try:
        value = _number(match[1]) * _SECONDS[match[2] or ""] if match else -1.0
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise ValueError("write a time such as 60s or 2m")
    return Seconds(value)


def from_text(text: str, kind: object, *, separator: str = ",") -> object:
    """The value of type ``kind`` that ``text`` represents.

    ``kind`` is bool, int (also sizes such as ``64KiB``), float, :data:`Seconds`, str, Path, an Enum (by the
    names of its members, ignoring case), a Literal of texts, one of these or ``None`` (``none``), or a tuple
    of one of these (elements separated by ``separator``).

    Raises:
        ValueError: ``text`` is not such a value.
    """
    args = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return tuple(from_text(part.strip(), args[0]) for part in text.split(separator) if part.strip())
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = next(arg for arg in args if arg is not types.NoneType)
        return None if text.lower() == "none" else from_text(text, inner, separator=separator)
    if typing.get_origin(kind) is typing.Literal:
        if text not in args:
            raise ValueError(f"write one of {', '.join(map(str, args))}")
        return text
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise ValueError("write true or false")
        return _BOOLS[text.lower()]
    if kind is Seconds:
        return parse_seconds(text)
    if kind is int:
        return parse_size(text)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if text.upper() not in kind.__members__:
            raise ValueError(f"write one of {', '.join(name.lower() for name in kind.__members__)}")
        return kind[text.upper()]
    if kind is Path:
        return Path(text).expanduser()
    if kind is float:
        try:
            return _number(text)
        except ValueError:
            raise ValueError("write a number, such as 2.5") from None
    if kind is str:
        return text
    raise TypeError(f"no text stands for a {kind}")
