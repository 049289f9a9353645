"""graphopt passes: the passes and rewrite rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.invocation import Run
from graphopt.cli.options import completion_values
from graphopt.cli.output.command_output import Output
from graphopt.errors import UsageError
from graphopt.util.text_tables import Block, Line, Table

if TYPE_CHECKING:
    from graphopt.passes.base import Pass
    from graphopt.rewrite.rule import Rule

EXAMPLE = """
graphopt passes
graphopt passes constant-propagation
graphopt passes collapse-views
"""


@command_decorator.command("passes", example=EXAMPLE, has_details=False, libraries="onnx")
@click.argument("name", required=False, shell_complete=completion_values.passes_and_rules)
def command(run: Run, name: str | None) -> Output:
    """List all passes, or describe one.

    The description of a pass lists its options and the rules that it applies. NAME may also be a rule, or a
    family of rules.
    """
    from graphopt.passes.pipelines import registry
    from graphopt.passes.unknown_names import unknown_pass_or_rule
    from graphopt.rules import all_rules

    known, rules = registry(), all_rules()
    if name is None:
        return _list(known.passes)
    if not name:
        raise UsageError("which pass or rule?", hint="graphopt passes lists all")
    if name in known.passes:
        return _describe_pass(known.passes[name], [rule for rule in rules if name == rule.pass_])
    if found := [rule for rule in rules if name in (rule.name, rule.family)]:
        return _describe_rules(found)
    raise unknown_pass_or_rule(name, known, (one for rule in rules for one in (rule.name, rule.family)))


def _list(passes: Mapping[str, type[Pass]]) -> Output:
    return Output({"passes": [_pass_dict(kind) for _, kind in sorted(passes.items())]}, _list_text(passes))


def _list_text(passes: Mapping[str, type[Pass]]) -> Iterator[Block]:
    for title, names in _groups(passes):
        yield Line(title, "title")
        yield Table(["", ""], "<<", [[name, passes[name].summary()] for name in names])
        yield ""
    yield Line("hint: graphopt passes NAME shows options and rules; most rules belong to peephole", "hint")


def _groups(passes: Mapping[str, type[Pass]]) -> Iterator[tuple[str, list[str]]]:
    """All passes, grouped by the pipelines that contain them, in the order in which they run."""
    from graphopt.passes.pipelines import PIPELINES, make_pipeline

    left = dict.fromkeys(sorted(passes))
    for title, pipelines in (
        ("-O1, -O2 and -O3", ["O1", "O2"]),
        ("-O3 also", ["O3"]),
        ("--fuser native also", ["native"]),
        ("executors and gradients (graphopt pipelines)", [*PIPELINES]),
    ):
        steps = (step.name for name in pipelines for step in make_pipeline(name, (), ()).passes())
        names = [name for name in dict.fromkeys(steps) if name in left]
        for name in names:
            del left[name]
        yield title, names
    yield "by option or by name (--passes)", list(left)


def _describe_pass(kind: type[Pass], rules: list[Rule]) -> Output:
    data = _pass_dict(kind)
    return Output(data | {"rules": list(map(_rule_dict, rules))} if rules else data, _pass_text(kind, rules))


def _pass_text(kind: type[Pass], rules: list[Rule]) -> Iterator[Block]:
    from graphopt.passes.pass_descriptions import options_of, prose

    yield from _prose(kind.name, prose(kind))
    if found := options_of(kind):
        yield ""
        table = Table(["option", "default", "meaning"], "<<<")
        for option in found:
            table.add(option.name, option.default_text, option.meaning)
        yield table
        yield f"\n  in pipeline text: {kind.name}{{{found[0].name}=…}}"
    if kind.tags:
        yield f"\n  elsewhere: {', '.join(kind.tags)}"
    if rules:
        yield ""
        yield _rules_table(rules)


def _describe_rules(rules: list[Rule]) -> Output:
    return Output(
        list(map(_rule_dict, rules)), [_rules_table(rules)] if len(rules) > 1 else _rule_text(rules[0])
    )


def _rule_text(rule: Rule) -> Iterator[Block]:
    from graphopt.passes.pass_descriptions import prose

    yield from _prose(rule.name, prose(rule.replace))
    yield f"\n  applied by {rule.pass_}, family {rule.family}, numerics {rule.numerics.name.lower()}"
    if rule.tags:
        yield f"  elsewhere: {', '.join(rule.tags)}"


def _prose(name: str, text: str) -> Iterator[Line]:
    """The docstring of a pass or rule, below its name."""
    yield Line(name, "title")
    for line in text.splitlines():
        yield Line(f"  {line}".rstrip())


def _rules_table(rules: list[Rule]) -> Table:
    table = Table(["family", "rule", "effect", "numerics"], "<<<<")
    for rule in sorted(rules, key=lambda rule: rule.family):
        table.add(rule.family, rule.name, rule.summary, rule.numerics.name.lower())
    return table


def _pass_dict(kind: type[Pass]) -> dict[str, Any]:
    from graphopt.passes.pass_descriptions import options_of

    return {
        "name": kind.name,
        "summary": kind.summary(),
        "options": [dataclasses.asdict(option) for option in options_of(kind)],
        "elsewhere": list(kind.tags),
    }


def _rule_dict(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "family": rule.family,
        "summary": rule.summary,
        "numerics": rule.numerics.name.lower(),
        "elsewhere": list(rule.tags),
    }
