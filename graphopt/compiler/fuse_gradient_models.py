"""Fuse nodes of models that compute gradients, after differentiation."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.compiler.optimization import Result, optimized
from graphopt.executor.fusers import FUSERS, check_fuser
from graphopt.ops import graphopt_operators


def fuse(
    env: Environment, model: ir.Model, fuser: str | None = None, variables: Iterable[str] = ()
) -> Result | None:
    """Fuse nodes of the differentiated ``model``, and compare the result with ``model``.

    The counterpart of the post-grad passes of PyTorch's ``compile_fx``.

    Args:
        env: supplies the fuser if none is given, and verifies.
        model: the model, which is not modified.
        fuser: as for :func:`graphopt.optimize`.
        variables: initializers whose contents will change, such as parameters: they are not constants.

    Returns:
        The fused model; ``None`` if the fuser fuses nothing, which is the default.

    Raises:
        UsageError: the fuser is unknown.
        VerificationFailed, PassFailed: as for :func:`graphopt.optimize`.
    """
    pipeline = FUSERS[check_fuser(fuser or env.given.get("fuser") or "none")].post_grad
    if pipeline is None:
        return None
    if graphopt_operators.has_groups(
        model, graphopt_operators.AUTODIFF_GROUPS, graphopt_operators.AUTODIFF_BACKWARD
    ):
        pipeline = f"inline-functions,{pipeline}"
    with ir.as_variables(model.graph, variables):
        result = optimized(Environment(env.settings), model, pipeline=pipeline, device=env.device)
    ir.copy_variables(model.graph, result.model.graph)
    return result
