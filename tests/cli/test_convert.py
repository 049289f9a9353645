"""graphopt convert, and other commands on models in other formats than ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from onnx import TensorProto, helper

from graphopt import ir
from tests.cli.conftest import Invoke


def _run_of(invoke: Invoke, model: Path | str) -> str:
    outcome = invoke("run", model, "--device", "cpu", "--json")
    assert outcome.status == 0, outcome.err
    return json.dumps(json.loads(outcome.out)["outputs"])


def test_around_all_forms(invoke: Invoke, weights: Path) -> None:
    expected = _run_of(invoke, weights)
    forms = ["a.json", "b.onnxjson", "c.json", "d.onnxtxt", "e.onnxjson", "f.txt", "g.onnx"]
    source: Path | str = weights
    for target in forms:
        outcome = invoke("convert", source, target)
        assert outcome.status == 0, outcome.err
        assert f"wrote     {target}" in outcome.out
        source = target
        assert _run_of(invoke, target) == expected, target


def test_document_fits_the_schema_and_an_edit_is_effective(invoke: Invoke, small: Path) -> None:
    outcome = invoke("convert", small, "small.json", "--json")
    assert json.loads(outcome.out)["form"] == "JSON IR"
    path = Path("small.json")
    document = json.loads(path.read_text())
    jsonschema.Draft202012Validator(ir.schema()).validate(document)
    document["graph"]["nodes"][1]["op"] = "Neg"
    path.write_text(json.dumps(document))
    outcome = invoke("verify", small, path, "--device", "cpu")
    assert outcome.status == 1, outcome.err


@pytest.mark.parametrize("suffix", [".json", ".onnxjson", ".onnxtxt"])
def test_other_commands_accept_all_formats(invoke: Invoke, small: Path, suffix: str) -> None:
    source, target = f"small{suffix}", f"out{suffix}"
    assert invoke("convert", small, source).status == 0
    outcome = invoke("optimize", source, "-o", target, "--device", "cpu")
    assert outcome.status == 0, outcome.err
    assert "verified" in outcome.out
    assert invoke("verify", source, target, "--device", "cpu").status == 0
    assert invoke("inspect", target).status == 0
    assert "Relu" in invoke("dump", target).out


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ([], ["w.json"]),
        (["--threshold", "64"], ["w.json", "w.json.bin"]),
        (["--threshold", "64", "--no-external-data"], ["w.json"]),
    ],
)
def test_options_determine_the_files_of_weights(
    invoke: Invoke, weights: Path, options: list[str], files: list[str]
) -> None:
    outcome = invoke("convert", weights, "w.json", *options, "--json")
    assert list(json.loads(outcome.out)["files"]) == files
    assert sorted(path.name for path in Path().iterdir()) == files
    assert _run_of(invoke, "w.json") == _run_of(invoke, weights)


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ([helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])], "node 'odd' (Foo), attribute 'a'"),
        (b"\xff\x00", "text that is not UTF-8 in [odd] y = my.Foo"),
        (helper.make_tensor("t", TensorProto.COMPLEX64, [1], [1j]), "[odd] y = my.Foo"),
    ],
)
def test_content_outside_onnx_text_is_named(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: Any, words: str
) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    node = helper.make_node("Foo", ["x"], ["y"], name="odd", domain="my", a=attribute)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    path = tmp_path / "m.onnx"
    told = invoke("convert", path, "m.txt")
    assert told.status == 4 and words in told.err, told.err

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("graphopt.api.optimize", refuse)
    for early in (["optimize", path, "-o", "m.txt"], ["convert", path, "m.txt", "--target-opset", "18"]):
        assert invoke(*early) == told
    assert not list(Path().iterdir())


def test_bad_requests(invoke: Invoke, small: Path) -> None:
    outcome = invoke("convert", small, "out.xyz")
    assert outcome.status == 2
    assert "out.xyz needs the suffix .onnx, .json" in outcome.err
    assert invoke("convert", "missing.json", "out.onnx").status == 2
    Path("bad.json").write_text('{"graphopt": 1, "ir_version": 8, "graph": {"nodes": [{"op": 3}]}}')
    for command in (["convert", "bad.json", "out.onnx"], ["inspect", "bad.json"], ["dump", "bad.json"]):
        outcome = invoke(*command)
        assert outcome.status == 3
        first, hint = outcome.err.splitlines()
        assert first == "graphopt: bad.json: graph.nodes[0].op: expects a string, found 3"
        assert "docs/json-ir.md" in hint
    Path("bad.onnxjson").write_text('{"graph": 1}')
    assert invoke("inspect", "bad.onnxjson").status == 3
    assert not Path("out.onnx").exists()
