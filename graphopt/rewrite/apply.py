"""Try one rule at a place that its pattern matches."""

from __future__ import annotations

from itertools import zip_longest

from graphopt import ir
from graphopt.analysis.shape_inference.node import UnknownAttribute
from graphopt.context import Refusal
from graphopt.rewrite.builder import Builder, UnrepresentableNumber
from graphopt.rewrite.matcher import Bindings, Match
from graphopt.rewrite.rule import Outcome, Rule
from graphopt.util.tables import counted


def try_rule(rule: Rule, match: Match, bindings: Bindings, builder: Builder) -> Outcome:
    """What ``rule`` makes of the place with ``builder``, or why it leaves it.

    Raises:
        TypeError: the rule's function returns something else than an ``Outcome``.
        Exception: whatever the rule's function raises.
    """
    if rule.exclusive and (value := match.read_by_others()) is not None:
        return match.no("a value inside is a graph output, or has other readers", value, shared=True)
    try:
        outcome: Outcome = rule.replace(
            builder, match, **{name: bindings.get(name) for name in rule.variables}
        )
    except UnrepresentableNumber as error:
        return match.no(str(error), hint=error.hint)
    except OverflowError:
        return match.no("a number exceeds the range of its type")
    except ir.ConstantRefused as error:
        return match.no(str(error))
    except UnknownAttribute as error:
        return match.no(f"attribute {error} is a parameter of the function")
    if isinstance(outcome, Refusal):
        return outcome
    values = outcome if isinstance(outcome, tuple) else (outcome,)
    _check(values, match)
    return _whole(match, outcome)


def _check(values: tuple[object, ...], match: Match) -> None:
    """Check that a rule's function returns values, at most one for each output of the root."""
    wrong = [one for one in values if not isinstance(one, ir.Value | None)]
    if wrong or values == (None,) or len(values) > len(match.root.outputs):
        found = type(wrong[0]).__name__ if wrong else "None" if values == (None,) else f"{len(values)} values"
        raise TypeError(
            f"rule {match.rule} returned {found}: return a value for"
            f" {counted(len(match.root.outputs), 'output')}, several in a tuple, or m.no(reason)"
        )


def _whole(match: Match, outcome: ir.Value | tuple[ir.Value | None, ...]) -> Outcome:
    """``outcome``, unless it leaves an output of the root without a value that something reads."""
    values = outcome if isinstance(outcome, tuple) else (outcome,)
    for output, value in zip_longest(match.root.outputs, values):
        if value is None and ir.is_read(output):
            return match.no("another output of the node has readers", output)
    return outcome
