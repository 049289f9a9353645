"""Fewer kinds of values are compared if all rewrites are proven exact, unless a bit differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import graphopt
from graphopt import config, ir, optimization_attempt
from graphopt.context import Context, context_for
from graphopt.numerics import Numerics
from graphopt.ort.devices import Device
from graphopt.passes.base import Pass
from graphopt.passes.pass_records import History
from graphopt.rewrite import rule
from graphopt.verification import guarded_groups
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
    assert kinds(verdict) == {"normal", "zero", "special"} and is_limited(verdict)
    assert verdict is not None and {row.level for row in verdict.rows} == {"off", "default"}
    assert len({row.binding for row in verdict.rows}) >= 3
    assert any("N=0" in row.binding for row in verdict.rows)
    sample = [row for row in verdict.rows if row.distribution != "normal"]
    assert [(row.binding, row.level) for row in sample] == [("N=1", "off")] * 2


def test_half_precision_needs_all_kinds_of_values() -> None:
    verdict = graphopt.optimize(parse(MOVES.replace("float", "float16"))).verdict
    assert kinds(verdict) >= {"normal", "large"} and not is_limited(verdict)


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


# Conditions under which a run is not proven -------------------------------------------------------


def is_unproven(text: str, **options: Any) -> bool:
    """Whether the run of an attempt without passes that change the model is unproven."""
    attempt = optimization_attempt.prepare(config.Settings())
    attempt = replace(attempt, options=replace(attempt.options, **options))
    with context_for(parse(text), attempt.options) as cx:
        return attempt._unproven(cx, History(""))


def test_results_of_another_device_are_not_proven() -> None:
    assert not is_unproven(MOVES)
    assert is_unproven(MOVES, device=Device("cuda"))


def test_models_with_quantizers_are_not_proven() -> None:
    assert is_unproven(
        """g (float[N, 4] x) => (float[N, 4] y) <float s = {0.5}, uint8 z = {3}>
        { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    )


class Redefining(Pass):
    """Declare that other results are correct."""

    def run(self, model: ir.Model, cx: Context) -> None:
        """Change nothing."""

    def redefine(self, model: ir.Model) -> Sequence[str]:
        """Report a change."""
        return ("other results",)


class Touching(Pass):
    """Remove the first Transpose and its inverse, as declared by the caller to be exact."""

    proven_exact = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Replace the second Transpose by its operand before the first one."""
        first, second = list(model.graph)[:2]
        action = cx.begin_rewrite(self.name, second)
        if action is not None:
            assert first.inputs[0] is not None
            cx.edit.replace(second.outputs[0], first.inputs[0])
            cx.end_rewrite(action, second, [])


@pytest.mark.parametrize("own", [Redefining(), Touching()])
def test_redefined_models_and_passes_of_callers_are_not_proven(own: Pass) -> None:
    assert not is_limited(graphopt.optimize(parse(MOVES), pre_passes=[own]).verdict)


def test_native_libraries_are_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[bool] = []

    class Stop(graphopt.GraphoptError):
        pass

    def verify(*arguments: Any, proven_exact: bool, **options: Any) -> Verdict:
        requested.append(proven_exact)
        raise Stop("enough")

    monkeypatch.setattr(guarded_groups, "verify_with_groups", verify)
    with Verifier(parse(MOVES)) as verifier:
        attempt = replace(optimization_attempt.prepare(config.Settings()), verifier=verifier)
        for libraries in ([], ["kernels.so"]):
            with pytest.raises(Stop):
                replace(attempt, libraries=lambda model, found=libraries: found)._verify(parse(MOVES), False)
    assert requested == [True, False]


@pytest.mark.parametrize(("product", "limited"), [("MatMul(x, w)", False), ("Add(x, w)", True)])
def test_folded_operands_of_products_are_not_proven(product: str, limited: bool) -> None:
    text = f"""g (float[N, 4] x) => (float[N, 4] y) <float[4, 4] a = {{{", ".join(["0.5"] * 8 + ["1.5"] * 8)}}}>
        {{ w = Transpose <perm = [1, 0]> (a) y = {product} }}"""
    text = text.replace("float[N, 4]", "float[4, 4]")
    verdict = graphopt.optimize(parse(text), pipeline="constant-propagation").verdict
    assert is_limited(verdict) == limited


def test_a_wrong_proof_for_special_values_is_found() -> None:
    """x * 0 is NaN for infinite x: only special values reveal it."""
    text = "g (float[N, 4] x) => (float[N, 4] y) <float c = {0.0}> { p = Mul(x, c) y = Abs(p) }"
    wrong = text.replace("p = Mul(x, c) y = Abs(p)", "s = Shape(x) e = Expand(c, s) y = Abs(e)")
    with Verifier(parse(text)) as verifier:
        assert not verifier.verify(parse(wrong), proven_exact=True).ok


def test_rounding_is_no_excuse_for_integers() -> None:
    """The overflow of an integer power depends on the kernel, and no float is rounded."""
    text = """g (int64[N] x, int64[1] e) => (int64[N] y)
        { s = Shape(x) z = Expand(e, s) y = Pow(x, z) }"""
    other = "g (int64[N] x, int64[1] e) => (int64[N] y) { y = Pow(x, e) }"
    with Verifier(parse(text)) as verifier:
        assert not verifier.verify(parse(other)).ok
