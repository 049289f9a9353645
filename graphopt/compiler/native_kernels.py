"""Native kernels of models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.compiler.environment import Environment
from graphopt.model_arguments import ModelLike, PathLike
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.fusion.kernel_inventory import Inventory


@checked
def list_kernels(env: Environment, model: ModelLike) -> Inventory:
    """The native kernels of a model; for a model without groups, those that ``fuser="native"`` would create.

    >>> found = list_kernels("model.onnx")                               # doctest: +SKIP
    >>> [(group.name, group.calls) for group in found.groups]            # doctest: +SKIP
    [('sigmoid_mul_add_0c5e1f3a77b2', 12)]
    >>> print(found.source())                                            # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.

    Raises:
        InvalidModel: the description of its groups is malformed.
    """
    from graphopt.fusion.kernel_inventory import Inventory

    return Inventory.of(env.load(model), env.settings, env.target)


@checked
def build_kernels(
    env: Environment,
    model: ModelLike,
    path: PathLike,
    progress: Callable[[float | None, str], None] | None = None,
) -> Inventory:
    """Build the library with the native kernels of a model, and write it to ``path``.

    >>> build_kernels("model.onnx", "model.kernels.so")                  # doctest: +SKIP
    >>> options = onnxruntime.SessionOptions()                           # doctest: +SKIP
    >>> options.register_custom_ops_library("./model.kernels.so")        # doctest: +SKIP

    Args:
        model: a model with native groups (``optimize(…, fuser="native")``), in any form.
        path: the file for the library.
        progress: called with the completed fraction.

    Raises:
        UsageError: the model has no groups; or ``path`` can't be written, or has another suffix.
        UnsupportedModel: none of the groups has a kernel.
        NoCompiler: no C compiler was found.
        RuntimeFailure: the compiler fails.
    """
    found = list_kernels(env, model)
    found.build(Path(path), progress)
    return found
