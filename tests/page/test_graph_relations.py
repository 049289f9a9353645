"""Relations between the nodes of an original and a result."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser
import pytest

from graphopt.compiler import Compiler
from graphopt.compiler.page_source import page_source
from graphopt.context import Refusal
from graphopt.page.page_data import Fate, GraphData
from graphopt.page.refusal_recorder import RefusalRecorder
from graphopt.page.section import PageSource

pytest.importorskip("fast_sugiyama")

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
chain (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> {
  [kept] a = Relu(x)
  [identity] b = Identity(a)
  [folded] two = Add(w, w)
  [sum] c = Add(b, two)
  [twin1] d = Exp(c)
  [twin2] e = Exp(c)
  [dead] f = Sin(c)
  [twice1] g = Neg(d)
  [twice2] h = Neg(g)
  [last] y = Mul(h, e)
}
"""


def _nodes(source: PageSource, graph: GraphData) -> dict[str, tuple[Fate, str]]:
    """The fate and maker of each node, by name."""
    nodes = graph.nodes
    return {
        name: (Fate(fate), "" if by < 0 else source.makers[by])
        for name, fate, by in zip(nodes.name, nodes.fate, nodes.by, strict=True)
    }


def _related(source: PageSource) -> dict[str, list[str]]:
    original, result = source.graphs
    return {
        name: [result.nodes.name[one] for one in related]
        for name, related in zip(original.nodes.name, original.nodes.related, strict=True)
    }


def _source(model: Any, other: Any = None, **options: Any) -> PageSource:
    return page_source(Compiler(verify=False, pipeline="O3", **options), model, other)


@pytest.fixture(scope="module")
def source() -> PageSource:
    return _source(onnx.parser.parse_model(MODEL))


def test_fates_of_original_nodes(source: PageSource) -> None:
    fates = _nodes(source, source.graphs[0])
    assert fates["kept"] == (Fate.UNCHANGED, "")
    assert fates["folded"][0] is Fate.FOLDED and fates["folded"][1]
    assert fates["dead"] == (Fate.REMOVED, "dce")
    assert fates["identity"][0] in (Fate.REMOVED, Fate.ABSORBED) and fates["identity"][1] == "drop-identity"
    assert sorted(fates[name][0] for name in ("twin1", "twin2")) == [Fate.UNCHANGED, Fate.ABSORBED]


def test_a_duplicate_is_related_to_the_node_that_absorbs_it(source: PageSource) -> None:
    related = _related(source)
    assert related["twin1"] == related["twin2"] and len(related["twin1"]) == 1


def test_relations_are_symmetric(source: PageSource) -> None:
    original, result = source.graphs
    pairs = {(one, other) for one, related in enumerate(original.nodes.related) for other in related}
    assert pairs == {(other, one) for one, related in enumerate(result.nodes.related) for other in related}
    assert all(len(set(related)) == len(related) for related in original.nodes.related)


def test_stored_lineage_gives_the_same_relations(source: PageSource) -> None:
    model = onnx.parser.parse_model(MODEL)
    result = Compiler(verify=False, pipeline="O3", provenance=True).optimize(model).to_proto()
    stored = _source(model, result)
    assert [_nodes(stored, graph) for graph in stored.graphs] == [
        _nodes(source, graph) for graph in source.graphs
    ]
    assert _related(stored) == _related(source)
    assert stored.report is None and not stored.stages


def test_relations_by_name_without_lineage() -> None:
    first, second = (onnx.parser.parse_model(MODEL) for _ in range(2))
    second.graph.node[0].op_type = "Tanh"
    second.graph.node[-1].name = "renamed"
    source = _source(first, second)
    original, result = (_nodes(source, graph) for graph in source.graphs)
    assert original["kept"] == result["kept"] == (Fate.REPLACED, "")
    assert original["sum"] == result["sum"] == (Fate.UNCHANGED, "")
    assert (original["last"], result["renamed"]) == ((Fate.REMOVED, ""), (Fate.REPLACED, ""))
    assert _related(source)["kept"] == ["kept"] and _related(source)["last"] == []


def test_the_lineage_of_another_model_is_not_used() -> None:
    model = onnx.parser.parse_model(MODEL)
    result = Compiler(verify=False, pipeline="O3", provenance=True).optimize(model).to_proto()
    other = onnx.parser.parse_model(MODEL.replace("[dead]", "[another]"))
    assert _related(_source(other, result))["kept"] == ["kept"]
    assert not _source(other, result).makers


def test_refusals_are_notes() -> None:
    recorder = RefusalRecorder()
    for reason in ("shape unknown", "shape unknown", *map(str, range(20))):
        recorder.refused(Refusal("rule", "kept", reason))
    assert recorder.notes["kept"][:2] == ["rule: shape unknown", "rule: 0"]
    assert len(recorder.notes["kept"]) == 8


def test_refusals_of_a_run_are_in_the_page() -> None:
    source = _source(
        onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        scaled (float[2, 4, 8, 8] x, float[4, 4, 1, 1] w) => (float[2, 4, 8, 8] y)
         <float[1] scale = {2}, float[4] b = {1, 2, 3, 4}> {
          [conv] c = Conv(x, w, b)
          [product] y = Mul(c, scale)
        }""")
    )
    notes = source.graphs[0].nodes.notes
    assert notes[0] is None
    assert "mul-into-conv: the weight is not constant, or the scaled one loses digits" in (notes[1] or ())


def test_the_rule_that_replaced_a_node_is_not_among_its_refusals() -> None:
    source = _source(
        onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        gelu (float[2, 4] x) => (float[2, 4] y) <float half = {0.5}, float one = {1}, float root = {1.4142135}> {
          [scaled] a = Div(x, root)
          [erf] b = Erf(a)
          [sum] c = Add(b, one)
          [product] d = Mul(x, c)
          [last] y = Mul(d, half)
        }""")
    )
    nodes = source.graphs[0].nodes
    assert source.makers[nodes.by[3]] == "gelu"
    assert not [note for notes in nodes.notes for note in notes or () if note.startswith("gelu: ")]
