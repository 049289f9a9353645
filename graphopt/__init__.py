"""graphopt: an optimizing compiler driver for ONNX models.

>>> import graphopt
>>> model, report = graphopt.optimize(graphopt.load("model.onnx"))   # doctest: +SKIP
>>> graphopt.save(model, "model.opt.onnx")                           # doctest: +SKIP

``graphopt.load``, ``save``, ``optimize``, ``verify`` and ``run`` are those of
:mod:`graphopt.api`; they are imported when they are first used, so that the command line
starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphopt.api import load, optimize, run, save, verify
    from graphopt.tune.tuned import Tune

__all__ = ["Tune", "load", "optimize", "run", "save", "verify"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Tune":
        from graphopt.tune.tuned import Tune

        return Tune
    from graphopt import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
