"""Import onnx-ir without importing sympy.

onnx-ir computes symbolic dims with sympy, which graphopt never uses: it has its own
:mod:`graphopt.analysis.symbolic`. Importing sympy takes longer than onnx-ir itself, so the two modules that
import it are executed on first use only.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """A module that is executed when a missing attribute is first accessed.

    :class:`importlib.util.LazyLoader` does not suffice: an ``import`` statement reads ``__spec__``, which
    loads the module.
    """

    def __getattr__(self, attribute: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(self)
        return getattr(self, attribute)


def _find(name: str) -> ModuleSpec | None:
    """Find module ``package.module`` without importing ``package``."""
    package, _, _ = name.rpartition(".")
    if not package:
        return importlib.util.find_spec(name)
    parent = importlib.util.find_spec(package)
    path = parent.submodule_search_locations if parent else None
    return PathFinder.find_spec(name, list(path)) if path else None


def _import_lazily(name: str) -> None:
    spec = None if name in sys.modules else _find(name)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _LazyModule
        sys.modules[name] = module


for _name in ("sympy", "onnx_ir._symbolic_shapes"):
    _import_lazily(_name)

import onnx_ir  # noqa: E402

# onnx-ir warns about faults that graphopt fixes or reports itself.
logging.getLogger("onnx_ir").setLevel(logging.ERROR)

__all__ = ["onnx_ir"]
