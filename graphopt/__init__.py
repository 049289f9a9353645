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
    from graphopt.api import (
        build_kernels,
        compile,
        grad,
        kernels,
        lift_parameters,
        load,
        load_model,
        optimize,
        partition,
        record_profile,
        run,
        save,
        split,
        to_proto,
        train_step,
        unlift_parameters,
        value_and_grad,
        verify,
    )
    from graphopt.executor.executor import Executor
    from graphopt.executor.options import ExecutorOptions
    from graphopt.executor.switches import (
        fuser,
        last_executed_optimized_graph,
        optimized_execution,
        set_fusion_strategy,
    )
    from graphopt.profile import FusionStrategy
    from graphopt.specialize.loaded import Bundle
    from graphopt.training.trainer import Trainer
    from graphopt.tune.tuned import Tune

#: Where each of these is defined.
_HOMES = {
    "Bundle": "graphopt.specialize.loaded",
    "Executor": "graphopt.executor.executor",
    "ExecutorOptions": "graphopt.executor.options",
    "FusionStrategy": "graphopt.profile",
    "Trainer": "graphopt.training.trainer",
    "Tune": "graphopt.tune.tuned",
    "build_kernels": "graphopt.api",
    "compile": "graphopt.api",
    "fuser": "graphopt.executor.switches",
    "grad": "graphopt.api",
    "kernels": "graphopt.api",
    "last_executed_optimized_graph": "graphopt.executor.switches",
    "lift_parameters": "graphopt.api",
    "load": "graphopt.api",
    "load_model": "graphopt.api",
    "optimize": "graphopt.api",
    "optimized_execution": "graphopt.executor.switches",
    "partition": "graphopt.api",
    "record_profile": "graphopt.api",
    "run": "graphopt.api",
    "save": "graphopt.api",
    "set_fusion_strategy": "graphopt.executor.switches",
    "split": "graphopt.api",
    "to_proto": "graphopt.api",
    "train_step": "graphopt.api",
    "unlift_parameters": "graphopt.api",
    "value_and_grad": "graphopt.api",
    "verify": "graphopt.api",
}
__all__ = [
    "Bundle",
    "Executor",
    "ExecutorOptions",
    "FusionStrategy",
    "Trainer",
    "Tune",
    "build_kernels",
    "compile",
    "fuser",
    "grad",
    "kernels",
    "last_executed_optimized_graph",
    "lift_parameters",
    "load",
    "load_model",
    "optimize",
    "optimized_execution",
    "partition",
    "record_profile",
    "run",
    "save",
    "set_fusion_strategy",
    "split",
    "to_proto",
    "train_step",
    "unlift_parameters",
    "value_and_grad",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if not name.startswith("_"):
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
