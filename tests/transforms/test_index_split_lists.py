"""index-split-lists gathers from the tensor that a list was split from."""

from __future__ import annotations

import pytest

from graphopt import ir
from tests.model_testing import agree, ops, parse, run_pipeline


def indexed(text: str, pipeline: str = "index-split-lists", opset: int = 17) -> ir.Model:
    model = parse(text, opset=opset)
    run_pipeline(model, pipeline)
    ir.validate(model)
    assert agree(parse(text, opset=opset), model, sizes=(2, 1, 3))
    _, cx = run_pipeline(model, pipeline)
    assert cx.actions == 0
    return model


@pytest.mark.parametrize(
    ("split", "result", "expected"),
    [
        ("SplitToSequence<keepdims = 0>(x)", "3", ["Mod", "Gather", "Gather"]),
        ("SplitToSequence<axis = -1, keepdims = 0>(x)", "N", ["Mod", "Gather", "Gather"]),
        ("SplitToSequence(x)", "1,3", ["Mod", "Unsqueeze", "Gather", "Gather"]),
        ("SplitToSequence<axis = 1>(x)", "N,1", ["Mod", "Unsqueeze", "Gather", "Gather"]),
    ],
)
@pytest.mark.parametrize("opset", [11, 17])
def test_elements(split: str, result: str, expected: list[str], opset: int) -> None:
    model = indexed(
        f"""g (float[N,3] x, int64 i) => (float[{result}] y, float[{result}] z)
        <int64 last = {{-1}}, int64 one = {{1}}> {{
            s = {split} j = Mod(i, one) y = SequenceAt(s, j) z = SequenceAt(s, last)
        }}""",
        opset=opset,
    )
    assert ops(model) == expected


@pytest.mark.parametrize("keepdims", [0, 1])
def test_loop_that_reads_a_sequence_and_creates_another(keepdims: int) -> None:
    part = "1,3" if keepdims else "3"
    model = indexed(
        f"""g (float[N,3] x) => (float[{part}] y, float[A,B,C] z)
        <int64[2] shape = {{1, 3}}, float k = {{0.5}}, int64 zero = {{0}}> {{
            s = SplitToSequence<keepdims = {keepdims}>(x)
            r = Shape(x)
            n = Gather(r, zero)
            e = SequenceEmpty()
            a = ReduceMax<axes = [0], keepdims = {keepdims}>(x)
            y, l = Loop (n, , a, e) <
                body = b (int64 i, bool c, float[{part}] v, seq(float[1,3]) t)
                => (bool d, float[{part}] w, seq(float[1,3]) u) {{
                    d = Identity(c) p = SequenceAt(s, i) h = Mul(v, k) w = Add(h, p)
                    o = Reshape(w, shape) u = SequenceInsert(t, o)
                }}
            >
            z = ConcatFromSequence<axis = 0, new_axis = 1>(l)
        }}""",
        "O2",
    )
    assert not [node for graph in ir.graphs_of(model) for node in graph if "Sequence" in node.op_type]


@pytest.mark.parametrize(
    "text",
    [
        "s = SplitToSequence(x, two) y = SequenceAt(s, zero)",
        "s = SplitToSequence(x) y = SequenceAt(s, zero) n = SequenceLength(s)",
        "s = SplitToSequence(x) t = SequenceErase(s, zero) y = SequenceAt(t, zero)",
    ],
)
def test_sequences_that_are_not_replaced(text: str) -> None:
    model = indexed(
        f"g (float[4,3] x) => (float[A,3] y) <int64 two = {{2}}, int64 zero = {{0}}> {{ {text} }}"
    )
    assert "SplitToSequence" in ops(model)


def test_functions_with_the_axis_as_attribute_stay() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[4,3] x) => (float[1,3] y) { y = own.First<a = 0>(x) }
    <domain: "own", opset_import: ["" : 17]>
    First <a> (x) => (y) { z = Constant<value = int64 {0}>() s = SplitToSequence<axis : int = @a>(x) y = SequenceAt(s, z) }"""
    model = indexed(text)
    assert [node.op_type for graph in ir.graphs_of(model) for node in graph][-2:] == [
        "SplitToSequence",
        "SequenceAt",
    ]
