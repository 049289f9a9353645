"""Turn parameters of models into inputs, and inputs into parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.model_arguments import ModelLike, PathLike, copy
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.parameters.lifting import Parameters, Unlifted


@checked
def lift_parameters(
    env: Environment, model: ModelLike, which: str | Iterable[str] = "params"
) -> tuple[ir.Model, Parameters]:
    """The model with parameters as inputs, and their values.

    >>> lifted, parameters = graphopt.lift_parameters("model.onnx")

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        which: ``params`` for all floating-point initializers and Constant nodes with at least one axis,
            except running statistics and Constant nodes with a single element; or names of initializers and
            Constant nodes.

    Raises:
        UsageError: an initializer or Constant node does not exist, or an optimization merged it with an equal
            one.
    """
    from graphopt.parameters.lifting import lift

    result = copy(env.load(model))
    return result, lift(result, which)


@checked
def unlift_parameters(
    env: Environment, model: ModelLike, parameters: Parameters | Mapping[str, Any] | PathLike
) -> tuple[ir.Model, Unlifted]:
    """The model with new contents, by name: inputs become initializers, initializers are replaced.

    >>> whole, report = unlift_parameters(lifted, "weights.safetensors")   # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        parameters: the result of :func:`lift_parameters`, numpy arrays by name, or the path of a
            ``.safetensors`` or ``.npz`` file.

    Raises:
        UsageError: a tensor does not fit, no tensor has the name of an input or initializer, or ``model`` was
            optimized and has constants that were folded from a changed parameter.
    """
    from graphopt.parameters.lifting import Parameters, as_parameters, unlift
    from graphopt.parameters.parameter_files import read

    if isinstance(parameters, Mapping):
        parameters = as_parameters(parameters)
    elif not isinstance(parameters, Parameters):
        parameters = read(Path(parameters))
    result = copy(env.load(model))
    return result, unlift(result, parameters)
