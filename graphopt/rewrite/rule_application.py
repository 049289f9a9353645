"""Apply one rule to a match."""

from __future__ import annotations

from itertools import zip_longest

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import UnknownAttribute
from graphopt.context import Refusal
from graphopt.rewrite.compiled_pattern import Bindings
from graphopt.rewrite.match import Match, Refused
from graphopt.rewrite.replacement_builder import Builder, UnrepresentableNumber
from graphopt.rewrite.rule import Outcome, Rule
from graphopt.util.text_tables import counted


def try_rule(rule: Rule, match: Match, bindings: Bindings, builder: Builder) -> Outcome:
    """The replacement that ``rule`` builds for ``match`` with ``builder``, or its refusal.

    Raises:
        TypeError: the rule's function does not return an ``Outcome``.
        Exception: any exception of the rule's function.
    """
    if rule.exclusive and (value := match.read_by_others()) is not None:
        return match.no("a value inside is a graph output, or has other readers", value, shared=True)
    try:
        outcome: Outcome = rule.replace(
            builder, match, **{name: bindings.get(name) for name in rule.arguments}
        )
    except Refused as error:
        return error.refusal
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
    _check_types(values, match)
    return _replaces_all(match, outcome)


def _check_types(values: tuple[object, ...], match: Match) -> None:
    """Check that a rule's function returns values, at most one for each output of the root."""
    wrong = [one for one in values if not isinstance(one, ir.Value | None)]
    if wrong or values == (None,) or len(values) > len(match.root.outputs):
        several = "None" if values == (None,) else counted(len(values), "value")
        found = type(wrong[0]).__name__ if wrong else several
        raise TypeError(
            f"rule {match.rule} returned {found}: return a value for"
            f" {counted(len(match.root.outputs), 'output')}, several in a tuple, or m.no(reason)"
        )


def _replaces_all(match: Match, outcome: ir.Value | tuple[ir.Value | None, ...]) -> Outcome:
    """``outcome``, or a refusal if it has no value for an output of the root with readers."""
    values = outcome if isinstance(outcome, tuple) else (outcome,)
    for output, value in zip_longest(match.root.outputs, values):
        if value is None and ir.is_read(output):
            return match.no("another output of the node has readers", output)
    return outcome
