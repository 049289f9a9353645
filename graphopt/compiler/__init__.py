"""All operations on models under one set of options.

Each operation is a function of an :class:`graphopt.compiler.environment.Environment` and a model, in a module
named after its subject. :class:`Compiler` has them as methods, and :mod:`graphopt.api` as functions that use
the current settings. The module of an operation is imported on first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from graphopt import config
from graphopt.compiler.environment import Environment
from graphopt.diagnostics.observation import observed
from graphopt.errors import GraphoptError
from graphopt.model_arguments import PathLike
from graphopt.optimize_options import OPTIONS, OptimizeOptions
from graphopt.util.argument_checks import checked
from graphopt.util.lazy_modules import Submodules
from graphopt.util.option_table import with_keywords

if TYPE_CHECKING:
    from graphopt import compiler as module
    from graphopt.compiler import (
        ahead_of_time,
        bailouts,
        constants,
        explanation,
        gradients,
        native_kernels,
        optimization,
        parameters,
        partitioning,
        report_page,
        run_and_compare,
        specialization,
        training_step,
    )
else:
    module = Submodules(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def _method(get: Callable[[], F]) -> F:
    """The operation that ``get`` returns as a method, which is traced.

    Tracebacks of its errors show hints with keywords in place of flags.
    """
    return cast(F, _Operation(get))


class _Operation:
    """An attribute of :class:`Compiler` that becomes a method when it is first accessed."""

    def __init__(self, get: Callable[[], Callable[..., Any]]) -> None:
        self._get = get

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = _traced(self._get())
        setattr(self._owner, self._name, method)
        return method.__get__(instance, owner)


def _traced(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def call(env: Environment, *arguments: Any, **keywords: Any) -> Any:
        try:
            with observed("operation", function.__name__, env.settings):
                return function(env, *arguments, **keywords)
        except GraphoptError as error:
            if error.hint is not None and not hasattr(error, "__notes__"):
                error.add_note(f"hint: {with_keywords(error.hint, OPTIONS)}")
            raise

    return call


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

    optimize = _method(lambda: module.optimization.optimize)
    explain = _method(lambda: module.explanation.explain)
    lineage = _method(lambda: module.optimization.lineage)
    verify = _method(lambda: module.run_and_compare.verify)
    compare = _method(lambda: module.run_and_compare.compare)
    report = _method(lambda: module.report_page.report)
    run = _method(lambda: module.run_and_compare.run)
    try_out = _method(lambda: module.run_and_compare.try_out)
    record_profile = _method(lambda: module.specialization.record_profile)
    specialize = _method(lambda: module.specialization.specialize)
    compile = _method(lambda: module.specialization.compile)
    aot_compile = _method(lambda: module.ahead_of_time.aot_compile)
    bailout = _method(lambda: module.bailouts.bailout)
    with_bailouts = _method(lambda: module.bailouts.with_bailouts)
    differentiate = _method(lambda: module.gradients.differentiate)
    split = _method(lambda: module.gradients.split)
    verify_split = _method(lambda: module.gradients.verify_split)
    value_and_grad = _method(lambda: module.gradients.value_and_grad)
    train_step = _method(lambda: module.training_step.train_step)
    partition = _method(lambda: module.partitioning.partition)
    with_groups = _method(lambda: module.partitioning.with_groups)
    list_kernels = _method(lambda: module.native_kernels.list_kernels)
    build_kernels = _method(lambda: module.native_kernels.build_kernels)
    race_kernels = _method(lambda: module.native_kernels.race_kernels)
    lift_parameters = _method(lambda: module.parameters.lift_parameters)
    unlift_parameters = _method(lambda: module.parameters.unlift_parameters)
    split_constants = _method(lambda: module.constants.split_constants)
    update_weights = _method(lambda: module.constants.update_weights)


__all__ = ["Compiler"]
