"""Inline groups for autodiff that can't be guarded."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.autodiff.split_group_functions import calls_of_groups, inline_group
from graphopt.context import Refusal
from graphopt.transforms.profile._assumed_facts import AssumedFacts


def inline_unguardable_groups(facts: AssumedFacts, owner: str, obstacle: str | None = None) -> bool:
    """Inline the groups that can't be guarded, and report the reasons; returns whether there are any.

    Whether their values require a gradient is unknown afterwards.

    Modelled on ``guardDifferentiableGraph`` of PyTorch's JIT, which inlines groups with unprofiled inputs.

    Args:
        facts: the facts that the profile provides.
        owner: the pass, for reports.
        obstacle: the reason why the model can't have guards, if any; all groups are then inlined.
    """
    cx, found = facts.cx, False
    for key, calls in calls_of_groups(cx.model).items():
        function = cx.model.functions[key]
        reason = obstacle or _obstacle(function, calls, facts)
        action = None if reason is None else cx.begin_rewrite(owner, calls[0])
        if reason is not None and action is not None:
            cx.refuse(Refusal(owner, ir.label(calls[0]), reason))
            cx.end_rewrite(action, calls[0], inline_group(function, calls, cx, owner))
            found = True
    return found


def _obstacle(function: ir.Function, calls: Sequence[ir.Node], facts: AssumedFacts) -> str | None:
    """The reason why the group ``function`` can't be guarded; ``None`` if it can."""
    version = ir.standard_version(facts.cx.model.opset_imports)
    own = ir.standard_version(function.opset_imports, version)
    if own != version:
        return f"it has opset {own}, and the model opset {version}"
    for call in calls:
        for formal, value in zip(function.inputs, call.inputs, strict=False):
            if value is not None and facts.shape(formal) is None and facts.shape(value) is None:
                return f"no guard can check its input {value.name!r}, whose rank is unknown"
    return None
