"""How an executor's plans are made of its original."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from graphopt import ir
from graphopt.executor.plan import Host, Plan
from graphopt.profile import Behaviour, Guard
from graphopt.specialize.build import FIRST
from graphopt.specialize.narrow import narrowed


@dataclass(frozen=True)
class Maker:
    """Makes plans; models that it is given stay as they are.

    Attributes:
        optimize: optimizes a model, running the named passes before all others.
        prepare: does what the plan needs that runs where optimizing is off, as the pipeline ``fallback``.
        host: where plans run.
    """

    optimize: Callable[[ir.Model, tuple[str, ...]], ir.Model]
    prepare: Callable[[ir.Model], ir.Model]
    host: Host

    def general(self, original: ir.Model) -> Plan:
        """The plan for all inputs, ready to run."""
        plan = Plan("general", "general", self.optimize(original, ()), self.host)
        plan.prepare()
        return plan

    def fallback(self, original: ir.Model) -> Plan:
        """The plan that runs where optimizing is switched off."""
        return Plan("fallback", "fallback", self.prepare(original), replace(self.host, optimizations="off"))

    def specialized(self, original: ir.Model, guard: Guard, behaviour: Behaviour) -> Plan:
        """A plan for inputs that ``guard`` lets through, ready to run; it has no name yet."""
        model = self.optimize(narrowed(original, guard), FIRST)
        plan = Plan("", "optimized", model, self.host, guard, behaviour)
        plan.prepare()
        return plan
