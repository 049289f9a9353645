"""Compiled patterns and the index of rules find the matches of a plain interpreter, in random graphs."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.rewrite.compiled_pattern import compiled
from graphopt.rewrite.pattern import OpPattern
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


@pytest.mark.parametrize("seeds", [range(first, first + 5) for first in range(0, 20, 5)], ids=str)
def test_matches_in_random_graphs(seeds: range) -> None:
    matches = 0
    for seed in seeds:
        model = ir.from_proto(generate(Random(seed)))
        with context_for(model) as cx:
            for node in ir.walk_nodes(model.graph):
                candidates = [(rule.name, pattern) for rule, pattern in INDEX.candidates(node)]
                expected = []
                for rule, pattern in PATTERNS:
                    found = interpret(pattern, node, cx)
                    assert _key(compiled(pattern).match(node, cx)) == _key(found), f"{rule.name}, seed {seed}"
                    expected += [(rule.name, pattern)] if found else []
                found_by_index = [item for item in candidates if compiled(item[1]).match(node, cx)]
                assert found_by_index == expected, f"seed {seed}"
                matches += len(expected)
    assert matches > 50
