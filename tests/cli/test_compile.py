"""``graphopt compile``, and the commands that accept its bundles."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from tests.fusion.backends.c.runtime.samples import compiled

from .conftest import SMALL, Invoke
from .test_bundles import MODEL


@pytest.fixture
def model(invoke: Invoke) -> str:
    """A model in the folder where commands run."""
    onnx.save(onnx.parser.parse_model(MODEL), "m.onnx")
    return "m.onnx"


def test_bundle_is_written_beside_the_model(invoke: Invoke, model: str) -> None:
    done = invoke("compile", model)
    assert done.status == 0, done.err
    assert "verified" in done.out and "wrote     m.gopt   3 files, " in done.out
    assert sorted(os.listdir("m.gopt")) == ["general.onnx", "manifest.json", "weights.bin"]
    assert json.loads(Path("m.gopt/manifest.json").read_text())["settings"]["settings"]["pipeline"] == "O3"
    assert invoke("compile", model, "-q").out == ""  # replaces it


def test_variants_for_a_profile(invoke: Invoke, model: str) -> None:
    assert invoke("profile", model, "--input-shape", "x:1x16,4x16", "-o", "p.json").status == 0
    found = json.loads(invoke("compile", model, "-o", "b", "--profile", "p.json", "--json").out)
    assert found["target"] == "b" and found["source"] == model
    assert [*found["files"]][:2] == ["manifest.json", "general.onnx"] and "static-2.onnx" in found["files"]
    assert all(size == Path("b", name).stat().st_size for name, size in found["files"].items())
    done = invoke("run", "b", "--input-shape", "x:4x16")
    assert done.status == 0 and "variant   static-2" in done.out + done.err
    assert invoke("verify", model, "b").status == 0


def test_zip_file(invoke: Invoke, model: str) -> None:
    done = invoke("compile", model, "--zip", "--report", "r.json")
    assert done.status == 0 and Path("m.gopt").is_file(), done.err
    assert json.loads(Path("r.json").read_text())["target"] == "m.gopt"
    for command in (["run"], ["inspect"], ["verify"], ["verify", model]):
        done = invoke(*command, "m.gopt")
        assert done.status == 0, done.err
    assert "in a zip file" in invoke("inspect", "m.gopt").out
    done = invoke("compile", model)
    assert done.status == 2 and "m.gopt is a bundle in the form of a zip file" in done.err


@pytest.mark.parametrize(
    ("options", "pipeline"),
    [
        (["-O", "1"], "O1"),
        (["--pipeline", "O2"], None),
        (["--passes", "dce"], "dce"),
        (["--fuser", "none"], None),
        ([], "O3"),
    ],
)
def test_pipeline(invoke: Invoke, model: str, options: list[str], pipeline: str | None) -> None:
    assert invoke("compile", model, "--no-verify", *options).status == 0
    record = json.loads(Path("m.gopt/manifest.json").read_text())["settings"]
    assert record["settings"].get("pipeline") == pipeline


def test_model_from_standard_input_needs_a_name(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    data = onnx.parser.parse_model(SMALL).SerializeToString()
    stdin = io.TextIOWrapper(io.BytesIO(data))
    monkeypatch.setattr(sys, "stdin", stdin)
    done = invoke("compile", "-")
    assert done.status == 2 and "hint: -o OUT.gopt" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cpu-level", "v5"], "--cpu-level: there is no level v5"),
        (["--variants", "2"], "--variants requires --profile"),
        (["-o", "notes"], "notes is not replaced: not a bundle"),
        (["-o", "notes/x.txt"], "notes/x.txt is a file, not a folder"),
        (["-o", "notes/x.txt", "--zip"], "notes/x.txt is not replaced: not a bundle"),
        (["-o", "missing/b"], "there is no folder missing"),
        (["-o", "m.onnx"], "m.onnx"),
        (["-o", "new.onnx"], "new.onnx has the suffix of a model"),
        (["-o", "new.onnx", "--zip"], "new.onnx has the suffix of a model"),
    ],
)
def test_wrong_arguments_are_refused(invoke: Invoke, model: str, arguments: list[str], words: str) -> None:
    Path("notes").mkdir()
    Path("notes/x.txt").write_text("mine")
    before = Path(model).read_bytes()
    done = invoke("compile", model, *arguments)
    assert done.status == 2 and words in done.err, done.err
    assert sorted(os.listdir()) == ["m.onnx", "notes"] and os.listdir("notes") == ["x.txt"]
    assert Path("notes/x.txt").read_text() == "mine" and Path(model).read_bytes() == before


@compiled
def test_library_of_kernels(invoke: Invoke, model: str) -> None:
    found = json.loads(invoke("compile", model, "--fuser", "native", "--json").out)
    if not found["cpu_levels"]:
        pytest.skip("not x86-64")
    assert found["cpu_levels"] == [2, 3, 4] and "kernels-x86-64-v2.so" in found["files"]
    for command in (["run", "m.gopt"], ["verify", "m.gopt"], ["verify", model, "m.gopt"]):
        for options in ([], ["--trusted"]):
            done = invoke(*command, *options)
            assert done.status == 0, done.err
    lines = " ".join(invoke("inspect", "m.gopt").out.split())
    assert "kernels for linux on x86_64-v2" in lines or "kernels for darwin" in lines
    done = invoke("compile", model, "--fuser", "native", "--cpu-level", "v3,v4", "--no-verify")
    assert done.status == 0 and "x86-64 v3, v4" in done.out


def test_bundle_alone_is_verified(invoke: Invoke, model: str) -> None:
    assert invoke("compile", model).status == 0
    done = invoke("verify", "m.gopt")
    assert done.status == 0 and "2 files correct, 1 model loaded on CPU" in done.out, done.err
    found = json.loads(invoke("verify", "m.gopt", "--json").out)
    assert (
        found["checked"]
        and found["models"] == ["general"]
        and set(found["files"])
        == {
            "general.onnx",
            "weights.bin",
        }
    )
    data = bytearray(Path("m.gopt/weights.bin").read_bytes())
    Path("m.gopt/weights.bin").write_bytes(bytes(len(data)))
    done = invoke("verify", "m.gopt")
    assert done.status == 3 and "weights.bin does not match its checksum" in done.err


@pytest.mark.parametrize("options", [["--exact"], ["--input-shape", "x:1x16"], ["--dim", "N=1"]])
def test_options_of_comparisons_need_two_models(invoke: Invoke, model: str, options: list[str]) -> None:
    assert invoke("compile", model, "--no-verify").status == 0
    done = invoke("verify", "m.gopt", *options)
    assert done.status == 2 and "needs a model to compare with" in done.err


def test_one_model_is_not_verified(invoke: Invoke, model: str) -> None:
    done = invoke("verify", model)
    assert done.status == 2 and "verify compares two models, and only m.onnx is given" in done.err


@pytest.mark.parametrize("command", [["run"], ["verify"], ["verify", "m.onnx"]])
def test_only_bundles_are_trusted(invoke: Invoke, model: str, command: list[str]) -> None:
    done = invoke(*command, model, "--trusted")
    assert done.status == 2 and "--trusted has no effect on m.onnx" in done.err


def test_suffix_of_bundles_names_the_command(invoke: Invoke, model: str) -> None:
    done = invoke("optimize", model, "-o", "out.gopt")
    assert done.status == 2 and "hint: graphopt compile MODEL -o out.gopt writes a bundle" in done.err


@pytest.mark.parametrize("form", [[], ["--zip"]])
def test_bench_measures_the_variant_for_the_inputs(invoke: Invoke, model: str, form: list[str]) -> None:
    assert invoke("profile", model, "--input-shape", "x:1x16,4x16", "-o", "p.json").status == 0
    done = invoke("compile", model, "--profile", "p.json", "--no-verify", *form)
    assert done.status == 0, done.err
    bench = [
        "bench",
        "--rounds",
        1,
        "--processes",
        1,
        "--warmup",
        1,
        "--json",
        "--input-shape",
        "x:4x16,3x16",
    ]
    found = json.loads(invoke(*bench, model, "m.gopt").out)["tables"]
    names = [[row["name"] for row in table["models"]] for table in found]
    assert names == [["m.onnx", "m.gopt (static-2)"], ["m.onnx", "m.gopt (general)"]]
    found = json.loads(invoke(*bench, "m.gopt").out)["tables"]
    assert [[row["name"] for row in table["models"]] for table in found] == [
        ["general", "static-2"],
        ["general"],
    ]
    done = invoke("bench", "m.gopt", "--against", "onnxslim")
    assert done.status == 2 and "--against needs one model; several, and bundles, are compared" in done.err


def test_moved_bundle_runs(invoke: Invoke, model: str) -> None:
    assert invoke("compile", model, "--no-verify").status == 0
    Path("other").mkdir()
    shutil.move("m.gopt", "other/renamed")
    assert invoke("run", "other/renamed").status == 0


def test_inspect_reads_bundles_of_other_targets(invoke: Invoke, model: str) -> None:
    from graphopt.util.file_sums import checksum

    assert invoke("compile", model, "--no-verify").status == 0
    path = Path("m.gopt/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["target"] |= {"system": "plan9", "machine": "vax"}
    path.write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
    done = invoke("inspect", "m.gopt")
    assert done.status == 0 and "kernels for plan9 on vax" in done.out, done.err
    done = invoke("run", "m.gopt")
    assert done.status == 4 and "this machine is" in done.err and "hint:" in done.err


def test_zip_file_is_recorded_in_reproducers(invoke: Invoke, model: str) -> None:
    assert invoke("compile", model, "--zip", "--no-verify").status == 0
    assert invoke("run", "m.gopt", "--save-repro", "repro").status == 0
    Path("m.gopt").unlink()
    assert invoke("replay", "repro").status == 0


def test_paths_that_are_not_models(invoke: Invoke, model: str) -> None:
    """The errors of ``compile`` for folders, bundles and zip files of bundles; nothing is written."""
    assert invoke("compile", model, "--no-verify").status == 0
    assert invoke("compile", model, "--no-verify", "--zip", "-o", "z.gopt").status == 0
    shutil.make_archive("nested", "zip", ".", "m.gopt")
    before = sorted(Path().rglob("*"))
    for path, words in {
        ".": ". is a folder, not a model",
        "/": "/ is a folder, not a model",
        "m.gopt": "m.gopt is a bundle, not a model",
        "z.gopt": "z.gopt is not an ONNX model, but a zipped bundle",
        "nested.zip": "unzip nested.zip; the bundle is m.gopt/",
        "none.onnx": "no such file: none.onnx",
    }.items():
        done = invoke("compile", path)
        assert done.status in (2, 3) and words in done.err and "hint: " in done.err, (path, done.err)
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("command", [["optimize"], ["explain"], ["dump"], ["cache", "explain"], ["kernels"]])
def test_bundles_in_place_of_models(invoke: Invoke, model: str, command: list[str]) -> None:
    assert invoke("compile", model, "--no-verify").status == 0
    done = invoke(*command, "m.gopt")
    assert done.status == 2 and "m.gopt is a bundle, not a model" in done.err
    assert "accept bundles; one of its models is m.gopt/general.onnx" in done.err


def test_verify_names_a_missing_bundle(invoke: Invoke, model: str) -> None:
    assert invoke("compile", model, "--no-verify").status == 0
    done = invoke("verify", "m.gop")
    assert done.status == 2 and "no such file: m.gop" in done.err
    done = invoke("verify", model)
    assert done.status == 2 and "verify compares two models" in done.err


def recorded(path: str) -> dict[str, Any]:
    found = json.loads(Path(path, "manifest.json").read_text())["settings"]
    assert isinstance(found, dict)
    return found


def models(path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(Path(path).iterdir())}


def test_arguments_of_compile_are_recorded_and_applied_again(invoke: Invoke, model: str) -> None:
    profiled = invoke("profile", model, "--input-shape", "x:1x16", "--input-shape", "x:4x16", "-o", "p.json")
    assert profiled.status == 0, profiled.err
    options = ["--profile", "p.json", "--variants", "1", "--fusion-strategy", "static:2", "-O2"]
    assert invoke("compile", model, "-o", "a.gopt", "--no-verify", *options).status == 0
    record = recorded("a.gopt")
    assert record["operation"] == "aot_compile"
    assert {**record["arguments"], "profile": None} == {
        "most": 1,
        "pipeline": "O2",
        "profile": None,
        "strategy": "static:2",
    }
    shown = invoke("config", "show", "a.gopt").out.splitlines()[0]
    assert shown.startswith("  a.gopt: aot_compile, graphopt ")
    again = ("compile", model, "-o", "b.gopt", "--config", "a.gopt")
    lacking = invoke(*again)
    assert lacking.status == 2 and not Path("b.gopt").exists()
    assert "a.gopt: profile was a file with the SHA-256 " in lacking.err
    assert "hint: give --profile again" in lacking.err
    repeated = invoke(*again, "--profile", "p.json")
    assert repeated.status == 0 and "ignored" not in repeated.err, repeated.err
    assert models("a.gopt") == models("b.gopt")
    assert invoke(*again[:3], "c.gopt", *again[4:], "--profile", "p.json", "--variants", "2").status == 0
    assert recorded("c.gopt")["arguments"]["most"] == 2


def test_form_of_a_bundle_is_recorded_and_applied_again(invoke: Invoke, model: str) -> None:
    assert invoke("compile", model, "--zip", "-o", "a.gopt", "--no-verify", "-O1").status == 0
    assert invoke("compile", model, "-o", "b.gopt", "--config", "a.gopt").status == 0
    assert Path("b.gopt").read_bytes() == Path("a.gopt").read_bytes()
    assert invoke("compile", model, "-o", "c.gopt", "--config", "a.gopt", "--no-zip").status == 0
    assert Path("c.gopt").is_dir()


@pytest.mark.parametrize(
    ("options", "environ", "pipeline"),
    [
        (["--set", "pipeline=O2"], {}, "O2"),
        ([], {"GRAPHOPT_PIPELINE": "O2"}, "O2"),
        (["--pipeline", "O2"], {"GRAPHOPT_PIPELINE": "O1"}, "O2"),
        ([], {}, "O3"),
    ],
)
def test_each_source_selects_the_pipeline(
    invoke: Invoke, model: str, options: list[str], environ: dict[str, str], pipeline: str
) -> None:
    assert invoke("compile", model, "--no-verify", *options, environ=environ).status == 0
    record = recorded("m.gopt")
    assert {**record["arguments"], **record["settings"]}["pipeline"] == pipeline


def test_ignored_arguments_are_named(invoke: Invoke, model: str) -> None:
    assert invoke("compile", model, "--zip", "-o", "a.gopt", "--no-verify", "-O1").status == 0
    outcome = invoke("optimize", model, "-o", "o.onnx", "--config", "a.gopt")
    assert outcome.status == 0
    assert "  ignored   archive: arguments of aot_compile in a.gopt" in outcome.err.splitlines()


@pytest.mark.parametrize("argument", [{"most": "1"}, {"cpu_levels": ["v3"]}, {"archive": 1}, {"strategy": 3}])
def test_damaged_arguments_are_refused(invoke: Invoke, model: str, argument: dict[str, Any]) -> None:
    assert invoke("compile", model, "-o", "a.gopt", "--no-verify", "--report", "report.json").status == 0
    report = json.loads(Path("report.json").read_text())
    report["settings"] = {**report["settings"], "operation": "aot_compile", "arguments": argument}
    Path("report.json").write_text(json.dumps(report))
    outcome = invoke("compile", model, "-o", "b.gopt", "--config", "report.json")
    assert outcome.status == 3 and f"record of settings is damaged: {next(iter(argument))} is" in outcome.err


@pytest.mark.parametrize(("old", "new"), [("--zip", "--no-zip"), ("--no-zip", "--zip")])
def test_bundle_is_not_replaced_by_the_other_form(invoke: Invoke, model: str, old: str, new: str) -> None:
    assert invoke("compile", model, "--no-verify", old).status == 0
    before = Path("m.gopt").is_file()
    refused = invoke("compile", model, "--no-verify", new)
    assert refused.status == 2 and refused.err.splitlines() == [
        f"graphopt: m.gopt is a bundle in the form of a {'zip file' if before else 'folder'},"
        " and can't be replaced by another form",
        f"hint: {old}, or another path",
    ]
    assert Path("m.gopt").is_file() == before
    assert invoke("compile", model, "--no-verify", old).status == 0
