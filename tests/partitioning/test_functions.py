"""Models whose computations are all in functions are partitioned through the calls."""

from __future__ import annotations

import pytest

import graphopt
from graphopt.partitioning.group_report import Partitioned
from tests.model_testing import ops, parse

FUNCTION = """<domain: "local", opset_import: ["" : 17]>
f (a) => (b) {
    t = Exp(a)
    u = Tanh(t)
    b = Mul(t, u)
}"""
HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'


def _partition(body: str, policy: str) -> Partitioned:
    model = parse(f"{HEADER} g (float[64,64] x) => (float[64,64] y) {{ {body} }} {FUNCTION}")
    before = ops(model)
    found = graphopt.partition(model, policy)
    assert ops(model) == before  # it is not modified
    return found


@pytest.mark.parametrize("policy", ["autodiff", "fusion"])
def test_functions_are_inlined_if_there_are_no_groups_otherwise(policy: str) -> None:
    found = _partition("z = local.f(x) y = local.f(z)", policy)
    assert found.inlined == ("local::f",)
    assert [sum(group.ops.values()) for group in found.groups] == [6]
    model, verdict = graphopt.Compiler().with_groups(found)
    assert verdict is not None and verdict.ok
    assert len(model.functions) == 1 and ops(model) == [model.graph[0].op_type]
    assert "local" not in {key[0] for key in model.functions}


@pytest.mark.parametrize("policy", ["autodiff", "fusion"])
def test_functions_stay_if_there_are_groups_without_their_nodes(policy: str) -> None:
    found = _partition("p = Exp(x) q = Tanh(p) z = Mul(p, q) y = local.f(z)", policy)
    assert found.inlined == () and found.original is None
    assert [sum(group.ops.values()) for group in found.groups] == [3]


def test_functions_stay_if_their_nodes_are_in_no_group_either() -> None:
    text = f"{HEADER} g (int64[4] x) => (int64[4] y) {{ y = local.h(x) }}"
    model = parse(f'{text} <domain: "local", opset_import: ["" : 17]> h (a) => (b) {{ b = Abs(a) }}')
    found = graphopt.partition(model)
    assert not found.groups and not found.inlined and ops(found.model) == ["h"]
