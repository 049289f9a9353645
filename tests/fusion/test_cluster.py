"""Which nodes are computed in one nest, in which order the nests run, and what they write to memory."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.driver import context_for
from graphopt.fusion import cluster
from graphopt.fusion.cluster import plan
from tests.support import parse

CONSTANTS = (
    "int64[1] rows = {0}, int64[3] sizes = {0, 2, 4},"
    " int64[1] last = {-1}, int64[1] before = {-65}, int64[1] one = {1}, int64[1] back = {-1}"
)


def planned(
    body: str, inputs: str = "float[N,64] x", outputs: str = "float[N,64] y"
) -> list[tuple[str, str]]:
    """Of each nest, in their order, the results of its nodes and what it stores."""
    model = parse(f"g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ {body} }}")
    with context_for(model) as cx:
        found = plan([node for node in model.graph if node.op_type != "Constant"], cx)
    done: set[ir.Value | None] = {*model.graph.inputs, *model.graph.initializers.values()}
    for item in found:  # whatever the order, all that a nest reads has to be there
        made = {output for node in item.nodes for output in node.outputs}
        assert all(value in done or value in made for node in item.nodes for value in node.inputs)
        done |= made
    return [
        (
            " ".join(str(node.outputs[0].name) for node in item.nodes),
            "" if item.nest is None else " ".join(str(value.name) for value in item.nest.stores),
        )
        for item in found
    ]


def test_what_is_read_inside_alone_is_not_stored() -> None:
    assert planned("a = Abs(x) b = Exp(a) y = Mul(a, b)") == [("a b y", "y")]


def test_what_is_returned_is_stored_though_it_is_read_inside() -> None:
    found = planned("a = Abs(x) b = Exp(a) y = Mul(a, b)", outputs="float[N,64] y, float[N,64] b")
    assert found == [("a b y", "y b")]


def test_what_another_nest_reads_is_stored() -> None:
    found = planned("a = Abs(x) p = Softmax <axis = 0> (a) y = Softmax <axis = 1> (p)")
    assert found == [("a p", "p"), ("y", "y")]


def test_what_something_that_is_not_placed_reads_is_stored() -> None:
    model = parse("g (float[N,64] x) => (float[N,64] y) { a = Abs(x) b = Exp(a) y = Mul(a, b) }")
    a, b, y = model.graph
    with context_for(model) as cx:
        (found,) = plan([a, b], cx)
        assert found.nest is not None and set(found.nest.stores) == {a.outputs[0], b.outputs[0]}
        (found,) = plan([a, b, y], cx, outside=[b.outputs[0]])
        assert found.nest is not None and set(found.nest.stores) == {b.outputs[0], y.outputs[0]}


def test_nodes_that_read_the_same_are_one_nest() -> None:
    found = planned("a = Abs(x) y = Exp(a) z = Neg(a)", outputs="float[N,64] y, float[N,64] z")
    assert len(found) == 1 and sorted(found[0][1].split()) == ["y", "z"]


def test_what_only_nests_read_that_became_one_is_stored_no_more() -> None:
    """``p``, which ``z`` reads from its end, was to be stored until both were found to need ``q``."""
    found = planned(
        "q = Abs(x) p = Exp(q) y = Neg(p) r = Slice(p, last, before, one, back) z = Mul(r, q)",
        inputs="float[N,64] x",
        outputs="float[N,64] y, float[N,64] z",
    )
    assert found == [("q p y r z", "y z")]


def test_what_lies_between_two_nests_is_not_jumped_over() -> None:
    """``b`` and ``y`` read ``a``, but ``y`` needs ``p``, which needs all of ``b``."""
    found = planned(
        "a = Abs(x) b = Exp(a) s = ReduceSum <keepdims = 0> (b, rows) p = Softmax(s) c = Neg(a) y = Add(c, p)"
    )
    assert found == [("a b s", "s a"), ("p", "p"), ("c y", "y")]


def test_a_node_joins_the_first_of_those_that_read_it() -> None:
    found = planned(
        "a = Abs(x) b = Exp(a) c = Neg(a) d = Mul(b, c) s = ReduceSum <keepdims = 0> (b, rows) q = Softmax(s)"
        " y = Add(d, q)",
        outputs="float[N,64] y, float[64] q",
    )
    assert found == [("a b s", "s b a"), ("q", "q"), ("c d y", "y")]


def test_reductions_over_other_axes_are_nests_of_their_own() -> None:
    found = planned(
        "e = Abs(x) a = Exp(e) y = Softmax <axis = 0> (a) b = Neg(e) z = Softmax <axis = 1> (b)",
        inputs="float[16,16] x",
        outputs="float[16,16] y, float[16,16] z",
    )
    assert found == [("e a y", "y e"), ("b z", "z")]


def test_what_loops_repeat_is_computed_before_them_where_it_is_returned() -> None:
    found = planned(
        "b = Exp(v) z = Neg(x) y = Add(z, b)", "float[N,64] x, float[64] v", "float[N,64] y, float[64] b"
    )
    assert found == [("b", "b"), ("z y", "y")]
    found = planned("b = Exp(v) z = Neg(x) y = Add(z, b)", "float[N,64] x, float[64] v")
    assert found == [("b z y", "y")]


def test_a_concat_is_not_part_of_a_softmax_or_of_what_takes_its_axis_apart() -> None:
    parts, whole = "float[N,6] x, float[N,2] w", "float[N,8] y"
    assert planned("a = Abs(x) c = Concat <axis = 1> (a, w) y = Softmax(c)", parts, whole) == [
        ("a c", "c"),
        ("y", "y"),
    ]
    reshaped = "a = Abs(x) c = Concat <axis = 1> (a, w) r = Reshape(c, sizes) y = Exp(r)"
    assert planned(reshaped, parts, "float[N,2,4] y")[0] == ("a c", "c")


def test_a_concat_that_leaves_an_input_out_is_left_alone() -> None:
    model = parse(
        "g (float[N,6] x) => (float[N,12] y) { a = Abs(x) c = Concat <axis = 1> (a, a, x) y = Exp(c) }"
    )
    _, concat, _ = nodes = list(model.graph)
    concat.replace_input_with(1, None)
    with context_for(model) as cx:
        found = plan(nodes, cx)
    assert [item.nest is None for item in found if concat in item.nodes] == [True]


def test_a_nest_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "a = Abs(x) b = Exp(a) c = Neg(b) d = Sin(c) y = Cos(d)"
    assert planned(chain) == [("a b c d y", "y")]
    monkeypatch.setattr(cluster, "_MOST_NODES", 3)
    assert planned(chain) == [("a b", "b"), ("c d y", "y")]
    both = "a = Abs(x) b = Exp(a) y = Neg(b) c = Sin(a) z = Cos(c)"
    assert len(planned(both, outputs="float[N,64] y, float[N,64] z")) == 2


def test_the_limit_is_what_compilers_are_quick_at() -> None:
    steps = " ".join(f"a{number + 1} = Sin(a{number})" for number in range(120))
    found = planned(f"a0 = Abs(x) {steps} y = Abs(a120)")
    assert [len(results.split()) for results, _ in found] == [122 - 96, 96]
