"""Import onnx-ir without paying for sympy.

onnx-ir computes symbolic dims with sympy, which graphopt never asks for: it has its own
:mod:`graphopt.analysis.symbolic`. Importing sympy costs more than all of onnx-ir itself, so the
two modules that would pull it in run on their first use only.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _PutOff(ModuleType):
    """A module whose code runs when an attribute is first missed.

    :class:`importlib.util.LazyLoader` does not do: an ``import`` statement reads
    ``__spec__``, which already makes its modules load.
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


def _put_off_import(name: str) -> None:
    spec = None if name in sys.modules else _find(name)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _PutOff
        sys.modules[name] = module


for _name in ("sympy", "onnx_ir._symbolic_shapes"):
    _put_off_import(_name)

import onnx_ir  # noqa: E402

# It warns of faults that graphopt mends or reports itself.
logging.getLogger("onnx_ir").setLevel(logging.ERROR)

__all__ = ["onnx_ir"]
