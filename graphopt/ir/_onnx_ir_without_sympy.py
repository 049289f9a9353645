"""Import onnx-ir and onnx without their parts that graphopt rarely uses.

onnx-ir computes symbolic dims with sympy, which graphopt never uses: it has its own
:mod:`graphopt.analysis.symbolic`. Importing sympy takes longer than onnx-ir itself, so the two modules that
import it are executed on first use only. The same applies to the modules of onnx for the command line, the
composition and the text of models, which ``import onnx`` otherwise executes.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """A module that is executed when a missing attribute is first accessed.

    :class:`importlib.util.LazyLoader` does not suffice: an ``import`` statement reads ``__spec__``, which
    loads the module.
    """

    def __getattr__(self, attribute: str) -> Any:
        with _executing:
            spec = object.__getattribute__(self, "__spec__")
            if self.__class__ is _LazyModule and not spec.loader_state:
                spec.loader_state = "executed"  # the module itself may look up attributes that it lacks
                spec.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
        return object.__getattribute__(self, attribute)


#: Held while a lazy module is executed, so that other threads wait for its attributes.
_executing = threading.RLock()


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


_RARELY_USED = (
    "sympy",
    "onnx_ir._symbolic_shapes",
    "onnx.compose",
    "onnx.gen_proto",
    "onnx.parser",
    "onnx.printer",
    "onnx.utils",
    "onnx.version_converter",
)
for _name in _RARELY_USED:
    _import_lazily(_name)

import onnx_ir  # noqa: E402

# onnx-ir warns about faults that graphopt fixes or reports itself.
logging.getLogger("onnx_ir").setLevel(logging.ERROR)

__all__ = ["onnx_ir"]
