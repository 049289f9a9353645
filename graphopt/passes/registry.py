"""Which passes and pipelines there are: those of this package, and those that others install."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from graphopt.errors import UsageError
from graphopt.passes.base import Pass


@dataclass
class Registry:
    """Names that pipeline text may use.

    Attributes:
        passes: pass classes by name.
        pipelines: pipeline texts by name.
        planned: passes that are named in pipelines but not built, with what they will do.
    """

    passes: dict[str, type[Pass]] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)
    planned: Mapping[str, str] = field(default_factory=dict)

    def make(self, name: str, options: Iterable[tuple[str, str]] = ()) -> Pass:
        """The pass ``name`` with options given as text.

        Raises:
            UsageError: an option is unknown or its value is malformed.
        """
        kind = self.passes[name]
        hints = typing.get_type_hints(kind)
        known = {item.name: hints[item.name] for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
        values = {}
        for key, text in options:
            if key not in known:
                names = ", ".join(item.replace("_", "-") for item in known) or "none"
                raise UsageError(f"pass {name!r} has no option {key.replace('_', '-')!r}; its options: {names}")
            values[key] = _value(text, known[key], f"{name}{{{key}}}")
        return kind(**values)


def find_passes(package: str) -> dict[str, type[Pass]]:
    """The passes defined in the modules of ``package``, by name."""
    found: dict[str, type[Pass]] = {}
    root = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(root.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package}.{info.name}")
        for item in vars(module).values():
            is_pass = isinstance(item, type) and issubclass(item, Pass) and "name" in vars(item)
            if is_pass and item.__module__ == module.__name__:
                found[item.name] = item
    return found


_SIZES = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_size(text: str) -> int:
    """Bytes from ``65536``, ``64KiB``, ``1MB`` …

    Raises:
        ValueError: it is none of these.
    """
    number = text.rstrip("BKMGiIbkmg")
    unit = text[len(number) :].upper()
    if unit not in _SIZES:
        raise ValueError(f"unknown unit {unit!r}")
    return int(float(number) * _SIZES[unit])


def _value(text: str, kind: object, where: str) -> object:
    args = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    try:
        if typing.get_origin(kind) is tuple:
            return tuple(_value(part, args[0], where) for part in text.split("+") if part)
        if args and typing.get_origin(kind) is not tuple:
            return None if text == "none" else _value(text, args[0], where)
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int:
            return parse_size(text)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind[text.upper()]
        return kind(text)  # type: ignore[operator]
    except (KeyError, ValueError) as error:
        raise UsageError(f"{where}: {text!r} is not a value for it") from error
