"""graphopt: an optimizing compiler driver for ONNX models.

>>> import graphopt
>>> model, report = graphopt.optimize(graphopt.load_model("model.onnx"))   # doctest: +SKIP
>>> graphopt.save(model, "model.opt.onnx")                           # doctest: +SKIP

``graphopt.load``, ``load_model``, ``save``, ``optimize``, ``verify``, ``run`` and ``record_profile``
are those of :mod:`graphopt.api`. They, and the modules, such as ``graphopt.config``, are imported when
they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphopt.api import load, load_model, optimize, record_profile, run, save, verify
    from graphopt.specialize.loaded import Bundle
    from graphopt.tune.tuned import Tune

__all__ = ["Bundle", "Tune", "load", "load_model", "optimize", "record_profile", "run", "save", "verify"]


def __getattr__(name: str) -> Any:
    if name == "Tune":
        from graphopt.tune.tuned import Tune

        return Tune
    if name == "Bundle":
        from graphopt.specialize.loaded import Bundle

        return Bundle
    if name in __all__:
        from graphopt import api

        return getattr(api, name)
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
