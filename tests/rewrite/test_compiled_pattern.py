"""Compiled patterns and the index of rules find the matches of a plain interpreter, in random graphs."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Context, Refusal
from graphopt.rewrite import rule_index
from graphopt.rewrite.compiled_pattern import compiled
from graphopt.rewrite.match import Match
from graphopt.rewrite.pattern import OpPattern
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.rule import Rule
from graphopt.rewrite.rule_application import try_rule
from graphopt.rewrite.rule_index import RuleIndex
from graphopt.rules import all_rules
from tests.fuzz.graphs.generate import generate
from tests.rewrite.interpreted_pattern import Found, interpret

RULES = list(all_rules())
INDEX = RuleIndex(RULES)
PATTERNS = [(rule, pattern) for rule in RULES for pattern, _ in rule.patterns]


def _key(found: Found | None) -> object:
    """The identities of all parts of a match."""
    if found is None:
        return None
    bindings, nodes = found
    return {name: _identity(value) for name, value in bindings.items()}, _order(nodes)


def _identity(value: object) -> object:
    if isinstance(value, tuple) and any(isinstance(item, ir.Value) for item in value):
        return [id(item) for item in value]
    return id(value) if isinstance(value, ir.Value) else repr(value)


def _order(nodes: Mapping[OpPattern, ir.Node]) -> list[tuple[int, int]]:
    return [(id(pattern), id(node)) for pattern, node in nodes.items()]


def _reads_any(node: ir.Node, producers: frozenset[str]) -> bool:
    """Whether one of ``producers`` may compute an operand of ``node``: the index visits the first operands."""
    if len(node.inputs) > rule_index._MAX_WIDTH:
        return True
    made_by = [None if value is None else value.producer() for value in node.inputs]
    return any(producer is not None and producer.op_type in producers for producer in made_by)


def _is_refused(rule: Rule, found: Found, node: ir.Node, cx: Context) -> bool:
    bindings, nodes = found
    builder = Builder(cx, node)
    outcome = try_rule(rule, Match(rule.name, node, nodes, cx), bindings, builder)
    builder.discard()
    return isinstance(outcome, Refusal)


@pytest.mark.parametrize("seeds", [range(first, first + 5) for first in range(0, 20, 5)], ids=str)
def test_matches_in_random_graphs(seeds: range) -> None:
    matches = 0
    for seed in seeds:
        model = ir.from_proto(generate(Random(seed)))
        with context_for(model) as cx:
            for node in ir.walk_nodes(model.graph):
                # the index may list more rules for nodes with many operands: they refuse them
                candidates = [
                    (found.rule.name, found.pattern)
                    for found in INDEX.candidates(node)
                    if not found.rule.producers or _reads_any(node, found.rule.producers)
                ]
                expected = []
                for rule, pattern in PATTERNS:
                    found = interpret(pattern, node, cx)
                    assert _key(compiled(pattern).match(node, cx)) == _key(found), f"{rule.name}, seed {seed}"
                    if found and rule.producers and not _reads_any(node, rule.producers):
                        assert _is_refused(rule, found, node, cx), f"{rule.name}, seed {seed}"
                    elif found:
                        expected.append((rule.name, pattern))
                found_by_index = [item for item in candidates if compiled(item[1]).match(node, cx)]
                assert found_by_index == expected, f"seed {seed}"
                matches += len(expected)
    assert matches > 50
