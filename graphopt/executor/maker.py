"""How an executor's plans are made of its original."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from graphopt import ir
from graphopt.errors import NotFused, PassFailed, VerificationFailed
from graphopt.executor.plan import Host, Plan
from graphopt.profile import Behaviour, Guard
from graphopt.specialize.build import FIRST
from graphopt.specialize.narrow import narrowed


class Optimize(Protocol):
    """Optimizes a model, and verifies the result at most once: it never searches for a rewrite at fault."""

    def __call__(
        self, model: ir.Model, first: tuple[str, ...], original: ir.Model, guard: Guard | None
    ) -> ir.Model:
        """The optimized model.

        Args:
            model: the model.
            first: passes that run before all others.
            original: the model to compare with, which ``model`` equals where ``guard`` holds.
            guard: the assumptions about inputs; ``None`` if there are none.

        Raises:
            VerificationFailed: the result does not compute the same.
            PassFailed: a pass failed.
        """


@dataclass(frozen=True)
class Maker:
    """Makes plans; models that it is given stay as they are.

    Attributes:
        optimize: optimizes a model.
        prepare: does what the plan needs that runs where optimizing is off, as the pipeline ``fallback``.
        host: where plans run.
        strict: a general plan that fails verification is an error; by default the original runs in its place.
    """

    optimize: Optimize
    prepare: Callable[[ir.Model], ir.Model]
    host: Host
    strict: bool = False

    def general(self, original: ir.Model) -> Plan:
        """The plan for all inputs, ready to run.

        Raises:
            NotFused: a scope of ``strict_fusion`` did not become one fused operator.
            VerificationFailed, PassFailed: ``strict``, and it fails.
        """
        problems: tuple[str, ...] = ()
        try:
            model = self.optimize(original, (), original, None)
        except (VerificationFailed, PassFailed) as failure:
            if self.strict or isinstance(failure, NotFused):
                raise
            model = self.prepare(original)
            problems = (f"the general plan runs the original: {failure.message}",)
        plan = Plan("general", "general", model, self.host, problems=problems)
        plan.prepare()
        return plan

    def fallback(self, original: ir.Model) -> Plan:
        """The plan that runs where optimizing is switched off."""
        return Plan("fallback", "fallback", self.prepare(original), replace(self.host, optimizations="off"))

    def specialized(self, original: ir.Model, guard: Guard, behaviour: Behaviour) -> Plan:
        """A plan for inputs that ``guard`` lets through, ready to run; it has no name yet.

        Raises:
            GraphoptError: it can't be made, or fails verification.
        """
        model = self.optimize(narrowed(original, guard), FIRST, original, guard)
        plan = Plan("", "optimized", model, self.host, guard, behaviour)
        plan.prepare()
        return plan
