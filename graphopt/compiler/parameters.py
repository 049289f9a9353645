"""Parameters of models: made inputs and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.models import ModelLike, PathLike, copy
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    from graphopt.parameters.lifting import Parameters, Unlifted


@checked
def lift_parameters(
    env: Environment, model: ModelLike, which: str | Iterable[str] = "params"
) -> tuple[ir.Model, Parameters]:
    """The model with parameters as inputs, and their values.

    >>> lifted, parameters = graphopt.lift_parameters("model.onnx")

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        which: ``params``, all initializers and Constant nodes of floating-point numbers with at least one
            axis, but for running statistics and Constant nodes of a single number; or names of either.

    Raises:
        UsageError: there is no such initializer or Constant node.
    """
    from graphopt.parameters.lifting import lift

    result = copy(env.load(model))
    return result, lift(result, which)


@checked
def unlift_parameters(
    env: Environment, model: ModelLike, parameters: Parameters | Mapping[str, Any] | PathLike
) -> tuple[ir.Model, Unlifted]:
    """The model with inputs that became initializers, and initializers that got other contents, by name.

    >>> whole, report = unlift_parameters(lifted, "weights.safetensors")   # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        parameters: what :func:`lift_parameters` gave, numpy arrays by name, or the path of a
            ``.safetensors`` or ``.npz`` file.

    Raises:
        UsageError: a tensor does not fit, none has the name of an input or initializer, or ``model`` was
            optimized and holds constants that were folded from one that changes.
    """
    from graphopt.parameters.files import read
    from graphopt.parameters.lifting import Parameters, as_parameters, unlift

    if isinstance(parameters, Mapping):
        parameters = as_parameters(parameters)
    elif not isinstance(parameters, Parameters):
        parameters = read(Path(parameters))
    result = copy(env.load(model))
    return result, unlift(result, parameters)
