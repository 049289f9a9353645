"""Decide which variants are worth keeping, by their estimated numbers of executed nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.control_flow.loops import loop_form, trips_of
from graphopt.ops import graphopt_operators
from graphopt.profile import Guard, SpecializationKind, Variant
from graphopt.specialization.guard_nodes import GuardNodes
from graphopt.specialization.specialize_inputs import specialize_inputs

#: Cost of a guard and its If, in executed nodes.
_GUARD = 8
#: Overhead of an iteration, in executed nodes.
_ITERATION = {"Loop": 2, "Scan": 1}
#: Assumed number of iterations of a loop whose trip count is unknown.
_ITERATIONS = 8


def executed_nodes(model: ir.Model, guard: Guard) -> int:
    """The estimated number of nodes executed if ``guard`` holds.

    Of an If, the larger branch counts; of a loop, all iterations count.
    """
    found = specialize_inputs(model, guard)
    with context_for(found) as cx:
        done: dict[ir.Graph, int] = {}
        for key in ir.functions_callees_first(found):
            _count(found.functions[key].graph, done, cx)
        _count(found.graph, done, cx)
    return done[found.graph]


def _count(graph: ir.Graph, done: dict[ir.Graph, int], cx: Context) -> None:
    """Store the executed nodes of ``graph`` and of its bodies in ``done``."""
    for inner in reversed(list(ir.with_bodies(graph))):
        done[inner] = sum(_cost(node, done, cx) for node in inner)


def _cost(node: ir.Node, done: dict[ir.Graph, int], cx: Context) -> int:
    if node.op_type == "Constant" and not node.domain:
        return 0
    function = cx.model.functions.get(node.op_identifier())
    if function is not None and node.domain != graphopt_operators.NATIVE_DOMAIN:
        return done.get(function.graph, 1)  # absent for a recursive function, which ONNX forbids
    bodies = [done[body] for body in ir.bodies(node)] if node.attributes else []
    if not bodies:
        return 1
    form = loop_form(node, cx)
    if form is None:
        return 1 + max(bodies)
    trips = trips_of(form, cx).most
    return 1 + (_ITERATIONS if trips is None else trips) * (_ITERATION[node.op_type] + max(bodies))


def unprofitable(general: ir.Model, variant: ir.Model, guard: Guard) -> str | None:
    """The reason why ``variant`` saves less than its ``guard`` costs; ``None`` if it saves more."""
    before, after = executed_nodes(general, guard), executed_nodes(variant, guard)
    if before - after > _GUARD:
        return None
    saved = "no executed node" if after >= before else f"about {before - after} of {before} executed nodes"
    return f"it saves {saved}, and a guard costs {_GUARD}"


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


def _guard_always_holds(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    inputs = {value.name or "": value for value in general.graph.inputs}
    if GuardNodes(ir.Editor(general), general.graph, inputs).needs_check(variant.guard):
        return None
    return "its guard holds for all inputs"


def _estimated_gain(general: ir.Model, model: ir.Model, variant: Variant) -> Gain:
    return Gain(unprofitable(general, model, variant.guard))


def _equal_to_general(general: ir.Model, model: ir.Model, variant: Variant) -> str | None:
    """An equal graph is kept only for its static sizes."""
    if variant.kind is SpecializationKind.STATIC or ir.fingerprint(model) != ir.fingerprint(general):
        return None
    return "it equals the general model"


#: For branches of one model: each branch has its own weights in memory, and each guard executes nodes.
ONE_MODEL = Policy(
    _guard_always_holds,
    _estimated_gain,
    limits={SpecializationKind.STATIC: 2, SpecializationKind.DYNAMIC: 1},
)
#: For bundles: guards run on the host at negligible cost, so slightly smaller variants are also kept.
BUNDLE = Policy(_equal_to_general, detects_absence=True)
