"""Modules that are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any


class Submodules:
    """The modules of the package ``name`` as attributes, each imported on first access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, module: str) -> Any:
        if module.startswith("_"):
            raise AttributeError(f"{self._name!r} has no module {module!r}", name=module, obj=self)
        return importlib.import_module(f"{self._name}.{module}")
