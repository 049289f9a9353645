"""graphopt optimize: written files, report, and options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Invoke, with_large_weight


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_report(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    outcome = invoke("optimize", small, "-o", target)
    assert outcome.status == 0 and outcome.err == ""
    assert ops(target) == ["Relu"]
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["original", "optimized"]
    assert lines[1].split() == ["nodes", "3", "1", "−67", "%"]
    assert any(line.split()[:4] == ["Identity", "1", "0", "−1"] and "drop-identity" in line for line in lines)
    assert "  kept      1 input, 1 output, dynamic N" in lines
    assert any(line.startswith("  verified  bit-identical in") for line in lines)
    assert lines[-1].startswith(f"  wrote     {target}")
    assert "\x1b" not in outcome.out


def test_json_has_the_same_facts(invoke: Invoke, small: Path) -> None:
    target, report = small.parent / "out.onnx", small.parent / "report.json"
    outcome = invoke("optimize", small, "-o", target, "--json", "--report", report)
    result = json.loads(outcome.out)
    assert result == json.loads(report.read_text())
    assert (result["original"]["nodes"], result["optimized"]["nodes"]) == (3, 1)
    assert result["original"]["file_bytes"] == small.stat().st_size
    assert result["optimized"]["file_bytes"] == target.stat().st_size
    assert result["ops"]["Identity"] == [1, 0]
    assert result["rewrites"]["drop-identity"] == 1
    assert result["interface"]["inputs"][0]["dims"] == ["N", 4]
    assert result["verification"]["equal"] is True
    assert {"load", "optimize", "verify", "save", "all"} <= set(result["seconds"])
    assert result["passes"][0]["name"] and isinstance(result["passes"][0]["changes"], dict)


def test_quiet_and_verbose(invoke: Invoke, small: Path, weights: Path) -> None:
    target = small.parent / "out.onnx"
    quiet = invoke("optimize", small, "-o", target, "-q")
    assert (quiet.out, quiet.err) == ("", "")
    verbose = invoke("optimize", small, "-o", target, "-vv")
    assert any("peephole" in line and "drop-identity ×1" in line for line in verbose.out.splitlines())
    alone = invoke("optimize", weights, "-o", target, "-vv", "--passes", "peephole").out
    assert "left alone 1 × drop-transpose: it moves axes" in alone


def test_several_models(invoke: Invoke, small: Path, weights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "new"
    outcome = invoke("optimize", small, weights, "-o", folder)
    assert outcome.status == 0
    assert sorted(path.name for path in folder.iterdir()) == ["small.onnx", "weights.onnx"]
    lines = outcome.out.splitlines()
    assert lines[0].startswith("  small.onnx    3 → 1 nodes  verified")
    assert lines[-1] == "  2 models optimized"


def test_one_of_several_models_fails(invoke: Invoke, small: Path, weights: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    outcome = invoke("optimize", bad, small, tmp_path / "none.onnx", weights, "-o", tmp_path / "out")
    assert outcome.status == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["small.onnx", "weights.onnx"]
    assert [line for line in outcome.err.splitlines() if line.startswith("graphopt: ")] == [
        f"graphopt: {bad} is not an ONNX model, but a text file",
        f"graphopt: no such file: {tmp_path / 'none.onnx'}",
    ]
    assert outcome.out.splitlines()[-1] == "  2 models optimized, 2 failed"
    result = json.loads(invoke("optimize", bad, small, "-o", tmp_path / "out", "--json").out)
    assert result["status"] == 3 and [model.get("error", {}).get("status") for model in result["models"]] == [
        3,
        None,
    ]


def test_a_folder_for_one_model(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    assert invoke("optimize", small, "-o", f"{tmp_path}/new/").status == 0
    assert ops(tmp_path / "new" / "small.onnx") == ["Relu"]


def test_the_result_may_replace_the_input(invoke: Invoke, small: Path, weights: Path) -> None:
    for path in (small, weights):
        assert invoke("optimize", path, "-o", path).status == 0
    assert ops(small) == ["Relu"]
    assert invoke("verify", weights, weights).status == 0


def test_presets_pipelines_passes(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"

    def result(*arguments: str, environ: dict[str, str] | None = None) -> list[str]:
        outcome = invoke("optimize", small, "-o", target, "--no-verify", *arguments, environ=environ)
        assert outcome.status == 0, outcome.err
        return ops(target)

    original = ["Identity", "Relu", "Add"]
    assert result("-O0") == original
    assert result("-O1") == ["Relu"]
    assert result("--passes", "dce,cse") == original
    assert result("--pipeline", "peephole{families=identities}") == ["Relu", "Add"]
    assert result("--pipeline", "peephole,dce", "--skip", "drop-identity") == ["Identity", "Relu"]
    assert result("--pipeline", "peephole,dce", "--only", "drop-identity") == ["Relu", "Add"]
    assert result("--skip", "peephole,cse", "--skip", "dce", "--passes", "peephole") == original
    assert result(environ={"GRAPHOPT_PIPELINE": "O0"}) == original
    assert result("-O2", environ={"GRAPHOPT_PIPELINE": "O0"}) == ["Relu"]
    assert result("--set", "pipeline=O0") == original
    Path("graphopt.toml").write_text('pipeline = "O0"\n')
    assert result() == original


def test_families_of_rules_may_be_named(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    for arguments, left in (
        (["--skip", "identities"], ["Identity", "Relu"]),
        (["--only", "identities"], ["Relu", "Add"]),
    ):
        assert invoke("optimize", small, "-o", target, "--passes", "peephole", *arguments).status == 0
        assert ops(target) == left


def test_skipped_passes_are_reported(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    outcome = invoke(
        "optimize", small, "-o", target, "--passes", "remove-expands", "--skip", "remove-expands"
    )
    assert "skipped: remove-expands" in outcome.out


def test_stop_after(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    outcome = invoke("optimize", small, "-o", target, "--passes", "peephole", "--stop-after", 1)
    assert "stopped before rewrite 2: " in outcome.out
    assert len(ops(target)) == 2
    assert invoke("optimize", small, "-o", target, "--stop-after", 0).status == 0
    assert len(ops(target)) == 3


def test_fold_limit(invoke: Invoke, weights: Path) -> None:
    target = weights.parent / "out.onnx"
    for limit, folded in (("0", False), ("1KiB", True)):
        arguments = ["--passes", "constant-propagation,dce", "--fold-limit", limit]
        # the transposed weight is no larger than the nodes it replaces, unless the weight has other readers
        proto = onnx.load(weights)
        if len(proto.graph.output) == 1:
            proto.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 8]))
            onnx.save(proto, weights)
        assert invoke("optimize", weights, "-o", target, *arguments).status == 0
        assert ("Transpose" not in ops(target)) is folded


def test_external_data(invoke: Invoke, weights: Path) -> None:
    proto = onnx.load(weights)
    proto.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(proto.graph.initializer[0]).repeat(8, 1), "w")
    )
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 64
    onnx.save(proto, weights)
    target = weights.parent / "out.onnx"
    assert invoke("optimize", weights, "-o", target, "--external-data").status == 0
    assert sorted(path.name for path in weights.parent.glob("out*")) == ["out.onnx", "out.onnx.data"]
    again = weights.parent / "again.onnx"
    assert invoke("optimize", target, "-o", again, "--no-external-data").status == 0
    assert not (weights.parent / "again.onnx.data").exists()
    assert invoke("verify", weights, again).status == 0


def _with_data(weights: Path) -> Path:
    """The model at ``weights`` with a larger weight in ``weights.data``."""
    model = with_large_weight(weights)
    onnx.save(model, weights, save_as_external_data=True, location="weights.data")
    return weights


@pytest.mark.parametrize(
    ("options", "files", "remark"),
    [
        ([], [], True),
        (["--weights", "keep"], [], True),
        (["--weights", "copy"], [".data"], False),
        (["--weights", "beside"], [".data"], False),
        (["--weights", "inside"], [], False),
        (["--no-external-data"], [], False),
    ],
)
def test_place_of_the_weights(
    invoke: Invoke, weights: Path, options: list[str], files: list[str], remark: bool
) -> None:
    source, target = _with_data(weights), weights.with_name("out.onnx")
    outcome = invoke("optimize", source, "-o", target, *options)
    assert outcome.status == 0 and sorted(weights.parent.glob("out*")) == [
        target, *(Path(f"{target}{suffix}") for suffix in files)
    ]  # fmt: skip
    assert ("3.20 kB of weights stay in weights.data, which out.onnx needs; wrote " in outcome.out) is remark
    assert invoke("verify", source, target).status == 0
    source.unlink()
    (weights.parent / "weights.data").unlink()
    found = invoke("inspect", target)
    assert (found.status == 0) is not remark
    assert ("hint: put weights.data there; models that --weights copy wrote" in found.err) is remark


def test_weights_of_another_folder_are_not_kept(invoke: Invoke, weights: Path) -> None:
    source, target = _with_data(weights), weights.parent / "sub" / "out.onnx"
    target.parent.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphopt.compiler.Compiler.optimize", None)  # it fails before the passes
        outcome = invoke("optimize", source, "-o", target, "--weights", "keep")
    assert outcome.status == 2 and not list(target.parent.iterdir())
    assert f"hint: write into {weights.parent}, or --weights copy" in " ".join(outcome.err.split())
    assert invoke("optimize", source, "-o", target).status == 0
    assert sorted(path.name for path in target.parent.iterdir()) == ["out.onnx", "out.onnx.data"]
    assert invoke("optimize", source, "--weights", "near").status == 2


def test_weights_are_not_kept_by_a_model_on_standard_output(invoke: Invoke, weights: Path) -> None:
    refused = invoke("optimize", _with_data(weights), "-o", "-", "--weights", "keep")
    assert refused.status == 2 and not refused.out
    assert "a model on standard output can't keep its weights in data files" in refused.err


def test_a_model_on_standard_output_has_no_data_file(invoke: Invoke, weights: Path) -> None:
    refused = invoke("optimize", weights, "-o", "-", "--weights", "beside")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("graphopt: a model on standard output can't have a data file")
    assert len(refused.err.splitlines()) == 2


@pytest.mark.parametrize("command", [("convert",), ("reduce",), ("lift-parameters",)])
def test_weights_that_cannot_be_kept_are_refused_before_any_work(
    invoke: Invoke, weights: Path, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphopt import ir

    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "o.onnx"
    output = [target] if command == ("convert",) else ["-o", target]
    monkeypatch.setattr(ir, "save", None)
    monkeypatch.setattr(ir, "saving", None)
    refused = invoke(*command, _with_data(weights), *output, "--weights", "keep")
    assert refused.status == 2 and f"can't write {target} and keep its weights in" in refused.err


@pytest.mark.parametrize("former", ["--external-data", "--no-external-data"])
def test_weights_exclude_their_former_options(invoke: Invoke, weights: Path, former: str) -> None:
    source, target = _with_data(weights), weights.with_name("out.onnx")
    for options in (["--weights", "keep", former], [former, "--weights", "keep"]):
        outcome = invoke("optimize", source, "-o", target, *options)
        assert outcome.status == 2 and f"--weights and {former} exclude each other" in outcome.err
        assert not target.exists()
    assert invoke("convert", weights, target, former).status == 0
    assert Path(f"{target}.data").exists() is (former == "--external-data")


def test_external_data_may_be_replaced_in_place(invoke: Invoke, weights: Path) -> None:
    original = weights.with_name("original.onnx")
    onnx.save(onnx.load(weights), original)
    onnx.save(
        onnx.load(weights),
        weights,
        save_as_external_data=True,
        location="weights.onnx.data",
        size_threshold=0,
    )
    assert invoke("optimize", weights, "-o", weights, "--external-data").status == 0
    assert invoke("verify", original, weights).status == 0
    assert not list(weights.parent.glob("*.tmp"))


def test_given_inputs(invoke: Invoke, small: Path) -> None:

    target = small.parent / "out.onnx"
    np.save("x.npy", np.ones((3, 4), np.float32))
    outcome = invoke("optimize", small, "-o", target, "--input", "x:x.npy", "--json")
    assert {row["binding"] for row in json.loads(outcome.out)["verification"]["rows"]} == {"N=3"}
    assert invoke("optimize", small, "-o", target, "--input-shape", "x:5,4", "--seed", 3).status == 0
    outcome = invoke("optimize", small, "-o", target, "--input-shape", "x:5,5")
    assert outcome.status == 2 and "[N, 4]" in outcome.err


def test_given_inputs_must_run(invoke: Invoke, tmp_path: Path) -> None:
    """A result that was not compared on the given inputs is not written."""
    path, target = tmp_path / "reshape.onnx", tmp_path / "out.onnx"
    graph = "g (float[N] x) => (float[A, B] y) <int64[2] s = {-1, 2}> { y = Reshape(x, s) }"
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + graph), path)
    outcome = invoke("optimize", path, "-o", target, "--input-shape", "x:3")
    assert outcome.status == 6 and not target.exists() and outcome.out == ""
    first, hint = outcome.err.splitlines()
    assert "with the inputs given, the original does not run" in first and "--input-shape" in hint
    assert invoke("verify", path, path, "--input-shape", "x:3").status == 1
    assert invoke("optimize", path, "-o", target, "--input-shape", "x:4").status == 0


def test_text_of_shapes_and_passes(invoke: Invoke, small: Path) -> None:
    several = ("--input-shape", "x:1x4,2x4")
    for command in (("optimize", small, "-o", "o.onnx"), ("run", small), ("verify", small, small)):
        outcome = invoke(*command, *several)
        assert outcome.status == 2 and "gives several shapes" in outcome.err and "--tune" in outcome.err
    outcome = invoke("run", small, "--input-shape", "x:1,4", "--input-shape", "x:2,4")
    assert outcome.status == 2 and "has several shapes" in outcome.err
    for text in ("", " , "):
        outcome = invoke("optimize", small, "-o", "o.onnx", "--passes", text)
        assert outcome.status == 2 and "--passes names nothing" in outcome.err
        assert invoke("optimize", small, "-o", "o.onnx", "--only", text).status == 2
    outcome = invoke("optimize", small, "-o", "o.onnx", "--pipeline", "dce cse")
    assert outcome.status == 2 and "a comma is expected at column 5" in outcome.err
    assert not Path("o.onnx").exists()


def test_hint_does_not_repeat_a_given_option(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "reshape.onnx"
    graph = "g (float[N] x) => (float[A, B] y) <int64[2] s = {-1, 2}> { y = Reshape(x, s) }"
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + graph), path)
    outcome = invoke("run", path, "--input-shape", "x:3")
    assert outcome.status == 6 and "hint: change the values of --input-shape and --input" in outcome.err


def test_incomparable_outputs_are_reported(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown.onnx"
    head = '<ir_version: 8, opset_import: ["" : 17, "nobody" : 1]> '
    onnx.save(onnx.parser.parse_model(head + "g (float[2] x) => (float[2] y) { y = nobody.Op(x) }"), path)
    outcome = invoke("optimize", path, "-o", tmp_path / "out.onnx", "-q")
    assert outcome.status == 0 and (tmp_path / "out.onnx").exists()
    assert outcome.err.startswith("graphopt: warning: not verified: the original does not run")
    outcome = invoke("optimize", path, small, "-o", tmp_path / "folder")
    assert "nodes  not verified: the original does not run" in outcome.out.splitlines()[0]
    assert outcome.err.startswith(f"graphopt: warning: {path}: not verified: ")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("Transpos <perm = [1, 0]> (x)", "ai.onnx 17 has no operator Transpos; nearest: Transpose"),
        ("Transpose <prm = [1, 0]> (x)", "Transpose has no attribute prm in ai.onnx 17; nearest: perm"),
        ("Gelu (x)", "Gelu needs ai.onnx 20, and the model imports 17"),
        ("Transpose (x, x)", "has 2 inputs, a number that Transpose does not support"),
    ],
)
def test_results_that_require_verification(invoke: Invoke, tmp_path: Path, node: str, words: str) -> None:
    path, target = tmp_path / "typo.onnx", tmp_path / "out.onnx"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2, 2] x) => (float[2, 2] y) {{ y = {node} }}'
    onnx.save(onnx.parser.parse_model(text), path)
    for environ, option in (({}, ["--require-verified"]), ({"GRAPHOPT_REQUIRE_VERIFIED": "1"}, [])):
        outcome = invoke("optimize", path, "-o", target, *option, environ=environ)
        assert outcome.status == 6 and not target.exists() and outcome.out == ""
        assert "not verified: the original does not run" in outcome.err and words in outcome.err
    assert invoke("optimize", path, "-o", target, "--require-verified", "--no-verify").status == 2
    outcome = invoke("optimize", path, "-o", target)
    assert outcome.status == 0 and words in outcome.err
    assert "  not verified: the original does not run" in outcome.out.splitlines()


@pytest.mark.parametrize("name", ["RemoveIdentities", "Copy"])
def test_passes_of_onnx_ir(invoke: Invoke, small: Path, name: str) -> None:
    target = small.parent / "out.onnx"
    outcome = invoke("optimize", small, "-o", target, "--pre-pass", f"tests.cli.broken_passes:{name}")
    assert outcome.status == 0, outcome.err
    assert ops(target) == ["Relu"]
    outcome = invoke(
        "optimize",
        small,
        "-o",
        target,
        "--passes",
        f"onnx-ir{{path=tests.cli.broken_passes:{name}}},peephole,dce",
    )
    assert outcome.status == 0 and ops(target) == ["Relu"]


def test_passes_at_both_ends(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    outcome = invoke(
        "optimize",
        small,
        "-o",
        target,
        "--pre-pass",
        "dce",
        "--passes",
        "cse",
        "--post-pass",
        "peephole",
        "--json",
    )
    assert [record["name"] for record in json.loads(outcome.out)["passes"]] == ["dce", "cse", "peephole"]


def test_dump_dir_and_log(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    outcome = invoke("optimize", small, "-o", target, "--dump-dir", "stages", "--log", ">>drop-identity:dce")
    assert outcome.status == 0
    stages = sorted(Path("stages").iterdir())
    assert stages and all(path.suffix == ".onnx" and "-after-" in path.name for path in stages)
    assert invoke("inspect", stages[0]).status == 0
    assert "[UPDATE identities.py:" in outcome.err and "[DUMP dce.py:" in outcome.err


def test_sizes_of_different_forms_are_not_compared(invoke: Invoke, weights: Path) -> None:
    assert invoke("convert", weights, "w.json", "--threshold", 1).status == 0
    out = invoke("optimize", "w.json", "-o", "o.onnx", "--no-verify").out
    row = next(line for line in out.splitlines() if line.startswith("  file "))
    assert "%" not in row and row.endswith("other form")
    both = Path("w.json").stat().st_size + Path("w.json.bin").stat().st_size
    told = json.loads(invoke("optimize", "w.json", "-o", "o.json", "--no-verify", "--json").out)
    assert told["original"]["file_bytes"] == both
    assert "w.json.bin" in invoke("inspect", "w.json").out


def test_all_node_counts_of_a_report_agree(invoke: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "constants.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4] x) => (float[N, 4] y) {
      one = Constant <value = float {1.0}> ()
      a = Exp (x)
      y = Add (a, one)
    }"""
    onnx.save(onnx.parser.parse_model(text), source)
    out = invoke("optimize", source, "-o", "o.onnx", "--passes", "dce", "-v", "--no-verify").out
    summary, of_pass = (
        next(line.split() for line in out.splitlines() if line.split()[: len(start)] == start)
        for start in (["nodes"], ["1", "dce"])
    )
    assert summary[1:3] == ["2", "2"] and of_pass[4] == "2"


def test_verify_each_accepts_correct_passes(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    assert invoke("optimize", small, "-o", target, "--validate-each", "--verify-each").status == 0


def test_runs_are_deterministic(invoke: Invoke, small: Path, weights: Path) -> None:
    for path in (small, weights):
        first, second = path.parent / "1.onnx", path.parent / "2.onnx"
        invoke("optimize", path, "-o", first)
        invoke("optimize", path, "-o", second)
        assert first.read_bytes() == second.read_bytes()


def test_buffers_that_are_shared(invoke: Invoke, small: Path) -> None:
    target = small.parent / "out.onnx"
    names = [onnx.load(small).graph.input[0].name, onnx.load(small).graph.output[0].name]
    outcome = invoke("optimize", small, "-o", target, "--share-buffers", "=".join(names))
    assert outcome.status == 0 and target.exists()
    outcome = invoke("optimize", small, "-o", target, "--share-buffers", f"{names[0]}=nowhere")
    assert outcome.status == 2 and "no output is called 'nowhere'" in outcome.err
