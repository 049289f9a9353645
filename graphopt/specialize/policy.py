"""What variants are written into decides how many there are, and which of them are worth it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.profile import Behaviour, Variant
from graphopt.specialize.guard_nodes import GuardNodes
from graphopt.specialize.worth import too_little

#: Why a variant, the second model, is left out beside the general model, the first; ``None`` if it is not.
LeftOut = Callable[[ir.Model, ir.Model, Variant], str | None]


@dataclass(frozen=True)
class Policy:
    """Which variants are made and kept.

    Attributes:
        left_out: why one that was made is not kept.
        limits: of variants by behaviour; none of a behaviour that is missing.
        sees_absence: guards can see whether an input with a default is fed.
    """

    left_out: LeftOut
    limits: Mapping[Behaviour, int] = field(default_factory=dict)
    sees_absence: bool = False


def _too_little(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """Why a variant is not worth a guard in one model."""
    inputs = {value.name or "": value for value in general.graph.inputs}
    if not GuardNodes(ir.Editor(general), general.graph, inputs).asks(variant.guard):
        return "its guard would hold for all inputs"
    return too_little(general, model, variant.guard)


def _the_same(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """Why not even a bundle needs a variant: only known sizes make a difference to an equal graph."""
    if variant.behaviour is Behaviour.STATIC or ir.fingerprint(model) != ir.fingerprint(general):
        return None
    return "it would be the general model again"


#: Each variant has weights of its own in memory, and each guard is nodes that run.
ONE_MODEL = Policy(_too_little, limits={Behaviour.STATIC: 2, Behaviour.DYNAMIC: 1})
#: A guard costs next to nothing on the host: hardly smaller variants are kept, too.
BUNDLE = Policy(_the_same, sees_absence=True)
