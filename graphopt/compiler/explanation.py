"""Explain which nodes of a model are fused, and where each node would run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Unpack

from graphopt.compiler.environment import Environment
from graphopt.errors import RuntimeFailure, UsageError
from graphopt.model_arguments import ModelLike
from graphopt.optimization_attempt import prepare
from graphopt.optimize_options import ExplainOptions
from graphopt.ort.devices import Device
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.rewrite.fusion_explanation import Explanation


@checked
def explain(
    env: Environment,
    model: ModelLike,
    patterns: Sequence[str] = (),
    *,
    node: str | None = None,
    fuser: Literal["builtin", "native"] = "builtin",
    check: bool = False,
    **options: Unpack[ExplainOptions],
) -> Explanation:
    """Explain which nodes ``-O3`` puts into fused operators, and the reasons why other nodes are not fused.

    >>> explain("model.onnx", ["attention"]).missed[0].reason            # doctest: +SKIP
    'the mask is the same for all keys'

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        patterns: only rules of these names or families.
        node: only this node of the model, or the nodes in this scope.
        fuser: ``native`` also explains the groups of native kernels, under the pattern ``fuse-groups``.
        check: compare the placement with that of a session, which requires the device.
        portable, skip, exact, fast_math, dims, dim_ranges, dim_relations, target_opset: as for
            :func:`optimize`.
        device: the device for the result, available or not; it determines which operators are faster.

    Raises:
        UsageError: no node or pattern has the name, or ``check`` is for the CPU.
        RuntimeFailure: ``check`` requires a device that can't be used.
    """
    from graphopt.debug.explain_fusions import explain_fusions

    env = env.having(options)
    device = _device_to_check(env) if check else env.target
    env = env.without("fuser").having({"pipeline": "", "device": device})
    candidate, _, _ = env.working_copy(model)
    attempt = prepare(env.settings, **env.given).on(candidate)
    return explain_fusions(
        candidate,
        attempt.options,
        patterns,
        node=node,
        before=attempt.pipeline.steps,
        native=fuser == "native",
        check=check,
    )


def _device_to_check(env: Environment) -> Device:
    """The device of the session for the check of the predicted placement in :func:`explain`.

    Raises:
        UsageError: it is the CPU.
        RuntimeFailure: it can't be used.
    """
    try:
        device = env.device
    except RuntimeFailure as failure:
        hint = "without --check, the prediction requires no GPU; graphopt doctor has details"
        raise RuntimeFailure(failure.message, hint=hint) from failure
    if device.capabilities.is_host:
        raise UsageError(
            "a session on the CPU has one memory, and no placement to check",
            hint="use --device cuda on a machine with CUDA, or omit --check",
        )
    return device
