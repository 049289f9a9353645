"""Inlining, outlining, splitting and cloning preserve the results of a model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from graphopt import ir
from graphopt.errors import UnsupportedModel
from tests.ir.models import chain, floats, model, run, weight
from tests.model_testing import ops, parse

X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


def _run(item: ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    ir.validate(item)
    if not feeds and [value.name for value in item.graph.inputs] == ["x"]:
        feeds = {"x": X}
    return run(ir.to_bytes(item), **feeds)


def _equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def _only(item: ir.Model, op_type: str) -> ir.Node:
    (node,) = [node for node in ir.walk_nodes(item.graph) if node.op_type == op_type]
    return node


# Inlining -----------------------------------------------------------------------------------

HEAD = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>'


def _inlined(text: str, **feeds: np.ndarray) -> ir.Model:
    """Inline every call of ``F``, checking that the results stay."""
    item = parse(text)
    expected = _run(item, **feeds)
    edit = ir.Editor(item)
    for call in [node for node in ir.walk_nodes(item.graph) if node.op_type == "F"]:
        ir.inline_call(edit, call)
    _equal(_run(item, **feeds), expected)
    return item


def test_attributes_are_given_renamed_defaulted_or_absent() -> None:
    body = """<domain: "local", opset_import: ["" : 17]>
        F <given, absent, defaulted: float = 0.25> (p) => (q) {
            a = LeakyRelu<alpha: float = @given>(p)
            b = LeakyRelu<alpha: float = @absent>(a)
            q = LeakyRelu<alpha: float = @defaulted>(b)
        }"""
    item = _inlined(f"{HEAD} g (float[N,4] x) => (float[N,4] y) {{ y = local.F<given = 0.5>(x) }} {body}")
    attributes = [dict(node.attributes) for node in item.graph]
    assert [{name: attribute.value for name, attribute in found.items()} for found in attributes] == [
        {"alpha": 0.5},
        {},
        {"alpha": 0.25},
    ]


def test_outputs_keep_their_names_and_types() -> None:
    body = '<domain: "local", opset_import: ["" : 17]> F (p) => (q, r) { q = Neg(p) r = Abs(q) }'
    text = "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { y, b = local.F(x) z, c = local.F(b) }"
    item = _inlined(f"{HEAD} {text} {body}")
    assert [value.name for value in item.graph.outputs] == ["y", "z"]
    assert [ir.declared_type(value) for value in item.graph.outputs] == ["f32[N, 4]"] * 2
    names = [output.name for node in item.graph for output in node.outputs]
    assert "b" in names and len(set(names)) == 4


def test_missing_inputs_and_unread_outputs() -> None:
    body = '<domain: "local", opset_import: ["" : 17]> F (p, low, high) => (q, r) { q = Clip(p, low, high) r = Neg(p) }'
    item = _inlined(f"{HEAD} g (float[N,4] x) => (float[N,4] y) {{ y, unread = local.F(x) }} {body}")
    assert [value is None for value in item.graph[0].inputs] == [False, True, True]
    constant = "<float top = {1.0}>"
    _inlined(
        f"{HEAD} g (float[N,4] x) => (float[N,4] y) {constant} {{ y, unread = local.F(x, , top) }} {body}"
    )
    # onnxruntime requires all outputs, ONNX does not
    item = parse(f"{HEAD} g (float[N,4] x) => (float[N,4] y) {{ y = local.F(x) }} {body}")
    ir.inline_call(ir.Editor(item), item.graph[0])
    _equal(_run(item), [X])


def test_values_in_bodies_of_functions_have_unique_names() -> None:
    body = """<domain: "local", opset_import: ["" : 17]>
        F (p, c) => (q) {
            a = Abs(p)
            q = If (c) <
                then_branch = t () => (float[N,4] t1) { n = Neg(a) t1 = Mul(n, p) },
                else_branch = e () => (float[N,4] e1) { e1 = Exp(a) }
            >
        }"""
    text = "g (float[N,4] x, bool c) => (float[N,4] y) { a = local.F(x, c) d = Not(c) y = local.F(a, d) }"
    for truth in (True, False):
        item = _inlined(f"{HEAD} {text} {body}", x=X, c=np.array(truth))
    names = [output.name for node in ir.walk_nodes(item.graph) for output in node.outputs]
    assert len(set(names)) == len(names)


def test_a_call_inside_a_body() -> None:
    body = '<domain: "local", opset_import: ["" : 17]> F (p) => (q) { a = Abs(p) q = Neg(a) }'
    text = """g (float[N,4] x, bool c) => (float[N,4] y) {
        a = Exp(x)
        y = If (c) <
            then_branch = t () => (float[N,4] t1) { t1 = local.F(a) },
            else_branch = e () => (float[N,4] e1) { e1 = Exp(a) }
        >
    }"""
    item = _inlined(f"{HEAD} {text} {body}", x=X, c=np.array(True))
    (then,) = [graph for graph in ir.graphs_of(item) if graph.name == "t"]
    assert [node.op_type for node in then] == ["Abs", "Neg"]
    assert then.outputs[0].name == "t1"


def test_a_function_that_passes_an_input_through() -> None:
    """onnxruntime rejects these; only the graph is checked."""
    body = '<domain: "local", opset_import: ["" : 17]> F (p, r) => (p, q) { q = Neg(r) }'
    text = "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { y, a = local.F(x, x) b, z = local.F(a, a) }"
    item = parse(f"{HEAD} {text} {body}")
    edit = ir.Editor(item)
    for call in list(item.graph):
        ir.inline_call(edit, call)
    edit.remove_function(next(iter(item.functions.values())))
    _equal(_run(item), [X, X])
    assert sorted(ops(item)) == ["Identity", "Neg", "Neg"]


def test_graph_attributes_are_copied_to_their_references() -> None:
    function = helper.make_function(
        "local", "F", ["c", "p"], ["q"], [], [helper.make_opsetid("", 17)], ["then", "other"]
    )
    for result, then, other in (("a", "then", "other"), ("b", "other", "then")):
        node = helper.make_node("If", ["c"], [result])
        for name, reference in (("then_branch", then), ("else_branch", other)):
            node.attribute.add(name=name, ref_attr_name=reference, type=onnx.AttributeProto.GRAPH)
        function.node.append(node)
    function.node.append(helper.make_node("Sub", ["a", "b"], ["q"]))
    branches = {
        name: helper.make_graph([helper.make_node(op, ["x"], ["r"])], name, [], [floats("r", "N", 4)])
        for name, op in (("then", "Neg"), ("other", "Exp"))
    }
    call = helper.make_node("F", ["c", "x"], ["y"], domain="local", **branches)
    condition = helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True])
    item = ir.from_proto(model([call], [condition], domains=("local",), functions=[function]))
    ir.inline_call(ir.Editor(item), item.graph[0])
    np.testing.assert_allclose(_run(item)[0], -X - np.exp(X), rtol=1e-6)


def test_imports_are_merged_and_versions_compared_operator_by_operator() -> None:
    def call(nodes: str, version: int) -> ir.Model:
        head = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[N,4] x) => (float[N,4] y)'
        imports = f'opset_import: ["" : {version}, "com.microsoft" : 1]'
        return parse(f'{head} {{ y = local.F(x) }} <domain: "local", {imports}> F (p) => (q) {{ {nodes} }}')

    item = call("a = Neg(p) q = com.microsoft.Gelu(a)", 17)
    expected = _run(item)
    ir.inline_call(ir.Editor(item), item.graph[0])
    _equal(_run(item), expected)
    assert item.opset_imports["com.microsoft"] == 1

    item = call("q = Neg(p)", 13)  # the same since 13
    assert ir.inline_obstacle(ir.Editor(item), item.graph[0]) is None
    item = call("a = Neg(p) q = Softmax(a)", 12)
    reason = "Neg of ai.onnx 12 is not that of ai.onnx 17"
    assert ir.inline_obstacle(ir.Editor(item), item.graph[0]) == reason
    with pytest.raises(UnsupportedModel, match=r"can't be inlined: Neg of ai.onnx 12"):
        ir.inline_call(ir.Editor(item), item.graph[0])


def test_default_survives_an_attribute_that_may_be_absent() -> None:
    item = parse(
        f"""{HEAD} g (float[N,4] x) => (float[N,4] y) {{ y = local.F(x) }}
        <domain: "local", opset_import: ["" : 17, "local" : 1]>
        F <alpha> (p) => (q) {{ q = local.G<alpha: float = @alpha>(p) }}
        <domain: "local", opset_import: ["" : 17]>
        G <alpha: float = 0.5> (p) => (q) {{ q = LeakyRelu<alpha: float = @alpha>(p) }}"""
    )
    expected = _run(item)
    inner = next(iter(item.functions["local", "F", ""]))
    edit = ir.Editor(item)
    obstacle = ir.inline_obstacle(edit, inner)
    assert obstacle is not None and "default" in obstacle
    (made,) = ir.inline_call(edit, item.graph[0])
    ir.inline_call(edit, made)
    _equal(_run(item), expected)
    assert item.graph[0].attributes["alpha"].value == 0.5


def test_inlined_nodes_have_the_origins_of_call_and_body() -> None:
    item = parse(
        f"""{HEAD} g (float[N,4] x) => (float[N,4] y) {{ [block] y = local.F(x) }}
        <domain: "local", opset_import: ["" : 17]> F (p) => (q) {{ a = Neg(p) q = Abs(a) }}"""
    )
    next(iter(item.functions["local", "F", ""])).name = "/inner/neg"
    made = ir.inline_call(ir.Editor(item), item.graph[0])
    assert [ir.origins(node) for node in made] == [("block/inner/neg",), ("block/Abs(q)",)]
    assert made[0].name == "block/inner/neg"


# Outlining ----------------------------------------------------------------------------------


def test_outlining_moves_intermediate_nodes_behind_the_call() -> None:
    item = parse(
        """g (float[N,4] x) => (float[N,4] y, float[N,4] z) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
            a = Mul(x, w)
            z = Neg(a)
            b = Exp(x)
            c = Add(a, b)
            y = Sub(c, z)
        }"""
    )
    expected = _run(item)
    nodes = {node.outputs[0].name: node for node in item.graph}
    function, call = ir.outline(ir.Editor(item), [nodes["c"], nodes["a"]], "made", "Part")
    _equal(_run(item), expected)
    assert ops(item) == ["Exp", "Part", "Neg", "Sub"]
    assert [node.op_type for node in function] == ["Mul", "Add"]
    assert [value.name if value else "" for value in call.inputs] == ["x", "w", "b"]
    assert [value.name for value in call.outputs] == ["a", "c"]
    assert item.opset_imports["made"] == 1


def test_outlining_refuses_nonconvex_sets() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = Neg(x) b = Exp(a) y = Add(a, b) }"
    item = parse(text)
    before = ir.print_model(item)
    edit = ir.Editor(item)
    a, _, y = item.graph
    obstacle = ir.outline_obstacle(edit, [a, y], "made", "Part")
    assert obstacle is not None and "'Exp(b)' is outside" in obstacle
    with pytest.raises(UnsupportedModel, match="Exp"):
        ir.outline(edit, [a, y], "made", "Part")
    assert ir.print_model(item) == before
    assert ir.outline_obstacle(edit, [], "made", "Part") is not None
    old = parse(text, ir_version=7)
    reason = ir.outline_obstacle(ir.Editor(old), list(old.graph), "made", "Part")
    assert reason is not None and "IR version 7" in reason


def test_a_path_through_a_body_is_a_path() -> None:
    item = parse(
        """g (float[N,4] x, bool c) => (float[N,4] y) {
            a = Neg(x)
            b = If (c) <
                then_branch = t () => (float[N,4] t1) { t1 = Exp(a) },
                else_branch = e () => (float[N,4] e1) { e1 = Exp(x) }
            >
            y = Add(a, b)
        }"""
    )
    a, _, y = item.graph
    assert ir.outline_obstacle(ir.Editor(item), [a, y], "made", "Part") is not None


def test_outlining_in_a_function_passes_attributes_on() -> None:
    item = parse(
        f"""{HEAD} g (float[N,4] x) => (float[N,4] y) {{ y = local.F<alpha = 0.5>(x) }}
        <domain: "local", opset_import: ["" : 17]>
        F <alpha> (p) => (q) {{ a = LeakyRelu<alpha: float = @alpha>(p) b = Neg(a) q = Exp(b) }}"""
    )
    expected, before = _run(item), ir.fingerprint(item)
    body = item.functions["local", "F", ""]
    edit = ir.Editor(item)
    function, call = ir.outline(edit, list(body)[:2], "made", "Part")
    _equal(_run(item), expected)
    assert list(function.attributes) == ["alpha"] and call.attributes["alpha"].ref_attr_name == "alpha"
    ir.inline_call(edit, call)
    edit.remove_function(function)
    assert ir.fingerprint(item) == before


def test_origins_survive_outlining_and_inlining() -> None:
    item = parse("g (float[N,4] x) => (float[N,4] y) { [one] a = Neg(x) b = Exp(a) y = Abs(b) }")
    edit = ir.Editor(item)
    _, call = ir.outline(edit, list(item.graph)[:2], "made", "Part")
    made = ir.inline_call(edit, call)
    assert [ir.origins(node) for node in made] == [("one",), ("Exp(b)",)]
    assert [output.name for node in made for output in node.outputs][-1] == "b"


UNARY = ("Neg", "Abs", "Exp", "Identity")
BINARY = ("Add", "Sub", "Max")


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[int]]:
    """A graph with branches here and there, and some of its nodes."""
    names, nodes = ["x", "w"], []
    count = draw(st.integers(2, 12))
    for index in range(count):
        result = f"v{index}"
        pick = st.sampled_from(names)
        kind = draw(st.sampled_from(["unary", "binary", "branch"]))
        if kind == "unary":
            nodes.append(helper.make_node(draw(st.sampled_from(UNARY)), [draw(pick)], [result]))
        elif kind == "binary":
            nodes.append(helper.make_node(draw(st.sampled_from(BINARY)), [draw(pick), draw(pick)], [result]))
        else:
            bodies = {
                name: helper.make_graph(
                    [
                        helper.make_node("Neg", [draw(pick)], [f"inner{index}"]),
                        helper.make_node("Add", [f"inner{index}", draw(pick)], [f"result{index}"]),
                    ],
                    name,
                    [],
                    [floats(f"result{index}", None, 4)],
                )
                for name in ("then_branch", "else_branch")
            }
            nodes.append(helper.make_node("If", [draw(st.sampled_from(["yes", "no"]))], [result], **bodies))
        names.append(result)
    returned = draw(st.lists(st.sampled_from(names[2:]), min_size=1, max_size=3, unique=True))
    constants = [
        weight("w", 1, 4),
        *(helper.make_tensor(name, onnx.TensorProto.BOOL, [], [name == "yes"]) for name in ("yes", "no")),
    ]
    proto = model(nodes, constants, outputs=[floats(name, None, 4) for name in returned])
    chosen = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    return proto, chosen


@given(_graphs())
def test_inlining_undoes_outlining(case: tuple[onnx.ModelProto, list[int]]) -> None:
    proto, chosen = case
    item = ir.from_proto(proto)
    expected, before = _run(item), ir.fingerprint(item, names=True)
    edit = ir.Editor(item)
    nodes = list(item.graph)
    region = [nodes[index] for index in chosen]
    if ir.outline_obstacle(edit, region, "made", "Part") is not None:
        # any run of neighbours is convex
        region = nodes[min(chosen) : max(chosen) + 1]
        obstacle = ir.outline_obstacle(edit, region, "made", "Part")
        if obstacle is not None:
            assert obstacle == "no output of the nodes is read outside"
            return
    function, call = ir.outline(edit, region, "made", "Part")
    assert len(function) == len(region)
    _equal(_run(item), expected)
    ir.inline_call(edit, call)
    edit.remove_function(function)
    _equal(_run(item), expected)
    assert ir.fingerprint(item, names=True) == before


class Split(NamedTuple):
    """A graph in two parts, which compute the same as the graph when run one after the other."""

    prefix: ir.Graph
    suffix: ir.Graph
    live: list[ir.Value]


def split(node: ir.Node, *, after: bool = False, declare: Any = None) -> Split:
    """Extract the parts before and after the cut, which is directly before ``node``, or directly ``after`` it."""
    graph = node.graph
    assert graph is not None
    nodes = list(graph)
    cut = nodes.index(node) + after
    made = {output for item in nodes[:cut] for output in item.outputs}
    live = [
        value for value in dict.fromkeys(v for item in nodes[cut:] for v in ir.reads(item)) if value in made
    ]
    behind = {output for item in nodes[cut:] for output in item.outputs}
    early = [value for value in graph.outputs if value not in behind]
    known = [*early, *(value for value in live if not value.is_graph_output())]
    given = {} if declare is None else {"declare": declare}
    prefix = ir.extract(nodes[:cut], known, graph.inputs, **given)
    suffix = ir.extract(nodes[cut:], [value for value in graph.outputs if value in behind], **given)
    return Split(prefix, suffix, live)


@given(_graphs(), st.booleans())
def test_parts_of_a_split_compute_the_same_as_the_whole(
    case: tuple[onnx.ModelProto, list[int]], after: bool
) -> None:
    proto, chosen = case
    item = ir.from_proto(proto)
    expected = dict(zip([value.name for value in item.graph.outputs], _run(item), strict=True))
    before = ir.print_model(item)
    floating = (ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, 4]))
    parts = split(item.graph[chosen[0]], after=after, declare=lambda value: _declared(value) or floating)
    known: dict[str, np.ndarray] = {"x": X}
    for part in (parts.prefix, parts.suffix):
        alone = ir.model_of(part, item)
        if not part.outputs:
            continue
        names = [value.name or "" for value in part.inputs]
        results = _run(alone, **{name: known[name] for name in names})
        known.update(zip([value.name or "" for value in part.outputs], results, strict=True))
    for name, array in expected.items():
        np.testing.assert_array_equal(known[name or ""], array)
    assert ir.print_model(item) == before


def _declared(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None] | None:
    return None if value.type is None else (value.type, value.shape)


# Cloning and taking out --------------------------------------------------------------------


def test_clones_share_only_tensors() -> None:
    item = ir.from_proto(model([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight("w", 4, 4)]))
    copy = ir.clone(item)
    assert ir.print_model(copy) == ir.print_model(item)
    assert ir.to_bytes(copy) == ir.to_bytes(item)
    assert copy.graph.initializers["w"].const_value is item.graph.initializers["w"].const_value
    before = ir.print_model(item)
    edit = ir.Editor(copy)
    edit.rename(copy.graph.initializers["w"], "other")
    copy.graph.inputs[0].shape = ir.Shape([1, 4])
    assert ir.print_model(item) == before


def test_cloned_body_reads_outer_values_or_replacements() -> None:
    item = parse(
        """g (float[N,4] x, bool c) => (float[N,4] y) {
            a = Neg(x)
            b = Abs(x)
            y = If (c) <
                then_branch = t () => (float[N,4] t1) {
                    t1 = If (c) <
                        then_branch = u () => (float[N,4] u1) { u1 = Exp(a) },
                        else_branch = v () => (float[N,4] v1) { v1 = Exp(b) }
                    >
                },
                else_branch = e () => (float[N,4] e1) { e1 = Exp(a) }
            >
        }"""
    )
    then = next(graph for graph in ir.graphs_of(item) if graph.name == "t")
    assert [value.name for value in ir.captures(then)] == ["c", "a", "b"]
    a, b = (node.outputs[0] for node in list(item.graph)[:2])
    copy = ir.Cloner({a: b}).graph(then)
    assert [value.name for value in ir.captures(copy)] == ["c", "b"]
    assert len(a.uses()) == 2  # those of the original


def test_split_of_a_body_has_its_captures_as_inputs() -> None:
    item = parse(
        """g (float[N,4] x, int64 n) => (float[N,4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}, bool true = {1}> {
            s = Exp(x)
            y = Loop (n, true, x) <
                body = b (int64 i, bool c, float[N,4] v) => (bool c2, float[N,4] v2) {
                    c2 = Identity(c)
                    m = Mul(v, w)
                    v2 = Add(m, s)
                }
            >
        }"""
    )
    body = next(graph for graph in ir.graphs_of(item) if graph.name == "b")
    parts = split(body[2])
    assert [value.name for value in parts.live] == ["m"]
    assert [value.name for value in parts.prefix.inputs] == ["i", "c", "v"]
    assert list(parts.prefix.initializers) == ["w"]
    assert [value.name for value in parts.prefix.outputs] == ["c2", "m"]
    assert [value.name for value in parts.suffix.inputs] == ["m", "s"]


def test_ten_thousand_nodes() -> None:
    item = ir.from_proto(chain(10_000))
    before = ir.fingerprint(item)
    edit = ir.Editor(item)
    function, call = ir.outline(edit, list(item.graph)[1000:9000], "made", "Part")
    assert len(item.graph) == 2001 and len(function) == 8000
    ir.validate(item)
    ir.inline_call(edit, call)
    edit.remove_function(function)
    ir.validate(item)
    assert ir.fingerprint(ir.clone(item)) == before
    parts = split(item.graph[5000])
    assert (len(parts.prefix), len(parts.suffix)) == (5000, 5000)


def test_declarations_of_bodies_survive_inlining() -> None:
    """onnxruntime does not run a Loop whose body declares no shapes."""
    item = parse(
        """g (float[N,4] x, int64 n) => (float[N,4] y) <bool true = {1}> {
            y = Loop (n, true, x) <
                body = b (int64 i, bool c, float[N,4] v) => (bool c2, float[N,4] v2) {
                    c2 = Identity(c)
                    v2 = Add(v, v)
                }
            >
        }"""
    )
    feeds = {"x": X, "n": np.array(3)}
    expected = _run(item, **feeds)
    edit = ir.Editor(item)
    function, call = ir.outline(edit, list(item.graph), "made", "Part")
    _equal(_run(item, **feeds), expected)
    ir.inline_call(edit, call)
    edit.remove_function(function)
    _equal(_run(item, **feeds), expected)


def test_bodies_of_vendor_operators_stay_out_of_functions() -> None:
    body = helper.make_graph(
        [helper.make_node("Neg", ["p"], ["q"])], "decoder", [floats("p", 4)], [floats("q", 4)]
    )
    search = helper.make_node("Search", ["x"], ["y"], domain="vendor", decoder=body)
    item = ir.from_proto(model([search], domains=("vendor",)))
    for nodes in (list(item.graph), list(ir.bodies(item.graph[0])[0])):
        obstacle = ir.outline_obstacle(ir.Editor(item), nodes, "made", "Part")
        assert obstacle is not None and "of vendor has a body" in obstacle
