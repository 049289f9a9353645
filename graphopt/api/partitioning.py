"""Groups of a model's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from graphopt import ir
from graphopt.assembly import ModelLike, chosen_settings, loaded, verifier_for
from graphopt.driver import is_heavy, make_options
from graphopt.errors import VerificationFailed, unknown
from graphopt.util.arguments import checked

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.ort.devices import Device
    from graphopt.partitioning.partitioned import Partitioned
    from graphopt.profile import Profile
    from graphopt.verification.verdict import Verdict


#: What groups can be for.
POLICIES = ("autodiff", "fusion")


@checked()
def partition(
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
    """Groups of nodes that are handled as one, and why the other nodes are in none.

    >>> found = partition("model.onnx", wrt="params")                    # doctest: +SKIP
    >>> [group.ops for group in found.groups]                            # doctest: +SKIP
    [{'MatMul': 4, 'Add': 4, 'Relu': 3}]
    >>> {reason.node: reason.reason for reason in found.reasons}         # doctest: +SKIP
    >>> graphopt.save(found.outlined(), "groups.onnx")                   # doctest: +SKIP

    Args:
        model: a model in any form (:data:`graphopt.ModelLike`), which is left as it is.
        policy: what groups are for: ``autodiff``, to be differentiated, or ``fusion``, to run as one kernel.
        minimum: nodes of a group; each computation counts once.
        wrt: of autodiff: what is differentiated by: ``params``, ``inputs``, ``all`` of both, or names.
        views: of autodiff: whether operators that only move elements may be in groups.
        no_grad: of autodiff: names of nodes, or scopes of them, in which no gradient is wanted.
        profile: of autodiff: tells of which inputs a gradient was wanted.
        shapes: of fusion: of which shapes groups are made, ``any`` or ``static``.

    Raises:
        UsageError: there is no such policy or value, or the profile is of another model.
    """
    from graphopt.partitioning.partitioned import partitioned

    if policy == "autodiff":
        from graphopt.transforms.autodiff.group_kind import AutodiffGroups

        names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        return partitioned(loaded(model), AutodiffGroups(minimum, views, names, tuple(no_grad), profile))
    if policy == "fusion":
        from graphopt.fusion.policy import Shapes
        from graphopt.transforms.fusion.group_kind import FusionGroups

        if shapes not in (known := [one.value for one in Shapes]):
            raise unknown("kind of shapes", shapes, known, plural="kinds of shapes")
        return partitioned(loaded(model), FusionGroups(minimum, Shapes(shapes)))
    raise unknown("policy", policy, POLICIES, plural="policies")


@checked()
def with_groups(
    found: Partitioned,
    *,
    inputs: InputOptions | None = None,
    verify: bool | None = None,
    device: str | Device | None = None,
    allow_fallback: bool | None = None,
) -> tuple[ir.Model, Verdict | None]:
    """The model with a function for each group, compared with the one that has none.

    Args:
        inputs, verify, device, allow_fallback: as for :func:`graphopt.api.optimize`.

    Raises:
        VerificationFailed: it does not compute the same.
    """
    settings = chosen_settings(verify=verify, allow_fallback=allow_fallback)
    model = found.outlined()
    if not settings.verify:
        return model, None
    original = found.model
    verifier, _ = verifier_for(original, inputs, settings, device, is_heavy(original, settings.memory_limit))
    with verifier:
        verdict = verifier.verify(model, numerics=make_options(settings).numerics)
    if not verdict.ok:
        raise VerificationFailed(f"the groups do not compute what the model does: {verdict.summary()}")
    return model, verdict
