"""The pass dce."""

from __future__ import annotations

from tests.model_testing import ops, parse, run_pipeline


def test_interface_stays_and_dead_trees_are_removed() -> None:
    model = parse(
        """g (float[N] x, float[N] unused, float[1] w) => (float[N] y)
        <float[1] w = {2.0}, float[1] dead = {1.0}> {
            a = Relu(x)
            b = Add(a, dead)
            c = Exp(b)
            y = Mul(x, w)
        }"""
    )
    run_pipeline(model, "dce")
    assert ops(model) == ["Mul"]
    assert [value.name for value in model.graph.inputs] == ["x", "unused", "w"]
    assert list(model.graph.initializers) == ["w"]


def test_values_captured_by_dead_bodies_are_removed() -> None:
    model = parse(
        """g (float[N] x, bool c) => (float[N] y) {
            a = Exp(x)
            dead = If (c) <
                then_branch = t () => (float[N] t1) { t1 = Neg(a) },
                else_branch = e () => (float[N] e1) { e1 = Abs(a) }
            >
            y = Relu(x)
        }"""
    )
    run_pipeline(model, "dce")
    assert ops(model) == ["Relu"]
