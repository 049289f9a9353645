"""Members of differentiated groups, and reasons for ungrouped nodes."""

from __future__ import annotations

from typing import Any

import pytest

from graphopt import ir
from graphopt.context import context_for
from graphopt.errors import UsageError
from graphopt.ops import graphopt_operators
from graphopt.partitioning import propose, propose_all
from graphopt.partitioning.autodiff_policy import AutodiffPolicy
from tests.model_testing import parse


def divided(model: ir.Model | str, **options: Any) -> tuple[list[list[str]], dict[str, str]]:
    """Groups, as the first outputs of their nodes, and reasons for ungrouped nodes."""
    model = parse(model) if isinstance(model, str) else model
    found = propose_all(model.graph, AutodiffPolicy(context_for(model), **options))
    groups = [[str(node.outputs[0].name) for node in group.nodes] for item in found for group in item.groups]
    return groups, {str(n.outputs[0].name): why for item in found for n, why in item.ungrouped.items()}


def test_dependents_of_a_float_input_are_one_group() -> None:
    groups, outside = divided("g (float[N,4] x) => (float[N,4] y) { a = Exp(x) b = Neg(a) y = Mul(a, b) }")
    assert groups == [["a", "b", "y"]] and outside == {}


def test_inputs_and_outputs_of_a_group() -> None:
    model = parse(
        "g (float[4] x, float[4] z) => (float[4] y, float[4] b) { a = Exp(x) b = Mul(a, z) y = Mul(a, b) }"
    )
    (group,) = propose(model.graph, AutodiffPolicy(context_for(model))).groups
    assert [value.name for value in group.inputs] == ["x", "z"]
    assert [value.name for value in group.outputs] == ["b", "y"]
    assert group.kind == "autodiff" and group.graph is model.graph


def test_random_and_training_nodes_are_ordered_boundaries() -> None:
    text = """g (float[4,4] x) => (float[4,4] y) <float ratio = {0.5}, bool train = {1}> {
        a = Exp(x)
        b = Neg(a)
        r = RandomNormalLike(b)
        c = Mul(b, r)
        d = Tanh(c)
        e = Dropout(d, ratio, train)
        f = Sin(e)
        y = Add(f, b)
    }"""
    groups, outside = divided(text)
    assert groups == [["a", "b"], ["c", "d"], ["f", "y"]]
    assert outside == {
        "r": "it draws random numbers, in order",
        "e": "it updates state, in order",
    }


def test_values_that_require_gradients() -> None:
    text = """g (float[4] x, float[4] z, int64[4] i) => (float[4] y, float[4] v, int64[4] k) <float[4] w = {1, 2, 3, 4}> {
        a = Exp(x)
        b = Mul(a, w)
        c = Neg(z)
        d = Sin(c)
        y = Add(b, d)
        v = Abs(d)
        k = Add(i, i)
    }"""
    unwanted = "its operands require no gradient"
    real = "its results are not floating-point numbers"
    assert divided(text) == ([["a", "b", "c", "d", "y", "v"]], {"k": real})
    assert divided(text, wrt="x") == (
        [["a", "b", "y"]],
        {"c": unwanted, "d": unwanted, "v": unwanted, "k": real},
    )
    assert divided(text, wrt="params")[0] == [["b", "y"]]
    assert divided(text, wrt=["z", "a"])[0] == [["b", "c", "d", "y", "v"]]
    assert (
        divided(text, wrt="params,z")[0]
        == divided(text, wrt=["params", "z"])[0]
        == [["b", "c", "d", "y", "v"]]
    )
    for wrong in ("nothing", "i", ""):
        with pytest.raises(UsageError):
            divided(text, wrt=wrong)


def test_annotations_of_values_take_precedence() -> None:
    model = parse(
        "g (float[4] x, float[4] z) => (float[4] y) { a = Exp(x) b = Sin(a) c = Exp(z) y = Add(b, c) }"
    )
    model.graph.inputs[1].metadata_props[graphopt_operators.REQUIRES_GRAD] = "false"
    assert divided(model)[0] == [["a", "b", "y"]]
    model.graph.inputs[0].metadata_props[graphopt_operators.REQUIRES_GRAD] = "false"
    assert divided(model)[0] == []
    model.graph[1].outputs[0].metadata_props[graphopt_operators.REQUIRES_GRAD] = "true"
    model.graph[2].outputs[0].metadata_props[graphopt_operators.REQUIRES_GRAD] = "true"
    assert divided(model, minimum=1)[0] == [["y"]]
    text = "g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a) c = Sin(b) y = Cos(c) }"
    model = parse(text)
    model.graph[1].outputs[0].metadata_props[graphopt_operators.REQUIRES_GRAD] = "false"
    assert divided(model, minimum=1)[0] == [["a"]]


SIZES = """g (float[N,4,2] x, int64[N,4] i) => (float[N,8] y, int64[1] n) <int64[1] last = {-1}, int64[1] first = {0}> {
    a = Exp(x)
    s = Shape(a)
    m = Gather<axis = 0>(s, first)
    t = Concat<axis = 0>(m, last)
    b = Reshape(a, t)
    y = Tanh(b)
    u = Shape(b)
    n = Gather<axis = 0>(u, first)
    j = Cast<to = 1>(i)
}"""


def test_pass_through_nodes_are_members_only_between_others() -> None:
    groups, outside = divided(SIZES)
    assert groups == [["a", "s", "m", "t", "b", "y"]]
    real = "its results are not floating-point numbers"
    assert outside == {"u": real, "n": real, "j": "its operands require no gradient"}


def test_sizes_and_masks_before_a_group_do_not_split_it() -> None:
    text = """g (float[N,4] x, int64[N,4] i) => (float[N,4] y) <int64 pad = {0}, float big = {-100.0}> {
        a = Exp(x)
        p = Equal(i, pad)
        f = Cast<to = 1>(p)
        m = Mul(f, big)
        b = Add(a, m)
        y = Tanh(b)
    }"""
    assert divided(text)[0] == [["a", "b", "y"]]


def test_masks_do_not_split_a_group_that_must_precede_them() -> None:
    """A random node depends on a, and y on its reader: b can't come after both."""
    text = """g (float[N,4] x, int64[N,4] i) => (float[N,4] y) <int64 pad = {0}> {
        a = Exp(x)
        r = RandomNormalLike(a)
        p = Cast<to = 1>(i)
        s = SequenceConstruct(p)
        m = SequenceAt(s, pad)
        b = Add(a, m)
        c = Tanh(b)
        d = Mul(r, x)
        y = Add(c, d)
    }"""
    assert divided(text)[0] == [["a", "b", "c"], ["d", "y"]]


def test_dependents_of_sizes_are_members() -> None:
    text = """g (float[N,4] x, float[1,4] m) => (float[N,4] y) <float big = {-100.0}> {
        a = Exp(x)
        s = Shape(a)
        e = Expand(m, s)
        f = Mul(e, big)
        b = Add(a, f)
        y = Tanh(b)
    }"""
    assert divided(text, wrt="x")[0] == [["a", "s", "e", "f", "b", "y"]]


def test_sizes_read_by_another_group_are_removed_at_the_edge() -> None:
    text = """g (float[N,4] x) => (float[N,4] y) {
        a = Exp(x)
        b = Neg(a)
        s = Shape(b)
        r = RandomNormalLike(b)
        c = Mul(r, b)
        y = Reshape(c, s)
    }"""
    groups, outside = divided(text)
    assert groups == [["a", "b"], ["c", "y"]] and outside["s"] == "its results are not floating-point numbers"


def test_views_option() -> None:
    groups, outside = divided(SIZES, views=False)
    assert groups == [] and outside["b"] == "views are excluded"
    text = (
        "g (float[4,2] x) => (float[2,4] y) { a = Exp(x) b = Neg(a) c = Transpose(b) d = Sin(c) y = Cos(d) }"
    )
    assert divided(text, views=False)[0] == [["a", "b"], ["d", "y"]]
    assert divided(text)[0] == [["a", "b", "c", "d", "y"]]


def test_groups_have_at_least_two_computations() -> None:
    text = (
        "g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) i = Identity(a) r = Celu(i) y = Add(i, b) }"
    )
    few = "its group has fewer than 2 nodes"
    assert divided("g (float[4] x) => (float[4] y) { y = Exp(x) }") == ([], {"y": few})
    once = "g (float[4] x) => (float[4] y, float[4] z) { y = Exp(x) z = Exp(x) }"
    assert divided(once) == ([], {"y": "its group has fewer than 2 nodes"} | {"z": few})
    assert divided(text, minimum=3) == ([], dict.fromkeys(["a", "b", "i", "r", "y"], few)) or divided(text)[0]


def test_no_grad_scopes_do_not_affect_other_readers() -> None:
    """Operands have a gradient elsewhere; results have none, there or elsewhere."""
    text = """g (float[4] x) => (float[4] y, float[4] z) {
        a = Exp(x)
        b = Neg(a)
        c = Sin(b)
        d = Cos(c)
        e = Tanh(d)
        f = Add(b, d)
        y = Mul(f, b)
        z = Abs(e)
    }"""
    quiet, unwanted = "gradients are disabled in quiet", "its operands require no gradient"
    model = parse(text)
    for node in model.graph:
        node.name = f"quiet/{node.op_type}" if node.op_type in ("Sin", "Cos") else f"loud/{node.op_type}"
    groups, outside = divided(model, no_grad=("quiet",))
    assert groups == [["a", "b"], ["f", "y"]]
    assert outside == {"c": quiet, "d": quiet, "e": unwanted, "z": unwanted}
    assert divided(text)[0] == [["a", "b", "c", "d", "e", "f", "y", "z"]]


def test_no_grad_scopes_apply_to_bodies() -> None:
    model = parse(BODIES % "[draw] n = RandomNormalLike(a)")
    model.graph[1].name = "quiet"
    groups, outside = divided(model, no_grad=("quiet",))
    assert groups == [] and outside["o"] == "gradients are disabled in quiet"


def test_unknown_and_non_differentiable_operators() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "my.domain" : 1]>
        g (float[4] x) => (float[4] y, float[4] w) {
        a = Exp(x)
        b = Neg(a)
        c = my.domain.What(b)
        d = Floor(b)
        e = Mul(d, b)
        y = Sin(e)
        w = Add(c, c)
    }"""
    groups, outside = divided(text)
    assert groups == [["a", "b", "d", "e", "y"]]
    assert outside == {
        "c": "my.domain::What is unknown",
        "w": "its group has fewer than 2 nodes",
    }


BODIES = """g (float[4] x, bool c, float[4] z) => (float[4] y) {
    a = Exp(x)
    b = If(c) <
        then_branch = t () => (float[4] p) { o = Neg(a) p = Sin(o) },
        else_branch = e () => (float[4] q) { %s r = Cos(a) q = Tanh(r) }
    >
    y = Mul(a, b)
}"""


def test_bodies_are_grouped_with_their_node_or_separately() -> None:
    assert divided(BODIES % "")[0] == [["a", "b", "y"]]
    groups, outside = divided(BODIES % "[draw] n = RandomNormalLike(a)")
    assert groups == [["o", "p"], ["r", "q"]]
    assert outside["b"] == "its body has side effects, in order"
    assert outside["n"] == "it draws random numbers, in order"


LOOP = """g (int64 n, bool c, float[4] x, float[4] z) => (float[4] last, float[K,4] rows) {
    last, still, rows = Loop(n, c, z, z) <body = b (int64 i, bool go, float[4] s, float[4] t)
            => (bool on, float[4] s2, float[4] t2, float[4] row) {
        on = Identity(go)
        [noise] r = RandomNormalLike(t)
        t1 = Neg(t)
        t2 = Sin(t1)
        u = Mul(s, x)
        s2 = Exp(u)
        v = Tanh(s2)
        w = Cos(s)
        k = Add(v, w)
        row = Add(k, r)
    }>
}"""


def test_gradient_requirements_of_carried_values() -> None:
    """s requires a gradient after the first iteration, when it depends on x; t never does."""
    groups, outside = divided(LOOP, wrt="x")
    assert groups == [["u", "s2", "v", "w", "k", "row"]]
    assert outside["t2"] == "its operands require no gradient"
    assert divided(LOOP, wrt="z")[0] == [["t1", "t2"], ["u", "s2", "v", "w", "k", "row"]]


def test_calls_guards_and_sequences_are_boundaries() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[4] x) => (float[4] y) <int64 first = {0}> {
        a = Exp(x)
        b = local.F(a)
        s = SequenceConstruct(a, b)
        y = SequenceAt(s, first)
    }
    <domain: "local", opset_import: ["" : 17]> F (p) => (q) { q = Neg(p) }"""
    outside = divided(text)[1]
    assert outside["b"].startswith("it calls a function") and outside["y"] == "it reads or returns a sequence"
