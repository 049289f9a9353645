"""Patterns match exactly their own graphs, in every legal order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Observer, Options, Refusal
from graphopt.rewrite import Exact, rule
from graphopt.rewrite.compiled_pattern import compiled
from graphopt.rewrite.pattern import alternatives, build
from graphopt.rewrite.worklist import apply_rules
from tests.model_testing import ops, parse


def match(pattern: Any, text: str, **header: Any) -> dict[str, Any] | None:
    """Bindings of ``pattern`` at the last node of the graph ``text``."""
    model = parse(text, **header)
    root, _ = build(pattern)
    found = compiled(root).match(model.graph[-1], context_for(model))
    return None if found is None else found[0]


def names(bindings: dict[str, Any] | None) -> dict[str, Any]:
    assert bindings is not None
    return {key: value.name if isinstance(value, ir.Value) else value for key, value in bindings.items()}


def test_a_function_may_yield_several_forms() -> None:
    def forms(op: Any, x: Any, y: Any) -> Any:
        yield op.Sub(x, y)
        yield op.Add(x, op.Neg(y))

    found = alternatives(forms)
    assert [root.op_types for root, _ in found] == [("Sub",), ("Add",)]
    assert [names_ for _, names_ in found] == [("x", "y")] * 2


def test_variables_bind_values_and_attributes() -> None:
    found = match(
        lambda op, x, p: op.Relu(op.Transpose(x, perm=p)),
        "g (float[A,B] x) => (float[B,A] y) { t = Transpose<perm = [1, 0]>(x) y = Relu(t) }",
    )
    assert names(found) == {"x": "x", "p": (1, 0)}


def test_an_absent_attribute_binds_its_default_or_none() -> None:
    graph = "g (float[A,B] x) => (float[B,A] y) { t = Transpose(x) y = Softmax(t) }"
    found = match(lambda op, x, p, a: op.Softmax(op.Transpose(x, perm=p), axis=a), graph)
    assert names(found) == {"x": "x", "p": None, "a": -1}


def test_commuting_operators_match_in_either_order() -> None:
    pattern = lambda op, x, y: op.Add(op.Mul(x, y), y)  # noqa: E731
    graph = "g (float[N] a, float[N] b) => (float[N] y) {{ m = Mul({}) y = Add({}) }}"
    for inner in ("a, b", "b, a"):
        for outer in ("m, b", "b, m"):
            assert names(match(pattern, graph.format(inner, outer))) == {"x": "a", "y": "b"}
    assert match(lambda op, x, y: op.Sub(op.Mul(x, y), y), graph.format("a, b", "m, a")) is None


def test_a_variable_used_twice_must_bind_the_same() -> None:
    pattern = lambda op, x: op.Mul(x, op.Sigmoid(x))  # noqa: E731
    graph = "g (float[N] a, float[N] b) => (float[N] y) {{ s = Sigmoid(a) y = Mul({}) }}"
    assert match(pattern, graph.format("a, s")) is not None
    assert match(pattern, graph.format("s, a")) is not None
    assert match(pattern, graph.format("b, s")) is None


def test_optional_rest_and_constant_variables() -> None:
    graph = "g (float[N] x) => (float[N] y) <float low = {0.0}, float[1] w = {1.0}> { y = Clip(x, low) }"
    found = match(lambda op, x, lo, hi: op.Clip(x, lo.optional(), hi.optional()), graph)
    assert names(found) == {"x": "x", "lo": "low", "hi": None}
    assert match(lambda op, x: op.Clip(x), graph) is None
    assert match(lambda op, x, c: op.Clip(x.constant(), c.optional()), graph) is None
    found = match(lambda op, x, r: op.Clip(x, r.rest()), graph)
    assert found is not None and [value.name for value in found["r"]] == ["low"]


@pytest.mark.parametrize(
    ("number", "data", "matches"),
    [(0.0, "0.0", True), (0.0, "-0.0", False), (-0.0, "-0.0", True), (2, "2.0", True), (2, "2.5", False)],
)
def test_literals_match_by_value_and_sign_of_zero(number: float, data: str, matches: bool) -> None:
    graph = f"g (float[N] x) => (float[N] y) <float[1] c = {{{data}}}> {{ y = Add(x, c) }}"
    assert (match(lambda op, x: op.Add(x, number), graph) is not None) is matches


def test_literal_matches_only_if_all_elements_equal_it() -> None:
    graph = "g (float[N] x) => (float[N] y) <float[2] c = {{{}}}> {{ y = Mul(x, c) }}"
    assert match(lambda op, x: op.Mul(x, 1), graph.format("1.0, 1.0")) is not None
    assert match(lambda op, x: op.Mul(x, 1), graph.format("1.0, 2.0")) is None


def test_several_outputs_and_domains() -> None:
    graph = "g (float[4] x) => (float[2] y) { a, b = Split<num_outputs = 2>(x) y = Sub(b, a) }"

    def pattern(op: Any, x: Any) -> Any:
        a, b = op.Split(x, outputs=2)
        return op.Sub(b, a)

    assert names(match(pattern, graph, opset=18)) == {"x": "x"}
    other = "g (float[N] x) => (float[N] y) { a = d.two.Relu(x) y = Relu(a) }"
    assert match(lambda op, x: op.Relu(op.Relu(x)), other, domains=', "d.two" : 1') is None
    assert (
        match(lambda op, x: op.Relu(op.domain("d.two").Relu(x)), other, domains=', "d.two" : 1') is not None
    )


def test_one_of_matches_each() -> None:
    pattern = lambda op, x: op.one_of("Floor", "Ceil")(x)  # noqa: E731
    for name, matches in (("Floor", True), ("Ceil", True), ("Round", False)):
        found = match(pattern, f"g (float[N] x) => (float[N] y) {{ y = {name}(x) }}")
        assert (found is not None) is matches


def test_a_pattern_does_not_reach_into_an_outer_graph() -> None:
    model = parse(
        """g (float[N] x, bool c) => (float[N] y) {
            a = Neg(x)
            y = If (c) <
                then_branch = t () => (float[N] r) { r = Neg(a) },
                else_branch = e () => (float[N] r2) { r2 = Abs(a) }
            >
        }"""
    )
    root, _ = build(lambda op, x: op.Neg(op.Neg(x)))
    inner = model.graph[-1].attributes["then_branch"].as_graph()[0]
    assert compiled(root).match(inner, context_for(model)) is None


@rule(lambda op, x: op.Neg(op.Neg(x)), numerics=Exact)
def double_neg(op: Any, m: Any, x: ir.Value) -> Any:
    """-(-x) = x."""
    return x


@rule(lambda op, x: op.Abs(op.Abs(x)), numerics=Exact, exclusive=True)
def double_abs(op: Any, m: Any, x: ir.Value) -> Any:
    """||x|| = |x|, built anew."""
    return op.Abs(x)


@rule(lambda op, x, c: op.Add(x, c.constant()), numerics=Exact)
def refuses(op: Any, m: Any, x: ir.Value, c: ir.Value) -> Any:
    """Builds something, then thinks better of it."""
    op.Exp(op.Mul(x, np.array([2.0], np.float32)))
    return m.no("never", c)


class Watch(Observer):
    """Records its notifications."""

    def __init__(self) -> None:
        self.rewrites: list[tuple[str, str]] = []
        self.refusals: list[Refusal] = []

    def rewrote(self, action: Any, root: ir.Node, made: list[ir.Node]) -> None:
        self.rewrites.append((action.owner, action.node))

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)


def test_rewrite_keeps_interface_names_and_records_provenance() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Abs(x) y = Abs(a) }")
    model.graph[1].name = "second"
    watch = Watch()
    cx = context_for(model, observers=[watch])
    assert apply_rules([double_abs], model, cx) == 1
    assert ops(model) == ["Abs"]
    assert model.graph.outputs[0].name == "y"
    assert watch.rewrites == [("double-abs", "second")]
    assert "second" in ir.origins(model.graph[0])
    assert ir.created_by(model.graph[0]) == "double-abs"
    assert b"graphopt" not in ir.to_bytes(model)


def test_an_output_that_is_an_input_keeps_an_identity() -> None:
    model = parse("g (float[N] x) => (float[N] y) { a = Neg(x) y = Neg(a) }")
    apply_rules([double_neg], model, context_for(model))
    assert ops(model) == ["Identity"]
    assert (model.graph.inputs[0].name, model.graph.outputs[0].name) == ("x", "y")


def test_exclusive_rules_refuse_shared_values() -> None:
    model = parse("g (float[N] x) => (float[N] y, float[N] a) { a = Abs(x) y = Abs(a) }")
    watch = Watch()
    apply_rules([double_abs], model, context_for(model, observers=[watch]))
    assert ops(model) == ["Abs", "Abs"]
    assert [(refusal.rule, refusal.value, refusal.shared) for refusal in watch.refusals] == [
        ("double-abs", "a", True)
    ]


def test_a_refusal_leaves_no_trace_in_the_model() -> None:
    model = parse("g (float[N] x) => (float[N] y) <float[1] c = {1.0}> { y = Add(x, c) }")
    before = ir.to_bytes(model)
    watch = Watch()
    apply_rules([refuses], model, context_for(model, observers=[watch]))
    assert ir.to_bytes(model) == before
    assert [(refusal.reason, refusal.shared) for refusal in watch.refusals] == [("never", False)]
    assert len(model.graph.inputs[0].uses()) == 1


def test_gate_is_called_once_per_rewrite() -> None:
    model = parse(
        "g (float[N] x) => (float[N] y) { a = Neg(x) b = Neg(a) c = Abs(b) d = Neg(c) e = Neg(d) y = Exp(e) }"
    )
    seen = []

    def gate(action: Any) -> bool:
        seen.append((action.index, action.owner))
        return len(seen) < 2

    apply_rules([double_neg], model, context_for(model, Options(), gate=gate))
    assert seen == [(1, "double-neg"), (2, "double-neg")]
    assert ops(model) == ["Abs", "Neg", "Neg", "Exp"]


def test_rewrites_happen_in_bodies_and_functions() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        g (float[N] x, bool c) => (float[N] y) {
            a = f.twice(x)
            y = If (c) <
                then_branch = t () => (float[N] r) { s = Neg(a) u = Neg(s) r = Exp(u) },
                else_branch = e () => (float[N] r2) { r2 = Abs(a) }
            >
        }
        <domain: "f", opset_import: ["" : 17]>
        twice (v) => (w) { p = Neg(v) q = Neg(p) w = Relu(q) }"""
    )
    assert apply_rules([double_neg], model, context_for(model)) == 2
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Relu"]


def test_match_refused_for_a_second_reader_is_retried_after_its_removal() -> None:
    @rule(lambda op, x: op.Sin(op.Abs(x)), numerics=Exact)
    def leave(op: Any, m: Any, x: Any) -> Any:
        """Read the operand of the Abs."""
        return op.Cos(x)

    model = parse("g (float[N] x) => (float[N] y, float[N] z) { a = Abs(x) y = Abs(a) z = Sin(a) }")
    assert apply_rules([double_abs, leave], model, context_for(model)) == 2
    assert sorted(ops(model)) == ["Abs", "Cos"]


def test_match_with_a_read_output_without_replacement_is_refused() -> None:
    @rule(lambda op, x, s: op.LayerNormalization(x, s), numerics=Exact)
    def first_alone(op: Any, m: Any, x: Any, s: Any) -> Any:
        """Replace only the first output."""
        return op.Mul(x, s)

    text = "g (float[2,4] x, float[4] s) => (float[2,4] y{more}) {{ y, m = LayerNormalization(x, s) }}"
    read = parse(text.format(more=", float[2,1] m"), opset=18)
    watch = Watch()
    assert apply_rules([first_alone], read, context_for(read, observers=[watch])) == 0
    assert [(refusal.reason, refusal.value) for refusal in watch.refusals] == [
        ("another output of the node has readers", "m")
    ]
    unread = parse(text.format(more=""), opset=18)
    assert apply_rules([first_alone], unread, context_for(unread)) == 1
