"""The registry of passes and pipelines, including additions of installed packages."""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from graphopt.errors import UsageError
from graphopt.passes.base import Pass, options_of
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.parse_values import from_text


@dataclass
class Registry:
    """Names that pipeline text may use.

    Attributes:
        passes: pass classes by name.
        pipelines: pipeline texts by name.
    """

    passes: Mapping[str, type[Pass]] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)

    def make(self, name: str, options: Iterable[tuple[str, str]] = ()) -> Pass:
        """The pass ``name`` with options given as text.

        Raises:
            UsageError: an option is unknown or its value is malformed.
        """
        return make(self.passes[name], name, options)


def make(kind: type[Pass], name: str, options: Iterable[tuple[str, str]] = ()) -> Pass:
    """A pass of class ``kind``, named ``name`` in messages, with options given as text.

    Raises:
        UsageError: an option is unknown or its value is malformed.
    """
    options = tuple(options)
    if not options:  # most passes have no options, and reading the annotations is slow
        return kind()
    hints = typing.get_type_hints(kind)
    known = {item.name: hints[item.name] for item in options_of(kind)}
    values = {}
    for key, text in options:
        if key not in known:
            names = ", ".join(item.replace("_", "-") for item in known) or "none"
            raise UsageError(f"pass {name!r} has no option {key.replace('_', '-')!r}; its options: {names}")
        values[key] = _value(text, known[key], f"{name}{{{key}}}")
    return kind(**values)


class Passes(Mapping[str, type[Pass]]):
    """The passes of some packages and their subpackages, and other passes, by name.

    A pass is imported on first access: ``fold-if`` is in ``fold_if.py``. Modules that do not define a pass of
    the same name contain helpers that passes share.
    """

    def __init__(self, packages: Iterable[str], others: Iterable[type[Pass]] = ()) -> None:
        found = {name: module for package in packages for name, module in _modules_of(package).items()}
        self._modules = dict(sorted(found.items()))
        self._others = {kind.name: kind for kind in others}

    def __getitem__(self, name: str) -> type[Pass]:
        module = name.replace("-", "_")
        if module in self._modules:
            for item in vars(importlib.import_module(self._modules[module])).values():
                if isinstance(item, type) and issubclass(item, Pass) and vars(item).get("name") == name:
                    return item
        return self._others[name]

    def __iter__(self) -> Iterator[str]:
        names = [module.replace("_", "-") for module in self._modules]
        return (name for name in dict.fromkeys([*names, *self._others]) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@functools.cache
def _modules_of(package: str) -> Mapping[str, str]:
    """The modules of ``package`` and its subpackages, by their last names."""
    found: dict[str, str] = {}
    for folder in map(Path, importlib.import_module(package).__path__):
        for file in folder.rglob("[!_]*.py"):
            parts = file.relative_to(folder).with_suffix("").parts
            found[file.stem] = ".".join([package, *parts])
    return found


def _value(text: str, kind: object, where: str) -> object:
    try:
        return from_text(text, kind, separator="+")
    except ValueError as error:
        raise UsageError(f"{where}: {text!r} is not a value for it; {error}") from error
