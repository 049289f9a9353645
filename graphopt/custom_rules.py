"""Rewrite rules of callers: ``optimize(model, rules=[...])``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from graphopt.context import Options
from graphopt.errors import UsageError
from graphopt.numerics import Numerics
from graphopt.passes.pipeline import Pipeline
from graphopt.rewrite.rule import Rule
from graphopt.rules import all_rules

#: Options of ``optimize`` that permit the rules of a class of numerics.
_ADMITTED_BY = {
    Numerics.REASSOCIATES: "exact=False and a pipeline above O1",
    Numerics.APPROXIMATES: "fast_math=True",
}


def checked_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """``rules``, after a check that each is a rule with a unique name.

    Raises:
        TypeError: an object is not a rule.
        UsageError: two rules have the same name.
    """
    found = (rules,) if isinstance(rules, Rule) else tuple(rules)
    names = [rule.name for rule in all_rules()] if found else []
    for rule in found:
        if not isinstance(rule, Rule):
            kind = rule.__name__ if isinstance(rule, type) else type(rule).__name__
            raise TypeError(
                f"rules= takes rewrite rules, functions decorated with graphopt.rewrite.rule, not {kind};"
                " passes are given as post_passes=[...]"
            )
        if rule.name in names:
            raise UsageError(f"there is another rule called {rule.name!r}", hint="rename the function")
        names.append(rule.name)
    return found


def rules_by_place(pipeline: Pipeline) -> list[Rule]:
    """The rules that are steps of ``pipeline``, by the position of the step."""
    steps = [step for step in pipeline.passes() if step.name == "own-rule"]
    if not steps:
        return []
    from graphopt.passes.own_rule import OwnRule

    return [step.rule for step in steps if isinstance(step, OwnRule)]


def check_applied(rules: Sequence[Rule], passes: Collection[str]) -> None:
    """Check that each of ``rules`` is applied by one of ``passes``.

    Raises:
        UsageError: some rule is applied by no pass.
    """
    for rule in rules:
        if rule.pass_ not in passes:
            raise UsageError(
                f"no pass of the pipeline applies rule {rule.name!r}", hint=f"add the pass {rule.pass_}"
            )


def left_out(options: Options, pipeline: Pipeline) -> Iterator[str]:
    """A remark for each of the caller's rules whose numerics ``options`` or ``pipeline`` do not permit."""
    for rule in options.rules:
        if not options.permits(rule.name):
            continue
        steps = [step for step in pipeline.passes() if step.name == rule.pass_]
        furthest = max(getattr(step, "numerics", Numerics.APPROXIMATES) for step in steps)
        if rule.numerics > min(options.numerics, furthest):
            kind = rule.numerics.name.lower()
            yield f"rule {rule.name} did not run: its numerics, {kind}, need {_ADMITTED_BY[rule.numerics]}"
