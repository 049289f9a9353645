"""Decide which variants are worth keeping, by their estimated numbers of executed nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from graphopt import ir
from graphopt.context import context_for
from graphopt.control_flow.estimate_executed_nodes import GUARD_COST, estimate_executed_nodes
from graphopt.profile import Guard, SpecializationKind, Variant
from graphopt.profile.guard_nodes import GuardNodes
from graphopt.specialization.specialize_inputs import specialize_inputs
from graphopt.util.lazy_dataclass import dataclass


def executed_nodes(model: ir.Model, guard: Guard) -> int:
    """The estimated number of nodes executed if ``guard`` holds."""
    found = specialize_inputs(model, guard)
    with context_for(found) as cx:
        return estimate_executed_nodes(found, cx)


def unprofitability(general: ir.Model, variant: ir.Model, guard: Guard) -> str | None:
    """The reason why ``variant`` saves less than its ``guard`` costs; ``None`` if it saves more."""
    before, after = executed_nodes(general, guard), executed_nodes(variant, guard)
    if before - after > GUARD_COST:
        return None
    saved = "no executed node" if after >= before else f"about {before - after} of {before} executed nodes"
    return f"it saves {saved}, and a guard costs {GUARD_COST}"


@dataclass(frozen=True)
class Gain:
    """The gain of a variant over the general model.

    Attributes:
        shortfall: the reason why the gain is too small for a guard; ``None`` if it is large enough.
        ratio: its measured time over that of the general model; ``None`` if it was not measured.
    """

    shortfall: str | None = None
    ratio: float | None = None


#: Computes the gain of a variant from the general model and the model of the variant.
AssessGain = Callable[[ir.Model, ir.Model, Variant], Gain]


@dataclass(frozen=True)
class Policy:
    """The policy by which variants are built and kept.

    Attributes:
        needless: returns the reason why a variant is useless, or ``None``.
        gain: the gain of a useful variant.
        limits: maximum number of variants by kind; unlimited for other kinds.
        detects_absence: whether guards can detect that an optional input is not fed.
    """

    needless: Callable[[ir.Model, ir.Model, Variant], str | None]
    gain: AssessGain = lambda general, model, variant: Gain()
    limits: Mapping[SpecializationKind, int] = field(default_factory=dict)
    detects_absence: bool = False

    def assess(self, general: ir.Model, model: ir.Model, variant: Variant) -> Gain:
        """The gain of ``variant``, whose optimized model is ``model``."""
        reason = self.needless(general, model, variant)
        return self.gain(general, model, variant) if reason is None else Gain(reason)


def _reason_if_guard_is_true(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    inputs = {value.name or "": value for value in general.graph.inputs}
    if GuardNodes(ir.Editor(general), general.graph, inputs).needs_check(variant.guard):
        return None
    return "its guard holds for all inputs"


def _estimated_gain(general: ir.Model, model: ir.Model, variant: Variant) -> Gain:
    return Gain(unprofitability(general, model, variant.guard))


def _reason_if_equal(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """An equal graph is kept only for its static sizes."""
    if variant.kind is SpecializationKind.STATIC or ir.fingerprint(model) != ir.fingerprint(general):
        return None
    return "it equals the general model"


#: For branches of one model: each branch has its own weights in memory, and each guard executes nodes.
ONE_MODEL = Policy(
    _reason_if_guard_is_true,
    _estimated_gain,
    limits={SpecializationKind.STATIC: 2, SpecializationKind.DYNAMIC: 1},
)
#: For bundles: guards run on the host at negligible cost, so slightly smaller variants are also kept.
BUNDLE = Policy(_reason_if_equal, detects_absence=True)
