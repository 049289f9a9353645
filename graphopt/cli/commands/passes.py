"""graphopt passes: the passes and rewrite rules."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.framework import command_decorator
from graphopt.cli.framework.help import Section
from graphopt.cli.invocation import Run
from graphopt.cli.options import completion
from graphopt.errors import unknown
from graphopt.util.text_tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from graphopt.passes.base import Pass
    from graphopt.rewrite.rule import Rule

EXAMPLE = """
graphopt passes
graphopt passes constant-propagation
graphopt passes collapse-views
"""


@command_decorator.command("passes", example=EXAMPLE, section=Section.INSIDE, rank=3, has_details=False)
@click.argument("name", required=False, shell_complete=completion.passes_and_rules)
def command(run: Run, name: str | None) -> None:
    """List all passes, or describe one.

    The description has its options and the rules that it applies. NAME may also be a rule, or a family of
    rules.
    """
    from graphopt.passes.pipelines import registry
    from graphopt.rules import all_rules

    known, rules = registry(), all_rules()
    if name is None:
        _list(run, known.passes, known.planned)
    elif name in known.passes:
        _show_pass(run, known.passes[name], [rule for rule in rules if name == rule.pass_])
    elif found := [rule for rule in rules if name in (rule.name, rule.family)]:
        _show_rules(run, found)
    elif name in known.planned:
        run.console.json({"name": name, "planned": known.planned[name]})
        run.console.print(f"{name}: {known.planned[name]} (not built yet)")
    else:
        names = [
            *known.passes,
            *known.planned,
            *(rule.name for rule in rules),
            *(rule.family for rule in rules),
        ]
        raise unknown("pass or rule", name, names, "graphopt passes lists all")


def _list(run: Run, passes: Mapping[str, type[Pass]], planned: Any) -> None:
    run.console.json(
        {
            "passes": [_describe(kind) for _, kind in sorted(passes.items())],
            "planned": [{"name": name, "summary": text} for name, text in sorted(planned.items())],
        }
    )
    for title, names in _groups(passes):
        run.console.print(title, "title")
        table = Table(["", ""], "<<")
        for name in names:
            table.add(name, passes[name].summary())
        run.console.table(table)
        run.console.print()
    if planned:
        run.console.print(f"not built yet: {', '.join(sorted(planned))}", "hint")
    run.console.print(
        "hint: graphopt passes NAME shows options and rules; most rules belong to peephole", "hint"
    )


def _groups(passes: Mapping[str, type[Pass]]) -> Iterator[tuple[str, list[str]]]:
    """All passes by the pipelines that contain them, in the order in which they run."""
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


def _show_pass(run: Run, kind: type[Pass], rules: list[Rule]) -> None:
    from graphopt.passes.describe import options_of, prose

    run.console.json(
        {**_describe(kind), "rules": [_rule_dict(rule) for rule in rules]} if rules else _describe(kind)
    )
    run.console.print(kind.name, bold=True)
    for line in prose(kind).splitlines():
        run.console.print(f"  {line}".rstrip())
    found = options_of(kind)
    if found:
        run.console.print()
        table = Table(["option", "default", "meaning"], "<<<")
        for option in found:
            table.add(option.name, option.default_text, option.meaning)
        run.console.table(table)
        run.console.print(f"\n  in pipeline text: {kind.name}{{{found[0].name}=…}}")
    if kind.tags:
        run.console.print(f"\n  elsewhere: {', '.join(kind.tags)}")
    if rules:
        run.console.print()
        _print_rules(run, rules)


def _show_rules(run: Run, rules: list[Rule]) -> None:
    run.console.json([_rule_dict(rule) for rule in rules])
    if len(rules) > 1:
        _print_rules(run, rules)
        return
    from graphopt.passes.describe import prose

    (rule,) = rules
    run.console.print(rule.name, bold=True)
    for line in prose(rule.replace).splitlines():
        run.console.print(f"  {line}".rstrip())
    run.console.print(
        f"\n  applied by {rule.pass_}, family {rule.family}, numerics {rule.numerics.name.lower()}"
    )
    if rule.tags:
        run.console.print(f"  elsewhere: {', '.join(rule.tags)}")


def _print_rules(run: Run, rules: list[Rule]) -> None:
    table = Table(["family", "rule", "what it does", "numerics"], "<<<<")
    for rule in sorted(rules, key=lambda rule: rule.family):
        table.add(rule.family, rule.name, rule.summary, rule.numerics.name.lower())
    run.console.table(table)


def _describe(kind: type[Pass]) -> dict[str, Any]:
    from graphopt.passes.describe import options_of

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
