"""All operations on models under one set of options.

Each operation is a function of an :class:`graphopt.compiler.environment.Environment` and a model, in a module
named after its subject. :class:`Compiler` has them as methods, and :mod:`graphopt.api` as functions that use
the settings in force.
"""

from __future__ import annotations

from graphopt.compiler import (
    bailouts,
    gradients,
    native_kernels,
    optimizing,
    parameters,
    partitioning,
    running,
    specializing,
    training,
)
from graphopt.compiler.environment import Environment


class Compiler(Environment):
    """Operations on models under options that are given once.

    >>> compiler = Compiler(exact=True, device="cpu")
    >>> result = compiler.optimize("model.onnx")
    >>> compiler.verify("model.onnx", result.model).ok
    True
    """

    optimize = optimizing.optimize
    explain = optimizing.explain
    verify = running.verify
    run = running.run
    try_out = running.try_out
    record_profile = specializing.record_profile
    specialize = specializing.specialize
    compile = specializing.compile
    bailout = bailouts.bailout
    with_bailouts = bailouts.with_bailouts
    differentiate = gradients.differentiate
    split = gradients.split
    verify_split = gradients.verify_split
    value_and_grad = gradients.value_and_grad
    train_step = training.train_step
    partition = partitioning.partition
    with_groups = partitioning.with_groups
    list_kernels = native_kernels.list_kernels
    build_kernels = native_kernels.build_kernels
    lift_parameters = parameters.lift_parameters
    unlift_parameters = parameters.unlift_parameters


__all__ = ["Compiler"]
