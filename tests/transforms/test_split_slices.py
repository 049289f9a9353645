"""split-slices joins Slices only where they cut a tensor into all its pieces."""

from __future__ import annotations

import pytest

from tests.model_testing import ops, parse, run_pipeline

CONSTANTS = (
    "<int64[1] zero = {0}, int64[1] two = {2}, int64[1] end = {9223372036854775807}, int64[1] one = {1}>"
)


@pytest.mark.parametrize("opset", [10, 13, 18])
def test_halves_become_one_split(opset: int) -> None:
    model = parse(
        f"""g (float[N,5] x) => (float[N,3] b, float[N,2] a) {CONSTANTS} {{
            b = Slice(x, two, end, one)
            t = Slice(x, zero, two, one)
            a = Relu(t)
        }}""",
        opset=opset,
    )
    run_pipeline(model, "split-slices")
    assert ops(model) == ["Split", "Relu"]
    split = model.graph[0]
    assert [output.name for output in split.outputs][1] == "b"
    assert model.graph.outputs[0] is split.outputs[1]


@pytest.mark.parametrize(
    ("shape", "first", "second", "axes"),
    [
        ("N,6", "zero, two, one", "two, four, one", "a piece is left out"),
        ("N,4", "zero, four, one", "two, four, one", "they overlap"),
        ("4,M", "zero, two, one", "two, end, one", "the size is unknown"),
        ("4,4", "zero, two, zero", "two, four, one", "they cut along different axes"),
    ],
)
def test_other_slices_stay(shape: str, first: str, second: str, axes: str) -> None:
    model = parse(
        f"""g (float[{shape}] x) => (float y, float z) {CONSTANTS[:-1]}, int64[1] four = {{4}}> {{
            y = Slice(x, {first})
            z = Slice(x, {second})
        }}"""
    )
    run_pipeline(model, "split-slices")
    assert ops(model) == ["Slice", "Slice"], axes


def test_slices_in_a_body_split_an_outer_value_there() -> None:
    model = parse(
        f"""g (float[4] x, bool c) => (float[2] y) {CONSTANTS} {{
            y = If (c) <
                then_branch = t () => (float[2] u) {{
                    p = Slice(x, zero, two)
                    q = Slice(x, two, end)
                    u = Add(p, q)
                }},
                else_branch = e () => (float[2] v) {{ v = Slice(x, zero, two) }}
            >
        }}"""
    )
    run_pipeline(model, "split-slices")
    branches = {a.name: [node.op_type for node in a.as_graph()] for a in model.graph[0].attributes.values()}
    assert branches == {"then_branch": ["Split", "Add"], "else_branch": ["Slice"]}


@pytest.mark.parametrize(
    ("reads", "expected"),
    [("Relu(c)", ["DequantizeLinear", "Slice", "Slice", "Relu", "QuantizeLinear"]),
     ("QuantizeLinear(c, s)", ["DequantizeLinear", "Split", "QuantizeLinear", "QuantizeLinear"])],
)  # fmt: skip
def test_slices_of_dequantized_elements_stay_where_operators_read_them(
    reads: str, expected: list[str]
) -> None:
    dtype = "float" if "Relu" in reads else "uint8"
    model = parse(
        f"""g (uint8[N,4] x, float s) => ({dtype}[N,2] a, uint8[N,2] b) {CONSTANTS} {{
            d = DequantizeLinear(x, s)
            c = Slice(d, zero, two, one)
            e = Slice(d, two, end, one)
            a = {reads}
            b = QuantizeLinear(e, s)
        }}"""
    )
    run_pipeline(model, "split-slices")
    assert ops(model) == expected
