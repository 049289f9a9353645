"""The difference between two models: renamed nodes are equal, and differences are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphopt import ir
from graphopt.modeldiff.model_diff import ModelDiff, compare
from tests.model_testing import parse
from zoo import SAMPLES

SMALL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, float[4] bias) => (float[N, 4] y) {
  a = Relu(x)
  b = Add(a, bias)
  c = Exp(b)
  y = Mul(c, a)
}"""


def lines(found: ModelDiff) -> list[str]:
    """The difference as text, without the first line and the headings."""
    shown = [str(line) for line in found.lines(("a", "b"))][1:]
    return [line for line in shown if line and not line.startswith("──")]


def changes(before: str, after: str) -> list[str]:
    """The lines of changed nodes."""
    return [line for line in lines(compare(parse(before), parse(after))) if line[0] in "-+~"]


def rename(proto: onnx.ModelProto, name: Callable[[str], str]) -> None:
    """Rename all nodes and inner values of ``proto``."""
    outer = {value.name for value in (*proto.graph.input, *proto.graph.output)}

    def rename_graph(graph: onnx.GraphProto, kept: set[str]) -> None:
        for value in (*graph.value_info, *graph.initializer, *graph.input, *graph.output):
            if value.name not in kept:
                value.name = name(value.name)
        rename_nodes(graph.node, kept)

    def rename_nodes(nodes: object, kept: set[str]) -> None:
        for index, node in enumerate(nodes):  # type: ignore[call-overload, var-annotated, arg-type]
            node.name = f"n{index}"
            for names in (node.input, node.output):
                names[:] = [item if not item or item in kept else name(item) for item in names]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    rename_graph(attribute.g, kept)

    rename_graph(proto.graph, outer)
    for function in proto.functions:
        for names in (function.input, function.output):
            names[:] = [name(item) for item in names]
        rename_nodes(function.node, set())


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_a_renamed_model_is_equal(sample: str) -> None:
    proto = SAMPLES[sample].build()
    before = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    rename(proto, lambda text: f"r{abs(hash_of(text))}")
    proto.producer_name, proto.graph.name = "another", "another"
    found = compare(before, ir.from_proto(proto))
    assert found.is_empty, lines(found)[:9]
    assert found.equal == found.nodes[0] == found.nodes[1] and found.renamed
    assert str(next(found.lines(("a", "b")))).startswith(f"equal: {found.equal} nodes (")


def hash_of(text: str) -> int:
    """A number for ``text`` that is the same in every run."""
    return int.from_bytes(text.encode(), "big") % 1_000_003


def test_one_changed_operator_in_a_renamed_model() -> None:
    proto = SAMPLES["transformer"].build()
    before = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    rename(proto, lambda text: f"r{abs(hash_of(text))}")
    (softmax, *_) = [node for node in proto.graph.node if node.op_type == "Softmax"]
    softmax.op_type = "LogSoftmax"
    found = compare(before, ir.from_proto(proto))
    marks = [(change.mark, change.line.operator) for change in found.changes]
    assert marks == [("-", "Softmax"), ("+", "LogSoftmax")]
    assert found.operators["LogSoftmax"] == (0, 1)


def test_numbered_names_that_shift_do_not_mislead() -> None:
    def chain(ops: str) -> str:
        nodes = " ".join(f"v_{i + 1} = {op}(v_{i})" for i, op in enumerate(ops.split()))
        return f"g (float[4] v_0) => (float[4] out) {{ {nodes} out = Neg(v_{len(ops.split())}) }}"

    before, after = chain("Exp Exp Relu Sin Exp Relu Sin Cos"), chain("Exp Abs Exp Relu Sin Exp Relu Sin Cos")
    shown = changes(before, after)
    assert len(shown) <= 2 and shown[0].endswith("= Abs(%v_1)")


def test_differences_between_models_are_found() -> None:
    assert changes(SMALL, SMALL) == []
    assert changes(SMALL, SMALL.replace("Exp(b)", "Exp(a)")) == ["~   %c = Exp(%b → %a)"]
    assert changes(SMALL, SMALL.replace("Exp", "Log")) == ["-   %c = Exp(%b)", "+   %c = Log(%b)"]
    removed = SMALL.replace("c = Exp(b)\n", "").replace("Mul(c, a)", "Mul(b, a)")
    assert changes(SMALL, removed) == ["-   %c = Exp(%b)", "~   %y: f32[N, 4] = Mul(%c → %b, %a)"]
    added = SMALL.replace("y = Mul(c, a)", "d = Sin(c) y = Mul(d, a)")
    assert changes(SMALL, added) == ["+   %d = Sin(%c)", "~   %y: f32[N, 4] = Mul(%c → %d, %a)"]
    swapped = SMALL.replace("Mul(c, a)", "Mul(a, c)")
    assert changes(SMALL, swapped) == ["~   %y: f32[N, 4] = Mul(%c → %a, %a → %c)"]


def test_the_interface_comes_first() -> None:
    after = SMALL.replace('"" : 17', '"" : 18').replace(
        "float[N, 4] x, float[4] bias", "float[4] bias, float[M, 4] x"
    )
    after = after.replace("(float[N, 4] y)", "(float[N, 4] y, float[N, 4] c)").replace("Exp", "Log")
    found = compare(parse(SMALL), parse(after))
    assert [str(line) for line in found.lines(("a", "b"))] == [
        "a: 4 nodes; b: 4 nodes; 3 equal, 0 changed, 1 removed, 1 added",
        "",
        "── interface ───────────────────────────────────────────────────────────────────────────────────────",
        "~ opset ai.onnx 17 → 18",
        "-   input %x: f32[N, 4]",
        "+   input %x: f32[M, 4]",
        "+   output %c: f32[N, 4]",
        "~ order of inputs x, bias → bias, x",
        "",
        "── operators ───────────────────────────────────────────────────────────────────────────────────────",
        "  Exp  1  → 0  -1",
        "  Log  0  → 1  +1",
        "",
        "── changes ─────────────────────────────────────────────────────────────────────────────────────────",
        "-   %c = Exp(%b)",
        "+   %c: f32[N, 4] = Log(%b)",
    ]
    assert found.to_dict()["nodes"] == {
        "a": 4,
        "b": 4,
        "equal": 3,
        "renamed": 0,
        "changed": 0,
        "removed": 1,
        "added": 1,
    }
    assert found.to_dict()["interface"][0]["before"] == "opset ai.onnx 17"


def test_contents_of_weights_count() -> None:
    def build(value: float, name: str) -> ir.Model:
        weight = numpy_helper.from_array(np.full((4, 4), value, np.float32), name)
        node = helper.make_node("MatMul", ["x", name], ["y"])
        value_info = [helper.make_tensor_value_info(n, 1, ["N", 4]) for n in "xy"]
        graph = helper.make_graph([node], "g", value_info[:1], value_info[1:], [weight])
        return ir.from_proto(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        )

    assert compare(build(1, "w"), build(1, "v")).is_empty
    found = compare(build(1, "w"), build(2, "w"))
    assert [(change.mark, change.line.name) for change in found.changes] == [
        ("-", "constant %w"),
        ("+", "constant %w"),
    ]


def test_bodies_and_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (bool c, float[2] x) => (float[2] y) {{
      f = local.F(x)
      y = If (c) <
        then_branch = t () => (float[2] p) {{ v = {then}(f) p = Abs(v) }},
        else_branch = e () => (float[2] q) {{ q = Neg(x) }}>
    }}
    <domain: "local", opset_import: ["" : 17]>
    F (a) => (b) {{ t = {inner}(a) b = Sin(t) }}"""
    before = text.format(then="Relu", inner="Cos")
    assert changes(before, before.replace("v =", "w =").replace("(v)", "(w)")) == []
    assert changes(before, before.replace("local.F", "local.G").replace("F (a)", "G (a)")) == [
        "~ function local::F, ai.onnx 17 { → function local::G, ai.onnx 17 {",
    ]
    found = lines(compare(parse(before), parse(text.format(then="Exp", inner="Tan"))))
    assert [line for line in found if line[:3] in ("  @", "-  ", "+  ")] == [
        "  @ y then_branch",
        "-       %v = Relu(%f)",
        "+       %v = Exp(%f)",
        "  @ function local:F",
        "-   %t = Cos(%a)",
        "+   %t = Tan(%a)",
    ]


def test_work_grows_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits of neighbours are counted, not time: twice the nodes take about twice the work."""
    from graphopt.modeldiff import match_nodes

    def work(nodes: int) -> int:
        count = 0
        real = match_nodes._Matcher._try

        def counted(*arguments: Any, **more: Any) -> None:
            nonlocal count
            count += 1
            real(*arguments, **more)

        monkeypatch.setattr(match_nodes._Matcher, "_try", counted)
        text = " ".join(f"v{i + 1} = Add(v{i}, v0)" for i in range(nodes))
        model = f"g (float[4] v0) => (float[4] v{nodes}) {{ {text} }}"
        compare(parse(model), parse(model.replace("v9 = Add", "v9 = Mul")))
        monkeypatch.setattr(match_nodes._Matcher, "_try", real)
        return count

    assert work(800) <= 3 * work(400)
