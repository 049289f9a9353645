"""Shape facts: inference, sources, and updates after edits and for ranges of dims."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import SymDim, bounds
from tests.analysis.check_facts import facts_of, read


def parsed(text: str, opset: int = 17) -> ir.Model:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1]> '
    return read(onnx.parser.parse_model(header + text))


def value(model: ir.Model, name: str) -> ir.Value:
    for graph in ir.graphs_of(model):
        for each in (*graph.inputs, *graph.initializers.values()):
            if each.name == name:
                return each
        for node in graph:
            for output in node.outputs:
                if output.name == name:
                    return output
    raise KeyError(name)


def shown(facts: ShapeFacts, of: ir.Value) -> str | None:
    """The shape as text, made-up symbols as ``?``."""
    shape = facts.shape(of)
    if shape is None:
        return None
    return ",".join("?" if isinstance(dim, SymDim) and dim.birth else str(dim) for dim in shape)


@pytest.mark.parametrize(
    ("inputs", "node", "expected"),
    [
        ("float[b,s,4] x, float[s,1] y", "Add(x, y)", "b,s,4"),
        ("float[b,4] x, float[k] y", "Mul(x, y)", "b,4"),
        ("float[b] x, float[s] y", "Mul(x, y)", "?"),
        ("float[b,3,h,w] x, float[8,3,3,3] y", "Conv<pads=[1,1,1,1]>(x, y)", "b,8,h,w"),
        (
            "float[b,3,h,w] x, float[8,3,3,3] y",
            "Conv<strides=[2,2],pads=[1,1,1,1]>(x, y)",
            "b,8,((h + 1)//2),((w + 1)//2)",
        ),
        ("float[b,3,h,9] x, float[3,8,2,2] y", "ConvTranspose<strides=[2,2]>(x, y)", "b,8,2*h,18"),
        ("float[b,3,8,9] x", "MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)", "b,3,4,4"),
        ("float[b,3,h] x", "AveragePool<kernel_shape=[3],pads=[1,1]>(x)", "b,3,h"),
        ("float[b,s,4] x, float[b,p,4] y", "Concat<axis=1>(x, y)", "b,p + s,4"),
        ("float[b,s,4] x", "Flatten(x)", "b,4*s"),
        ("float[b,s,4] x", "Transpose<perm=[2,0,1]>(x)", "4,b,s"),
        ("float[b,s,4] x, float[4,k] y", "MatMul(x, y)", "b,s,k"),
        ("float[b,s,4] x", "ReduceMean<axes=[-1]>(x)", "b,s,1"),
        ("float[b,s,4] x", "ReduceMean<axes=[1],keepdims=0>(x)", "b,4"),
        ("float[b,s,4] x, int64[k] y", "Gather<axis=1>(x, y)", "b,k,4"),
        ("float[b,s] x", "NonZero(x)", "2,?"),
        ("float[b,1,s] x", "Squeeze(x)", None),
        ("float[s,b,4] x, float[1,12,4] y, float[1,12,3] z", "LSTM<hidden_size=3>(x, y, z)", "s,1,b,3"),
        ("float[b,s,6] x", "Split<axis=2>(x)", "b,s,6"),
        ("float[b,s] x, int64 y", 'Einsum<equation="bs->sb">(x)', "s,b"),
        ("float[b,4,8] x", "GridSample(x)", None),
    ],
)
def test_inferred_shapes(inputs: str, node: str, expected: str | None) -> None:
    model = parsed(f"g ({inputs}) => (float r) {{ r = {node} }}", opset=17 if "Squeeze" in node else 13)
    facts = facts_of(model)
    assert shown(facts, value(model, "r")) == expected


def test_contents_flow_through_shape_arithmetic() -> None:
    model = parsed(
        """g (float[b,s,64] x) => (float r) {
            u = Shape(x)  z = Constant<value_int=0>()  o = Constant<value_int=1>()
            n = Gather(u, z)  t = Gather(u, o)  ax = Constant<value_ints=[0]>()
            n1 = Unsqueeze(n, ax)  m = Constant<value_ints=[-1]>()  h = Constant<value_ints=[4, 16]>()
            p = Concat<axis=0>(n1, m, h)  r = Reshape(x, p)  q = Mul(n, t)  d = Div(q, t2)  t2 = Constant<value_int=2>()
            e = Equal(t, z)
        }"""
    )
    facts = facts_of(model)
    assert str(facts.known_ints(value(model, "u"))) == "(SymDim(b), SymDim(s), 64)"
    assert str(facts.known_ints(value(model, "p"))) == "(SymDim(b), -1, 4, 16)"
    assert shown(facts, value(model, "r")) == "b,s,4,16"
    assert str(facts.known_ints(value(model, "d"))) == "(SymDim(((b*s)//2)),)"
    assert facts.known_ints(value(model, "e")) is None  # s may be 0
    assert facts.known_ints(value(model, "x")) is None


def test_integer_division_rounds_towards_zero() -> None:
    model = parsed(
        "g (float[b] x) => (int64[1] r) { a = Constant<value_ints=[-7, 7, -7]>()  c = Constant<value_ints=[2, -2, -2]>()"
        "  r = Div(a, c)  z = Constant<value_ints=[0]>()  q = Div(a, z)  m = Mod(a, c) }"
    )
    facts = facts_of(model)
    assert facts.known_ints(value(model, "r")) == (-3, -3, 3)
    assert facts.known_ints(value(model, "m")) == (1, -1, -1)
    assert facts.known_ints(value(model, "q")) is None


def test_contents_that_overflow_are_unknown() -> None:
    model = parsed(
        "g (float[b] x) => (int64[1] r) { a = Constant<value_ints=[4611686018427387904]>()  r = Add(a, a)"
        "  i = Cast<to=6>(a)  u = Shape(x)  j = Cast<to=6>(u)  k = Cast<to=3>(u) }"
    )
    facts = facts_of(model)
    assert facts.known_ints(value(model, "r")) is None
    assert facts.known_ints(value(model, "i")) is None
    assert str(facts.known_ints(value(model, "j"))) == "(SymDim(b),)"
    assert facts.known_ints(value(model, "k")) is None


def test_the_least_integer_has_no_negative() -> None:
    model = parsed(
        "g (float[b] x) => (int64[2] n, int64[2] a, int64[2] s) <int64[2] c = {-9223372036854775808, 1}>"
        " { n = Neg(c)  a = Abs(c)  u = Shape(x)  s = Sub(c, u) }"
    )
    facts = facts_of(model)
    assert facts.known_ints(value(model, "s")) is None
    assert facts.known_ints(value(model, "n")) is None
    assert facts.known_ints(value(model, "a")) is None


def test_equal_dim_names_mean_equal_dims_and_unnamed_dims_are_distinct() -> None:
    model = parsed("g (float[b,s] x, float[b,k] y, float[?,2] z) => (float r) { r = Relu(x) }")
    value(model, "z").shape = ir.Shape([None, 2])
    facts = facts_of(model)
    x, y, z = (facts.shape(value(model, name)) for name in "xyz")
    assert x is not None and y is not None and z is not None
    assert facts.dim_equal(x[0], y[0])
    assert not facts.dim_equal(x[1], y[1])
    assert str(z[0]) == "z@0"
    assert facts.shape_equal(value(model, "x"), value(model, "r"))


@pytest.mark.parametrize("name", ["?", "None", "-1", ""])
def test_names_that_mean_unknown_are_not_shared(name: str) -> None:
    model = parsed("g (float[b] x, float[c] y) => (float r) { r = Relu(x) }")
    for each in model.graph.inputs:
        each.shape = ir.Shape([name])
    facts = facts_of(model)
    assert not facts.shape_equal(value(model, "x"), value(model, "y"))


def test_declared_zeros_and_negative_sizes_are_unknown() -> None:
    model = parsed("g (float[b,c] x) => (float r) { r = Relu(x) }")
    value(model, "x").shape = ir.Shape([0, -1])
    assert shown(facts_of(model), value(model, "x")) == "x@0,x@1"


def test_declarations_of_inner_values_are_ignored() -> None:
    model = parsed(
        "g (float[b,4] x) => (int64[7] r) <float[3] t> { t = Foo(x)  u = Relu(x)  r = Identity(u) }"
    )
    value(model, "u").shape = ir.Shape([9, 9])
    facts = facts_of(model)
    facts.infer_all()
    assert facts.rank(value(model, "t")) is None
    assert facts.dtype(value(model, "t")) is None
    assert facts.type(value(model, "t")) is None
    assert shown(facts, value(model, "r")) == "b,4"


def _with_default(ir_version: int) -> ir.Model:
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "s"], ["r"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 6]),
            helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([-1, 3], np.int64), "s")],
    )
    opsets = [helper.make_opsetid("", 8)]
    return read(helper.make_model(graph, ir_version=ir_version, opset_imports=opsets))


def test_overridable_initializer_has_no_known_contents() -> None:
    model = _with_default(ir_version=7)
    facts = facts_of(model)
    assert shown(facts, value(model, "r")) == "?,?"


def test_before_ir_version_4_initializers_are_constants() -> None:
    model = _with_default(ir_version=3)
    facts = facts_of(model)
    assert shown(facts, value(model, "r")) == "2*b,3"


def test_ranges_refine() -> None:
    model = parsed("g (float[b,s] x, float[k] y) => (float r) { r = Concat<axis=1>(x, x) }")
    facts = facts_of(model, {"b": (4, 4), "s": (1, 512)})
    assert shown(facts, value(model, "r")) == "4,2*s"
    size = facts.shape(value(model, "x"))
    assert size is not None and bounds(size[1]) == (1, 512)


def test_an_assumed_range_of_one_size_is_that_size() -> None:
    model = parsed("g (float[b,s] x) => (float r) { r = Relu(x) }")
    facts = facts_of(model, {"b": (3, 3), "s": (2, math.inf)})
    assert shown(facts, value(model, "r")) == "3,s"


def test_nonzero_ranges_determine_results_of_reshape() -> None:
    text = """g (float[s,b,8] x, float[b] y) => (float r) {
        u = Shape(y)  m = Constant<value_ints=[-1]>()  t = Concat<axis=0>(u, m)  r = Reshape(x, t) }"""
    model = parsed(text)
    assert shown(facts_of(model), value(model, "r")) == "(b or s),((8*b*s)//(b or s))"
    model = parsed(text)
    assert shown(facts_of(model, {"b": (1, 9)}), value(model, "r")) == "b,8*s"


def test_residual_sum_determines_copied_dims_of_reshape() -> None:
    """Where b and s are 0, [b, s, 8] copies the 8 of the input: the sum then fails."""
    model = parsed(
        """g (float[b,s,8] x) => (float r) {
            m = Constant<value_ints=[-1,8]>()  f = Reshape(x, m)  u = Shape(x)  y = Reshape(f, u)  r = Add(y, x)  t = Relu(y)
        }"""
    )
    facts = facts_of(model)
    assert shown(facts, value(model, "y")) == "b,(s or 8),8"
    assert shown(facts, value(model, "r")) == "b,s,8"
    assert shown(facts, value(model, "y")) == "b,s,8"
    assert shown(facts, value(model, "t")) == "b,s,8"


def test_node_that_may_not_run_adds_no_facts() -> None:
    model = parsed(
        """g (float[b,s,8] x, bool c) => (float r) {
            m = Constant<value_ints=[-1,8]>()  f = Reshape(x, m)  u = Shape(x)  y = Reshape(f, u)
            r = If(c) <then_branch = t () => (float p) { p = Add(y, x) }, else_branch = e () => (float q) { q = Relu(y) }>
        }"""
    )
    facts = facts_of(model)
    facts.infer_all()
    assert shown(facts, value(model, "p")) == "b,s,8"
    assert shown(facts, value(model, "y")) == "b,(s or 8),8"


def test_facts_are_computed_by_need() -> None:
    model = parsed("g (float[b] x) => (float r) { a = Relu(x)  c = Neg(a)  d = Abs(c)  r = Exp(d) }")
    facts = facts_of(model)
    facts.shape(value(model, "c"))
    known = {each.name for each in facts._scope.facts}
    assert known == {"x", "a", "c"}


def test_a_long_chain_needs_no_recursion() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["b", 4])],
        [helper.make_tensor_value_info("v20000", TensorProto.FLOAT, None)],
    )
    model = read(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))
    assert shown(facts_of(model), model.graph.outputs[0]) == "b,4"


def test_a_long_chain_of_branches_needs_no_recursion() -> None:
    nodes = []
    for i in range(600):
        bodies = {}
        for name, op_type in (("then_branch", "Relu"), ("else_branch", "Neg")):
            node = helper.make_node(op_type, [f"v{i}"], [f"{name}{i}"])
            bodies[name] = helper.make_graph([node], name, [], [onnx.ValueInfoProto(name=f"{name}{i}")])
        nodes.append(helper.make_node("If", ["c"], [f"v{i + 1}"], **bodies))
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["b", 4]),
        ],
        [helper.make_tensor_value_info("v600", TensorProto.FLOAT, None)],
    )
    model = read(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]))
    assert shown(facts_of(model), model.graph.outputs[0]) == "b,4"


def test_functions_are_inferred_for_each_call() -> None:
    model = parsed(
        """g (float[b,s] x, float[4] y) => (float r) {
            p = local.flip <order: ints = [1, 0]> (x)  q = local.stack (y, y)  r = local.stack (y)  }
        <domain: "local", opset_import: ["" : 17]> flip <order> (a) => (c) { c = Transpose<perm: ints = @order>(a) }
        <domain: "local", opset_import: ["" : 17]> stack (d, e) => (f) { g = Relu(d)  f = Concat<axis=0>(g, e) }
        """
    )
    facts = facts_of(model)
    assert shown(facts, value(model, "p")) == "s,b"
    assert shown(facts, value(model, "q")) == "8"
    assert facts.rank(value(model, "r")) in (None, 1)
    assert facts.rank(value(model, "c")) is None  # attributes are those of a call
    assert facts.rank(value(model, "f")) == 1  # inputs are what all calls have in common


def test_fresh_symbols_differ_between_calls() -> None:
    model = parsed(
        """g (float[b] x, float[b] y) => (float r) { p = local.find (x)  r = local.find (y) }
        <domain: "local", opset_import: ["" : 17]> find (a) => (c) { c = NonZero(a) }
        """
    )
    facts = facts_of(model)
    assert not facts.shape_equal(value(model, "p"), value(model, "r"))


def test_an_unknown_operator_is_unknown_not_an_error() -> None:
    model = parsed("g (float[b] x) => (float r) { a = other.Relu(x)  r = Relu(a) }")
    facts = facts_of(model)
    assert facts.rank(value(model, "r")) is None
    assert facts.nbytes(value(model, "r")) is None
    assert facts.type(value(model, "a")) is None


def test_a_node_that_breaks_its_specification_is_unknown() -> None:
    model = parsed("g (float[b] x) => (float r) { r = Transpose<perm=[0,5]>(x)  q = Concat<axis=3>(x, x) }")
    facts = facts_of(model)
    facts.infer_all()
    assert facts.rank(value(model, "r")) is None
    assert [node.op_type for node, _ in facts.failures] == ["Transpose", "Concat"]


def test_a_cycle_is_unknown() -> None:
    model = parsed("g (float[b] x) => (float r) { a = Relu(x)  r = Add(a, x) }")
    add = value(model, "r").producer()
    relu = value(model, "a").producer()
    assert add is not None and relu is not None
    relu.replace_input_with(0, add.outputs[0])
    assert facts_of(model).rank(value(model, "r")) is None


def test_operators_without_a_rule_use_onnx_inference() -> None:
    model = parsed("g (float[b,3,h,w] x, float[b,5,6,2] y) => (float r) { r = GridSample(x, y) }")
    assert shown(facts_of(model), value(model, "r")) == "b,3,5,6"


def test_types_and_sizes_in_bytes() -> None:
    model = parsed(
        "g (float[b,3] x, float16[5] y) => (float r) { q = SequenceConstruct(x, x)  r = SequenceAt(q, i)"
        "  i = Constant<value_int=0>()  u = Cast<to=22>(y) }"
    )
    facts = facts_of(model)
    assert facts.type(value(model, "x")) == ir.TensorType(ir.DataType.FLOAT)
    assert facts.type(value(model, "q")) == ir.SequenceType(ir.TensorType(ir.DataType.FLOAT))
    assert facts.dtype(value(model, "q")) is None
    assert str(facts.nbytes(value(model, "x"))) == "12*b"
    assert facts.nbytes(value(model, "y")) == 10
    assert facts.nbytes(value(model, "u")) == 3


def test_facts_in_loop_bodies_hold_in_every_iteration() -> None:
    model = parsed(
        """g (float[b,4] x, float[s,4] q, int64 n, bool c) => (float y) {
            y, k, t = Loop(n, c, x, q) <body = g (int64 i, bool d, float v, float p) => (bool f, float w, float p2, float z) {
                f = Identity(d)  w = Concat<axis=0>(v, q)  p2 = Relu(p)  z = Neg(p) }>
        }"""
    )
    facts = facts_of(model)
    assert shown(facts, value(model, "v")) == "?,4"
    assert shown(facts, value(model, "w")) == "?,4"
    assert shown(facts, value(model, "p")) == "s,4"
    assert shown(facts, value(model, "y")) == "?,4"
    assert shown(facts, value(model, "k")) == "s,4"
    assert shown(facts, value(model, "t")) is None  # the loop may not run
    last, within = facts.shape(value(model, "y")), facts.shape(value(model, "w"))
    assert last is not None and within is not None
    assert not facts.dim_equal(last[0], within[0])


def test_replacement_has_the_more_precise_facts() -> None:
    model = parsed(
        "g (float[b,s] x) => (float r) { a = NonZero(x)  c = NonZero(x)  d = Foo(x)  r = Relu(x) }"
    )
    facts = facts_of(model)
    old, new = value(model, "a"), value(model, "c")
    before = facts.shape(old)
    facts.replaced(old, new)
    assert facts.shape(new) == before
    unknown, known = value(model, "d"), value(model, "r")
    facts.shape(unknown)
    facts.replaced(unknown, known)
    assert shown(facts, known) == "b,s"
    facts.replaced(known, unknown)
    assert shown(facts, unknown) == "b,s"


def test_more_precise_replacement_refines_facts_of_readers() -> None:
    model = parsed(
        "g (float[b,s] x, float[k] y) => (float r) { a = Compress(y, m)  m = Foo(x)  r = Relu(a)  t = Relu(y) }"
    )
    facts = facts_of(model)
    assert shown(facts, value(model, "r")) == "?"
    facts.replaced(value(model, "a"), value(model, "t"))
    assert shown(facts, value(model, "r")) == "k"


@pytest.mark.parametrize(
    "node",
    [
        """If (c) < then_branch = t () => (float[j] i) { i = Relu(v)  k = Relu(y) },
                   else_branch = e () => (float[j] o) { o = Relu(v) } >""",
        "Loop (m, c) <body = t (int64 n, bool l) => (bool l, float[j] i) { i = Relu(v)  k = Relu(y) }>",
        "Scan (x) <num_scan_inputs=1, body = t (float r) => (float[j] i) { i = Relu(v)  k = Relu(y) }>",
    ],
    ids=["If", "Loop", "Scan"],
)
def test_replacement_in_a_body_does_not_refine_outer_facts(node: str) -> None:
    model = parsed(
        f"""g (float[b] x, float[3] y, bool c, bool[b] q, int64 m) => (float[j] u, float[b] w) {{
            v = Compress(x, q)  w = Relu(v)  u = {node} }}"""
    )
    facts = facts_of(model)
    facts.infer_all()
    facts.replaced(value(model, "i"), value(model, "k"))
    assert shown(facts, value(model, "k")) == "3"
    facts.replaced(value(model, "k"), value(model, "v"))
    assert [shown(facts, value(model, name)) for name in "vw"] == ["?", "?"]


def test_facts_of_new_nodes_are_computed_by_need() -> None:
    model = parsed("g (float[b,s] x) => (float r) { r = Relu(x) }")
    facts = facts_of(model)
    facts.infer_all()
    node = ir.Node("", "Transpose", [value(model, "x")])
    model.graph.append(node)
    assert shown(facts, node.outputs[0]) == "s,b"


def test_the_same_model_gives_the_same_names() -> None:
    text = "g (float[b,s] x) => (float r) { a = NonZero(x)  c = NonZero(x)  r = Concat<axis=1>(a, c) }"
    first, second = parsed(text), parsed(text)
    assert str(facts_of(first).shape(value(first, "r"))) == str(facts_of(second).shape(value(second, "r")))
