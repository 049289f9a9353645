"""The measurement of reused results."""

from __future__ import annotations

from pathlib import Path

import onnx

from benchmarks import result_cache

MODEL = (
    '<ir_version: 8, opset_import: ["" : 17]> m (float[N] x) => (float[N] y) { a = Relu(x) y = Identity(a) }'
)


def test_reuse_and_its_absence_are_reported(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), model)
    first, second, fault = result_cache.measure(model, ["--no-verify"])
    assert fault == "" and first > 0 and second > 0
    _, _, fault = result_cache.measure(model, ["--no-verify", "--validate-each"])
    assert fault == "not reused: the option --validate-each is given"
