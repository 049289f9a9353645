"""The output of commands other than optimize and dump, as text and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from graphopt.passes.pipelines import registry
from tests.cli.conftest import Invoke

ROOT = Path(__file__).parents[2]

FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 17, "local" : 1],
 producer_name: "tests", metadata_props: ["author": "me"]>
main (float[N, 4] x, float s = {2.0}) => (float[N, 4] y) {
  a = local.twice(x)
  y = Mul(a, s)
}
<domain: "local", opset_import: ["" : 17]>
twice (v) => (w) {
  w = Add(v, v)
}
"""


def saved(path: Path, graph: str) -> Path:
    """The file of a model with this graph."""
    header = '<ir_version: 8, opset_import: ["" : 17, "nobody" : 1]> '
    onnx.save(onnx.parser.parse_model(header + graph), path)
    return path


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.onnx"
    onnx.save(onnx.parser.parse_model(FUNCTIONS), path)
    return path


# run --------------------------------------------------------------------------------------


def test_run_generates_inputs(invoke: Invoke, small: Path) -> None:
    outcome = invoke("run", small, "--input-shape", "x:3,4", "--seed", 7, "--json")
    result = json.loads(outcome.out)
    assert result["inputs"]["x"]["shape"] == [3, 4] and result["outputs"]["y"]["shape"] == [3, 4]
    again = json.loads(invoke("run", small, "--input-shape", "x:3,4", "--seed", 7, "--json").out)
    other = json.loads(invoke("run", small, "--input-shape", "x:3,4", "--seed", 8, "--json").out)
    assert again["inputs"] == result["inputs"] != other["inputs"]


def test_run_feeds_arrays_and_writes_outputs(invoke: Invoke, small: Path) -> None:
    x = np.array([[-1, 2, -3, 4]], np.float32)
    np.save("x.npy", x)
    np.savez("all.npz", x=x)
    for given in ("x:x.npy", "all.npz"):
        outcome = invoke("run", small, "--input", given, "-o", "out.npz", "--optimizations", "off")
        assert outcome.status == 0, outcome.err
        np.testing.assert_array_equal(np.load("out.npz")["y"], np.maximum(x, 0))
        lines = [line.split() for line in outcome.out.splitlines()]
        assert lines[1][:3] == ["input", "x", "f32[1,"] and lines[2][:3] == ["output", "y", "f32[1,"]


def test_outputs_with_any_name_are_written(invoke: Invoke, tmp_path: Path) -> None:
    path = saved(tmp_path / "strings.onnx", "g (string[N] x) => (string[N] file) { file = Identity(x) }")
    assert invoke("run", path, "-o", "out.npz").status == 0
    assert np.load("out.npz")["file"].dtype.kind == "U"


def test_run_reports_the_reason_of_a_failure(invoke: Invoke, tmp_path: Path) -> None:
    path = saved(tmp_path / "unknown.onnx", "g (float[2] x) => (float[2] y) { y = nobody.Op(x) }")
    outcome = invoke("run", path, "-q")
    assert outcome.status == 6 and "nobody" in outcome.err and "Traceback" not in outcome.err


# verify -----------------------------------------------------------------------------------


def changed(path: Path, op_type: str) -> Path:
    proto = onnx.load(path)
    proto.graph.node[1].op_type = op_type
    other = path.with_name(f"{op_type}.onnx")
    onnx.save(proto, other)
    return other


def test_verify(invoke: Invoke, small: Path) -> None:
    same = invoke("verify", small, small)
    assert same.status == 0 and "verified  bit-identical in" in same.out
    different = invoke("verify", small, changed(small, "Abs"))
    assert different.status == 1 and "output 'y'" in different.out and "differs" in different.out
    assert "graphopt:" not in different.err
    result = json.loads(invoke("verify", small, changed(small, "Abs"), "--json").out)
    assert result["equal"] is False and any(not row["ok"] for row in result["rows"])


def test_verify_exact_distinguishes_signed_zeros(invoke: Invoke, tmp_path: Path) -> None:
    paths = []
    for zero in ("0.0", "-0.0"):  # x + -0.0 keeps the sign of a zero, x + 0.0 does not
        graph = f"g (float[N] x) => (float[N] y) <float z = {{{zero}}}> {{ y = Add(x, z) }}"
        paths.append(saved(tmp_path / f"{zero}.onnx", graph))
    assert invoke("verify", *paths, "--input-shape", "x:64").status == 0
    assert invoke("verify", *paths, "--input-shape", "x:64", "--exact").status == 1


def test_verify_exact_demands_the_same_bits(invoke: Invoke, tmp_path: Path) -> None:
    head = "g (float[64] x) => (float[64] y) <float k = {0.1}, float r = {10.0}> "
    quotient = saved(tmp_path / "quotient.onnx", head + "{ y = Div(x, r) }")
    product = saved(tmp_path / "product.onnx", head + "{ y = Mul(x, k) }")
    assert invoke("verify", quotient, product).status == 0
    outcome = invoke("verify", quotient, product, "--exact")
    assert outcome.status == 1 and "not the same bits" in outcome.out
    assert invoke("verify", quotient, quotient, "--exact").status == 0


def test_verify_fails_if_no_model_runs(invoke: Invoke, tmp_path: Path) -> None:
    path = saved(tmp_path / "unknown.onnx", "g (float[2] x) => (float[2] y) { y = nobody.Op(x) }")
    outcome = invoke("verify", path, path)
    assert outcome.status == 1 and "not verified" in outcome.out
    assert json.loads(invoke("verify", path, path, "--json").out)["equal"] is False


def test_verify_reports_skipped_comparisons(invoke: Invoke, small: Path) -> None:
    outcome = invoke("verify", small, small, "-v", "--set", "verify-seconds=0")
    assert "skipped for time (-v)" in outcome.out
    assert "  skipped: large inputs at N=" in outcome.out
    assert "onnxruntime, CPU" in outcome.out and "peak +" in outcome.out


def test_verify_compares_interfaces(invoke: Invoke, small: Path) -> None:
    proto = onnx.load(small)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    fixed = small.with_name("fixed.onnx")
    onnx.save(proto, fixed)
    outcome = invoke("verify", small, fixed)
    failed = [line for line in outcome.out.splitlines() if line.startswith("  differs  N=")]
    assert failed and all("–" in line and "0.0e+00" not in line for line in failed)
    assert "hint: --dim N=" in outcome.err
    assert outcome.status == 1 and "was dynamic (N), now fixed to 2" in outcome.out
    assert invoke("verify", small, fixed, "--no-signature", "--input-shape", "x:2,4").status == 0


# inspect ----------------------------------------------------------------------------------


def test_inspect(invoke: Invoke, functions: Path) -> None:
    out = invoke("inspect", functions).out
    for words in (
        "opsets ai.onnx 17, local 1 (IR version 9)",
        "producer tests",
        "nodes 2",
        "dynamic dims N",
        "metadata author me",
        "input x f32[N, 4]",
        "input s f32[] overridable",
        "output y f32[N, 4]",
        "local::twice 1 1",
        "Mul 1",
    ):
        assert any(line.split() == words.split() for line in out.splitlines()), words
    result = json.loads(invoke("inspect", functions, "--json").out)
    assert result["ops"] == {"Mul": 1, "local::twice": 1}
    assert result["function_names"] == ["local::twice"] and result["function_nodes"] == 1


def test_inspect_lists_weights_when_verbose(invoke: Invoke, weights: Path) -> None:
    assert "largest weights" not in invoke("inspect", weights).out
    out = invoke("inspect", weights, "-v").out
    assert out.splitlines()[-1] == "  estimated FLOPs: 128*N"
    assert any(line.split() == ["w", "f32[8,", "8]", "256", "B"] for line in out.splitlines())


# passes and pipelines -----------------------------------------------------------------------


def test_passes(invoke: Invoke) -> None:
    listed = invoke("passes").out
    assert all(name in listed for name in ("dce", "peephole", "fuse-groups", "infer-shapes"))
    assert listed.index("-O3 also") < listed.index("fuse-builtin") < listed.index("by option or by name")
    assert all(f"  {name} " in listed for name in registry().passes)
    one = invoke("passes", "constant-propagation").out
    assert one.splitlines()[0] == "constant-propagation" and "limit" in one
    assert "drop-identity" in invoke("passes", "peephole").out
    assert "drop-identity" in invoke("passes", "identities").out
    rule = json.loads(invoke("passes", "drop-identity", "--json").out)
    assert rule[0]["family"] == "identities" and rule[0]["numerics"] == "exact"
    names = [entry["name"] for entry in json.loads(invoke("passes", "--json").out)["passes"]]
    assert names == sorted(names) and "cse" in names


def test_pipelines(invoke: Invoke) -> None:
    assert all(name in invoke("pipelines").out for name in ("O0", "O1", "O2", "noopt"))
    assert "fixpoint" in invoke("pipelines", "show", "O2").out
    assert invoke("pipelines", "show", "O2").out == invoke("pipelines", "O2").out
    text = "dce,fixpoint(cse,constant-propagation{limit=1024})"
    assert json.loads(invoke("pipelines", "show", text, "--json").out)["text"] == text
    assert "(nothing)" in invoke("pipelines", "show", "O0").out


@pytest.mark.parametrize(
    "arguments",
    [["passes"], ["pipelines"], ["pipelines", "show", "O2"], ["passes", "dce"], ["passes", "drop-identity"]],
    ids=" ".join,
)
def test_json_is_one_object(invoke: Invoke, arguments: list[str]) -> None:
    json.loads(invoke(*arguments, "--json").out)


def test_names_that_the_locale_lacks(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mödel"
    folder.mkdir()
    source = small.rename(folder / "модель.onnx")
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "graphopt", "optimize", source, "-o", folder / "выход.onnx"]
    done = subprocess.run(
        [*command, "--report", folder / "отчёт.json"], env=environ, capture_output=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0 and b"verified  bit-identical" in done.stdout, done.stderr
    assert json.loads((folder / "отчёт.json").read_text("utf-8"))["verification"]["equal"]
    assert (folder / "выход.onnx").is_file()


@pytest.mark.parametrize(("utf8", "status"), [("1", 0), ("0", 3)])
def test_external_data_with_a_name_outside_the_locale(
    utf8: str, status: int, small: Path, tmp_path: Path
) -> None:
    model = onnx.load(small)
    weight = onnx.numpy_helper.from_array(np.ones((4,), np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "модель.onnx", save_as_external_data=True, location="веса", size_threshold=0)
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": utf8}
    command = [sys.executable, "-m", "graphopt", "inspect", os.fsencode(tmp_path / "модель.onnx")]
    done = subprocess.run(command, env=environ, capture_output=True, check=False, cwd=ROOT)
    assert done.returncode == status, done.stderr
    assert (b"PYTHONUTF8=1 names files in UTF-8" in done.stderr) == bool(status)


@pytest.mark.parametrize("written", [False, True])
def test_interruption_reports_written_files(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    from graphopt.cli.views import optimization

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    if written:
        monkeypatch.setattr(optimization, "text", interrupt)
    else:
        monkeypatch.setattr("graphopt.optimization_attempt.Attempt.on", interrupt)
    outcome = invoke("optimize", small, "-o", "out.onnx")
    assert outcome.status == 130
    message = "interrupted; wrote out.onnx" if written else "interrupted; nothing was written"
    assert outcome.err.strip().splitlines()[-1] == f"graphopt: {message}"
    assert Path("out.onnx").exists() == written
