"""The best partial match of a pattern, and its first mismatch."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.rewrite import Exact, Match, Outcome, rule
from graphopt.rewrite.fusion_explanation import explain
from graphopt.rewrite.partial_match import PartialMatch, PartialMatcher, paths_to
from graphopt.rewrite.pattern import OpPattern, build
from graphopt.rewrite.replacement_builder import Builder
from tests.model_testing import parse

PATTERN, _ = build(lambda op, x, y: op.Sqrt(op.Add(op.Relu(op.Neg(x)), op.Mul(y, 2.0)), tag="root"))


def around(body: str, results: str = "float[4] z") -> tuple[ir.Node | None, PartialMatch]:
    """The partial match of the pattern around the Neg of a graph."""
    model = parse(f"g (float[4] x, float[4] y) => ({results}) <float two = {{2.0}}> {{ {body} }}")
    (path,) = paths_to(PATTERN, ("Neg",))
    anchor = next(node for node in model.graph if node.op_type == "Neg")
    return PartialMatcher(context_for(model)).around(path, anchor)


def test_the_size_of_a_pattern_counts_shared_nodes_once() -> None:
    def shared(op: object, x: object) -> OpPattern:
        inner = op.Relu(x)  # type: ignore[attr-defined]
        return op.Add(inner, op.Neg(inner))  # type: ignore[attr-defined,no-any-return]

    assert len(build(shared)[0].nodes) == 3
    assert len(PATTERN.nodes) == 5


def test_complete_match_has_no_gap() -> None:
    root, partial = around("n = Neg(x) r = Relu(n) m = Mul(two, y) a = Add(m, r) z = Sqrt(a)")
    assert root is not None and root.op_type == "Sqrt"
    assert len(partial.nodes) == 5 and not partial.gaps


@pytest.mark.parametrize(
    ("body", "matched", "reason"),
    [
        (
            "n = Neg(x) r = Relu(n) m = Mul(x, y) a = Add(m, r) z = Sqrt(a)",
            5,
            "expected the number 2 before Mul(m), found 'y'",
        ),
        (
            "n = Neg(x) r = Relu(n) m = Mul(two, y) c = Abs(r) a = Add(m, c) z = Sqrt(a)",
            5,
            "Abs(c) is between Relu(r) and Add(a)",
        ),
        (
            "n = Neg(x) q = QuantizeLinear(n, two) p = DequantizeLinear(q, two) r = Relu(p) "
            "m = Mul(two, y) a = Add(m, r) z = Sqrt(a)",
            5,
            "QuantizeLinear(q) and DequantizeLinear(p) are between Neg(n) and Relu(r)",
        ),
        (
            "n = Neg(x) r = Relu(n) m = Div(y, two) a = Add(m, r) z = Sqrt(a)",
            4,
            "expected Mul before Add(a), found Div(m)",
        ),
        (
            "n = Neg(x) r = Relu(n) m = Mul(two, y) a = Add(m, r) z = Exp(a)",
            4,
            "expected Sqrt after Add(a), found Exp(z)",
        ),
        ("n = Neg(x) z = Relu(n)", 2, "expected Add after Relu(z), found an output"),
    ],
)
def test_the_first_gap_is_named(body: str, matched: int, reason: str) -> None:
    _, partial = around(body)
    assert len(partial.nodes) == matched
    assert partial.gaps[0].reason == reason


def test_kind_of_a_gap_contains_no_names() -> None:
    _, partial = around("n = Neg(x) r = Relu(n) m = Mul(x, y) c = Abs(m) a = Add(c, r) z = Sqrt(a)")
    assert [gap.kind for gap in partial.gaps] == [
        "Abs is between Mul and Add",
        "expected the number 2 before Mul, found another value",
    ]


def test_operands_that_commute_are_tried_both_ways_at_every_depth() -> None:
    _, partial = around("n = Neg(x) r = Relu(n) m = Mul(y, x) a = Add(r, m) b = Abs(a) z = Sqrt(b)")
    assert len(partial.nodes) == 5
    assert [gap.reason for gap in partial.gaps] == [
        "Abs(b) is between Add(a) and Sqrt(z)",
        "expected the number 2 before Mul(m), found 'x'",
    ]


@rule(
    lambda op, x: op.Mul(op.Exp(op.Relu(x)), op.Sin(x)),
    numerics=Exact,
    kind="fusion",
)
def rare(op: Builder, m: Match, x: ir.Value) -> Outcome:
    """Never."""
    return m.no("never", x, hint="wait")


def test_anchors_are_the_rarest_operators_of_a_pattern() -> None:
    assert rare.anchors == ("Exp", "Relu", "Sin")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("r = Relu(x) e = Exp(r) s = Sin(x) z = Mul(e, s)", "never"),
        (
            "r = Relu(x) e = Exp(r) s = Sin(y) z = Mul(e, s)",
            "expected 'x' before Sin(s), found 'y'",
        ),
    ],
)
def test_missed_site_is_reported_once(body: str, reason: str) -> None:
    model = parse(f"g (float[4] x, float[4] y) => (float[4] z) {{ {body} }}")
    (missed,) = explain(model, [rare], context_for(model)).missed
    assert missed.reason == reason and missed.matched == 4
    assert missed.hint == ("wait" if reason == "never" else None)
