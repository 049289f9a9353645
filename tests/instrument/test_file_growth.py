"""A report explains a file that became larger."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

import graphopt
from graphopt import ir
from graphopt.instrument.report import Report
from tests.model_testing import parse

#: A fill of 256 floats, which is short enough to be written out, and a Loop of two trips.
FILL = """g (float[256] x) => (float[256] y) <int64[1] shape = {256}> {
    fill = ConstantOfShape <value: tensor = float[1] {0.25}> (shape)
    y = Add(x, fill)
}"""


def _report(tmp_path: Path, ir_version: int = 8, text: str = FILL) -> Report:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    ir.save(parse(text, ir_version=ir_version), source)
    model, report = graphopt.optimize(source, verify=False)
    graphopt.save(model, target)
    report = report.having(file_bytes=(source.stat().st_size, target.stat().st_size))
    return report


@pytest.mark.parametrize("ir_version", [3, 8])
def test_a_folded_fill_is_named_with_its_size(tmp_path: Path, ir_version: int) -> None:
    report = _report(tmp_path, ir_version)
    old, new = report.file_bytes
    assert old is not None and new is not None and new > old + 700
    (made,) = report.made
    assert (made.type, made.bytes, made.by) == ("f32[256]", 1024, "constant-propagation")
    lines = [" ".join(line.split()) for line in report.lines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("larger by "))
    assert re.fullmatch(r"1\.02 kB in 1 constant of constant-propagation, \S+: f32\[256\]", lines[begin + 1])
    assert report.to_dict()["made_constants"][0]["bytes"] == 1024


def test_shrinking_file_is_not_explained(tmp_path: Path) -> None:
    report = _report(tmp_path, text="g (float[N] x) => (float[N] y) { a = Identity(x) y = Neg(a) }")
    assert not any("larger" in line for line in report.lines())


def test_nodes_that_passes_added_are_counted(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y) <int64 trips = {2}, bool go = {1}> {
        y = Loop (trips, go, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {
            d = Identity(c) e = Sin(s) f = Cos(e) g = Exp(f) h = Tanh(g) t = Sigmoid(h) }>
    }"""
    report = _report(tmp_path, text=text)
    report = report.having(file_bytes=(1000, 1500))
    assert any("in nodes, names and notes" in line for line in report.lines())


def test_a_constant_node_without_outputs_is_no_constant() -> None:
    model = graphopt.to_proto(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }"))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [], value_float=1.0))
    _, report = graphopt.optimize(model, verify=False)
    assert report.optimized.ops == {"Neg": 1}
