"""Weights that share their bytes are not split: the result is no larger than the original."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import graphopt
from graphopt import ir
from tests.model_testing import ops, parse, run_pipeline

_ROWS, _COLUMNS = 640, 64  # more bytes than are folded in any case


def tied_branches(folder: Path, *, same: bool) -> Path:
    """An If whose branches have one weight each, stored in the same bytes of a file if ``same``."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,{_COLUMNS}] x, bool c) => (float[N,{_ROWS}] y) {{
            y = If (c) <
                then_branch = t () => (float[a,b] r) {{
                    u = Transpose <perm = [1, 0]> (v)
                    r = MatMul (x, u)
                }},
                else_branch = e () => (float[d,f] s) {{
                    p = Transpose <perm = [1, 0]> (w)
                    q = MatMul (x, p)
                    s = Neg (q)
                }}
            >
        }}"""
    )
    weight = np.random.default_rng(0).standard_normal((_ROWS, _COLUMNS)).astype(np.float32)
    (folder / "w.bin").write_bytes(weight.tobytes() * 2)
    for attribute, name, offset in zip(model.graph.node[0].attribute, "vw", (0, weight.nbytes), strict=True):
        tensor = attribute.g.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(weight, name))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", "w.bin"),
            ("offset", 0 if same else offset),
            ("length", weight.nbytes),
        ):
            tensor.external_data.add(key=key, value=str(value))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def stored(model: ir.Model) -> int:
    """Bytes of all weights, shared ones once."""
    return sum({ir.storage_of(slot.tensor): slot.tensor.nbytes for slot in ir.slots(model)}.values())


def test_branches_keep_sharing_a_weight(tmp_path: Path) -> None:
    path = tied_branches(tmp_path, same=True)
    result, report = graphopt.optimize(path)
    assert report.verdict is not None and report.verdict.ok
    assert stored(result) <= 4 * _ROWS * _COLUMNS + 64
    assert report.optimized.nodes < report.original.nodes
    files = graphopt.save(result, tmp_path / "out.onnx")
    assert sum(file.stat().st_size for file in files) < 4 * _ROWS * _COLUMNS + 2000


def test_weights_of_their_own_are_rewritten(tmp_path: Path) -> None:
    result, _ = graphopt.optimize(tied_branches(tmp_path, same=False))
    branch = next(iter(result.graph)).attributes["else_branch"].as_graph()
    assert [node.op_type for node in branch] == ["MatMul"]


def test_equal_constants_become_one_in_their_graph() -> None:
    model = parse(
        """g (float[N] x) => (float[N] y, float[N] z) <float[1] a = {2}, float[1] b = {2}> {
            y = Mul (x, a)
            z = Pow (x, b)
        }"""
    )
    run_pipeline(model, "constant-pooling")
    assert ops(model) == ["Mul", "Pow"] and len(model.graph.initializers) == 1
