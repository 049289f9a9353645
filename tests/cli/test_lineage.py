"""graphopt lineage: original nodes of a result, and replacements of original nodes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Invoke

#: A dropped Identity, a duplicate, a folded sum, a fused product, and a node that only a dropped one reads.
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
lineage (float[N, 4] x) => (float[N, 3] y)
<float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[3] b = {1, 2, 3}, float[3] c = {3, 2, 1}>
{
    [first] a = Relu(x)
    [second] a2 = Relu(x)
    [sum] s = Add(a, a2)
    [copy] t = Identity(s)
    [bias] bias = Add(b, c)
    [product] m = MatMul(t, w)
    [shift] z = Add(m, bias)
    [end] y = Tanh(z)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def lineage(invoke: Invoke, *arguments: object) -> dict[str, dict[str, list[str]] | None]:
    outcome = invoke("lineage", *arguments, "--json")
    assert outcome.status == 0, outcome.err
    found: dict[str, dict[str, list[str]] | None] = json.loads(outcome.out)
    return found


def test_back_from_a_fused_node(invoke: Invoke, model: Path) -> None:
    back = lineage(invoke, model, "y", "-O3")["back"]
    assert back is not None
    assert {*back["originals"], *back["absorbed"]} >= {"product", "shift", "end"}
    assert back["folded"] == ["bias"]
    assert [step["by"] for step in back["steps"]].index("activation-into-gemm") > 0  # type: ignore[call-overload]


def test_forward_to_the_nodes_that_replace_a_node(invoke: Invoke, model: Path) -> None:
    name = lineage(invoke, model, "y", "-O3")["back"]["node"]  # type: ignore[index]
    for original in ("product", "shift", "end"):
        forward = lineage(invoke, model, original, "-O3")["forward"]
        assert forward is not None and forward["nodes"] == [name]
    folded = lineage(invoke, model, "bias", "-O3")["forward"]
    assert folded is not None and (folded["nodes"], folded["folded_into"]) == ([], [name])
    assert {"pass": "constant-propagation", "by": "constant-propagation"} in folded["steps"]


def test_duplicates_and_dropped_nodes_are_absorbed(invoke: Invoke, model: Path) -> None:
    first = lineage(invoke, model, "first")
    assert first["back"]["absorbed"] == ["second"]  # type: ignore[index]
    for name, node in (("second", "first"), ("copy", "sum")):
        forward = lineage(invoke, model, name)["forward"]
        assert forward is not None and (forward["nodes"], forward["absorbed_into"]) == ([], [node])
    assert f"  also computed by: {node}" in invoke("lineage", model, name).out.splitlines()


def test_unchanged_nodes(invoke: Invoke, model: Path) -> None:
    outcome = invoke("lineage", model, "end", "-O1")
    assert outcome.out.splitlines() == [
        "node of the result: end",
        "  unchanged, from the original",
        "node of the original: end",
        "  unchanged in the result",
    ]


def test_a_result_keeps_its_lineage(invoke: Invoke, model: Path) -> None:
    assert invoke("optimize", model, "-o", "out.onnx", "-O3", "--provenance").status == 0
    for name in ("y", "first", "copy", "bias", "product"):
        kept, again = lineage(invoke, "out.onnx", name), lineage(invoke, model, name, "-O3")
        assert {**kept, "model": None} == {**again, "model": None}


def test_the_fusion_of_a_node_is_one_of_its_rewrites(invoke: Invoke, model: Path) -> None:
    fused = lineage(invoke, model, "product", "-O3")["forward"]
    assert fused is not None
    assert "activation-into-gemm" in [step["by"] for step in fused["steps"]]  # type: ignore[index,call-overload]


def test_a_result_without_its_lineage_is_the_original(invoke: Invoke, model: Path) -> None:
    assert invoke("optimize", model, "-o", "out.onnx", "-O3").status == 0
    assert "out.onnx is a result without recorded lineage" in invoke("lineage", "out.onnx", "y").err
    assert invoke("optimize", model, "-o", "out.onnx", "-O3", "--provenance").status == 0
    assert "recorded lineage" not in invoke("lineage", "out.onnx", "y").err
    assert "recorded lineage" not in invoke("lineage", model, "y").err


def test_text(invoke: Invoke, model: Path) -> None:
    lines = invoke("lineage", model, "bias", "-O3").out.splitlines()
    assert lines[0] == "node of the original: bias"
    assert any(line.startswith("  folded into constants of: ") for line in lines)
    assert any(line.startswith("  rewritten by: ") and "constant-propagation" in line for line in lines)


def test_unknown_names(invoke: Invoke, model: Path) -> None:
    outcome = invoke("lineage", model, "prduct")
    assert outcome.status == 2 and outcome.out == ""
    assert "neither the model nor its original has a node or value 'prduct'" in outcome.err
    assert invoke("lineage", model).status == 2


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("x", "'x' is an input: no node computes it", "nodes that read it: first, second"),
        ("w", "'w' is an initializer: no node computes it", "nodes that read it: product"),
    ],
)
def test_values_without_a_node_of_the_result(
    invoke: Invoke, model: Path, name: str, message: str, hint: str
) -> None:
    outcome = invoke("lineage", model, name)
    assert outcome.status == 2 and outcome.out == ""
    assert message in outcome.err and hint in outcome.err


def test_values_that_the_result_lacks(invoke: Invoke, model: Path) -> None:
    assert invoke("optimize", model, "-o", "out.onnx", "-O3", "--provenance").status == 0
    for path in (model, "out.onnx"):
        found = lineage(invoke, path, "a2", "-O3") if path == model else lineage(invoke, path, "a2")
        assert found["back"] is None
        assert found["forward"]["original"] == "second" and found["forward"]["absorbed_into"] == ["first"]  # type: ignore[index]


def test_an_input_of_a_result_with_its_lineage(invoke: Invoke, model: Path) -> None:
    assert invoke("optimize", model, "-o", "out.onnx", "-O3", "--provenance").status == 0
    outcome = invoke("lineage", "out.onnx", "x")
    assert outcome.status == 2 and "'x' is an input: no node computes it" in outcome.err


def test_names_of_any_characters(invoke: Invoke, model: Path) -> None:
    proto = onnx.load(model)
    proto.graph.node[0].name, proto.graph.node[1].name = "fir\nst", "se\ncond\x1b[31m"
    onnx.save(proto, model)
    first = lineage(invoke, model, "fir\nst")
    assert first["back"]["absorbed"] == ["se\ncond\x1b[31m"]  # type: ignore[index]
    assert lineage(invoke, model, "se\ncond\x1b[31m")["forward"]["absorbed_into"] == ["fir\nst"]  # type: ignore[index]
    lines = invoke("lineage", model, "fir\nst").out.splitlines()
    assert lines[:3] == [
        r"node of the result: fir\nst",
        r"  from: fir\nst",
        r"  also replaces: se\ncond\x1b[31m",
    ]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 2}', '{"version": 1, "originals": [], "nodes": {"y": 3}}']
)
def test_damaged_lineage(invoke: Invoke, model: Path, text: str) -> None:
    proto = onnx.load(model)
    proto.metadata_props.add(key="graphopt:lineage", value=text)
    proto.graph.node[-1].name = "y"
    onnx.save(proto, "damaged.onnx")
    outcome = invoke("lineage", "damaged.onnx", "y")
    assert outcome.status == 3 and "the metadata entry 'graphopt:lineage' is damaged" in outcome.err


def test_compare_matches_by_recorded_lineage(invoke: Invoke, model: Path) -> None:
    assert invoke("optimize", model, "-o", "out.onnx", "-O3", "--provenance").status == 0
    assert invoke("compare", model, "out.onnx", "--device", "cpu").status == 0


#: Functions whose nodes have equal names.
_FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
lineage (float[N, 4] x) => (float[N, 4] y) { [one] a = local.first(x) [two] y = local.second(a) }
<domain: "local", opset_import: ["" : 17]>
first (x) => (y) { [n0] a = Identity(x) [n1] y = Relu(a) }
<domain: "local", opset_import: ["" : 17]>
second (x) => (y) { [n0] a = Tanh(x) [n1] b = Identity(a) [n2] y = Abs(b) }
"""


def test_equal_names_in_functions(invoke: Invoke, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(_FUNCTIONS), tmp_path / "model.onnx")
    options = ("--pipeline", "peephole")
    done = invoke("optimize", tmp_path / "model.onnx", "-o", "out.onnx", "--provenance", *options)
    assert done.status == 0, done.err
    for arguments in ((tmp_path / "model.onnx", *options), ("out.onnx",)):
        model, *rest = arguments
        for name, absorbed in (("first/n1", []), ("second/n0", ["second/n1"])):
            back = lineage(invoke, model, name, *rest)["back"]
            assert back is not None and (back["originals"], back["absorbed"]) == ([name], absorbed)
        forward = lineage(invoke, model, "second/n1", *rest)["forward"]
        assert forward is not None and (forward["nodes"], forward["absorbed_into"]) == ([], ["second/n0"])
