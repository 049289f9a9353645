"""Groups of a model's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Unpack

from graphopt import ir
from graphopt.compiler.environment import Environment
from graphopt.errors import unknown
from graphopt.model_arguments import ModelLike
from graphopt.optimize_options import CheckOptions
from graphopt.util.argument_checks import checked

if TYPE_CHECKING:
    from graphopt.partitioning.group_report import Partitioned
    from graphopt.profile import Profile
    from graphopt.verification.verdict import Verdict

#: Purposes of groups.
POLICIES = ("autodiff", "fusion")


@checked
def partition(
    env: Environment,
    model: ModelLike,
    policy: str = "autodiff",
    *,
    minimum: int = 2,
    wrt: str | Iterable[str] = "all",
    views: bool = True,
    no_grad: Sequence[str] = (),
    profile: Profile | None = None,
    shapes: str = "any",
) -> Partitioned:
    """Groups of nodes that can be handled as one, and the reasons why other nodes are in no group.

    >>> found = graphopt.partition("model.onnx", wrt="params")
    >>> [group.ops for group in found.groups]
    [{'MatMul': 1, 'Add': 1}]
    >>> reasons = {reason.node: reason.reason for reason in found.reasons}
    >>> graphopt.save(found.outlined(), "groups.onnx")
    [PosixPath('groups.onnx')]

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`); it is not changed.
        policy: the purpose of groups: ``autodiff``, to be differentiated; ``fusion``, to run as one kernel.
        minimum: minimum size of a group, in distinct computations.
        wrt: for autodiff, the variables of differentiation: ``params``, ``inputs``, ``all`` for both, or
            names.
        views: for autodiff, whether groups may contain operators that only move elements.
        no_grad: for autodiff, names of nodes or scopes that need no gradient.
        profile: for autodiff, a profile that lists the inputs that need a gradient.
        shapes: for fusion, the shapes that groups may have, ``any`` or ``static``.

    Raises:
        UsageError: the policy or a value does not exist, or the profile is of another model.
    """
    from graphopt.partitioning.group_report import partitioned

    if policy == "autodiff":
        from graphopt.transforms.autodiff._autodiff_group_kind import AutodiffGroups

        names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        return partitioned(env.load(model), AutodiffGroups(minimum, views, names, tuple(no_grad), profile))
    if policy == "fusion":
        from graphopt.fusion.kernel_policy import Shapes
        from graphopt.transforms.fusion._native_group_kind import FusionGroups

        if shapes not in (known := [one.value for one in Shapes]):
            raise unknown("kind of shapes", shapes, known, plural="kinds of shapes")
        return partitioned(env.load(model), FusionGroups(minimum, Shapes(shapes)))
    raise unknown("policy", policy, POLICIES, plural="policies")


@checked
def with_groups(
    env: Environment, found: Partitioned, **options: Unpack[CheckOptions]
) -> tuple[ir.Model, Verdict | None]:
    """The model with a function for each group, compared with the model without groups.

    Args:
        found: the groups, as :func:`partition` returns them.
        options: as for :func:`graphopt.optimize`.

    Raises:
        VerificationFailed: the results differ.
    """
    env = env.having(options)
    model = found.outlined()
    env.created_graph("optimized-graph", model)
    if not env.settings.verify:
        return model, None
    return model, env.compared(
        found.original or found.model, [model], "the results of the groups differ from those of the model"
    )
