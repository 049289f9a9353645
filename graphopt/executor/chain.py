"""The optimized plans of an executor, and the function that chooses between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphopt.executor.plan import Plan
from graphopt.specialize.dispatch import Dispatch, compile_guards


@dataclass(frozen=True)
class Chain:
    """The plans that there are; never changed, but replaced as a whole, so that runs need no lock.

    Attributes:
        plans: in the order in which their guards are asked.
        dispatch: tells which of them feeds are for.
    """

    plans: tuple[Plan, ...] = ()
    dispatch: Dispatch = field(default_factory=lambda: compile_guards([]))

    @classmethod
    def of(cls, plans: tuple[Plan, ...]) -> Chain:
        """The chain of ``plans``."""
        return cls(plans, compile_guards([plan.guard for plan in plans]))

    def with_last(self, plan: Plan) -> Chain:
        """This chain, with ``plan`` asked last."""
        return Chain.of((*self.plans, plan))

    def plan_for(self, feeds: Mapping[str, Any]) -> Plan | None:
        """The first plan whose guard lets ``feeds`` through."""
        number = self.dispatch(feeds)
        return self.plans[number] if number < len(self.plans) else None

    def without_least_recent(self) -> Chain:
        """This chain without the plan whose last run was longest ago, the last one apart, which is new."""
        victim = min(self.plans[:-1], key=lambda plan: plan.last_used, default=self.plans[-1])
        return Chain.of(tuple(plan for plan in self.plans if plan is not victim))
