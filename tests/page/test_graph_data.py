"""A model as columns: nodes, values, scopes, groups and devices."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.parser
import pytest

from graphopt import ir
from graphopt.context import context_for
from graphopt.page.graph_data import NodeRemarks, graph_data
from graphopt.page.page_data import GraphData, Layout

pytest.importorskip("fast_sugiyama")

MODEL = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1, "graphopt.native": 1]>
nested (float[N, 4] x, bool c, float[1] unused) => (float[N, 4] y, float[4] k)
 <float[4] w = {1, 2, 3, 4}, float[4] k = {0, 0, 0, 1}> {
  [first] a = Relu(x)
  [second] b = Add(a, w)
  [call] d = local.Twice<alpha = 2.0>(b)
  [branch] e = If(c) <
    then_branch = t () => (float[N, 4] r) { [then] r = Mul(d, w) },
    else_branch = f () => (float[N, 4] r2) { [else1] q = Add(d, w) [else2] r2 = Clip(q, , w) }
  >
  v = Constant<value_float = 2.0>()
  [last] y = Mul(e, v)
}
<opset_import: ["" : 21], domain: "local"> Twice <alpha> (p) => (q) {
  known = Constant<value_float = 1.0>()
  factor = Constant<value_float: float = @alpha>()
  [inner] sum = Add(p, known)
  [product] q = Mul(sum, factor)
}
<opset_import: ["" : 21], domain: "graphopt.native"> g0 (p) => (q) { [fused] q = Relu(p) }
"""


def _graph(text: str, names: dict[str, str] | None = None, remarks: NodeRemarks | None = None) -> GraphData:
    """The data of a model; ``names`` replaces names of nodes."""
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        node.name = (names or {}).get(node.name, node.name)
    return graph_data(context_for(ir.as_model(proto)), "original", "m", remarks)


@pytest.fixture(scope="module")
def graph() -> GraphData:
    return _graph(MODEL)


def _node(graph: GraphData, name: str) -> int:
    return graph.nodes.name.index(name)


def _values(graph: GraphData, indexes: Iterable[int]) -> list[str | None]:
    return [None if one == -1 else graph.values.name[one] for one in indexes]


def _path(graph: GraphData, scope: int) -> list[str]:
    names: list[str] = []
    while scope > 0:
        names.insert(0, graph.scopes[scope].name)
        scope = graph.scopes[scope].parent
    return names


def test_all_columns_have_an_entry_for_each_row(graph: GraphData) -> None:
    for columns in (graph.nodes, graph.values):
        assert {len(column) for column in vars(columns).values()} == {len(columns)}


def test_constants_are_values_and_not_nodes(graph: GraphData) -> None:
    constants = [
        name for name, op in zip(graph.nodes.name, graph.nodes.op, strict=True) if graph.ops[op] == "Constant"
    ]
    assert constants == ["Constant(factor)"]  # its value is an attribute of the call
    kinds = dict(zip(graph.values.name, graph.values.kind, strict=True))
    assert {name: kinds[name] for name in ("x", "a", "w", "v", "y", "k", "known", "factor", "unused")} == {
        "x": 1, "a": 0, "w": 2, "v": 2, "y": 3, "k": 3, "known": 2, "factor": 0, "unused": 1,
    }  # fmt: skip


def test_statistics_of_constants(graph: GraphData) -> None:
    stats = dict(zip(graph.values.name, graph.values.stats, strict=True))
    assert stats["w"] == "16 B, least 1, mean 2.5, greatest 4"
    assert stats["v"] == "4 B, least 2, mean 2, greatest 2"
    assert stats["a"] is None


def test_types_are_inferred(graph: GraphData) -> None:
    types = dict(zip(graph.values.name, graph.values.type, strict=True))
    assert types["x"] == types["b"] == types["r"] == "f32[N, 4]"


def test_inputs_and_outputs(graph: GraphData) -> None:
    nodes = graph.nodes
    assert _values(graph, nodes.inputs[_node(graph, "second")]) == ["a", "w"]
    assert _values(graph, nodes.inputs[_node(graph, "else2")]) == ["q", None, "w"]
    assert _values(graph, nodes.outputs[_node(graph, "last")]) == ["y"]


def test_values_of_equal_names_in_bodies_and_functions_are_distinct(graph: GraphData) -> None:
    assert graph.values.name.count("q") == 3


def test_attributes(graph: GraphData) -> None:
    assert graph.nodes.attributes[_node(graph, "call")] == [("alpha", "2.0")]
    assert graph.nodes.attributes[_node(graph, "first")] is None


def test_long_attributes_are_abbreviated() -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21, "d": 1]>
    long (float[1] x) => (float[1] y) {{ y = d.Op<text = "{"a" * 1000}">(x) }}"""
    (attributes,) = _graph(text).nodes.attributes
    assert attributes is not None and "1000 characters" in attributes[0][1] and len(attributes[0][1]) < 100


def test_scopes_of_bodies_and_functions(graph: GraphData) -> None:
    paths = {
        name: _path(graph, scope) for name, scope in zip(graph.nodes.name, graph.nodes.scope, strict=True)
    }
    assert paths["last"] == []
    assert paths["then"] == ["then_branch of branch"]
    assert paths["else1"] == paths["else2"] == ["else_branch of branch"]
    assert paths["product"] == ["Twice"]
    assert [scope.kind for scope in graph.scopes] == ["graph", "body", "body", "function", "function"]


def test_groups_are_the_nodes_of_native_functions(graph: GraphData) -> None:
    assert list(graph.groups) == [("g0", "fusion")]
    assert graph.nodes.group[_node(graph, "fused")] == 0
    assert graph.nodes.group[_node(graph, "product")] == -1


def test_every_node_and_scope_is_placed_once(graph: GraphData) -> None:
    placed = [child for scope in graph.scopes for child in scope.layout.child]
    assert sorted(child for child in placed if child >= 0) == list(range(len(graph.nodes)))
    assert sorted(-child for child in placed if child < 0) == list(range(1, len(graph.scopes)))
    assert sorted(graph.flat.child) == list(range(len(graph.nodes)))


def test_boxes_are_inside_of_their_scope(graph: GraphData) -> None:
    for index, scope in enumerate(graph.scopes):
        for child in scope.layout.child:
            parent = graph.nodes.scope[child] if child >= 0 else graph.scopes[-child].parent
            assert parent == index


def test_bodies_are_below_their_node(graph: GraphData) -> None:
    layer = dict(zip(graph.flat.child, graph.flat.layer, strict=True))
    assert layer[_node(graph, "branch")] < layer[_node(graph, "then")]


NAMES = """
<ir_version: 10, opset_import: ["" : 21]>
named (float[4] x) => (float[4] y) {
  [n0] a = Relu(x)
  [n1] b = Neg(a)
  [n2] c = Abs(b)
  [n3] d = Exp(c)
  [n4] e = Sin(d)
  [n5] y = Cos(e)
}
"""


def test_modules_by_names() -> None:
    graph = _graph(
        NAMES,
        {
            "n0": "/net/in/Relu",
            "n1": "/net/in/Neg",
            "n2": "net/out/Abs",
            "n3": "net/out/Exp",
            "n4": "/alone/Sin",
        },
    )
    paths = [_path(graph, scope) for scope in graph.nodes.scope]
    assert paths == [["net", "in"], ["net", "in"], ["net", "out"], ["net", "out"], [], []]
    assert graph.scopes[1].layout.layer == [0, 1]  # the data flows from `in` to `out`


def test_modules_that_contain_each_other_s_readers() -> None:
    graph = _graph(NAMES, {f"n{index}": f"m{index % 2}/n{index}" for index in range(6)})
    assert [len(scope.layout.child) for scope in graph.scopes] == [2, 3, 3]


def test_deep_names() -> None:
    graph = _graph(NAMES, {f"n{index}": "/".join("m" * 5_000) + f"/n{index}" for index in range(6)})
    assert len(graph.scopes) == 13


def test_remarks() -> None:
    remarks = NodeRemarks({"n1": ["rule: reason"]}, {"n2": "CPU"}, "CUDA")
    graph = _graph(NAMES, remarks=remarks)
    assert graph.nodes.notes[:3] == [None, ["rule: reason"], None]
    assert [graph.devices[one] for one in graph.nodes.device[:3]] == ["CUDA", "CUDA", "CPU"]


def test_a_model_without_nodes() -> None:
    graph = _graph('<ir_version: 10, opset_import: ["" : 21]> none (float[1] x) => (float[1] x) {}')
    assert len(graph.nodes) == 0 and graph.values.name == ["x"]
    assert [scope.layout for scope in graph.scopes] == [graph.flat] == [Layout([], [], [])]


def test_nodes_of_equal_names_in_functions_have_their_names_in_the_lineage() -> None:
    proto = onnx.parser.parse_model(MODEL)
    proto.functions[0].node[2].name = "first"
    graph = graph_data(context_for(ir.as_model(proto)), "original", "m")
    assert "Twice/first" in graph.nodes.name and "first" in graph.nodes.name


def test_two_runs_are_equal() -> None:
    assert _graph(MODEL).to_dict() == _graph(MODEL).to_dict()
