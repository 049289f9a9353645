"""``graphopt config``, ``--config``, and the records of settings in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt import config
from graphopt.errors import UsageError
from graphopt.executor.executor import Executor
from tests.cli.conftest import Invoke

SECRET = "s3://me:secret@bucket/results"


def metadata(path: Path | str) -> dict[str, str]:
    return {item.key: item.value for item in onnx.load(path, load_external_data=False).metadata_props}


def show(invoke: Invoke, *words: object, environ: dict[str, str] | None = None) -> dict[str, Any]:
    done = invoke("config", "show", *words, "--json", environ=environ)
    assert done.status == 0, done.err
    found: dict[str, Any] = json.loads(done.out)["settings"]
    return found


def test_show_names_the_source_of_each_value(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.other]\nseed = 1\n\n[tool.graphopt]\nseed = 2\nskip = ["cse"]\nexact = true\n')
    environ = {"GRAPHOPT_FOLD_LIMIT": "1KiB", "GRAPHOPT_SKIP": "dce"}
    found = show(invoke, "--set", "verify=false", "-O3", "--dim", "B=2", environ=environ)
    sources = {name: item["source"] for name, item in found.items() if item["source"] != "default"}
    assert sources == {
        "seed": f"seed in {file}:5",
        "skip": "GRAPHOPT_SKIP",
        "exact": f"exact in {file}:7",
        "fold_limit": "GRAPHOPT_FOLD_LIMIT",
        "verify": "--set verify",
        "pipeline": "command line",
        "dims": "command line",
        "cache_dir": "environment",
        "cache": "environment",  # of the tests
    }
    assert found["skip"]["value"] == ["dce"] and found["fold_limit"] == {
        "value": 1024,
        "default": 65536,
        "source": "GRAPHOPT_FOLD_LIMIT",
    }
    text = invoke("config", "show", "--origin", environ=environ).out
    assert f"seed in {file}:5" in text and "origin" in text
    assert "origin" not in invoke("config", "show").out


def test_a_settings_file_replaces_the_nearest_one(invoke: Invoke, tmp_path: Path) -> None:
    Path("graphopt.toml").write_text("exact = true\n")
    other = tmp_path / "other.toml"
    other.write_text('# one\n"fold-limit" = "2KiB"\n')
    found = show(invoke, "--config", other)
    assert found["exact"]["value"] is False
    assert found["fold_limit"]["source"] == f"fold-limit in {other}:2"
    assert show(invoke, other)["fold_limit"] == found["fold_limit"]
    assert show(invoke)["exact"]["value"] is True
    assert show(invoke, "--config", other, "--set", "fold-limit=3")["fold_limit"]["value"] == 3


def test_a_result_shows_its_settings_and_applies_them_again(invoke: Invoke, small: Path) -> None:
    words = ["optimize", small, "--exact", "--dim", "N=2", "--pre-pass", "cse"]
    assert invoke(*words, "-o", "a.onnx", "--report", "a.json").status == 0
    for name in ("a.onnx", "a.json"):
        found = show(invoke, name)
        changed = {key: item["value"] for key, item in found.items() if item["source"] == "recorded"}
        assert changed == {"exact": True, "dims": {"N": 2}, "pre_passes": ["cse"]}
    text = invoke("config", "show", "a.onnx").out
    assert f"a.onnx: optimize, graphopt {graphopt.__version__}" in text and "fold-limit" not in text
    assert "fold-limit" in invoke("config", "show", "a.onnx", "-v").out
    for name in ("a.onnx", "a.json"):
        assert invoke("optimize", small, "-o", "b.onnx", "--config", name).status == 0
        assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert invoke("optimize", small, "-o", "a.onnx", "--config", "a.onnx").status == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    assert invoke("optimize", small, "-o", "c.onnx", "--config", "a.onnx", "--dim", "N=3").status == 0
    assert json.loads(metadata("c.onnx")["graphopt:settings"])["settings"]["dims"] == {"N": 3}
    assert "settings" in invoke("inspect", "a.onnx").out and "exact = true" in invoke("inspect", "a.onnx").out
    assert json.loads(invoke("inspect", "a.onnx", "--json").out)["settings"]["settings"]["exact"] is True


def test_reproducers_of_runs_with_a_record_replay(invoke: Invoke, small: Path) -> None:
    assert invoke("optimize", small, "-o", "a.onnx", "--exact", "--dim", "N=2").status == 0
    assert invoke("optimize", small, "-o", "b.onnx", "--config", "a.onnx", "--save-repro", "r").status == 0
    arguments = json.loads(Path("r/command.json").read_text())["arguments"]
    assert "--config" not in arguments and arguments[1:3] == ["--dim", "N=2"]
    Path("a.onnx").unlink()
    assert invoke("replay", "r").status == 0


def test_diff_has_status_1_if_settings_differ(invoke: Invoke, small: Path) -> None:
    invoke("optimize", small, "-o", "a.onnx", "--exact", "--report", "a.json")
    invoke("optimize", small, "-o", "b.onnx", "-O1", "--seed", "7")
    invoke("optimize", small, "-o", "c.onnx")
    same = invoke("config", "diff", "a.onnx", "a.json")
    assert (same.status, same.out) == (0, "  no differences\n")
    done = invoke("config", "diff", "a.onnx", "b.onnx", "--json")
    assert done.status == 1 and json.loads(done.out)["differences"] == [
        {"name": "exact", "a": True, "b": False},
        {"name": "pipeline", "a": "O2", "b": "O1"},
        {"name": "seed", "a": 0, "b": 7},
    ]
    lines = invoke("config", "diff", "a.onnx", "defaults").out.splitlines()
    assert [line.split() for line in lines] == [["setting", "a.onnx", "defaults"], ["exact", "true", "false"]]
    assert invoke("config", "diff", "a.onnx", "current", "--exact").status == 0
    assert invoke("config", "diff", "defaults", "current", environ={"XDG_CACHE_HOME": "x"}).status == 1
    none = invoke("config", "diff", "c.onnx", "defaults")
    assert none.status == 0 and "c.onnx: no settings are recorded" in none.out
    Path("s.toml").write_text("exact = true\n")
    assert invoke("config", "diff", "s.toml", "a.onnx").status == 0
    assert invoke("config", "diff", "s.toml", "defaults", "--json").status == 1


def test_stored_results_have_the_bytes_of_new_ones(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    environ = {"GRAPHOPT_CACHE": "true", "GRAPHOPT_CACHE_DIR": str(tmp_path / "store")}
    array = tmp_path / "x.npy"
    np.save(array, np.ones((2, 4), np.float32))
    runs = {
        "plain": ["--exact", "-O3", "--dim", "N=2"],
        "inputs": ["--input", f"x:{array}", "--set", "costs=shipped"],
        "off": ["--exact", "--no-record-settings"],
    }
    for name, words in runs.items():
        found = []
        for number, more in enumerate(([], [], ["--no-cache"])):
            out = Path(f"{name}{number}.onnx")
            done = invoke("optimize", small, "-o", out, *words, *more, "--json", environ=environ)
            assert done.status == 0, done.err
            data = json.loads(done.out)
            assert (data["cache"] or {"hit": False})["hit"] is (number == 1)
            found.append((out.read_bytes(), data["settings"]))
        assert found[0] == found[1] == found[2]
        assert ("graphopt:settings" in metadata(f"{name}0.onnx")) is (name == "plain" or name == "inputs")


def test_records_have_no_paths_users_or_credentials(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    environ = {"GRAPHOPT_CACHE_URL": SECRET, "GRAPHOPT_CACHE_DIR": str(tmp_path / "private")}
    words = [
        "--exact",
        "--set",
        f"allow-external={tmp_path / 'private'}",
        "--set",
        f"compiler=gcc -I{tmp_path}",
    ]
    out = ["-o", "a.onnx", "--report", "r.json", "--save-repro", "kept"]
    assert invoke("optimize", small, *out, *words, environ=environ).status == 0
    written = [
        metadata("a.onnx")["graphopt:settings"],
        json.dumps(json.loads(Path("r.json").read_text())["settings"]),
    ]
    assert all("exact" in text and "compiler" in text for text in written)
    toml = Path("kept/graphopt.toml").read_text()
    for text in (*written, toml):
        assert "secret" not in text and str(tmp_path / "private") not in text
    assert all(str(tmp_path) not in text for text in written)
    shown = invoke("config", "show", environ=environ).out
    assert "secret" not in shown and "s3://***@bucket/results" in shown


def test_reproducers_of_rewrites_have_a_record(invoke: Invoke, small: Path) -> None:
    words = ["--post-pass", "tests.cli.broken_passes:ReluToSigmoid", "--exact"]
    done = invoke("bisect", small, *words, "-o", "kept")
    assert done.status == 1, done.err
    assert show(invoke, "kept")["exact"]["value"] is True
    assert invoke("replay", "kept").status == 1


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["config", "shown"], 2, "nearest: show"),
        (["config", "show", "none.toml"], 2, "no such file: none.toml"),
        (["config", "show", "a", "b"], 2, "show takes one file"),
        (["config", "diff", "small.onnx"], 2, "diff compares two"),
        (["config", "show", "bad.toml"], 2, "can't read the settings in bad.toml"),
        (["config", "show", "typo.toml"], 2, "nearest: exact"),
        (["config", "show", "bad.onnx"], 3, "bad.onnx"),
        (["config", "show", "bad.json"], 3, "bad.json is not JSON"),
        (["config", "show", "bad.zip"], 2, "zip file without manifest.json"),
        (["config", "show", "folder"], 2, "folder has no settings"),
        (
            ["config", "diff", "defaults", "damaged.json"],
            3,
            "damaged.json: the record of settings is damaged",
        ),
        (
            ["optimize", "small.onnx", "-o", "o.onnx", "--config", "small.onnx"],
            2,
            "has no record of settings",
        ),
        (
            ["optimize", "small.onnx", "-o", "o.onnx", "--config", "unknown.json"],
            2,
            "'exat', which is no setting",
        ),
        (["optimize", "small.onnx", "-o", "o.onnx", "--config", "none.onnx"], 2, "no such file"),
        (
            ["run", "small.onnx", "--config", "dims.json"],
            2,
            "records --dim, which is no option of graphopt run",
        ),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else None,
)
def test_bad_input(invoke: Invoke, small: Path, words: list[str], status: int, message: str) -> None:
    Path("small.onnx").write_bytes(small.read_bytes())
    Path("bad.toml").write_text("exact = = 3")
    Path("typo.toml").write_text("exat = true")
    Path("bad.onnx").write_bytes(b"no model")
    Path("bad.json").write_text("{")
    Path("damaged.json").write_text('{"settings": {"version": "1"}}')
    Path("unknown.json").write_text('{"settings": {"version": "1", "settings": {"exat": true}}}')
    Path("dims.json").write_text('{"settings": {"version": "1", "settings": {"dims": {"N": 2}}}}')
    Path("bad.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    Path("folder").mkdir()
    done = invoke(*words)
    assert (done.status, message in done.err) == (status, True), done.err
    assert len(done.err.splitlines()) <= 2 and not Path("o.onnx").exists()


def test_library_calls_read_no_settings_file_unless_asked(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "graphopt.toml").write_text("not = = toml")
    monkeypatch.chdir(folder)
    feeds = {"x": np.ones((1, 4), np.float32)}
    assert graphopt.optimize(small).report.pipeline
    graphopt.save(graphopt.load(small), "copy.onnx")
    executor = graphopt.compile(small)
    assert isinstance(executor, Executor) and executor(feeds)["y"].shape == (1, 4)
    graphopt.run(small, feeds)
    profile = graphopt.record_profile(small, [feeds])
    from graphopt.specialization.build_variants import Specialization
    from graphopt.specialization.bundle.save import save_bundle

    save_bundle(graphopt.specialize(small, Specialization(profile), bundle=True), "b.bundle")
    for bundle in (graphopt.Bundle("b.bundle"), graphopt.load("b.bundle")):
        assert isinstance(bundle, graphopt.Bundle) and bundle.run(feeds)["y"].shape == (1, 4)
    step = graphopt.train_step(_linear(), "mse:y,t")
    graphopt.Trainer(step).step({"x": np.ones((1, 2), np.float32), "t": np.ones((1, 2), np.float32)})
    with pytest.raises(UsageError, match=r"can't read the settings in graphopt\.toml"):
        graphopt.optimize(small, settings="graphopt.toml")
    Path("graphopt.toml").write_text("exact = true\n")
    for settings in ("graphopt.toml", Path("graphopt.toml"), config.Settings(exact=True)):
        assert (
            "exact" in graphopt.optimize(small, settings=settings).model.metadata_props["graphopt:settings"]
        )
        assert graphopt.Compiler(settings=settings).settings.exact
    assert not graphopt.Compiler().settings.exact
    monkeypatch.setenv("GRAPHOPT_EXACT", "false")
    assert not graphopt.Compiler(settings="graphopt.toml").settings.exact


def _linear() -> graphopt.Model:
    from tests.model_testing import parse

    return parse("m (float[B,2] x) => (float[B,2] y) <float[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }")
