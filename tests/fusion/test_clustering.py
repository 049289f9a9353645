"""Assignment of nodes to clusters, order of execution, and stores."""

from __future__ import annotations

import pytest

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion import clustering
from graphopt.fusion.clustering import find_clusters
from tests.model_testing import parse

CONSTANTS = (
    "int64[1] rows = {0}, int64[3] sizes = {0, 2, 4},"
    " int64[1] last = {-1}, int64[1] before = {-65}, int64[1] one = {1}, int64[1] back = {-1}"
)


def clusters(
    body: str, inputs: str = "float[N,64] x", outputs: str = "float[N,64] y"
) -> list[tuple[str, str]]:
    """For each cluster, in order, the results of its nodes and its stores."""
    model = parse(f"g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ {body} }}")
    with context_for(model) as cx:
        found = find_clusters([node for node in model.graph if node.op_type != "Constant"], cx)
    done: set[ir.Value | None] = {*model.graph.inputs, *model.graph.initializers.values()}
    for item in found:  # all inputs of a cluster are computed before it
        defined = {output for node in item.nodes for output in node.outputs}
        assert all(value in done or value in defined for node in item.nodes for value in node.inputs)
        done |= defined
    return [
        (
            " ".join(str(node.outputs[0].name) for node in item.nodes),
            "" if item.nest is None else " ".join(str(value.name) for value in item.nest.stores),
        )
        for item in found
    ]


def test_intermediates_are_not_stored() -> None:
    assert clusters("a = Abs(x) b = Exp(a) y = Mul(a, b)") == [("a b y", "y")]


def test_graph_outputs_are_stored_even_if_read_inside() -> None:
    found = clusters("a = Abs(x) b = Exp(a) y = Mul(a, b)", outputs="float[N,64] y, float[N,64] b")
    assert found == [("a b y", "y b")]


def test_values_read_by_another_cluster_are_stored() -> None:
    found = clusters("a = Abs(x) p = Softmax <axis = 0> (a) y = Softmax <axis = 1> (p)")
    assert found == [("a p", "p"), ("y", "y")]


def test_values_read_by_unclustered_nodes_are_stored() -> None:
    model = parse("g (float[N,64] x) => (float[N,64] y) { a = Abs(x) b = Exp(a) y = Mul(a, b) }")
    a, b, _ = model.graph
    with context_for(model) as cx:
        (found,) = find_clusters([a, b], cx)
        assert found.nest is not None and set(found.nest.stores) == {a.outputs[0], b.outputs[0]}


def test_readers_of_one_value_share_a_nest() -> None:
    found = clusters("a = Abs(x) y = Exp(a) z = Neg(a)", outputs="float[N,64] y, float[N,64] z")
    assert len(found) == 1 and sorted(found[0][1].split()) == ["y", "z"]


def test_horizontal_fusion_drops_dead_stores() -> None:
    """``p``, which ``z`` reads in reverse, is stored until both clusters are fused at ``q``."""
    found = clusters(
        "q = Abs(x) p = Exp(q) y = Neg(p) r = Slice(p, last, before, one, back) z = Mul(r, q)",
        inputs="float[N,64] x",
        outputs="float[N,64] y, float[N,64] z",
    )
    assert found == [("q p y r z", "y z")]


def test_fusion_respects_dependencies_through_other_clusters() -> None:
    """``b`` and ``y`` read ``a``, but ``y`` needs ``p``, which needs all of ``b``."""
    found = clusters(
        "a = Abs(x) b = Exp(a) s = ReduceSum <keepdims = 0> (b, rows) p = Softmax(s) c = Neg(a) y = Add(c, p)"
    )
    assert found == [("a b s", "s a"), ("p", "p"), ("c y", "y")]


def test_a_node_joins_the_first_cluster_of_its_readers() -> None:
    found = clusters(
        "a = Abs(x) b = Exp(a) c = Neg(a) d = Mul(b, c) s = ReduceSum <keepdims = 0> (b, rows) q = Softmax(s)"
        " y = Add(d, q)",
        outputs="float[N,64] y, float[64] q",
    )
    assert found == [("a b s", "s b a"), ("q", "q"), ("c d y", "y")]


def test_reductions_over_different_axes_are_separate_clusters() -> None:
    found = clusters(
        "e = Abs(x) a = Exp(e) y = Softmax <axis = 0> (a) b = Neg(e) z = Softmax <axis = 1> (b)",
        inputs="float[16,16] x",
        outputs="float[16,16] y, float[16,16] z",
    )
    assert found == [("e a y", "y e"), ("b z", "z")]


def test_stored_broadcast_operands_are_computed_in_an_earlier_cluster() -> None:
    found = clusters(
        "b = Exp(v) z = Neg(x) y = Add(z, b)", "float[N,64] x, float[64] v", "float[N,64] y, float[64] b"
    )
    assert found == [("b", "b"), ("z y", "y")]
    found = clusters("b = Exp(v) z = Neg(x) y = Add(z, b)", "float[N,64] x, float[64] v")
    assert found == [("b z y", "y")]


def test_a_concat_is_not_fused_into_a_softmax_or_reshape_of_its_axis() -> None:
    parts, whole = "float[N,6] x, float[N,2] w", "float[N,8] y"
    assert clusters("a = Abs(x) c = Concat <axis = 1> (a, w) y = Softmax(c)", parts, whole) == [
        ("a c", "c"),
        ("y", "y"),
    ]
    reshaped = "a = Abs(x) c = Concat <axis = 1> (a, w) r = Reshape(c, sizes) y = Exp(r)"
    assert clusters(reshaped, parts, "float[N,2,4] y")[0] == ("a c", "c")


def test_a_concat_with_an_omitted_input_is_not_fused() -> None:
    model = parse(
        "g (float[N,6] x) => (float[N,12] y) { a = Abs(x) c = Concat <axis = 1> (a, a, x) y = Exp(c) }"
    )
    _, concat, _ = nodes = list(model.graph)
    concat.replace_input_with(1, None)
    with context_for(model) as cx:
        found = find_clusters(nodes, cx)
    assert [item.nest is None for item in found if concat in item.nodes] == [True]


def test_number_of_nodes_per_cluster_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "a = Abs(x) b = Exp(a) c = Neg(b) d = Sin(c) y = Cos(d)"
    assert clusters(chain) == [("a b c d y", "y")]
    monkeypatch.setattr(clustering, "_MOST_NODES", 3)
    assert clusters(chain) == [("a b", "b"), ("c d y", "y")]
    both = "a = Abs(x) b = Exp(a) y = Neg(b) c = Sin(a) z = Cos(c)"
    assert len(clusters(both, outputs="float[N,64] y, float[N,64] z")) == 2


def test_default_limit_is_96_nodes() -> None:
    steps = " ".join(f"a{number + 1} = Sin(a{number})" for number in range(120))
    found = clusters(f"a0 = Abs(x) {steps} y = Abs(a120)")
    assert [len(results.split()) for results, _ in found] == [122 - 96, 96]
