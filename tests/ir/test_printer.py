"""The printed form: its contents, and that a change affects only its own lines."""

from __future__ import annotations

import difflib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.ir import printer
from tests.ir.models import chain, model, weight
from tests.model_testing import parse

NODE = helper.make_node

MODEL = """<ir_version: 8, opset_import: ["" : 17, "local" : 1, "com.microsoft" : 1],
            producer_name: "tests", producer_version: "1">
g (float[N,4] x, bool c, float[1] scale) => (float[N,M] y)
<float[1] scale = {2.0}, int64[2] shape = {-1, 4}, float[4] w = {0.5, -0.0, 1e-5, 3}, float one = {1}> {
    a = Mul(x, scale)
    r = Reshape(a, shape)
    b = Clip(r, , one)
    [named] d = If (c) <
        then_branch = t () => (float[N,4] t1) { t1 = Add(b, w) },
        else_branch = e () => (float[N,4] e1) { e1 = com.microsoft.Gelu(a) }
    >
    y = local.F<alpha = 0.1, words = ["a", "b c"]>(d)
}
<domain: "local", opset_import: ["" : 17]>
F <alpha, words, beta: float = 0.5> (p) => (q) { q = LeakyRelu<alpha: float = @alpha>(p) }
"""

PRINTED = """\
ir 8, ai.onnx 17, local 1, com.microsoft 1
producer "tests" "1"
graph "g" {
  input %x: f32[N, 4]
  input %c: bool[]
  input %scale: f32[1] = {[2.0]}
  %a = Mul(%x, %scale)
  %r = Reshape(%a, {[-1, 4]})
  %b = Clip(%r, _, {1.0})
  %d = If(%c)  # named
    then_branch {
      %t1: f32[N, 4] = Add(%b, {[0.5, -0.0, 1e-05, 3.0]})
      output %t1: f32[N, 4]
    }
    else_branch {
      %e1: f32[N, 4] = com.microsoft::Gelu(%a)
      output %e1: f32[N, 4]
    }
  %y: f32[N, M] = local::F(%d, alpha=0.1, words=["a", "b c"])
  output %y: f32[N, M]
}

function local::F(@beta=0.5, @alpha, @words), ai.onnx 17 {
  input %p
  %q = LeakyRelu(%p, alpha=@alpha)
  output %q
}
"""


def test_the_printed_form() -> None:
    assert ir.print_model(parse(MODEL)) == PRINTED


def test_inferred_types_can_be_shown() -> None:
    printed = ir.print_model(parse(MODEL), types=lambda value: f"<{value.name}>")
    assert "  %a: <a> = Mul(%x, %scale)\n" in printed
    assert "  output %y: f32[N, M]\n" in printed  # the declared type of an output is part of the interface


def test_large_constants_have_a_line_and_a_tag_of_their_contents() -> None:
    def line(seed: int, name: str = "layer.weight") -> str:
        proto = model([NODE("MatMul", ["x", name], ["y"])], [weight(name, 4, 300, seed=seed)])
        return next(line for line in ir.print_model(ir.from_proto(proto)).splitlines() if "constant" in line)

    assert line(0) == line(0)
    assert line(0)[:-4] == line(1)[:-4] == "  constant %layer.weight: f32[4, 300] #"
    assert line(0) != line(1)


def test_only_some_blocks_of_a_huge_tensor_are_read() -> None:
    array = np.zeros(2**22, np.uint8)
    first = ir.tag_of(ir.tensor(array))
    array[-1] = 1
    assert ir.tag_of(ir.tensor(array)) != first


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(0.1, np.float32), "{0.1}"),
        (np.array(0.1, np.float16), "f16{0.1}"),
        (np.array([], np.int64), "{[]}"),
        (np.zeros((0, 3), np.int64), "i64[0, 3]{}"),
        (np.array([[1, 2], [3, 4]]), "{[[1, 2], [3, 4]]}"),
        (np.array([1], np.int32), "i32{[1]}"),
        (np.array([True, False]), "{[true, false]}"),
        (np.array([np.nan, np.inf, -0.0], np.float32), "{[nan, inf, -0.0]}"),
    ],
)
def test_small_constants(array: np.ndarray, expected: str) -> None:
    assert ir.constant_text(ir.tensor(array)) == expected


def test_strings_and_long_lists_stay_on_one_short_line() -> None:
    node = NODE(
        "Encode",
        ["x"],
        ["y"],
        domain="vendor",
        text='a\nb"c',
        long="z" * 5000,
        numbers=list(range(1000)),
        raw=b"\xff\x00",
        words=numpy_helper.from_array(np.array(["so", "many words"], dtype=object)),
        kind=helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 3]),
    )
    (line,) = (ir.print_node(item) for item in ir.from_proto(model([node], domains=("vendor",))).graph)
    assert "\n" not in line and len(line) < 400
    for part in (
        'text="a\\nb\\"c"',
        "5000 characters",
        "[0, 1, 2, 3, … 1000 #",
        'words={["so", "many words"]}',
    ):
        assert part in line
    assert "kind=f32[N, 3]" in line


def test_types() -> None:
    assert ir.type_text(ir.DataType.FLOAT, ("B", "S", 4)) == "f32[B, S, 4]"
    assert ir.type_text(ir.DataType.BFLOAT16, None) == "bf16[...]"
    assert ir.type_text(None, (ir.SymbolicDim(None),)) == "?[?]"
    value = ir.Value(name="v", type=ir.SequenceType(ir.OptionalType(ir.TensorType(ir.DataType.INT64))))
    assert ir.declared_type(value) == "seq(opt(i64[...]))"
    zipped = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [None])
    )
    info = helper.make_value_info("y", helper.make_sequence_type_proto(zipped))
    proto = model(
        [NODE("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a"])],
        outputs=[info],
        domains=("ai.onnx.ml",),
    )
    assert ir.declared_type(ir.from_proto(proto).graph.outputs[0]) == "seq(map(str, f32[?]))"


def test_sparse_constants_are_shown() -> None:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("s", TensorProto.FLOAT, [1], [5.0]),
        helper.make_tensor("i", TensorProto.INT64, [1], [1]),
        [4],
    )
    node = NODE("Constant", [], ["c"], sparse_value=sparse)
    loaded = ir.from_proto(model([node, NODE("Add", ["x", "c"], ["y"])]))
    assert "sparse_value=sparse(f32[4], 1 values) #" in ir.print_model(loaded)


# Names --------------------------------------------------------------------------------------


def test_shortened_names_keep_their_end() -> None:
    names = ir.Names(["plain", "/encoder/layer.0/attention/self/Transpose_1_output_0", "später"])
    shown = [names(ir.Value(name=name)) for name in ("plain", "/a/b.c:0", "später", "")]
    assert shown[0] == "%plain" and shown[1] == "%/a/b.c:0" and shown[3] == "_"
    long = names(ir.Value(name="/encoder/layer.0/attention/self/Transpose_1_output_0"))
    assert long.startswith("%self.Transpose_1~") and len(long) < 26
    assert shown[2].isascii()


def test_equally_shortened_names_are_distinct(monkeypatch: pytest.MonkeyPatch) -> None:
    long = [f"/some/quite/long/scope/{i}/Add_output_0" for i in range(3000)]
    names = ir.Names(long)
    assert len({names(ir.Value(name=name)) for name in long}) == 3000
    real = printer._shorten
    monkeypatch.setattr(printer, "_shorten", lambda name, digits=1: real(name, digits))
    names = ir.Names(long)
    assert len({names(ir.Value(name=name)) for name in long}) == 3000


def test_a_rewrite_changes_only_the_lines_that_it_touches() -> None:
    loaded = ir.from_proto(chain(300))
    before = ir.print_model(loaded).splitlines()
    edit = ir.Editor(loaded)
    node = list(loaded.graph)[100]
    assert node.inputs[0] is not None
    edit.replace(node.outputs[0], node.inputs[0])
    edit.remove(node)
    changed = [line for line in difflib.ndiff(before, ir.print_model(loaded).splitlines()) if line[0] in "+-"]
    assert sorted(line[0] for line in changed) == ["+", "-", "-"]


def test_printing_is_the_same_for_the_same_file() -> None:
    proto = onnx.ModelProto.FromString(ir.to_bytes(parse(MODEL)))
    copies = [onnx.ModelProto.FromString(proto.SerializeToString()) for _ in range(2)]
    assert ir.print_model(ir.from_proto(copies[0])) == ir.print_model(ir.from_proto(copies[1])) == PRINTED


def test_long_chains_and_deep_bodies_print_without_recursion() -> None:
    assert len(ir.print_model(ir.from_proto(chain(10_000))).splitlines()) == 10_005
    inner = ir.Graph([], [], nodes=[], name="innermost")
    for depth in range(2000):
        node = ir.Node(
            "",
            "If",
            [],
            [ir.Attr("then_branch", ir.AttributeType.GRAPH, inner)],
            outputs=[],
            name=f"n{depth}",
        )
        inner = ir.Graph([], [], nodes=[node], name=f"g{depth}")
    assert ir.print_model(ir.Model(inner, ir_version=10)).count("\n") == 2000 * 3 + 3


def test_graphs_and_nodes_print_alone() -> None:
    loaded = parse(MODEL)
    body = next(graph for graph in ir.graphs_of(loaded) if graph.name == "t")
    assert ir.print_model(ir.Model(body, ir_version=10)).splitlines()[1] == 'graph "t" {'
    assert ir.print_node(next(iter(body))) == "%t1: f32[N, 4] = Add(%b, {[0.5, -0.0, 1e-05, 3.0]})"


def test_the_full_form_has_whole_names_and_all_constants() -> None:
    nodes = [
        NODE("Constant", [], ["c"], value_float=2.0),
        NODE(
            "Mul", ["x", "c"], ["/encoder/layer.0/attention/Mul_output_0"], "/encoder/layer.0/attention/Mul"
        ),
        NODE("Neg", ["/encoder/layer.0/attention/Mul_output_0"], ["y"], "negated"),
    ]
    loaded = ir.from_proto(model(nodes))
    assert ir.print_model(loaded).splitlines()[3:5] == [
        "  %0.attention.Mul~or7j = Mul(%x, {2.0})",
        "  %y: f32[N, 4] = Neg(%0.attention.Mul~or7j)  # negated",
    ]
    assert ir.print_model(loaded, full=True).splitlines()[3:5] == [
        "  %c = Constant(value_float=2.0)",
        "  %0.attention.Mul~or7j = Mul(%x, {2.0})  # /encoder/layer.0/attention/Mul_output_0",
    ]


@pytest.mark.parametrize(
    ("op", "name", "value", "comment"),
    [
        ("Conv", "layer/Conv_3", "layer/Conv_3_output_0", ""),
        ("Conv", "layer/conv", "layer/conv:0", ""),
        ("Conv", "layer/conv", "layer/conv_bias_folded", ""),
        ("Identity", "Identity_148", "pooler.bias", ""),
        ("Identity", "copy", "pooler.bias", "  # copy"),
        ("Relu", "ab", "abc", "  # ab"),
    ],
)
def test_node_names_implied_by_values_are_omitted(op: str, name: str, value: str, comment: str) -> None:
    first = NODE(op, ["x"], [value], name)
    node = next(iter(ir.from_proto(model([first, NODE("Neg", ["x"], ["y"])])).graph))
    assert printer.node_comment(node) == comment


def test_initializers_listed_as_inputs_before_ir_version_4_are_constants() -> None:
    listed = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [n]) for name, n in (("w", 100), ("s", 1))
    ]
    weights = [weight("w", 100), numpy_helper.from_array(np.ones(1, np.float32), "s")]
    nodes = [NODE("Add", ["w", "s"], ["v"]), NODE("Add", ["x", "v"], ["y"])]
    proto = model(nodes, weights)
    proto.graph.input.extend(listed)
    proto.ir_version = 3
    lines = ir.print_model(ir.from_proto(proto)).splitlines()
    assert [line.split(":")[0] for line in lines if "input" in line or "constant" in line] == [
        "  input %x",
        "  constant %w",
    ]
    assert "Add(%w, {[1.0]})" in "".join(lines)


def test_unread_small_constants_are_in_the_full_form_only() -> None:
    loaded = ir.from_proto(
        model([NODE("Neg", ["x"], ["y"])], [numpy_helper.from_array(np.array(1), "unread")])
    )
    assert "  constant %unread: {1}\n" in ir.print_model(loaded, full=True)
    assert "unread" not in ir.print_model(loaded)


def test_line_breaks_in_names_are_escaped() -> None:
    graph = helper.make_graph(
        [NODE("Custom\nOp", ["x"], ["y\u2028"], name="n\n", domain="d\r\n")],
        "g\n",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a\nb", 4])],
        [helper.make_tensor_value_info("y\u2028", TensorProto.FLOAT, ["a\x85b", 4])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("d\r\n", 1)]
    printed = printer.print_model(ir.from_proto(helper.make_model(graph, opset_imports=imports)))
    lines = printed.splitlines()
    assert len(lines) == 6 and lines == printed.rstrip("\n").split("\n")
    assert "f32[a\\nb, 4]" in lines[2] and "d\\r\\n::Custom\\nOp(" in lines[3]
