"""Which passes and pipelines there are: those of this package, and those that others install."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from graphopt.coerce import from_text
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
        return make(self.passes[name], name, options)


def make(kind: type[Pass], name: str, options: Iterable[tuple[str, str]] = ()) -> Pass:
    """A pass of class ``kind``, which messages call ``name``, with options given as text.

    Raises:
        UsageError: an option is unknown or its value is malformed.
    """
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


def _value(text: str, kind: object, where: str) -> object:
    try:
        return from_text(text, kind, separator="+")
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is not a value for it; {error}") from error
