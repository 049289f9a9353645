"""strip-docs, and imports of domains that nothing uses."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.checker
import onnx.parser

from graphopt import ir
from tests.cli.conftest import Invoke
from tests.model_testing import parse, run_pipeline


def noted() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "d" : 1], doc_string: "model">
        g (float[N] x) => (float[N] y) { a = d.f (x) y = Relu (a) }
        <domain: "d", opset_import: ["" : 17]> f (x) => (y) { y = Neg (x) }"""
    )
    model.metadata_props.add(key="namespace", value="a label that programs read")
    for item in (model.graph, model.graph.node[0], model.graph.input[0], model.functions[0].node[0]):
        item.doc_string = "told"
        item.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="line 1")
        item.metadata_props.add(key="layer_ann", value="kept")
    model.functions[0].doc_string = "function"
    return model


def test_doc_strings_and_exporter_metadata_are_removed() -> None:
    model = ir.from_proto(noted())
    run_pipeline(model, "strip-docs")
    stripped = ir.to_proto(model)
    assert "told" not in str(stripped) and 'doc_string: "' not in str(stripped)
    assert "stack_trace" not in str(stripped)
    assert str(stripped).count("layer_ann") == 4
    assert [entry.key for entry in stripped.metadata_props] == ["namespace"]
    onnx.checker.check_model(stripped)


def test_carried_parts_survive() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu (x) }'
    )
    proto.graph.input.add(name="m").type.map_type.key_type = onnx.TensorProto.INT64
    proto.graph.input[1].type.map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    before = proto.SerializeToString()
    model = ir.from_proto(proto)
    run_pipeline(model, "strip-docs")
    assert ir.to_proto(model).graph.input[1] == onnx.ModelProto.FromString(before).graph.input[1]


def test_strip_docs_option_removes_doc_strings(invoke: Invoke, tmp_path: Path) -> None:
    source, target = tmp_path / "noted.onnx", tmp_path / "out.onnx"
    onnx.save(noted(), source)
    assert invoke("optimize", source, "-o", target).status == 0
    assert "told" in str(onnx.load(target))
    outcome = invoke("optimize", source, "-o", target, "--strip-docs", "-v")
    assert outcome.status == 0 and outcome.out.count("removed 10 doc strings and notes") == 2
    assert "told" not in str(onnx.load(target))


def test_unused_opset_imports_are_removed() -> None:
    model = parse(
        """g (float[N] x) => (float[N] y) { a = d.f (x) y = Relu (a) }
        <domain: "d", opset_import: ["" : 17, "e" : 2, "h" : 3]> f (x) => (y) { y = e.Custom (x) }""",
        domains=', "d" : 1, "com.microsoft" : 1, "e" : 2, "ai.onnx.ml" : 3',
    )
    run_pipeline(model, "dce")
    (function,) = model.functions.values()
    assert function.opset_imports == {"": 17, "e": 2}
    assert model.graph.opset_imports == {"": 17, "d": 1, "e": 2}


def test_the_standard_import_stays() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = d.Custom (x) }", domains=', "d" : 1')
    run_pipeline(model, "dce")
    assert model.graph.opset_imports == {"": 17, "d": 1}
