"""graphopt compare: the inner tensors of two models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.cli.conftest import SMALL, Invoke
from tests.page.page_parser import parsed


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """The file of a model that differs from ``small`` in its Relu."""
    path = tmp_path / "faulty.onnx"
    onnx.save(onnx.parser.parse_model(SMALL.replace("Relu(a)", "Neg(a)")), path)
    return path


def test_equal_models(invoke: Invoke, small: Path) -> None:
    outcome = invoke("compare", small, small, "--device", "cpu")
    assert outcome.status == 0, outcome
    assert outcome.out.splitlines()[0] == "no tensor departs: 3 tensors compared, 3 identical"
    assert "  inputs: x f32[" in outcome.err


def test_the_first_departure(invoke: Invoke, small: Path, faulty: Path) -> None:
    outcome = invoke("compare", small, faulty, "--device", "cpu", "--input-shape", "x:2x4")
    lines = outcome.out.splitlines()
    assert outcome.status == 1
    assert lines[0] == "2 tensors depart: 3 tensors compared, 1 identical"
    assert lines[2] == "first departure: b, f32[2, 4], at depth 2"
    assert lines[4:6] == [f"  in {small}: Relu(a)  Relu(b)", f"  in {faulty}: Neg(a)  Neg(b)"]
    assert "relative errors by depth" in lines


def test_each_tensor_has_one_line(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    paths = []
    for op in ("Relu", "Neg"):
        proto = onnx.parser.parse_model(SMALL.replace("Relu(a)", f"{op}(a)"))
        for node in proto.graph.node:
            node.name = f"no\nde {node.op_type}"
            for names in (node.input, node.output):
                names[:] = [f"{name}\n\x1b[31m" if name in ("a", "b") else name for name in names]
        paths.append(tmp_path / f"{op}.onnx")
        onnx.save(proto, paths[-1])
    lines = invoke("compare", *paths, "--device", "cpu", "-v").out.splitlines()
    assert lines[2].startswith(r"first departure: b\n\x1b[31m, f32[")
    assert lines[4] == rf"  in {paths[0]}: Relu(a\n\x1b[31m)  no\nde Relu"
    assert [line.split()[1] for line in lines[-3:]] == [r"a\n\x1b[31m", r"b\n\x1b[31m", "y"]


def test_json(invoke: Invoke, small: Path, faulty: Path) -> None:
    result = json.loads(invoke("compare", small, faulty, "--json").out)
    assert (result["equal"], result["compared"], result["departed"]) == (False, 3, 2)
    first = result["first"]
    assert (first["name"], first["op_type"], first["op_type_in_b"], first["depth"]) == ("b", "Relu", "Neg", 2)
    assert result["sources"] == ["b"] and result["nonfinite"] == {"a": {}, "b": {}}
    assert [one["depths"] for one in result["histogram"]] == [[1, 1], [2, 2], [3, 3]]
    assert all(len(one["bins"]) == len(result["error_bins"]) + 1 for one in result["histogram"])
    assert [one["name"] for one in result["tensors"]] == ["a", "b", "y"]


def test_verbose_output_lists_all_tensors(invoke: Invoke, small: Path, faulty: Path) -> None:
    lines = invoke("compare", small, faulty, "-v").out.splitlines()
    assert [line.split()[:2] for line in lines[-3:]] == [
        ["identical", "a"],
        ["departs", "b"],
        ["departs", "y"],
    ]


def test_the_first_nan_and_infinity(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.onnx"
    onnx.save(onnx.parser.parse_model(SMALL.replace("Relu(a)", "Log(a)")), path)
    np.save(tmp_path / "x.npy", np.array([[-1.0, 0.0, 1.0, 2.0]], np.float32))
    outcome = invoke("compare", small, path, "--input", f"x:{tmp_path / 'x.npy'}")
    lines = outcome.out.splitlines()
    assert outcome.status == 1
    assert f"  first NaN in {path}: b of Log(b), 1 element" in lines
    assert f"  first infinity in {path}: b of Log(b), 1 element" in lines


def test_one_model_at_two_levels(invoke: Invoke, small: Path) -> None:
    outcome = invoke("compare", small, "--other-optimizations", "default", "--device", "cpu")
    assert outcome.status == 0 and outcome.out.startswith("no tensor departs: "), outcome
    assert "do not exist after onnxruntime's optimizations" in outcome.err


def test_bad_arguments(invoke: Invoke, small: Path, weights: Path) -> None:
    alone = invoke("compare", small)
    assert alone.status == 2 and "--other-device or --other-optimizations" in alone.err
    assert invoke("compare", small, "missing.onnx").status == 2
    other = invoke("compare", small, weights)
    assert other.status == 2 and "input 'x' of " in other.err and "--input-shape x:" in other.err
    for option in ("--rtol", "--atol"):
        assert invoke("compare", small, small, option, "-1").status == 2
        refused = invoke("compare", small, small, option, "nan")
        assert refused.status == 2 and "is not a number" in refused.err
    assert invoke("compare", small, small, "--input-shape", "z:1x4").status == 2
    assert invoke("compare", small, small, "--other-device", "tpu").status == 2


def test_a_page_with_the_tensors(invoke: Invoke, small: Path, faulty: Path, tmp_path: Path) -> None:
    path = tmp_path / "tensors.html"
    outcome = invoke("compare", small, faulty, "--html", path)
    assert outcome.status == 1 and f"wrote     {path}" in outcome.err
    page = parsed(path.read_bytes())
    assert page.data["sections"]["tensors"]["tensors"]["departed"] == [False, True, True]
    assert any(f"in {faulty}: Neg(a)" in one.text for one in page.all("p"))


def test_a_page_needs_its_suffix(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    outcome = invoke("compare", small, small, "--html", tmp_path / "page.svg")
    assert outcome.status == 2 and ".html" in outcome.err and not (tmp_path / "page.svg").exists()
