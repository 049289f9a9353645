"""graphopt: an optimizing compiler driver for ONNX models.

>>> import graphopt
>>> result = graphopt.optimize("model.onnx")     # or an onnx.ModelProto, or its bytes   # doctest: +SKIP
>>> print(result.report)                                                 # doctest: +SKIP
>>> result.save("model.opt.onnx")                                        # doctest: +SKIP

``docs/python.md`` describes the everyday functions. All names, and submodules such as ``graphopt.config``,
are imported on first use, so that the command line starts quickly.
"""

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from graphopt import api, config, errors, ir, rewrite
    from graphopt.api import (
        Report,
        Result,
        build_kernels,
        compile,
        explain,
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
    from graphopt.autodiff.registry import NoGradient
    from graphopt.errors import (
        GraphoptError,
        InvalidModel,
        NoCompiler,
        NotFused,
        PassFailed,
        ResourceLimit,
        RuntimeFailure,
        UnsupportedModel,
        UsageError,
        VerificationFailed,
    )
    from graphopt.executor.executor import Executor, NestedExecutor
    from graphopt.executor.options import (
        ExecutorOptions,
        fuser,
        last_executed_optimized_graph,
        optimized_execution,
        set_fusion_strategy,
    )
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ir import Model, ModelLike
    from graphopt.numerics import Numerics
    from graphopt.passes.base import Pass
    from graphopt.profile import FusionStrategy, Profile
    from graphopt.rewrite.rule import Rule, rule
    from graphopt.specialization.bundle.load import Bundle
    from graphopt.training.trainer import Trainer
    from graphopt.tuning.tuner import Tune

__all__ = [
    "Bundle",
    "Executor",
    "ExecutorOptions",
    "FusionStrategy",
    "GraphoptError",
    "InputOptions",
    "InvalidModel",
    "Model",
    "ModelLike",
    "NestedExecutor",
    "NoCompiler",
    "NoGradient",
    "NotFused",
    "Numerics",
    "Pass",
    "PassFailed",
    "Profile",
    "Report",
    "ResourceLimit",
    "Result",
    "Rule",
    "RuntimeFailure",
    "Trainer",
    "Tune",
    "UnsupportedModel",
    "UsageError",
    "VerificationFailed",
    "__version__",
    "api",
    "build_kernels",
    "compile",
    "config",
    "errors",
    "explain",
    "fuser",
    "grad",
    "ir",
    "kernels",
    "last_executed_optimized_graph",
    "lift_parameters",
    "load",
    "load_model",
    "optimize",
    "optimized_execution",
    "partition",
    "record_profile",
    "rewrite",
    "rule",
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

#: Modules that define names of ``__all__``, if not :mod:`graphopt.api`.
_HOMES = {
    "graphopt.autodiff.registry": ("NoGradient",),
    "graphopt.errors": (
        *("GraphoptError", "InvalidModel", "NoCompiler", "NotFused", "PassFailed", "ResourceLimit"),
        *("RuntimeFailure", "UnsupportedModel", "UsageError", "VerificationFailed"),
    ),
    "graphopt.executor.executor": ("Executor", "NestedExecutor"),
    "graphopt.executor.options": (
        *("ExecutorOptions", "fuser", "last_executed_optimized_graph", "optimized_execution"),
        "set_fusion_strategy",
    ),
    "graphopt.ir": ("Model", "ModelLike"),
    "graphopt.numerics": ("Numerics",),
    "graphopt.passes.base": ("Pass",),
    "graphopt.profile": ("FusionStrategy", "Profile"),
    "graphopt.rewrite.rule": ("Rule", "rule"),
    "graphopt.inputs.feeds": ("InputOptions",),
    "graphopt.specialization.bundle.load": ("Bundle",),
    "graphopt.training.trainer": ("Trainer",),
    "graphopt.tuning.tuner": ("Tune",),
}
_MODULES = ("api", "config", "errors", "ir", "rewrite")


if not TYPE_CHECKING:  # or misspelt names would have a type

    def __getattr__(name):
        from importlib import import_module

        if name in __all__ and name not in _MODULES:
            home = next((home for home, names in _HOMES.items() if name in names), "graphopt.api")
            return getattr(import_module(home), name)
        if not name.startswith("_"):
            try:
                return import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":
                    raise
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=import_module(__name__))


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"])
