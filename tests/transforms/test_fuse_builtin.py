"""fuse-builtin: the phases of rules."""

from __future__ import annotations

from graphopt import ir
from graphopt.api import context_for
from graphopt.rules import all_rules
from graphopt.transforms.fusion.fuse_builtin import FuseBuiltin
from tests.model_testing import parse


def rules_used(text: str) -> list[str | None]:
    model = parse(text, opset=18)
    FuseBuiltin().run(model, context_for(model))
    return [ir.created_by(node) for node in model.graph if ir.created_by(node)]


def test_attention_is_found_before_its_products_are_fused() -> None:
    used = rules_used("""
    g (float[B, S, 8] x, float[B, T, 8] z) => (float[B, 2, S, 4] y)
        <int64[4] heads = {0, 0, 2, 4}, float half = {0.5}>
    {
        a = Reshape(x, heads) q = Transpose<perm = [0, 2, 1, 3]>(a)
        b = Reshape(z, heads) v = Transpose<perm = [0, 2, 1, 3]>(b) k = Transpose<perm = [0, 1, 3, 2]>(v)
        s = MatMul(q, k) t = Mul(s, half) p = Softmax<axis = -1>(t) y = MatMul(p, v)
    }""")
    assert "multi-head-attention" in used
    assert not any("fused-matmul" in (name or "") for name in used)


def test_a_bias_joins_the_gelu_that_another_rule_finds() -> None:
    used = rules_used("""
    g (float[N, 3, 4] x, float[4] b) => (float[N, 3, 4] y) <float root = {1.4142135}, float one = {1}, float half = {0.5}>
    {
        s = Add(x, b) d = Div(s, root) e = Erf(d) a = Add(e, one) m = Mul(s, a) y = Mul(m, half)
    }""")
    assert used == ["bias-into-gelu"]


def test_only_fuse_builtin_has_a_second_phase() -> None:
    assert all(rule.pass_ == "fuse-builtin" for rule in all_rules() if rule.phase == 2)
