"""All operations on models under one set of options.

Each operation is a function of an :class:`graphopt.compiler.environment.Environment` and a model, in a module
named after its subject. :class:`Compiler` has them as methods, and :mod:`graphopt.api` as functions that use
the current settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, Unpack, cast

from graphopt import config
from graphopt.compiler import (
    ahead_of_time,
    bailouts,
    constants,
    gradients,
    native_kernels,
    optimization,
    parameters,
    partitioning,
    run_and_compare,
    specialization,
    training_step,
)
from graphopt.compiler.environment import Environment
from graphopt.diagnostics.observation import observed
from graphopt.errors import GraphoptError
from graphopt.model_arguments import PathLike
from graphopt.optimize_options import OPTIONS, OptimizeOptions
from graphopt.util.argument_checks import checked
from graphopt.util.option_table import with_keywords

F = TypeVar("F", bound=Callable[..., Any])


def _method(function: F) -> F:
    """``function`` as a method, which is traced.

    Tracebacks of its errors show hints with keywords in place of flags.
    """

    @functools.wraps(function)
    def call(env: Environment, *arguments: Any, **keywords: Any) -> Any:
        try:
            with observed("operation", function.__name__, env.settings):
                return function(env, *arguments, **keywords)
        except GraphoptError as error:
            if error.hint is not None and not hasattr(error, "__notes__"):
                error.add_note(f"hint: {with_keywords(error.hint, OPTIONS)}")
            raise

    return cast(F, call)


class Compiler(Environment):
    """Operations on models under options that are given once.

    >>> compiler = Compiler(exact=True, device="cpu")
    >>> result = compiler.optimize("model.onnx")
    >>> compiler.verify("model.onnx", result.model).ok
    True
    """

    @checked
    def __init__(
        self, settings: config.Settings | PathLike | None = None, /, **options: Unpack[OptimizeOptions]
    ) -> None:
        super().__init__(settings, **options)

    optimize = _method(optimization.optimize)
    explain = _method(optimization.explain)
    verify = _method(run_and_compare.verify)
    run = _method(run_and_compare.run)
    try_out = _method(run_and_compare.try_out)
    record_profile = _method(specialization.record_profile)
    specialize = _method(specialization.specialize)
    compile = _method(specialization.compile)
    aot_compile = _method(ahead_of_time.aot_compile)
    bailout = _method(bailouts.bailout)
    with_bailouts = _method(bailouts.with_bailouts)
    differentiate = _method(gradients.differentiate)
    split = _method(gradients.split)
    verify_split = _method(gradients.verify_split)
    value_and_grad = _method(gradients.value_and_grad)
    train_step = _method(training_step.train_step)
    partition = _method(partitioning.partition)
    with_groups = _method(partitioning.with_groups)
    list_kernels = _method(native_kernels.list_kernels)
    build_kernels = _method(native_kernels.build_kernels)
    lift_parameters = _method(parameters.lift_parameters)
    unlift_parameters = _method(parameters.unlift_parameters)
    split_constants = _method(constants.split_constants)
    update_weights = _method(constants.update_weights)


__all__ = ["Compiler"]
