"""Filters admit the specified rewrites, and a run reports the first refused one."""

from __future__ import annotations

import pytest

from graphopt.context import Action, Options
from graphopt.rewrite.rewrite_filter import RewriteLimit, RewriteSite
from tests.model_testing import parse, run_pipeline

CHAIN = (
    "g (float[N] x) => (float[N] y) <float zero = {-0.0}> { a = Identity(x) b = Relu(a) y = Add(b, zero) }"
)


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_only_so_many_rewrites(limit: int) -> None:
    model = parse(CHAIN)
    _, cx = run_pipeline(model, "peephole", gate=RewriteLimit(first=limit))
    assert cx.actions == min(limit, 2)
    assert len(model.graph) == 3 - min(limit, 2)
    assert (cx.denied is None) if limit >= 2 else (cx.denied is not None and cx.denied.index == limit + 1)


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        (RewriteLimit(), [True, True, True]),
        (RewriteLimit(first=2), [True, True, False]),
        (RewriteLimit(only=frozenset([RewriteSite("a", "y")])), [False, True, False]),
        (RewriteLimit(without=frozenset([RewriteSite("a", "y")])), [True, False, True]),
        (RewriteLimit(owners=frozenset(["a"])), [False, False, True]),
        (RewriteLimit(first=1, owners=frozenset(["a"])), [False, False, False]),
    ],
)
def test_filter_admits_rewrites(limits: RewriteLimit, allowed: list[bool]) -> None:
    actions = [Action(1, "a", "x"), Action(2, "a", "y"), Action(3, "b", "y")]
    assert [limits(action) for action in actions] == allowed


def test_refused_rewrites_are_not_tried() -> None:
    limits = RewriteLimit(
        without=frozenset([RewriteSite("a", "y")]), owners=frozenset("b"), skip=frozenset(["dce"])
    )
    options = limits.applied_to(Options(skip=frozenset(["cse"])))
    assert options.refused == {("a", "y"), ("b", "")} and options.skip == {"cse", "dce"}
