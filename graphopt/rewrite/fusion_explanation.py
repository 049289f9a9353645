"""The explanation of fusion in a model: fusions made and missed."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt import ir
from graphopt.context import Context
from graphopt.placement.explain_placement import PlacementExplanation
from graphopt.rewrite.fused_operators import Fused, fused_in
from graphopt.rewrite.missed_fusions import Missed, missed_in
from graphopt.rewrite.rule import Rule
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Explanation:
    """The fusions of a model, made and missed.

    Attributes:
        fused: the fused operators.
        missed: the fusions not made.
        placement: nodes on the CPU and copies, for a device with its own memory.
    """

    fused: tuple[Fused, ...]
    missed: tuple[Missed, ...]
    placement: PlacementExplanation | None = None


def explain(
    model: ir.Model, rules: Sequence[Rule], cx: Context, *, about: Sequence[Rule] | None = None
) -> Explanation:
    """Explain the fusions of ``rules``, which have been applied to ``model``.

    The model is unchanged afterwards.

    Args:
        about: the rules to report; all of ``rules`` by default.
    """
    names = frozenset(rule.name for rule in (rules if about is None else about))
    fused = tuple(one for one in fused_in(model, rules) if not names.isdisjoint(one.rules))
    return Explanation(fused, tuple(missed_in(model, rules if about is None else about, cx)))
