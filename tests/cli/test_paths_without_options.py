"""Commands without options: one path, two or more paths, folders, standard streams, no model."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import graphopt
from graphopt.cli.files import sample_model
from samples.zoo.transformer import transformer
from tests.cli.conftest import Invoke, with_large_weight

ROOT = Path(__file__).parents[2]
MARK = "graphopt:written-by"


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def mark_of(path: Path) -> str | None:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}.get(MARK)


def copies(small: Path, *names: str) -> list[Path]:
    paths = [small.parent / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(small.read_bytes())
    return paths


# The result without -o ----------------------------------------------------------------------


def test_result_is_written_beside_the_model(invoke: Invoke, small: Path) -> None:
    outcome = invoke("optimize", small)
    target = small.with_name("small.opt.onnx")
    assert outcome.status == 0
    assert outcome.err.splitlines()[0].split() == [str(small), "→", str(target)]
    assert outcome.out.splitlines()[-1].split()[:2] == ["wrote", str(target)]
    assert operators(target) == ["Relu"] and operators(small) == ["Identity", "Relu", "Add"]


def test_a_result_of_graphopt_is_replaced_and_no_other_file(invoke: Invoke, small: Path) -> None:
    target = small.with_name("small.opt.onnx")
    assert invoke("optimize", small, "-O0", "--no-verify").status == 0
    assert mark_of(target) == "graphopt optimize" and len(operators(target)) == 3
    assert invoke("optimize", small, "--no-verify").status == 0 and operators(target) == ["Relu"]
    foreign = small.read_bytes()
    for content in (foreign, b"a letter"):
        target.write_bytes(content)
        outcome = invoke("optimize", small)
        assert outcome.status == 2 and f"{target} exists, without the mark of a result" in outcome.err
        assert "--force" in outcome.err and target.read_bytes() == content
    assert invoke("optimize", small, "--force", "--no-verify").status == 0 and operators(target) == ["Relu"]


def test_a_named_result_carries_no_mark_and_replaces_anything(invoke: Invoke, small: Path) -> None:
    target = small.with_name("out.onnx")
    target.write_bytes(b"a letter")
    assert invoke("optimize", small, "-o", target, "--no-verify").status == 0
    assert mark_of(target) is None


def test_a_saved_model_is_not_replaced(invoke: Invoke, small: Path) -> None:
    target = small.with_name("small.opt.onnx")
    graphopt.save(small, target)
    outcome = invoke("optimize", small)
    assert outcome.status == 2 and "without the mark" in outcome.err and "did not" not in outcome.err


def test_the_form_stays_that_of_the_model(invoke: Invoke, small: Path) -> None:
    text = small.with_suffix(".onnxtxt")
    assert invoke("convert", small, text).status == 0
    assert invoke("optimize", text, "--no-verify").status == 0
    assert "Identity" not in small.with_name("small.opt.onnxtxt").read_text()
    nameless = small.rename(small.with_name("weights"))
    assert invoke("optimize", nameless, "--no-verify").status == 0
    assert operators(small.with_name("weights.opt.onnx")) == ["Relu"]


def test_a_dry_run_writes_nothing(invoke: Invoke, small: Path) -> None:
    before = sorted(small.parent.iterdir())
    for arguments in (["optimize", "--dry-run", small], [small], [small, "new.onnx"]):
        outcome = invoke(*arguments)
        assert outcome.status == 0 and "verified" in outcome.out and "nodes" in outcome.out
        name = "new.onnx" if "new.onnx" in arguments else small.with_name("small.opt.onnx")
        command = f"graphopt optimize {' '.join(map(str, arguments[arguments.index(small) :]))}"
        assert outcome.out.splitlines()[-1] == f"  no model written; this writes {name}: {command}"
    assert sorted(small.parent.iterdir()) == before
    told = json.loads(invoke(small, "--json", "--no-verify").out)
    assert told["target"] is None and told["optimized"]["nodes"] == 1


def test_a_model_by_itself_with_an_output_is_written(invoke: Invoke, small: Path) -> None:
    target = small.with_name("out.onnx")
    assert invoke(small, "-o", target, "--no-verify").status == 0
    assert operators(target) == ["Relu"]


# Two paths ------------------------------------------------------------------------------------


def test_the_second_of_two_paths_is_the_result(invoke: Invoke, small: Path) -> None:
    target = small.with_name("new.onnx")
    assert invoke("optimize", small, target, "-O0", "--no-verify").status == 0
    assert invoke("optimize", small, target, "--no-verify").status == 0  # the result of the previous run
    assert operators(target) == ["Relu"]


def test_two_models_are_not_a_model_and_its_result(invoke: Invoke, small: Path) -> None:
    (other,) = copies(small, "other.onnx")
    outcome = invoke("optimize", small, other)
    assert outcome.status == 2 and f"two models: did you mean -o {other}?" in outcome.err
    other.write_bytes(b"a letter")
    outcome = invoke("optimize", small, other)
    assert outcome.status == 2 and f"{other} exists, and is not a model" in outcome.err
    assert other.read_bytes() == b"a letter"
    assert invoke("optimize", small, other, "--force", "--no-verify").status == 0 and operators(other) == [
        "Relu"
    ]


def test_missing_model_is_reported_and_its_target_unchanged(invoke: Invoke, small: Path) -> None:
    before = small.read_bytes()
    outcome = invoke("optimize", "nosuch.onnx", small)
    assert outcome.status == 2 and "no such file: nosuch.onnx" in outcome.err
    assert small.read_bytes() == before


def test_results_of_two_models_do_not_replace_one_another(invoke: Invoke, small: Path) -> None:
    one, other = copies(small, "a.onnx", "b.onnx")
    assert (
        invoke("optimize", one, "--no-verify").status == invoke("optimize", other, "--no-verify").status == 0
    )
    results = [path.with_suffix(".opt.onnx") for path in (one, other)]
    assert invoke("optimize", *results, "--no-verify").status == 2


# Several models ---------------------------------------------------------------------------------


def test_each_of_several_models_has_a_result(invoke: Invoke, small: Path) -> None:
    models = copies(small, "a.onnx", "b.onnx", "c.onnx")
    first = invoke("optimize", *models, "--no-verify")
    assert first.status == 0 and "a.onnx → a.opt.onnx  3 → 1 nodes" in first.out
    again = invoke("optimize", *sorted(small.parent.glob("?.*onnx")), "--no-verify")  # as the shell expands *
    assert again.status == 0 and "skipped" in again.err and "b.opt.onnx" in again.err
    assert sorted(path.name for path in small.parent.glob("?.*onnx")) == sorted(
        name for path in models for name in (path.name, path.stem + ".opt.onnx")
    )


def test_folder_is_expanded_to_its_models(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    copies(small, "models/a.onnx", "models/b.onnx")
    assert invoke("optimize", folder, "-o", tmp_path / "results", "--no-verify").status == 0
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["a.onnx", "b.onnx"]
    assert invoke("optimize", folder, "--no-verify").status == 0
    assert operators(folder / "a.opt.onnx") == ["Relu"]
    (folder / "b.onnx").unlink()
    single = tmp_path / "single.onnx"
    assert invoke("optimize", folder, "-o", single, "--no-verify").status == 0
    assert operators(single) == ["Relu"]


def test_folders_without_models(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    outcome = invoke("optimize", empty, "-o", tmp_path / "d")
    assert outcome.status == 2 and f"no .onnx file in the folder {empty}" in outcome.err
    (empty / "onnx").mkdir()
    copies(small, "empty/onnx/deeper.onnx")
    assert "onnx/deeper.onnx" in invoke("optimize", empty).err
    assert not (tmp_path / "d").exists()


# Standard streams -------------------------------------------------------------------------------


def test_a_model_from_standard_input(
    invoke: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed() -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(small.read_bytes())))

    feed()
    assert invoke("optimize", "-", "-o", tmp_path / "out.onnx", "--no-verify").status == 0
    assert operators(tmp_path / "out.onnx") == ["Relu"]
    feed()
    outcome = invoke("optimize", "-")
    assert outcome.status == 2 and "-o OUT.onnx" in outcome.err
    feed()
    assert (
        json.loads(invoke("optimize", "-", "--dry-run", "--json", "--no-verify").out)["source"]
        == "standard input"
    )
    feed()
    assert "Relu" in invoke("dump", "-").out
    feed()
    folder = tmp_path / "kept"
    assert (
        invoke("optimize", "-", "-o", tmp_path / "out.onnx", "--save-repro", folder, "--no-verify").status
        == 0
    )
    assert invoke("replay", folder).status == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a letter")))
    outcome = invoke("inspect", "-")
    assert outcome.status == 3 and outcome.err.startswith("graphopt: standard input is not")


def test_a_model_from_standard_input_has_no_data_files(
    invoke: Invoke, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(with_large_weight(weights), weights, save_as_external_data=True, location="w.data")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(weights.read_bytes())))
    refused = invoke("optimize", "-", "-o", tmp_path / "out.onnx")
    assert refused.status == 2 and "a model from standard input can't have external data" in refused.err
    assert not (tmp_path / "out.onnx").exists()


def test_a_model_to_standard_output(small: Path) -> None:
    code = "from graphopt.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "optimize", "-", "-o", "-", "--no-verify"],
        input=small.read_bytes(),
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    assert [node.op_type for node in onnx.load_from_string(done.stdout).graph.node] == ["Relu"]
    assert b"nodes" in done.stderr and b"standard output" in done.stderr.splitlines()[-1]


def test_model_is_not_written_to_a_terminal(
    invoke: Invoke, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphopt.cli.output.console.sys.stdout.isatty", lambda: True, raising=False)
    outcome = invoke("optimize", small, "-o", "-")
    assert outcome.status == 2 and "standard output is a terminal" in outcome.err


# No model ---------------------------------------------------------------------------------------


def test_the_sample_is_that_of_the_samples_folder() -> None:
    proto = transformer()
    assert sample_model.PATH.read_bytes() == proto.SerializeToString(deterministic=True), (
        "python samples/models.py --out FOLDER transformer"
    )
    assert sum(node.op_type != "Constant" for node in proto.graph.node) == sample_model.NODES
    assert sample_model.PATH.stat().st_size < 200_000
    assert sample_model.PATH.is_relative_to(ROOT / "graphopt")  # flit puts all of the package into the wheel


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize", "--no-verify", "-O1"],
        ["inspect"],
        ["dump", "--pass-by-pass", "--passes", "dce", "--diff"],
        ["explain", "--pattern", "layer-norm"],
        ["run"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_model_means_the_sample(invoke: Invoke, arguments: list[str]) -> None:
    outcome = invoke(*arguments)
    assert outcome.status == 0, outcome.err
    assert outcome.err.splitlines()[0].strip() == sample_model.NOTE
    assert "no model given" not in invoke(*arguments, "-q").err


def test_bench_of_the_sample_refuses_a_device_that_is_missing(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphopt.ort import devices

    monkeypatch.setattr(devices, "probe_cuda", lambda index=0: devices.CudaStatus(False, "no driver"))
    outcome = invoke("bench", "--device", "cuda")
    assert outcome.status == 6 and "CUDA can't be used: no driver" in outcome.err


def test_optimizing_the_sample_writes_only_to_the_given_path(invoke: Invoke) -> None:
    before = sorted(sample_model.PATH.parent.iterdir())
    outcome = invoke("optimize", "--no-verify", "-O1")
    assert outcome.out.splitlines()[-1].endswith("graphopt optimize --no-verify -O1 MODEL.onnx")
    assert sorted(sample_model.PATH.parent.iterdir()) == before
    assert invoke("optimize", "--no-verify", "-O1", "-o", "out.onnx").status == 0 and os.path.exists(
        "out.onnx"
    )


def test_the_sample_can_be_written(invoke: Invoke) -> None:
    assert f"{sample_model.NODES} nodes" in invoke("sample").out and os.listdir() == []
    assert invoke("sample", "-o", "s.onnx").status == 0
    assert Path("s.onnx").read_bytes() == sample_model.PATH.read_bytes()
    assert invoke("sample", "-o", "s.json").status == 0 and json.loads(Path("s.json").read_text())


# Reproducers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["default", "two paths", "folder"])
def test_a_run_without_an_option_for_its_output_replays(
    invoke: Invoke, small: Path, tmp_path: Path, form: str
) -> None:
    copies(small, "models/a.onnx")
    words = {"default": [small], "two paths": [small, tmp_path / "new.onnx"], "folder": [tmp_path / "models"]}
    folder = tmp_path / "kept"
    assert invoke("optimize", *words[form], "--save-repro", folder, "--no-verify").status == 0
    before = sorted(folder.rglob("*"))
    outcome = invoke("replay", folder)
    assert outcome.status == 0, outcome.out
    assert sorted(folder.rglob("*")) == before
