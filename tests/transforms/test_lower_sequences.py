"""The pass lower-sequences."""

from __future__ import annotations

import pytest

import graphopt
from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline

NUMBERS = "<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 last = {-1}>"


def lowered(text: str, pipeline: str = "lower-sequences,dce", opset: int = 18) -> ir.Model:
    """The model after ``pipeline``, which computes the same bits."""
    original, model = parse(text, opset=opset), parse(text, opset=opset)
    run_pipeline(model, pipeline)
    verdict = graphopt.verify(original, model, bits=True)
    assert verdict.ok, verdict
    _, cx = run_pipeline(model, pipeline)
    assert cx.actions == 0
    return model


def test_constructed_sequence_becomes_concat() -> None:
    model = lowered(
        f"""g (float[N,2] x, float[M,2] z) => (float[K,2] y) {NUMBERS} {{
            a = SequenceEmpty()
            b = SequenceInsert(a, x)
            c = SequenceInsert(b, z, zero)
            d = SequenceInsert(c, x)
            e = SequenceErase(d, last)
            y = ConcatFromSequence<axis = 0>(e)
        }}"""
    )
    assert ops(model) == ["Concat"]
    assert [value.name for value in model.graph[0].inputs if value is not None] == ["z", "x"]


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_stack_becomes_concat_of_unsqueezes(axis: int, opset: int) -> None:
    model = lowered(
        f"""g (float[N,2] x, float[N,2] z) => (float[A,B,C] y) {{
            s = SequenceConstruct(x, z)
            y = ConcatFromSequence<axis = {axis}, new_axis = 1>(s)
        }}""",
        opset=opset,
    )
    assert ops(model) == ["Unsqueeze", "Unsqueeze", "Concat"]


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    ("split", "axis", "result", "kinds"),
    [
        ("SplitToSequence<axis = 1>(x, two)", 1, "A,B", {"Split", "Concat"}),
        ("SplitToSequence<axis = 1>(x)", 0, "A,B", {"Split", "Concat"}),
        ("SplitToSequence<axis = -1, keepdims = 0>(x)", 0, "A", {"Split", "Squeeze", "Concat"}),
    ],
)
def test_split_changed_and_concatenated_sequence(
    split: str, axis: int, result: str, kinds: set[str], opset: int
) -> None:
    model = lowered(
        f"""g (float[3,5] x) => (float[{result}] y) {NUMBERS} {{
            s = {split}
            t = SequenceErase(s, one)
            y = ConcatFromSequence<axis = {axis}>(t)
        }}""",
        opset=opset,
    )
    assert set(ops(model)) == kinds


def test_single_elements_become_slices() -> None:
    model = lowered(
        f"""g (float[N,5] x) => (float[N,2] y, int64 n) {NUMBERS} {{
            s = SplitToSequence<axis = 1>(x, two)
            y = SequenceAt(s, one)
            n = SequenceLength(s)
        }}"""
    )
    assert "Slice" in ops(model) and not {"SplitToSequence", "SequenceAt", "SequenceLength"} & set(ops(model))


def test_sequences_in_bodies_and_optionals() -> None:
    model = lowered(
        f"""g (float[2] x, bool c) => (float[2] y) {NUMBERS} {{
            o = Optional(x)
            y = If (c) <
                then_branch = t () => (float[2] u) {{
                    s = SequenceConstruct(x, x)
                    v = SequenceAt(s, one)
                    u = Neg(v)
                }},
                else_branch = e () => (float[2] w) {{ p = Optional(x) q = OptionalGetElement(p) w = Abs(q) }}
            >
        }}"""
    )
    branches = [[node.op_type for node in a.as_graph()] for a in model.graph[0].attributes.values()]
    assert branches == [["Neg"], ["Abs"]]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("s = SplitToSequence(x)  y = ConcatFromSequence<axis = 0>(s)", "SplitToSequence"),
        ("s = SequenceConstruct(x, x)  y = SequenceAt(s, i)", "SequenceAt"),
        ("s = SequenceConstruct(x, x)  t = SequenceErase(s, i)  y = SequenceAt(t, zero)", "SequenceErase"),
    ],
)
def test_sequences_with_unknown_positions_or_sizes_stay(text: str, kept: str) -> None:
    model = parse(f"g (float[N,2] x, int64 i) => (float[A,2] y) {NUMBERS} {{ {text} }}", opset=18)
    run_pipeline(model, "lower-sequences")
    assert kept in ops(model)


def test_sequence_outputs_of_the_model_stay() -> None:
    text = f"g (float[4] x) => (seq(float[2]) y) {NUMBERS} {{ y = SplitToSequence(x, two) }}"
    assert ops(lowered(text)) == ["SplitToSequence"]


def test_match_attempts_are_linear_in_the_length_of_the_sequence() -> None:
    def attempts(size: int) -> int:
        steps = " ".join(f"s{i + 1} = SequenceInsert(s{i}, x)" for i in range(size))
        model = parse(
            f"""g (float[2] x) => (float[K] y) {{
                s0 = SequenceEmpty() {steps} y = ConcatFromSequence<axis = 0>(s{size})
            }}"""
        )
        _, cx = run_pipeline(model, "lower-sequences")
        assert ops(model) == ["Concat"]
        return cx.attempts

    assert attempts(3000) <= 11 * attempts(300)
