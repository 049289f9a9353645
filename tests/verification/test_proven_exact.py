"""Fewer kinds of values are compared if all rewrites are proven exact, unless a bit differs."""

from __future__ import annotations

from typing import Any

import pytest

import graphopt
from graphopt.numerics import Numerics
from graphopt.rewrite import rule
from graphopt.verification.verdict import PROVEN_EXACT, Verdict
from graphopt.verification.verifier import Verifier
from tests.model_testing import parse

MOVES = """g (float[N, 4] x) => (float[4, N] y)
    { a = Transpose <perm = [1, 0]> (x) b = Transpose <perm = [1, 0]> (a)
      c = Transpose <perm = [1, 0]> (b) y = Relu(c) }"""
SCALES = """g (float[N, 4] x) => (float[N, 4] y) <float a = {3.0}, float b = {0.7}>
    { s = Mul(x, a) t = Mul(s, b) d = Neg(t) y = Neg(d) }"""


def kinds(verdict: Verdict | None) -> set[str]:
    assert verdict is not None and verdict.ok and verdict.rows
    return {row.distribution for row in verdict.rows}


def is_limited(verdict: Verdict | None) -> bool:
    assert verdict is not None
    assert ("proven exact" in verdict.summary()) == any(
        skipped.cause == PROVEN_EXACT for skipped in verdict.skipped
    )
    return "proven exact" in verdict.summary()


def test_moves_are_compared_on_ordinary_values_at_all_sizes() -> None:
    verdict = graphopt.optimize(parse(MOVES)).verdict
    assert kinds(verdict) == {"normal"} and is_limited(verdict)
    assert verdict is not None and {row.level for row in verdict.rows} == {"off", "default"}
    assert len({row.binding for row in verdict.rows}) >= 3
    assert any("N=0" in row.binding for row in verdict.rows)


def test_a_rewrite_that_rounds_differently_needs_all_kinds_of_values() -> None:
    verdict = graphopt.optimize(parse(SCALES)).verdict
    assert kinds(verdict) >= {"normal", "zero", "special"} and not is_limited(verdict)


@rule(lambda op, x: op.Neg(op.Neg(x)), numerics=Numerics.EXACT)
def own_identity(op: Any, m: Any, x: Any) -> Any:
    """-(-x) → x."""
    return x


@pytest.mark.parametrize("options", [{"rules": [own_identity]}, {"pre_passes": "inline-functions"}])
def test_other_passes_and_rules_of_callers_are_not_proven(options: dict[str, Any]) -> None:
    text = MOVES.replace("y = Relu(c)", "d = Neg(c) e = Neg(d) y = Relu(e)")
    skipped = ["cancel-negations"] if "rules" in options else []
    verdict = graphopt.optimize(parse(text), skip=skipped, **options).verdict
    assert is_limited(verdict) == ("rules" not in options)  # the other pass changes nothing


def test_a_different_bit_refutes_the_proof() -> None:
    """(x * 3) * 0.7 and x * 2.1 differ in the last bit."""
    joined = parse("g (float[N, 4] x) => (float[N, 4] y) <float c = {2.1}> { y = Mul(x, c) }")
    with Verifier(parse(SCALES)) as verifier:
        verdict = verifier.verify(joined, proven_exact=True)
    assert kinds(verdict) >= {"normal", "zero", "special"} and not is_limited(verdict)


def test_a_fault_refutes_the_proof() -> None:
    wrong = parse(MOVES.replace("y = Relu(c)", "y = Neg(c)"))
    with Verifier(parse(MOVES)) as verifier:
        assert not verifier.verify(wrong, proven_exact=True).ok


def test_random_models_are_compared_on_all_kinds_of_values() -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
        { r = RandomUniformLike(x) y = Add(x, r) i = Identity(x) z = Relu(i) }"""
    verdict = graphopt.optimize(parse(text)).verdict
    assert "zero" in kinds(verdict) and not is_limited(verdict)


def test_kinds_are_added_for_a_second_candidate_without_a_proof() -> None:
    with Verifier(parse(MOVES)) as verifier:
        assert is_limited(verifier.verify(parse(MOVES), proven_exact=True))
        assert "special" in kinds(verifier.verify(parse(MOVES)))
        assert not is_limited(verifier.verify(parse(MOVES), proven_exact=True))
