"""own-rule: one rewrite rule, by import path."""

from __future__ import annotations

from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.errors import UsageError
from graphopt.passes.base import Pass
from graphopt.passes.import_paths import import_object
from graphopt.rewrite.rule import Rule
from graphopt.rewrite.worklist import apply_rules
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class OwnRule(Pass):
    """Apply one rewrite rule to a fixpoint.

    Attributes:
        path: the import path of the rule: ``package.module:name``.
    """

    name: ClassVar[str] = "own-rule"
    path: str = ""

    @property
    def rule(self) -> Rule:
        """The rule.

        Raises:
            UsageError: ``path`` names no rule.
        """
        found = import_object(self.path)
        if not isinstance(found, Rule):
            raise UsageError(
                f"{self.path} is not a rule", hint="decorate the function with graphopt.rewrite.rule"
            )
        return found

    def run(self, model: ir.Model, cx: Context) -> None:
        """Apply the rule, also in bodies and functions, if the options allow its numerics."""
        rule = self.rule
        if not cx.options.permits(rule.name):
            return
        if rule.numerics > cx.options.numerics:
            kind = rule.numerics.name.lower()
            cx.remarks.append(f"rule {rule.name} did not run: the options exclude its numerics, {kind}")
            return
        apply_rules([rule], model, cx)
